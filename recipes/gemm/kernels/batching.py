"""Where a batch index becomes the place of a matrix, of every GEMM kernel.

A kernel counts matrices ``0 .. L - 1``. Arguments have the batch behind their other axes: one axis
of extent ``L``, or of the parameter ``batch_runs`` = 2 or 3 as many, the innermost first, whose
product is ``L``. Those become one mode of a tensor: ``(M, K, (L0, L1))``. The place of a matrix is
its number then, or its numbers along each of them. A tensor that is the same along one has extent 1
there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

MENU = (1, 2, 3)  # TMA describes five axes


def runs(params: Mapping[str, Any]) -> int:
    """Parameter ``batch_runs``, which is absent where the batch is one axis."""
    count = params.get("batch_runs", 1)
    if count not in MENU:
        raise ValueError(f"batch_runs: got {count!r}, want one of {', '.join(map(str, MENU))}")
    return int(count)


def nested(tensors: Sequence[Any], before: int = 2) -> tuple[Any, ...]:
    """Arguments whose axes behind the first ones are one mode; what is no tensor of several of them
    is as it was.
    """
    return tuple(
        cute.group_modes(each, before, cute.rank(each))
        if isinstance(each, cute.Tensor) and cute.rank(each) > before + 1
        else each
        for each in tensors
    )


def count(extents: Any) -> Any:
    """How many matrices a batch of these extents has."""
    return math.prod(extents) if isinstance(extents, tuple) else extents


def place(number: Any, extents: Any) -> Any:
    """Of a matrix by its number, in a batch of these extents."""
    if not isinstance(extents, tuple):
        return number
    numbers, left = [], number
    for extent in extents[:-1]:
        # Unsigned: signed quotients are rounded down, at a cost.
        outer = (Int32(left).to(Uint32) // Int32(extent).to(Uint32)).to(Int32)
        numbers.append(left - outer * extent)
        left = outer
    return (*numbers, left)


def inside(where: Any, extents: Any) -> Any:
    """The place in a tensor of these extents, which may be the same along some axes."""
    if not isinstance(extents, tuple):
        return cutlass.min(where, extents - 1)
    return tuple(cutlass.min(x, extent - 1) for x, extent in zip(where, extents, strict=True))


def offset(where: Any, strides: Any) -> Int64:
    """How far a place is from the first matrix, in elements."""
    if not isinstance(strides, tuple):
        return where.to(Int64) * strides
    total = where[0].to(Int64) * strides[0]
    for x, stride in zip(where[1:], strides[1:], strict=True):
        total = total + x.to(Int64) * stride
    return total
