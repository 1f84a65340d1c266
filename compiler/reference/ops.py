"""Which function computes each op: the rows of every kind's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cudnn_aot.compiler.reference import (
    attention,
    attention_backward,
    attention_fp8,
    batchnorm,
    convolution,
    linear_attention,
    linear_attention_backward,
    mamba2,
    matmul,
    moe,
    norms,
    pointwise,
    quantize,
    reductions,
    rope,
    shapes,
)
from cudnn_aot.compiler.reference.call import Array, Call, Declared, Reference
from cudnn_aot.errors import InvalidGraphError

_KINDS = (
    matmul,
    pointwise,
    norms,
    batchnorm,
    reductions,
    quantize,
    moe,
    convolution,
    shapes,
    rope,
    attention,
    attention_backward,
    attention_fp8,
    linear_attention,
    linear_attention_backward,
    mamba2,
)

REFERENCES: dict[str, Reference] = {
    name: reference for kind in _KINDS for name, reference in kind.REFERENCES.items()
}


def compute(call: Call) -> dict[str, Array]:
    """The wanted outputs of a node, in float64; refuses an op or an output without a reference."""
    reference = REFERENCES.get(call.op)
    if reference is None:
        raise InvalidGraphError(f"op {call.op!r} has no reference")
    with np.errstate(all="ignore"):
        results = reference(call)
    missing = [port for port in call.wanted if port not in results]
    if missing:
        raise call.refuse(f"no output {missing[0]} (it gives {', '.join(results)})")
    return {port: np.asarray(results[port]) for port in (call.wanted or results)}


def apply(op: str, inputs: Mapping[str, Any], /, **attrs: Any) -> dict[str, Array]:
    """Every output of one op on arrays by port, where the inputs alone determine them.

    An attribute ``wanted`` is not the op's: it declares outputs, by port, as a shape or `Declared`.
    """
    wanted = {
        port: given if isinstance(given, Declared) else Declared(tuple(given))
        for port, given in attrs.pop("wanted", {}).items()
    }
    arrays = {port: np.asarray(array) for port, array in inputs.items() if array is not None}
    call = Call(op, arrays, attrs, wanted)
    with np.errstate(all="ignore"):
        return dict(REFERENCES[op](call))
