"""A copy of a symbolic graph in which the symbols have values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cudnn_aot.compiler.graph.extents import evaluate
from cudnn_aot.errors import InvalidGraphError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph


def instantiate(graph: Graph, symbols: Mapping[str, int]) -> Graph:
    """The concrete graph that `graph` is for these values of its symbols, validated.

    uids, names, types and attributes are those of `graph`. Raises `InvalidGraphError` for a symbol
    without a legal value, and what validation raises where the extents do not go together.
    """
    from cudnn_aot.compiler.graph.graph import Graph

    graph.validate()
    for name, symbol in graph.symbols.items():
        if name not in symbols:
            raise InvalidGraphError(f"symbol {name!r} has no value")
        reason = symbol.refuse(symbols[name])
        if reason:
            raise InvalidGraphError(f"symbol {name!r}: {reason}")
    copy = Graph(
        graph.name, graph.io_data_type, graph.intermediate_data_type, graph.compute_data_type
    )
    for uid, tensor in graph.tensors.items():
        twin = copy.tensor(
            tuple(evaluate(extent, symbols) for extent in tensor.dim),
            tuple(evaluate(extent, symbols) for extent in tensor.stride) or None,
            tensor.data_type,
            tensor.is_virtual,
            tensor.is_pass_by_value,
            None,
            tensor.reordering_type,
            tensor.name,
            uid,
            tensor.ragged_offset_multiplier,
            tensor.alignment_value,
        )
        twin.is_optional = tensor.is_optional
        twin.pass_by_value = tensor.pass_by_value
        twin.scalar_type = tensor.scalar_type
    twins = copy.tensors
    for uid, tensor in graph.tensors.items():
        if tensor.ragged_offset is not None:
            twins[uid].ragged_offset = twins[tensor.ragged_offset.uid]
    for node in graph.nodes:
        copy.add_node(
            node.spec,
            {port: twins[tensor.uid] for port, tensor in node.inputs.items()},
            node.attrs,
            outputs={port: twins[tensor.uid] for port, tensor in node.outputs.items()},
            compute_data_type=node.compute_data_type,
            name=node.name,
        )
    copy.validate()
    return copy
