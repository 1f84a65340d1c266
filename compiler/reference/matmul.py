"""Matrix products, computed a block of columns at a time so that a large B is never whole in
float64.
"""

from __future__ import annotations

import math

import numpy as np

from cudnn_aot.compiler.reference.call import Array, Call, Reference, Results

_BLOCK_BYTES = 64 << 20  # of B in float64 at a time: a weight matrix may have hundreds of megabytes


def _matmul(call: Call) -> Results:
    """``[..., M, K] @ [..., K, N]``, batches broadcast."""
    padding = call.attr("padding", 0.0)
    if padding:
        raise call.refuse(f"padding: got {padding}, want 0")
    return {"C": matmul(call["A"], np.asarray(call.inputs["B"]))}


def matmul(a: Array, b: Array) -> Array:
    """The product in float64; `b` may be of any type, and is widened a block at a time."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = np.empty((*batch, a.shape[-2], b.shape[-1]))
    a = a.astype(np.float64, copy=False)
    rows = max(1, math.prod(b.shape[:-1]))
    step = max(1, _BLOCK_BYTES // (8 * rows))
    for start in range(0, b.shape[-1], step):
        columns = slice(start, start + step)
        np.matmul(a, b[..., columns].astype(np.float64), out=out[..., columns])
    return out


REFERENCES: dict[str, Reference] = {"matmul": _matmul}
