"""Reduction over the axes along which the declared output is shorter than the input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cudnn_aot.compiler.reference.call import Array, Call, Reference, Results, with_negatives
from cudnn_aot.compiler.reference.groups import boundaries

_Reduce = Callable[[Array, tuple[int, ...]], Array]


def _amax(x: Array, axes: tuple[int, ...]) -> Array:
    return np.abs(with_negatives(x)).max(axis=axes, keepdims=True, initial=0)


def _extreme(choose: np.ufunc, neutral: float) -> _Reduce:
    """Of int64 exactly, which has no infinity for none at all."""

    def reduce(x: Array, axes: tuple[int, ...]) -> Array:
        initial = None if x.size and x.dtype == np.int64 else neutral
        return np.asarray(choose.reduce(x, axis=axes, keepdims=True, initial=initial))

    return reduce


def _average(x: Array, axes: tuple[int, ...]) -> Array:
    total = x.sum(axis=axes, keepdims=True)
    return total / (x.size // total.size) if x.size else np.full(total.shape, np.nan)


_MODES: dict[str, _Reduce] = {
    "ADD": lambda x, axes: x.sum(axis=axes, keepdims=True),
    "MUL": lambda x, axes: x.prod(axis=axes, keepdims=True),
    "MIN": _extreme(np.minimum, np.inf),
    "MAX": _extreme(np.maximum, -np.inf),
    "AMAX": _amax,
    "AVG": _average,
    "NORM1": lambda x, axes: np.abs(x).sum(axis=axes, keepdims=True),
    "NORM2": lambda x, axes: np.sqrt((x * x).sum(axis=axes, keepdims=True)),
    "MUL_NO_ZEROS": lambda x, axes: np.where(x == 0, 1.0, x).prod(axis=axes, keepdims=True),
}


_CHOICES = ("MIN", "MAX", "AMAX")


def _reduction(call: Call) -> Results:
    """The mode's value over each reduced axis; nothing to reduce still applies the mode (AMAX of
    one number is its magnitude). Over no element: 0, 1 for the products, the infinities for MIN
    and MAX, NaN for AVG.

    With ``group_offset``, starts or boundaries as for `moe_grouped_matmul`, one axis has as many
    outputs as groups: each reduces its own rows. Which axis that is the public description leaves
    open; taken is the one whose output extent is the number of groups and not the input's extent
    (the first such).
    """
    mode, dim = call.choice("mode", "NOT_SET"), call.dim("OUT_0")
    if mode not in _MODES:
        raise call.refuse(f"mode: got {mode}, want one of {', '.join(_MODES)}")
    x = call.exact("input") if mode in _CHOICES else call["input"]
    if len(dim) != x.ndim:
        raise call.refuse(f"output rank: got {len(dim)}, want the input's {x.ndim}")
    reduce = _MODES[mode]
    if "group_offset" in call.inputs:
        return {"OUT_0": _grouped(call, reduce, x, dim)}
    for axis, extent in enumerate(dim):
        if extent not in (1, x.shape[axis]):
            raise call.refuse(f"output axis {axis}: got {extent}, want 1 or {x.shape[axis]}")
    axes = tuple(axis for axis in range(x.ndim) if dim[axis] != x.shape[axis])
    return {"OUT_0": reduce(x, axes)}


def _grouped(call: Call, reduce: _Reduce, x: Array, dim: tuple[int, ...]) -> Array:
    offsets = call.integers("group_offset").reshape(-1)
    for axis in range(x.ndim):
        if dim[axis] != x.shape[axis] and dim[axis] in (len(offsets), len(offsets) - 1):
            break
    else:
        raise call.refuse(f"output dim {dim} has no axis of {len(offsets)} groups")
    edges = boundaries(offsets, dim[axis], x.shape[axis])
    axes = tuple(i for i in range(x.ndim) if i == axis or dim[i] != x.shape[i])
    parts = [
        reduce(np.take(x, np.arange(start, end), axis=axis), axes)
        for start, end in zip(edges[:-1], edges[1:], strict=True)
    ]
    return np.concatenate(parts, axis=axis)


REFERENCES: dict[str, Reference] = {"reduction": _reduction}
