"""What every op computes: one numpy float64 function per row of the op table.

A function takes the operands in port order, then the attributes by name with their defaults filled
in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from cudnn_aot.errors import InvalidGraphError

Array: TypeAlias = np.ndarray[Any, Any]

_BLOCK_BYTES = 64 << 20  # of B in float64 at a time: a weight matrix may have hundreds of megabytes

_erfc = np.frompyfunc(math.erfc, 1, 1)


def _matmul(a: Array, b: Array, padding: float) -> Array:
    if padding:
        raise InvalidGraphError(f"the reference has no matmul with padding {padding}, want 0")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = np.empty((*batch, a.shape[-2], b.shape[-1]))
    a = a.astype(np.float64)
    rows = max(1, math.prod(b.shape[:-1]))
    step = max(1, _BLOCK_BYTES // (8 * rows))
    for start in range(0, b.shape[-1], step):
        columns = slice(start, start + step)
        np.matmul(a, b[..., columns].astype(np.float64), out=out[..., columns])
    return out


def _relu(x: Array, negative_slope: float, lower_clip: float, upper_clip: float | None) -> Array:
    """Continuous at the lower clip: the slope applies to what lies below it."""
    y = np.where(x < lower_clip, lower_clip + negative_slope * (x - lower_clip), x)
    return y if upper_clip is None else np.where(y > upper_clip, upper_clip, y)


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))  # no overflow on either side
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _gelu(x: Array) -> Array:
    """``x * Phi(x)`` through erfc, which keeps the digits of the negative tail."""
    return 0.5 * x * np.asarray(_erfc(x * -math.sqrt(0.5)), np.float64)


def _gelu_approx_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


REFERENCES: dict[str, Callable[..., Array]] = {
    "matmul": _matmul,
    "add": np.add,
    "mul": np.multiply,
    "bias": np.add,
    "scale": np.multiply,
    "identity": np.positive,
    "relu": _relu,
    "gelu": _gelu,
    "gelu_approx_tanh": _gelu_approx_tanh,
    "swish": lambda x, swish_beta: x * _sigmoid(swish_beta * x),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
}
