"""Ops that move values and compute none: reshape, slice, transpose, concatenate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cudnn_aot.compiler.reference.call import Array, Call, Declared, Reference, Results


def _reshape(call: Call) -> Results:
    """``LOGICAL`` keeps the row-major order of the elements, ``VIEW_ONLY`` their addresses.

    Both are the same for a row-major input and output, which undeclared strides stand for.
    """
    x, dim = call.moved("input"), call.dim("OUT_0")
    if math.prod(dim) != x.size:
        raise call.refuse(f"output: got {math.prod(dim)} elements, want the input's {x.size}")
    if call.choice("reshape_mode", "VIEW_ONLY") == "LOGICAL" or not x.size:
        return {"OUT_0": x.reshape(dim)}
    source, target = call.declared.get("input", Declared()), call.wanted["OUT_0"]
    memory = np.zeros(_span(x.shape, source.stride) or x.size, x.dtype)
    _strided(memory, x.shape, source.stride)[...] = x
    if _span(dim, target.stride) > len(memory):
        raise call.refuse(f"output: strides {target.stride} reach beyond the input's elements")
    return {"OUT_0": _strided(memory, dim, target.stride).copy()}


def _span(dim: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last; 0 without strides."""
    if not stride:
        return 0
    return 1 + sum((extent - 1) * step for extent, step in zip(dim, stride, strict=True))


def _strided(memory: Array, dim: tuple[int, ...], stride: tuple[int, ...]) -> Array:
    if not stride:
        return memory[: math.prod(dim)].reshape(dim)
    steps = tuple(step * memory.itemsize for step in stride)
    return np.lib.stride_tricks.as_strided(memory, dim, steps)


def _as_slice(item: Any) -> slice:
    return item if isinstance(item, slice) else slice(*item)


def _slice(call: Call) -> Results:
    """Python's slices, one for each leading axis (the rest is kept whole)."""
    slices = tuple(_as_slice(item) for item in call.attr("slices", ()))
    return {"OUT_0": call.moved("input")[slices].copy()}


def _transpose(call: Call) -> Results:
    """Output axis i is input axis ``permutation[i]``."""
    x, permutation = call.moved("input"), tuple(call.attr("permutation", ()))
    if sorted(permutation) != list(range(x.ndim)):
        raise call.refuse(f"permutation: got {permutation}, want one of {x.ndim} axes")
    return {"OUT_0": np.ascontiguousarray(x.transpose(permutation))}


def _concatenate(call: Call) -> Results:
    """Along ``axis``; ``in_place_index`` says which input shares the output's buffer, no value."""
    return {"OUT_0": np.concatenate(call.many("inputs"), axis=int(call.attr("axis", 0)))}


REFERENCES: dict[str, Reference] = {
    "reshape": _reshape,
    "slice": _slice,
    "transpose": _transpose,
    "concatenate": _concatenate,
}
