"""A copy of a graph in which tensors may have other extents."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from cudnn_aot.compiler.graph.extents import Extent
from cudnn_aot.compiler.graph.tensor import Tensor

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph

# The extents and strides of a tensor's copy; empty ones are inferred.
Layout: TypeAlias = tuple[tuple[Extent, ...], tuple[Extent, ...]]


def twin_of(graph: Graph, layout: Callable[[Tensor], Layout]) -> Graph:
    """A copy of a validated graph: its uids, names, types and attributes, extents by `layout`."""
    from cudnn_aot.compiler.graph.graph import Graph

    copy = Graph(
        graph.name, graph.io_data_type, graph.intermediate_data_type, graph.compute_data_type
    )
    for uid, tensor in graph.tensors.items():
        dim, stride = layout(tensor)
        twin = copy.tensor(
            dim,
            stride or None,
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
    return copy
