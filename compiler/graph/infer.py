"""Fill in what a graph leaves open: data types from its context, shapes, row-major strides.

Inference starts from what the caller set each time, so a graph may be changed and validated again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn_aot.compiler.graph.dtypes import DTYPES
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.extents import Extent, format_extents, row_major
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.op import Output
from cudnn_aot.compiler.graph.tensor import (
    DATA_TYPE,
    DIM,
    PASS_BY_VALUE,
    STRIDE,
    Tensor,
    fill,
    forget,
)
from cudnn_aot.errors import InvalidGraphError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph

# What virtual tensors and arithmetic are where neither they nor the graph name a type, as in the
# cuDNN frontend's lowering. What a caller passes has no such default.
UNSET = data_type.FLOAT


def infer_inputs(graph: Graph) -> None:
    """Forget what was inferred before, and complete the graph's inputs."""
    for tensor in graph.tensors.values():
        if "_inferred" in tensor.__dict__:
            forget(tensor)
    for tensor in graph.inputs():
        _infer_data_type(graph, tensor)
        if not tensor.dim:
            raise InvalidGraphError(f"{tensor} has no dim: an input declares its extents")
        if not tensor.stride:
            _infer_stride(tensor)


def infer_nodes(graph: Graph) -> None:
    """Complete every node, and its results from its operands."""
    for node in graph.nodes:
        infer_node(graph, node)


def infer_node(graph: Graph, node: Node) -> None:
    """Complete a node whose operands are complete."""
    view = node.view
    spec, outputs = view.spec, view.outputs
    if not node.compute_data_type_assigned and spec.has_compute_data_type:
        view.compute_data_type = graph.compute_data_type or UNSET
    for output in spec.outputs:
        tensor = outputs.get(output.name)
        if tensor is not None:
            _infer_output(graph, node, output, tensor)
    for port in spec.declared:
        if port in outputs:
            tensor = outputs[port]
            if not tensor.dim:
                raise InvalidGraphError(f"{node}: port {port}: {tensor} has no dim")
            _infer_data_type(graph, tensor)
            _infer_stride(tensor)


def _infer_output(graph: Graph, node: Node, output: Output, tensor: Tensor) -> None:
    view, dim, inferred = node.view, tensor.dim, 0
    try:
        shape = output.shape.rule(view)
    except InvalidGraphError as error:
        raise InvalidGraphError(f"{node}: {error}") from None
    if not dim and shape is not None:
        dim, inferred = shape, DIM
    elif shape is not None and output.shape.is_exact and dim != shape:
        raise InvalidGraphError(
            f"{node}: port {output.name}: got dim {format_extents(dim)}, "
            f"want {format_extents(shape)}"
        )
    dtype, stride = tensor.data_type, tensor.stride
    if dtype is None:
        dtype = _settled_data_type(graph, tensor, node, output)
        inferred |= DATA_TYPE
    if not dim and not graph.is_discarded(tensor):
        raise InvalidGraphError(
            f"{node}: port {output.name} has no dim: it does not follow from the operands; "
            "give it with out_dims or set_dim"
        )
    if dim and not stride:
        stride = output.layout.rule(view, dim)
        inferred |= STRIDE
    state = tensor.__dict__
    state["dim"], state["stride"], state["data_type"] = dim, stride, dtype
    state["_inferred"] = tensor._inferred | inferred


def default_data_type(
    graph: Graph, tensor: Tensor, node: Node | None = None, output: Output | None = None
) -> data_type | None:
    """The type of a tensor that sets none: as `output` of `node` says, else as the graph does."""
    dtype = None if output is None else output.data_type
    if isinstance(dtype, str):
        source = None if node is None else node.view.tensor(dtype)
        dtype = None if source is None else source.data_type
    if dtype is None:
        if tensor.is_virtual:
            return graph.intermediate_data_type or UNSET
        return graph.io_data_type
    return dtype


def default_dim(node: Node, output: Output) -> tuple[Extent, ...] | None:
    """The extents that `output` has whatever its caller declares, or None if that may differ."""
    return output.shape.rule(node.view) if output.shape.is_exact else None


def _settled_data_type(
    graph: Graph, tensor: Tensor, node: Node | None = None, output: Output | None = None
) -> data_type:
    """The same, which there has to be."""
    dtype = default_data_type(graph, tensor, node, output)
    if dtype is None:
        raise InvalidGraphError(f"{tensor} has no data_type: set it, or the graph's io_data_type")
    return dtype


def _infer_data_type(graph: Graph, tensor: Tensor) -> None:
    if tensor.data_type is None:
        fill(tensor, DATA_TYPE, data_type=_settled_data_type(graph, tensor))
    value = tensor.pass_by_value
    if value is None or tensor.data_type is None:
        return
    row = DTYPES[tensor.data_type]
    if row.is_float:
        nearest = row.nearest(float(value))
        if nearest is None:
            raise InvalidGraphError(
                f"{tensor}: pass_by_value: got {value!r}, "
                f"want a {tensor.data_type.name}, from {row.least} to {row.largest}"
            )
        fill(tensor, PASS_BY_VALUE, pass_by_value=nearest, declared_value=value)
        return
    low, high = row.range
    if value != int(value) or not low <= value <= high:
        raise InvalidGraphError(
            f"{tensor}: pass_by_value: got {value!r}, "
            f"want a {tensor.data_type.name}, an integer from {low} to {high}"
        )
    fill(tensor, PASS_BY_VALUE, pass_by_value=int(value), declared_value=value)


def _infer_stride(tensor: Tensor) -> None:
    if not tensor.stride:
        fill(tensor, STRIDE, stride=row_major(tensor.dim))
