"""Device epilogue: operand loads, the traced chain and predicated stores, on a thread's block.

A thread owns the outputs at ``rows x columns`` of its tile, in an order given by ``pattern``:
``pattern[e] = (row index, column index)`` of element ``e``. A row operand is read once per column,
a column operand once per row, a scalar once.

Loads are not predicated: coordinates past the edge are clamped to the last row and column, so all
loads of a block are in flight together, and what they read for elements outside the result is never
stored. ``fetch`` issues the loads of a block and ``run`` uses them, so that a kernel can put work
in between, and ``run`` can issue those of the next. Addresses are 64-bit.

A matrix or a row is read by pairs of columns, or by elements, which takes five times as much code.
With ``late`` a kernel has the code for a matrix by elements once, where a block is used, and not
where it is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int32, Int64, Uint16, Uint32

from cudnn_aot.recipes.gemm.kernels import batching, operands
from cudnn_aot.recipes.trace import dtypes, pointwise

WARP, LINE_BYTES = 32, 128  # of a warp and of a cache line


@dataclass(frozen=True)
class Block:
    """Which outputs a thread computes at a time; ``extents`` are those of the result, ``batch`` is
    the place of its matrix.

    ``pairs`` says that elements ``2 i`` and ``2 i + 1`` are neighbouring columns of one row, the
    first of them even: such a pair is read at once where a matrix operand's layout allows.
    """

    rows: Sequence[Int32]
    columns: Sequence[Int32]
    batch: Any
    pattern: Sequence[tuple[int, int]]
    extents: tuple[Int32, Int32]
    pairs: Pairs | None = None


@dataclass(frozen=True)
class Pairs:
    """Of a block: the column behind the last, of all threads that take it together, and how far
    each column of a thread is behind its first.
    """

    end: Int32
    steps: Sequence[int]


def _at(tensor: cute.Tensor, offset: Int64, count: int = 1) -> cute.Tensor:
    """``count`` consecutive elements at an offset in elements, aligned to their size together."""
    pointer = tensor.iterator + offset
    if count > 1:
        pointer = operands.aligned(pointer, count * tensor.element_type.width // 8)
    return cute.make_tensor(pointer, cute.make_layout(count))


def _clamped(coordinates: Sequence[Int32], extent: Int32) -> list[Int32]:
    return [cutlass.min(coordinate, extent - 1) for coordinate in coordinates]


def _offsets(tensor: cute.Tensor, coordinates: Sequence[Int32], axis: int) -> list[Int64]:
    stride = tensor.stride[axis]
    if isinstance(stride, int) and stride == 0:
        return [Int64(0)] * len(coordinates)
    # None is below 0: as unsigned numbers they take half the instructions.
    return [Uint32(coordinate).to(Int64) * stride for coordinate in coordinates]


def _pairs_load(operand: cute.Tensor, block: Block) -> Boolean:
    """Whether a matrix has every column of a block, and each pair can be read by one access."""
    assert block.pairs is not None
    pair_bytes = 2 * operand.element_type.width // 8
    base = batching.offset(block.batch, operand.stride[2])
    odd = (operand.stride[0] | base | block.extents[1].to(Int64)) % 2
    misaligned = operand.iterator.toint() % pair_bytes
    is_inside = block.pairs.end <= block.extents[1]
    return (operand.stride[1] == 1) & (odd == 0) & (misaligned == 0) & is_inside


@cute.jit
def _load_pairs_or_elements(
    kind: cutlass.Constexpr,
    operand: cute.Tensor,
    to: cute.Tensor,
    block: cutlass.Constexpr,
    by_pairs: cutlass.Constexpr,
    by_elements: cutlass.Constexpr,
):
    """A matrix or row operand, in one of the two ways or in either, by pairs where they load."""
    if _pairs_load(operand, block):
        if cutlass.const_expr(by_pairs):
            _load_pairs(kind, operand, to, block)
    else:
        if cutlass.const_expr(by_elements):
            _load_elements(kind, operand, to, block)


def _load_pairs(kind: str, operand: cute.Tensor, to: cute.Tensor, block: Block) -> None:
    assert block.pairs is not None
    rows = _row_tensors(operand, block)
    first = Uint32(block.columns[0]).to(Int64)
    starts = [_at(row, first, 2) for row in rows]
    seen: dict[tuple[int, int], Any] = {}
    for e in range(0, len(block.pattern), 2):
        row, column = block.pattern[e]
        place = (0 if kind == "row" else row, column)
        if place not in seen:
            pair = _at(starts[place[0]], Int64(block.pairs.steps[column]), 2)
            if _is_words(to):
                seen[place] = cute.recast_tensor(pair, Uint32)[0]
            else:
                seen[place] = cute.make_rmem_tensor((2,), operand.element_type)
                cute.autovec_copy(pair, seen[place])
        if _is_words(to):
            to[e // 2] = seen[place]
        else:
            to[e], to[e + 1] = seen[place][0], seen[place][1]


def _load_elements(kind: str, operand: cute.Tensor, to: cute.Tensor, block: Block) -> None:
    rows = _row_tensors(operand, block)
    columns = _offsets(operand, _clamped(block.columns, block.extents[1]), 1)
    seen: dict[tuple[int, int], Any] = {}
    places = [(0 if kind == "row" else r, 0 if kind == "col" else c) for r, c in block.pattern]
    for row, column in places:
        if (row, column) not in seen:
            seen[row, column] = _at(rows[row], columns[column])[0]
    values = [seen[place] for place in places]
    if _is_words(to):
        bits = [value.bitcast(Uint16).to(Uint32) for value in values]
        values = [bits[e] | (bits[e + 1] << 16) for e in range(0, len(bits), 2)]
    for e, value in enumerate(values):
        to[e] = value


def _buffer(kind: str, dtype: type, block: Block) -> cute.Tensor:
    """Registers for a block's elements of an operand: BFLOAT16 that may come by pairs as words of
    two, of which each half takes one instruction to widen, where every other element takes two.
    """
    if kind != "col" and block.pairs is not None and dtype is BFloat16:
        return cute.make_rmem_tensor((len(block.pattern) // 2,), Uint32)
    return cute.make_rmem_tensor((len(block.pattern),), dtype)


def _is_words(buffer: cute.Tensor) -> bool:
    return buffer.element_type is Uint32


def _row_tensors(operand: cute.Tensor, block: Block) -> list[cute.Tensor]:
    """The operand from each of the block's rows on: an address each, to which columns are added."""
    base = batching.offset(block.batch, operand.stride[2])
    offsets = _offsets(operand, _clamped(block.rows, block.extents[0]), 0)
    return [_at(operand, base + offset) for offset in offsets]


def _load(kind: str, operand: cute.Tensor, block: Block, to: cute.Tensor, late: bool) -> None:
    if kind != "col" and block.pairs is not None:
        _load_pairs_or_elements(kind, operand, to, block, True, kind == "row" or not late)
    else:
        _load_elements(kind, operand, to, block)


def _widened(value: Any) -> Any:
    """What was fetched of an operand, in fp32."""
    if not isinstance(value, cute.Tensor):
        return dtypes.widen(value)
    if not _is_words(value):
        return dtypes.widen(value.load())
    wide = cute.make_rmem_tensor((2 * cute.size(value),), Float32)
    for i in range(cute.size(value)):
        wide[2 * i] = (value[i] << 16).bitcast(Float32)
        wide[2 * i + 1] = (value[i] & Uint32(0xFFFF0000)).bitcast(Float32)
    return wide.load()


def fetch(
    epilogue: Mapping[str, Any], aux: Sequence[Any], block: Block, late: bool = False
) -> list[Any]:
    """Issue the loads of a block's operands: register tensors of the operands' dtypes, scalars for
    operands of one value. That of one which is piped the kernel fills itself, ahead of each `run`.
    """
    fetched = []
    for entry, operand in zip(epilogue["inputs"], aux, strict=True):
        if entry["kind"] == "value":
            fetched.append(operand)
        elif entry["kind"] == "scalar":
            fetched.append(_at(operand, batching.offset(block.batch, operand.stride[2]))[0])
        else:
            fetched.append(_buffer(entry["kind"], operand.element_type, block))
            if entry["kind"] != "piped":
                _load(entry["kind"], operand, block, fetched[-1], late)
    return fetched


@cute.jit
def warm(
    epilogue: cutlass.Constexpr,
    aux,
    shape: cutlass.Constexpr,
    corner: cutlass.Constexpr,
    extents: cutlass.Constexpr,
    lane: Int32,
):
    """One warp asks L2 for a tile of every matrix operand whose rows are contiguous: ``shape`` is
    the tile's rows and columns, ``corner`` its first row and column, and its batch.
    """
    rows, columns = shape
    row0, column0, batch = corner
    for i in cutlass.range_constexpr(len(epilogue["inputs"])):
        if cutlass.const_expr(epilogue["inputs"][i]["kind"] == "full"):
            operand = aux[i]
            step = LINE_BYTES * 8 // operand.element_type.width
            lines = (columns + step - 1) // step
            base = batching.offset(batch, operand.stride[2])
            if operand.stride[1] == 1:
                for line in cutlass.range(lane, rows * lines, WARP, unroll=1):
                    row, column = row0 + line // lines, column0 + line % lines * step
                    if (row < extents[0]) & (column < extents[1]):
                        place = base + row.to(Int64) * operand.stride[0] + column.to(Int64)
                        cute.arch.prefetch((operand.iterator + place).llvm_ptr, cache_level="L2")


def _refill(
    epilogue: Mapping[str, Any],
    aux: Sequence[Any],
    fetched: Sequence[Any],
    block: Block,
    kinds: Sequence[str],
    late: bool,
) -> None:
    """Issue the loads of a block's operands of some kinds."""
    for entry, operand, buffer in zip(epilogue["inputs"], aux, fetched, strict=True):
        if entry["kind"] in kinds:
            _load(entry["kind"], operand, block, buffer, late)


@cute.jit
def _refill_if(
    more: Boolean,
    epilogue: cutlass.Constexpr,
    aux,
    fetched,
    block: cutlass.Constexpr,
    kinds: cutlass.Constexpr,
    late: cutlass.Constexpr,
):
    if more:
        _refill(epilogue, aux, fetched, block, kinds, late)


def run(
    epilogue: Mapping[str, Any],
    fetched: Sequence[Any],
    accs: Sequence[Any],
    aux: Sequence[Any] = (),
    block: Block | None = None,
    ahead: Block | None = None,
    same_rows: bool = True,
    late: bool = False,
    more: Any = True,
) -> list[Any]:
    """The output vectors of a block whose accumulators are the vectors ``accs``, one for each
    product, as `pointwise.apply` gives them.

    With ``ahead``, the block after it, ``fetched`` is refilled for that one if there are ``more``
    (a bool or a Boolean); it has the rows of this one if ``same_rows``.
    """
    if late:
        for entry, operand, buffer in zip(epilogue["inputs"], aux, fetched, strict=True):
            if entry["kind"] == "full":
                _load_pairs_or_elements("full", operand, buffer, block, False, True)
    inputs = [_widened(value) for value in fetched]
    if ahead is not None and fetched:
        kinds = ("full", "row") if same_rows else ("full", "row", "col")
        if more is True:
            _refill(epilogue, aux, fetched, ahead, kinds, late)
        else:
            _refill_if(more, epilogue, aux, fetched, ahead, kinds, late)
    results = pointwise.apply(epilogue, accs, inputs, pointwise.DEVICE)
    # Of operands of one value alone it is one value, in a result of one element.
    return [
        value if isinstance(value, cute.TensorSSA) else cute.full(accs[0].shape, value, Float32)
        for value in results
    ]


@cute.jit
def store_direct(out: cute.Tensor, values: cute.Tensor, block: cutlass.Constexpr):
    """Store a block (a register tensor of the output's dtype) to a tensor of any strides, where it
    lies inside the result.
    """
    base = batching.offset(block.batch, out.stride[2])
    row_offsets, column_offsets = _offsets(out, block.rows, 0), _offsets(out, block.columns, 1)
    in_rows = [row < block.extents[0] for row in block.rows]
    in_columns = [column < block.extents[1] for column in block.columns]
    for e in cutlass.range_constexpr(len(block.pattern)):
        inside = in_rows[block.pattern[e][0]] & in_columns[block.pattern[e][1]]
        place = base + row_offsets[block.pattern[e][0]] + column_offsets[block.pattern[e][1]]
        target = _at(out, place)
        if inside:
            target[0] = values[e]


def write_partial(
    partials: cute.Tensor, tile: Int32, at: Int32, batch: Any, value: Float32
) -> None:
    """Store what a tile left of a reduction for the row or column ``at`` to ``(T, R, L)``."""
    offset = at.to(Int64) * partials.stride[1] + batching.offset(batch, partials.stride[2])
    _at(partials, offset + tile)[0] = value
