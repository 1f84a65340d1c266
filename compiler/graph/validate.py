"""The rules a graph must keep, before inference (structure) and after it (extents and strides).

Every refusal is one line: the node or tensor, the port, what was got, what is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.dtypes import DTYPES
from cudnn_aot.compiler.graph.enums import scalar_type
from cudnn_aot.compiler.graph.extents import (
    INT64_MAX,
    Extent,
    SymExpr,
    evaluate,
    format_extents,
)
from cudnn_aot.compiler.graph.slots import elements_per_slot, slot_geometry
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import InvalidGraphError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph

_RARE = frozenset(
    "is_optional is_pass_by_value pass_by_value scalar_type ragged_offset ragged_offset_multiplier "
    "alignment_value".split()
)
_COUNTS = "first_token_offset"
MAX_RANK = 8  # the cuDNN backend's limit, and enough for every op here


def check_structure(graph: Graph) -> None:
    """Check what does not depend on shapes: who produces what, and that all of it is used."""
    if not graph.nodes:
        raise InvalidGraphError("the graph has no node")
    produced, read = graph._producers, graph._read
    tensors = graph.tensors.values()
    ragged = {id(t.ragged_offset) for t in tensors if t.ragged_offset is not None}
    counts = {  # whose values the alignment is about
        id(node.inputs[_COUNTS]) for node in graph.nodes if _COUNTS in node.inputs
    }
    for tensor in tensors:
        is_produced = id(tensor) in produced
        if not is_produced and id(tensor) not in read and id(tensor) not in ragged:
            raise InvalidGraphError(f"{tensor} is not used by any node")
        if tensor.is_virtual and not is_produced:
            raise InvalidGraphError(f"{tensor} is virtual, but no node produces it")
        if not _RARE.isdisjoint(tensor.__dict__):
            _check_fields(tensor, produced, is_produced, id(tensor) in counts)
    outputs = graph.outputs()
    if not outputs:
        raise InvalidGraphError("the graph has no output: call set_output(True) on a result")
    if all(tensor.is_optional for tensor in outputs):
        raise InvalidGraphError("every output is optional: at least one must be required")
    live = {id(tensor) for tensor in outputs}
    for node in reversed(graph.nodes):
        if live.isdisjoint(map(id, node.outputs.values())):
            raise InvalidGraphError(
                f"{node} feeds no output: call set_output(True) on its result, or leave it out"
            )
        live.update(map(id, node.inputs.values()))


def _check_fields(
    tensor: Tensor, produced: Container[int], is_produced: bool, is_counts: bool
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
        if offset.is_virtual or offset.is_pass_by_value or id(offset) in produced:
            raise InvalidGraphError(f"{tensor}: its ragged offset {offset} is no graph input")
        if offset.ragged_offset is not None:
            raise InvalidGraphError(f"{tensor}: its ragged offset {offset} is ragged itself")
    elif tensor.ragged_offset_multiplier != 1:
        raise InvalidGraphError(
            f"{tensor}: got ragged_offset_multiplier {tensor.ragged_offset_multiplier} and no "
            "ragged_offset, want one: call set_ragged_offset"
        )
    alignment = tensor.alignment_value
    if alignment & (alignment - 1) and not is_counts:
        raise InvalidGraphError(
            f"{tensor}: alignment_value: got {alignment}, want a power of two in bytes"
        )
    if tensor.pass_by_value is not None:
        if not tensor.is_pass_by_value:
            raise InvalidGraphError(f"{tensor} has a pass_by_value but is not pass-by-value")
        if not math.isfinite(tensor.pass_by_value):
            raise InvalidGraphError(
                f"{tensor}: pass_by_value: got {tensor.pass_by_value}, want a finite number"
            )


def check_layouts(graph: Graph, tensors: Iterable[Tensor]) -> None:
    """Check extents and strides of `tensors`, which inference has completed."""
    most = {name: symbol.max for name, symbol in graph.symbols.items()}
    seen: dict[tuple[Any, ...], bool] = {}  # many tensors of a graph have one layout
    for tensor in tensors:
        if tensor.dim or not graph.is_discarded(tensor):
            layout = (tensor.dim, tensor.stride, tensor.data_type)
            if layout not in seen:
                seen[layout] = _check_layout(tensor, most)
            _check_layout_for(tensor, graph, overlaps=seen[layout])


def check_rules(graph: Graph) -> None:
    """Check the semantic rules of every node's row."""
    for node in graph.nodes:
        for rule in node.spec.rules:
            refusal = rule(node.view)
            if refusal is not None:
                raise refusal.error(str(node))


def check_symbols(graph: Graph) -> None:
    """Check that every symbol is of use."""
    if not graph.symbols:
        return
    used: set[str] = set()
    for tensor in graph.tensors.values():
        for extent in (*tensor.dim, *tensor.stride):
            if isinstance(extent, SymExpr):
                used.update(extent.symbols)
    for name in graph.symbols:
        if name not in used:
            raise InvalidGraphError(f"symbol {name!r} is declared, but no tensor uses it")


def _check_layout(tensor: Tensor, most: Mapping[str, int]) -> bool:
    """Check extents and strides alone; `most` is the largest value of every symbol.

    Returns whether elements lie over each other.
    """
    dim, stride = tensor.dim, tensor.stride
    if not 1 <= len(dim) <= MAX_RANK:
        raise InvalidGraphError(f"{tensor}: got rank {len(dim)}, want 1 to {MAX_RANK}")
    if len(stride) != len(dim):
        raise InvalidGraphError(
            f"{tensor}: got {len(stride)} strides for {len(dim)} extents, want one each"
        )
    largest, steps = _numbers(tensor, dim, most), _numbers(tensor, stride, most)
    count = span = reach = 1
    overlaps = False
    for extent, step in zip(largest, steps, strict=True):
        count *= extent
        reach = max(reach, step)
        if extent:
            span += (extent - 1) * step
        overlaps |= extent > 1 and step == 0
    dtype = tensor.data_type
    assert dtype is not None
    if max(span, count, reach) * DTYPES[dtype].bits // 8 > INT64_MAX:
        raise InvalidGraphError(
            f"{tensor}: got dim {format_extents(dim)} and stride {format_extents(stride)}, "
            "want fewer than 2**63 bytes"
        )
    return overlaps


def _check_layout_for(tensor: Tensor, graph: Graph, overlaps: bool) -> None:
    """Check extents and strides against what the tensor is."""
    if tensor.is_virtual:
        return
    dim, stride, dtype = tensor.dim, tensor.stride, tensor.data_type
    assert dtype is not None
    if tensor.is_pass_by_value and any(extent != 1 for extent in dim):
        raise InvalidGraphError(
            f"{tensor} is pass-by-value: got dim {format_extents(dim)}, want one element"
        )
    if elements_per_slot(dtype) > 1 and slot_geometry(dim, stride, dtype) is None:
        raise InvalidGraphError(
            f"{tensor}: got {dtype.name}, dim {format_extents(dim)}, "
            f"stride {format_extents(stride)}, want an even extent on an axis of stride 1 and even "
            "strides elsewhere: two elements share a byte"
        )
    if overlaps and graph.producer(tensor) is not None:
        raise InvalidGraphError(
            f"{tensor} is an output: got stride {format_extents(stride)}, "
            "want no stride 0, which writes elements over each other"
        )


def _numbers(
    tensor: Tensor, extents: tuple[Extent, ...], values: Mapping[str, int]
) -> Sequence[int]:
    """`extents` with the symbols' values."""
    numbers = []
    for extent in extents:
        if isinstance(extent, SymExpr):
            for name in extent.symbols:
                if name not in values:
                    known = ", ".join(sorted(values)) or "none"
                    raise InvalidGraphError(
                        f"{tensor}: symbol {name!r} is not declared (declared: {known})"
                    )
            numbers.append(evaluate(extent, values))
        else:
            numbers.append(extent)
    return numbers
