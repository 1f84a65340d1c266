"""How long a kernel takes to compile, told from its spec: what orders and divides work.

Measured with the GEMM templates on one core: two seconds for a kernel of a GPU, three for one of
the host, and more with what the template has to trace, which the length of its parameters stands
for. Only order and rough ratios matter: a wrong estimate costs balance, never bytes.
"""

from __future__ import annotations

from cudnn_aot.cache.canonical import canonical_bytes
from cudnn_aot.cache.spec import KernelSpec

_HOST_S, _GPU_S, _PER_PARAMETER_BYTE_S = 3.0, 2.0, 0.005


def estimated_seconds(spec: KernelSpec) -> float:
    """Seconds that a warm worker needs."""
    base = _GPU_S if spec.gpu_arch else _HOST_S
    return base + _PER_PARAMETER_BYTE_S * len(canonical_bytes(dict(spec.params)))


def longest_first(specs: list[KernelSpec]) -> list[KernelSpec]:
    """The specs in the order to compile them: a long one that starts last is waited for alone."""
    return sorted(specs, key=lambda spec: (-estimated_seconds(spec), spec.key))
