"""Fill in what a graph leaves open: data types from its context, shapes, row-major strides.

Inference starts from what the caller set each time, so a graph may be changed and validated again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn_aot.compiler.graph.dtypes import DTYPES
from cudnn_aot.compiler.graph.extents import format_extents, row_major
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import Tensor, fill
from cudnn_aot.errors import InvalidGraphError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph


def infer_inputs(graph: Graph) -> None:
    """Forget what was inferred before, and complete the graph's inputs."""
    for tensor in graph.tensors.values():
        for field, empty in (("data_type", None), ("dim", ()), ("stride", ())):
            if not getattr(tensor, f"{field}_assigned"):
                fill(tensor, **{field: empty})
    for tensor in graph.inputs():
        _infer_data_type(graph, tensor)
        if not tensor.dim:
            raise InvalidGraphError(f"{tensor} has no dim: an input declares its extents")
        _infer_stride(tensor)


def infer_nodes(graph: Graph) -> None:
    """Complete every node, and its results from its operands."""
    for node in graph.nodes:
        _infer_node(graph, node)


def _infer_node(graph: Graph, node: Node) -> None:
    if not node.compute_data_type_assigned:
        if graph.compute_data_type is None:
            raise InvalidGraphError(
                f"{node} has no compute_data_type: set it, or the graph's compute_data_type"
            )
        node._compute = graph.compute_data_type
    try:
        shapes = node.spec.shape({port: tensor.dim for port, tensor in node.inputs.items()})
    except InvalidGraphError as error:
        raise InvalidGraphError(f"{node}: {error}") from None
    for output in node.spec.outputs:
        tensor, shape = node.outputs[output.name], shapes[output.name]
        if not tensor.dim:
            fill(tensor, dim=shape)
        elif tensor.dim != shape:
            raise InvalidGraphError(
                f"{node}: port {output.name}: got dim {format_extents(tensor.dim)}, "
                f"want {format_extents(shape)}"
            )
        if tensor.data_type is None and output.data_type is not None:
            fill(tensor, data_type=output.data_type)
        _infer_data_type(graph, tensor)
        _infer_stride(tensor)


def _infer_data_type(graph: Graph, tensor: Tensor) -> None:
    if tensor.data_type is None:
        field = "intermediate_data_type" if tensor.is_virtual else "io_data_type"
        dtype = getattr(graph, field)
        if dtype is None:
            raise InvalidGraphError(f"{tensor} has no data_type: set it, or the graph's {field}")
        fill(tensor, data_type=dtype)
    value = tensor.pass_by_value
    if value is not None and tensor.data_type is not None:  # one spelling of one value
        if DTYPES[tensor.data_type].is_float:
            fill(tensor, pass_by_value=float(value))
            return
        low, high = DTYPES[tensor.data_type].range
        if value != int(value) or not low <= value <= high:
            raise InvalidGraphError(
                f"{tensor}: pass_by_value: got {value!r}, "
                f"want a {tensor.data_type.name}, an integer from {low} to {high}"
            )
        fill(tensor, pass_by_value=int(value))


def _infer_stride(tensor: Tensor) -> None:
    if not tensor.stride:
        fill(tensor, stride=row_major(tensor.dim))
