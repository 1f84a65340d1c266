"""Device epilogue: operand loads, the traced chain and predicated stores, on a thread's block of
accumulators.

A thread owns the outputs at ``rows x columns`` of its tile, in an order given by ``pattern``:
``pattern[e] = (row index, column index)`` of element ``e``. A row operand is read once per column,
a column operand once per row, a scalar once.

Loads are not predicated: coordinates past the edge are clamped to the last row and column, so all
loads of a block are in flight together, and what they read for elements outside the result is never
stored. Addresses are 64-bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from cudnn_aot.recipes.trace import pointwise


def _at(tensor: cute.Tensor, offset: Int64) -> cute.Tensor:
    """The one element at an offset, in elements."""
    return cute.make_tensor(tensor.iterator + offset, cute.make_layout(1))


def _offsets(tensor: cute.Tensor, coordinates: Sequence[Int32], axis: int) -> list[Int64]:
    stride = tensor.stride[axis]
    if isinstance(stride, int) and stride == 0:
        return [Int64(0)] * len(coordinates)
    return [coordinate.to(Int64) * stride for coordinate in coordinates]


def load_input(
    kind: str,
    operand: Any,
    rows: Sequence[Int32],
    columns: Sequence[Int32],
    batch: Int32,
    pattern: Sequence[tuple[int, int]],
) -> Any:
    """An epilogue input for every element of the block, in fp32: a register vector, or one scalar
    for all of them.
    """
    if kind == "value":
        return operand
    base = batch.to(Int64) * operand.stride[2]
    if kind == "scalar":
        return _at(operand, base)[0].to(Float32)
    row_offsets, column_offsets = _offsets(operand, rows, 0), _offsets(operand, columns, 1)
    block = cute.make_rmem_tensor((len(pattern),), operand.element_type)
    loaded: dict[tuple[int, int], Any] = {}
    for e, (r, c) in enumerate(pattern):
        place = (0 if kind == "row" else r, 0 if kind == "col" else c)
        if place not in loaded:
            loaded[place] = _at(operand, base + row_offsets[place[0]] + column_offsets[place[1]])[0]
        block[e] = loaded[place]
    return block.load().to(Float32)


def run(
    epilogue: Mapping[str, Any],
    aux: Sequence[Any],
    acc: Any,
    rows: Sequence[Int32],
    columns: Sequence[Int32],
    batch: Int32,
    pattern: Sequence[tuple[int, int]],
    extents: tuple[Int32, Int32],
) -> list[Any]:
    """The fp32 output vectors of a block whose accumulators are the vector ``acc``."""
    if aux:
        rows = [cutlass.min(row, extents[0] - 1) for row in rows]
        columns = [cutlass.min(column, extents[1] - 1) for column in columns]
    inputs = [
        load_input(entry["kind"], operand, rows, columns, batch, pattern)
        for entry, operand in zip(epilogue["inputs"], aux, strict=True)
    ]
    return pointwise.apply(epilogue, acc, inputs, pointwise.DEVICE)


@cute.jit
def store_direct(
    out: cute.Tensor,
    block: cute.Tensor,
    rows: Sequence[Int32],
    columns: Sequence[Int32],
    batch: Int32,
    pattern: cutlass.Constexpr,
    extents: tuple[Int32, Int32],
):
    """Store a block (a register tensor of the output's dtype) to a tensor of any strides, where it
    lies inside the result.
    """
    base = batch.to(Int64) * out.stride[2]
    row_offsets, column_offsets = _offsets(out, rows, 0), _offsets(out, columns, 1)
    in_rows = [row < extents[0] for row in rows]
    in_columns = [column < extents[1] for column in columns]
    for e in cutlass.range_constexpr(len(pattern)):
        inside = in_rows[pattern[e][0]] & in_columns[pattern[e][1]]
        place = _at(out, base + row_offsets[pattern[e][0]] + column_offsets[pattern[e][1]])
        if inside:
            place[0] = block[e]
