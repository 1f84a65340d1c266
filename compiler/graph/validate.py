"""The rules a graph must keep, before inference (structure) and after it (extents and strides).

Every refusal is one line: the node or tensor, the port, what was got, what is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.dtypes import DTYPES
from cudnn_aot.compiler.graph.enums import scalar_type
from cudnn_aot.compiler.graph.extents import (
    INT64_MAX,
    evaluate,
    format_extents,
    symbols_of,
)
from cudnn_aot.compiler.graph.slots import slot_geometry
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import InvalidGraphError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph

MAX_RANK = 8  # the cuDNN backend's limit, and enough for every op here


def check_structure(graph: Graph) -> None:
    """Check what does not depend on shapes: who produces what, and that all of it is used."""
    if not graph.nodes:
        raise InvalidGraphError("the graph has no node")
    produced = {id(t): node for node in graph.nodes for t in node.outputs.values()}
    read = {id(t) for node in graph.nodes for t in node.inputs.values()}
    read |= {id(t.ragged_offset) for t in graph.tensors.values() if t.ragged_offset is not None}
    counts = {
        id(node.inputs[port])
        for node in graph.nodes
        for port in node.inputs
        if port == "first_token_offset"
    }
    for tensor in graph.tensors.values():
        is_produced = id(tensor) in produced
        if not is_produced and id(tensor) not in read:
            raise InvalidGraphError(f"{tensor} is not used by any node")
        if tensor.is_virtual and not is_produced:
            raise InvalidGraphError(f"{tensor} is virtual, but no node produces it")
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
        if tensor.alignment_value & (tensor.alignment_value - 1) and id(tensor) not in counts:
            raise InvalidGraphError(
                f"{tensor}: alignment_value: got {tensor.alignment_value}, "
                "want a power of two in bytes"
            )
        if tensor.pass_by_value is not None:
            if not tensor.is_pass_by_value:
                raise InvalidGraphError(f"{tensor} has a pass_by_value but is not pass-by-value")
            if not math.isfinite(tensor.pass_by_value):
                raise InvalidGraphError(
                    f"{tensor}: pass_by_value: got {tensor.pass_by_value}, want a finite number"
                )
    outputs = graph.outputs()
    if not outputs:
        raise InvalidGraphError("the graph has no output: call set_output(True) on a result")
    if all(tensor.is_optional for tensor in outputs):
        raise InvalidGraphError("every output is optional: at least one must be required")
    live = {id(tensor) for tensor in outputs}
    for node in reversed(graph.nodes):
        if not any(id(tensor) in live for tensor in node.outputs.values()):
            raise InvalidGraphError(
                f"{node} feeds no output: call set_output(True) on its result, or leave it out"
            )
        live.update(id(tensor) for tensor in node.inputs.values())


def check_layouts(graph: Graph, tensors: Iterable[Tensor]) -> None:
    """Check extents and strides of `tensors`, which inference has completed."""
    for tensor in tensors:
        if tensor.dim or not graph.is_discarded(tensor):
            _check_layout(tensor, graph)


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
        used |= symbols_of((*tensor.dim, *tensor.stride))
    for name in graph.symbols:
        if name not in used:
            raise InvalidGraphError(f"symbol {name!r} is declared, but no tensor uses it")


def _check_layout(tensor: Tensor, graph: Graph) -> None:
    dim, stride = tensor.dim, tensor.stride
    if not 1 <= len(dim) <= MAX_RANK:
        raise InvalidGraphError(f"{tensor}: got rank {len(dim)}, want 1 to {MAX_RANK}")
    if len(stride) != len(dim):
        raise InvalidGraphError(
            f"{tensor}: got {len(stride)} strides for {len(dim)} extents, want one each"
        )
    largest: Sequence[Any] = dim
    steps: Sequence[Any] = stride
    if not all(type(extent) is int for extent in (*dim, *stride)):
        for name in sorted(symbols_of((*dim, *stride))):
            if name not in graph.symbols:
                known = ", ".join(sorted(graph.symbols)) or "none"
                raise InvalidGraphError(
                    f"{tensor}: symbol {name!r} is not declared (declared: {known})"
                )
        most = {name: symbol.max for name, symbol in graph.symbols.items()}
        largest = [evaluate(extent, most) for extent in dim]
        steps = [evaluate(step, most) for step in stride]
    if tensor.is_pass_by_value and any(extent != 1 for extent in dim):
        raise InvalidGraphError(
            f"{tensor} is pass-by-value: got dim {format_extents(dim)}, want one element"
        )
    assert tensor.data_type is not None
    span = sum((n - 1) * step for n, step in zip(largest, steps, strict=True) if n) + 1
    if max(span, math.prod(largest), *steps) * DTYPES[tensor.data_type].bits // 8 > INT64_MAX:
        raise InvalidGraphError(
            f"{tensor}: got dim {format_extents(dim)} and stride {format_extents(stride)}, "
            "want fewer than 2**63 bytes"
        )
    if not tensor.is_virtual and slot_geometry(dim, stride, tensor.data_type) is None:
        raise InvalidGraphError(
            f"{tensor}: got {tensor.data_type.name}, dim {format_extents(dim)}, "
            f"stride {format_extents(stride)}, want an even extent on an axis of stride 1 and even "
            "strides elsewhere: two elements share a byte"
        )
    is_written = not tensor.is_virtual and graph.producer(tensor) is not None
    if is_written and any(n > 1 and step == 0 for n, step in zip(largest, stride, strict=True)):
        raise InvalidGraphError(
            f"{tensor} is an output: got stride {format_extents(stride)}, "
            "want no stride 0, which writes elements over each other"
        )
