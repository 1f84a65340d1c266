"""Fill in what a graph leaves open: data types from its context, shapes, row-major strides.

Inference starts from what the caller set each time, so a graph may be changed and validated again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cudnn_aot.compiler.graph.dtypes import DTYPES
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.extents import Extent, format_extents, row_major
from cudnn_aot.compiler.graph.op import NodeView, Output
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


def infer_inputs(graph: Graph, inputs: Iterable[Tensor]) -> None:
    """Forget what was inferred before, and complete the graph's inputs."""
    for tensor in graph.tensors.values():
        if "_inferred" in tensor.__dict__:
            forget(tensor)
    for tensor in inputs:
        _infer_data_type(graph, tensor)
        if not tensor.dim:
            raise InvalidGraphError(f"{tensor} has no dim: an input declares its extents")
        _infer_stride(tensor)


def infer_nodes(graph: Graph) -> None:
    """Complete every node, and its results from its operands."""
    for node in graph.nodes:
        infer_node(node._view)


def infer_node(view: NodeView) -> None:
    """Complete a node whose operands are complete."""
    graph, spec, outputs = view.graph, view.spec, view.outputs
    if not view.compute_data_type_assigned and spec.has_compute_data_type:
        view.compute_data_type = graph.compute_data_type or UNSET
    for output in spec.outputs:
        tensor = outputs.get(output.name)
        if tensor is not None:
            _infer_output(view, output, tensor)
    for port in spec.declared:
        if port in outputs:
            tensor = outputs[port]
            if not tensor.dim:
                raise InvalidGraphError(f"{view}: port {port}: {tensor} has no dim")
            _infer_data_type(graph, tensor)
            _infer_stride(tensor)


def _infer_output(view: NodeView, output: Output, tensor: Tensor) -> None:
    graph, dim, inferred = view.graph, tensor.dim, 0
    try:
        shape = output.shape.rule(view)
    except InvalidGraphError as error:
        raise InvalidGraphError(f"{view}: {error}") from None
    if not dim and shape is not None:
        dim, inferred = shape, DIM
    elif shape is not None and output.shape.is_exact and dim != shape:
        raise InvalidGraphError(
            f"{view}: port {output.name}: got dim {format_extents(dim)}, "
            f"want {format_extents(shape)}"
        )
    dtype, stride = tensor.data_type, tensor.stride
    if dtype is None:
        dtype = default_data_type(graph, tensor, view, output)
        if dtype is None:
            raise _no_data_type(tensor)
        inferred |= DATA_TYPE
    if not dim and not graph.is_discarded(tensor):
        raise InvalidGraphError(
            f"{view}: port {output.name} has no dim: it does not follow from the operands; "
            "give it with out_dims or set_dim"
        )
    if dim and not stride:
        stride = output.layout.rule(view, dim)
        inferred |= STRIDE
    state = tensor.__dict__
    state["dim"], state["stride"], state["data_type"] = dim, stride, dtype
    state["_inferred"] = tensor._inferred | inferred


def default_data_type(
    graph: Graph, tensor: Tensor, view: NodeView | None = None, output: Output | None = None
) -> data_type | None:
    """The type of a tensor that sets none: as `output` of a node says, else as the graph does."""
    dtype = None if output is None else output.data_type
    if isinstance(dtype, str):
        source = None if view is None else view.tensor(dtype)
        dtype = None if source is None else source.data_type
    if dtype is None:
        context = graph.context
        if tensor.is_virtual:
            return context.intermediate_data_type or UNSET
        return context.io_data_type
    return dtype


def default_dim(view: NodeView, output: Output) -> tuple[Extent, ...] | None:
    """The extents that `output` has whatever its caller declares, or None if that may differ."""
    return output.shape.rule(view) if output.shape.is_exact else None


def _no_data_type(tensor: Tensor) -> InvalidGraphError:
    return InvalidGraphError(f"{tensor} has no data_type: set it, or the graph's io_data_type")


def _infer_data_type(graph: Graph, tensor: Tensor) -> None:
    if tensor.data_type is None:
        dtype = default_data_type(graph, tensor)
        if dtype is None:
            raise _no_data_type(tensor)
        tensor.__dict__["data_type"] = dtype
        tensor.__dict__["_inferred"] = tensor._inferred | DATA_TYPE
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
        tensor.__dict__["stride"] = row_major(tensor.dim)
        tensor.__dict__["_inferred"] = tensor._inferred | STRIDE
