"""What the kernels that stream B have in common: their operands, and 16-byte loads along K."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.base_dsl.enums import AddressSpace
from cutlass.cute.runtime import make_fake_stream

from cudnn_aot.recipes.gemm.kernels import operands
from cudnn_aot.recipes.trace.template import KernelTemplate

WARP = 32
WARPS = 8
THREADS = WARP * WARPS
VECTOR = 8  # elements of a 16-byte load


def starts(
    t: cute.Tensor, rows: Sequence[Int32], batch: Int32, within: Int64 | int = 0
) -> list[Int64]:
    """Offsets of rows of an operand, ``within`` elements behind their first; those past the end are
    its last, whose sums nobody stores.
    """
    base = cutlass.min(batch, t.shape[2] - 1).to(Int64) * t.stride[2] + within
    last = t.shape[0] - 1
    return [base + cutlass.min(row, last).to(Int64) * t.stride[0] for row in rows]


def load(t: cute.Tensor, rows: Sequence[Int64], k0: Int32) -> list[cute.Tensor]:
    """16 bytes from ``k0`` on of each row."""
    loaded = []
    for start in rows:
        pointer = (t.iterator + (start + k0.to(Int64))).align(16)
        to = cute.make_rmem_tensor((VECTOR,), t.element_type)
        cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(VECTOR)), to)
        loaded.append(to)
    return loaded


def template(
    make: Callable[..., Any], menu: Mapping[str, Sequence[int]], params: Mapping[str, Any]
) -> KernelTemplate:
    """The kernel that ``make(epilogue, dtype, **params)`` gives, and its arguments.

    Raises:
        ValueError: a parameter is off the menu.
    """
    for name, values in menu.items():
        if params[name] not in values:
            wanted = ", ".join(map(str, values))
            raise ValueError(f"{name}: got {params[name]!r}, want one of {wanted}")
    epilogue, dtype = params["epilogue"], operands.named_dtype(params["ab_dtype"])
    space, extents = AddressSpace.gmem, operands.Extents()
    a = operands.tma_stride(dtype, (extents.m, extents.k, cute.sym_int()), 1)
    b = operands.tma_stride(dtype, (extents.n, extents.k, cute.sym_int()), 1)
    aux = operands.epilogue_inputs(epilogue, extents, space)
    outs = operands.epilogue_outputs(epilogue, extents, space, tma=False)
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    kernel = make(epilogue, dtype, **{name: params[name] for name in menu})
    return KernelTemplate(kernel, (Int32(1), a, b, stream, *aux, *outs), kernel.smem_bytes)
