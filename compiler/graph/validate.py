"""The rules a graph must keep, before inference (structure) and after it (extents and strides).

Every refusal is one line: the node or tensor, the port, what was got, what is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from cudnn_aot.compiler.graph.dtypes import DTYPES
from cudnn_aot.compiler.graph.enums import data_type, scalar_type, tensor_reordering
from cudnn_aot.compiler.graph.extents import (
    INT64_MAX,
    MAX_RANK,
    Extent,
    SymExpr,
    evaluate,
    format_extents,
    symbols_of,
)
from cudnn_aot.compiler.graph.record import Record
from cudnn_aot.compiler.graph.slots import slot_geometry
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import InvalidGraphError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph

_RARE = frozenset(
    "is_optional is_pass_by_value pass_by_value scalar_type ragged_offset "
    "ragged_offset_multiplier".split()
)
_COUNTS = "first_token_offset"
# Logic is all that BOOLEAN has, an E8M0 is a scale, and the packed types are layouts.
_BOOLEAN = data_type.BOOLEAN
_NO_ARITHMETIC = frozenset(
    (
        _BOOLEAN,
        data_type.FP8_E8M0,
        *(dtype for dtype, row in DTYPES.items() if row.kind == "packed"),
    )
)
# What the reorderings are of: scales of blocks, and elements in groups of 32 or 16.
_REORDERED = {
    tensor_reordering.F8_128x4: (
        data_type.FP8_E4M3,
        data_type.FP8_E5M2,
        data_type.FP8_E5M3,
        data_type.FP8_E8M0,
    ),
    tensor_reordering.INT8x32: (
        data_type.INT8,
        data_type.UINT8,
        data_type.INT8x4,
        data_type.UINT8x4,
        data_type.INT8x32,
    ),
    tensor_reordering.F16x16: (data_type.HALF, data_type.BFLOAT16),
}


def check_structure(graph: Graph) -> None:
    """Check what does not depend on shapes: who produces what, and that all of it is used."""
    if not graph.nodes:
        raise InvalidGraphError("the graph has no node")
    produced, read = graph._producers, graph._read
    tensors = graph.tensors.values()
    ragged = {t.ragged_offset for t in tensors if t.ragged_offset is not None}
    views = [node._view for node in graph.nodes]
    counts = {  # whose values the alignment is about
        view.inputs[_COUNTS] for view in views if _COUNTS in view.inputs
    }
    for tensor in tensors:
        is_produced = tensor in produced
        if not is_produced:
            if tensor not in read and tensor not in ragged:
                raise InvalidGraphError(f"{tensor} is not used by any node")
            if tensor.is_virtual:
                raise InvalidGraphError(f"{tensor} is virtual, but no node produces it")
        state = tensor.__dict__  # which has what is not the default
        if not _RARE.isdisjoint(state):
            _check_fields(tensor, produced, is_produced, tensor in counts)
        elif "alignment_value" in state and tensor not in counts:
            _check_alignment(tensor)
    outputs = graph.outputs()
    if not outputs:
        raise InvalidGraphError("the graph has no output: call set_output(True) on a result")
    if all(tensor.is_optional for tensor in outputs):
        raise InvalidGraphError("every output is optional: at least one must be required")
    live = set(outputs)
    for view in reversed(views):
        if live.isdisjoint(view.outputs.values()):
            raise InvalidGraphError(
                f"{view} feeds no output: call set_output(True) on its result, or leave it out"
            )
        live.update(view.inputs.values())


def _check_fields(
    tensor: Tensor, produced: Container[Tensor], is_produced: bool, is_counts: bool
) -> None:
    """Check the fields that few tensors set; `is_counts`: its alignment is about its values."""
    if tensor.is_optional and (tensor.is_virtual or not is_produced):
        raise InvalidGraphError(f"{tensor} is optional, but only an output can be")
    if tensor.is_pass_by_value and (is_produced or tensor.is_virtual):
        raise InvalidGraphError(f"{tensor} is pass-by-value, but only an input can be")
    if tensor.scalar_type is not None and not tensor.is_pass_by_value:
        raise InvalidGraphError(f"{tensor} has a scalar_type but is not pass-by-value")
    if tensor.scalar_type is scalar_type.COMPILE_TIME_CONST and tensor.pass_by_value is None:
        raise InvalidGraphError(f"{tensor} is a compile-time constant without a pass_by_value")
    offset = tensor.ragged_offset
    if offset is not None:
        if offset.is_virtual or offset.is_pass_by_value or offset in produced:
            raise InvalidGraphError(f"{tensor}: its ragged offset {offset} is no graph input")
        if offset.ragged_offset is not None:
            raise InvalidGraphError(f"{tensor}: its ragged offset {offset} is ragged itself")
    elif tensor.ragged_offset_multiplier != 1:
        raise InvalidGraphError(
            f"{tensor}: got ragged_offset_multiplier {tensor.ragged_offset_multiplier} and no "
            "ragged_offset, want one: call set_ragged_offset"
        )
    if not is_counts:
        _check_alignment(tensor)
    if tensor.pass_by_value is not None:
        if not tensor.is_pass_by_value:
            raise InvalidGraphError(f"{tensor} has a pass_by_value but is not pass-by-value")
        if not math.isfinite(tensor.pass_by_value):
            raise InvalidGraphError(
                f"{tensor}: pass_by_value: got {tensor.pass_by_value}, want a finite number"
            )


def _check_alignment(tensor: Tensor) -> None:
    alignment = tensor.alignment_value
    if alignment & (alignment - 1):
        raise InvalidGraphError(
            f"{tensor}: alignment_value: got {alignment}, want a power of two in bytes"
        )


def check_layouts(graph: Graph, tensors: Iterable[Tensor]) -> None:
    """Check extents and strides of `tensors`, which inference has completed."""
    most = tuple([(name, symbol.max) for name, symbol in graph.symbols.items()])
    for tensor in tensors:
        state = tensor.__dict__
        if tensor.dim or not graph.is_discarded(tensor):
            dtype = tensor.data_type
            assert dtype is not None
            try:
                layout = _layout(tensor.dim, tensor.stride, dtype, most)
            except InvalidGraphError as error:
                raise InvalidGraphError(f"{tensor}: {error}") from None
            if "reordering_type" in state or "ragged_offset" in state:
                _check_order(tensor)
            if not tensor.is_virtual:
                _check_buffer(tensor, graph, layout)


def check_rules(graph: Graph) -> None:
    """Check the semantic rules of every node's row, and the type of its arithmetic."""
    fine: data_type | None = None  # mostly one for all nodes
    for view in [node._view for node in graph.nodes]:
        compute = view.compute_data_type
        if compute is fine:
            pass
        elif compute not in _NO_ARITHMETIC:
            fine = compute
        elif not (view.spec.is_pointwise and compute is _BOOLEAN):
            assert compute is not None
            raise InvalidGraphError(
                f"{view}: compute_data_type: got {compute.name}, want a type that has arithmetic"
            )
        for rule in view.spec.rules:
            refusal = rule(view)
            if refusal is not None:
                raise refusal.error(str(view))


def check_symbols(graph: Graph) -> None:
    """Check that every symbol is of use."""
    unused = list(graph.symbols)
    for tensor in graph.tensors.values():
        if not unused:  # mostly after a few tensors
            return
        used = symbols_of((*tensor.dim, *tensor.stride))
        unused = [name for name in unused if name not in used]
    if unused:
        raise InvalidGraphError(f"symbol {unused[0]!r} is declared, but no tensor uses it")


class _Layout(Record):
    """What extents, strides and a data type mean for a buffer.

    Attributes:
        overlaps: elements lie over each other.
        cuts_slots: elements that share a byte are not all neighbours.
    """

    overlaps: bool
    cuts_slots: bool


_LAYOUTS = {(o, c): _Layout(o, c) for o in (False, True) for c in (False, True)}


_Extents = tuple[Extent, ...]


@lru_cache(maxsize=4096)  # many tensors have one layout, and many graphs of a model
def _layout(
    dim: _Extents, stride: _Extents, dtype: data_type, most: tuple[tuple[str, int], ...]
) -> _Layout:
    """Check extents and strides alone; `most` is the largest value of every symbol."""
    if not 1 <= len(dim) <= MAX_RANK:
        raise InvalidGraphError(f"got rank {len(dim)}, want 1 to {MAX_RANK}")
    if len(stride) != len(dim):
        raise InvalidGraphError(f"got {len(stride)} strides for {len(dim)} extents, want one each")
    values = dict(most)
    largest, steps = _numbers(dim, values), _numbers(stride, values)
    count = span = reach = 1
    overlaps = False
    for extent, step in zip(largest, steps, strict=True):
        count *= extent
        reach = max(reach, step)
        if extent:
            span += (extent - 1) * step
        overlaps |= extent > 1 and step == 0
    if max(span, count, reach) * DTYPES[dtype].bits // 8 > INT64_MAX:
        raise InvalidGraphError(
            f"got dim {format_extents(dim)} and stride {format_extents(stride)}, "
            "want fewer than 2**63 bytes"
        )
    return _LAYOUTS[overlaps and count > 0, slot_geometry(dim, stride, dtype) is None]


def _check_order(tensor: Tensor) -> None:
    """Check what says where the elements of a tensor lie, beside its strides."""
    allowed = _REORDERED.get(tensor.reordering_type)
    if allowed is not None and tensor.data_type not in allowed:
        got = "none" if tensor.data_type is None else tensor.data_type.name
        raise InvalidGraphError(
            f"{tensor}: got {got} with reordering {tensor.reordering_type.name}, "
            f"want {' or '.join(dtype.name for dtype in allowed)}"
        )
    if allowed is not None and len(tensor.dim) < 2:
        raise InvalidGraphError(
            f"{tensor}: got rank 1 with reordering {tensor.reordering_type.name}, want at least 2"
        )
    offset = tensor.ragged_offset
    if offset is None:
        return
    if offset.data_type not in (data_type.INT32, data_type.INT64):
        got = "none" if offset.data_type is None else offset.data_type.name
        raise InvalidGraphError(
            f"{tensor}: its ragged offset {offset}: got {got}, want INT32 or INT64"
        )
    rows, count = tensor.dim[0], offset.dim[0]
    want = rows + 1 if isinstance(rows, int) else f"{rows} + 1"
    is_open = isinstance(want, str) or not isinstance(count, int)  # a call tells
    if not is_open and count != want or any(extent != 1 for extent in offset.dim[1:]):
        raise InvalidGraphError(
            f"{tensor}: its ragged offset {offset}: got dim {format_extents(offset.dim)}, "
            f"want {want} offsets on axis 0: where each of {rows} rows starts, and the end"
        )


def _check_buffer(tensor: Tensor, graph: Graph, layout: _Layout) -> None:
    """Check extents and strides of what a call passes."""
    if tensor.is_pass_by_value and any([extent != 1 for extent in tensor.dim]):
        raise InvalidGraphError(
            f"{tensor} is pass-by-value: got dim {format_extents(tensor.dim)}, want one element"
        )
    if layout.cuts_slots:
        assert tensor.data_type is not None
        raise InvalidGraphError(
            f"{tensor}: got {tensor.data_type.name}, dim {format_extents(tensor.dim)}, "
            f"stride {format_extents(tensor.stride)}, want an even extent on an axis of stride 1 "
            "and even strides elsewhere: two elements share a byte"
        )
    if layout.overlaps and graph.producer(tensor) is not None:
        raise InvalidGraphError(
            f"{tensor} is an output: got stride {format_extents(tensor.stride)}, "
            "want no stride 0, which writes elements over each other"
        )


def _numbers(extents: _Extents, values: Mapping[str, int]) -> Sequence[int]:
    """`extents` with the symbols' values."""
    if not any([isinstance(extent, SymExpr) for extent in extents]):  # mostly
        return cast("tuple[int, ...]", extents)
    numbers = []
    for extent in extents:
        if isinstance(extent, SymExpr):
            for name in extent.symbols:
                if name not in values:
                    known = ", ".join(sorted(values)) or "none"
                    raise InvalidGraphError(f"symbol {name!r} is not declared (declared: {known})")
            numbers.append(evaluate(extent, values))
        else:
            numbers.append(extent)
    return numbers
