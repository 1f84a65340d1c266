"""A graph as the cuDNN frontend's own: the same ports, attributes, uids and declarations.

The frontend's module is given, never imported here. Its graph is built by its public methods, so
what it refuses it refuses as it would for a program. Three things differ on purpose:

- a pass-by-value number that no kernel bakes is declared without its value: each call gives it, as
  it does for a plan of ours;
- what the caller reads or writes gets the extents, strides and type that are in force here, set or
  inferred, since they are what a call is checked against;
- a pass-by-value tensor of rank 1 has rank 4, as the frontend declares its own.
"""

from __future__ import annotations

import enum
from typing import Any

from cudnn_aot.compiler.graph import attr as attr_types
from cudnn_aot.compiler.graph.enums import data_type, scalar_type, tensor_reordering
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.op import Port
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import cudnnGraphNotSupportedError

# What the frontend takes a number's type from when it is part of the graph.
_CONSTANT_TYPES = {float: data_type.FLOAT, int: data_type.INT32}


def to_frontend(graph: Graph, frontend: Any, **kwargs: Any) -> Any:
    """The frontend's ``pygraph`` of a validated graph; ``kwargs`` go to its constructor.

    Raises:
        cudnnGraphNotSupportedError: the graph has what the frontend's graphs cannot say.
    """
    if graph.symbols:
        names = ", ".join(graph.symbols)
        raise _unsupported(f"symbolic extents ({names}): a cuDNN plan is for one set of extents")
    return _Lowering(graph, frontend, kwargs).run()


def passed_by_call(tensor: Tensor) -> bool:
    """Whether a pass-by-value tensor is a number that each call gives, with or without a default;
    else it is a constant of the plan.
    """
    return tensor.pass_by_value is None or tensor.scalar_type is not scalar_type.COMPILE_TIME_CONST


class _Lowering:
    def __init__(self, graph: Graph, frontend: Any, kwargs: dict[str, Any]) -> None:
        self._graph = graph
        self._frontend = frontend
        context = graph.context
        types = {field: self._enum(getattr(context, field)) for field in context.__slots__}
        self._made = frontend.pygraph(name=graph.name or "graph", **types, **kwargs)
        self._tensors: dict[int, Any] = {}  # by uid

    def run(self) -> Any:
        written = {id(t) for node in self._graph.nodes for t in node.outputs.values()}
        for tensor in self._graph.tensors.values():
            if tensor.uid < 0:
                raise _unsupported(f"{tensor}: a uid below 0")
            if tensor.is_optional:
                raise _unsupported(f"{tensor} is optional: a cuDNN plan writes every output")
            if id(tensor) not in written:
                self._declare(tensor)
        for node in self._graph.nodes:
            self._add(node)
        return self._made

    def _declare(self, tensor: Tensor) -> Any:
        """A tensor that no builder of the frontend makes."""
        if tensor.uid in self._tensors:
            return self._tensors[tensor.uid]
        if tensor.is_pass_by_value and not passed_by_call(tensor):
            made = self._constant(tensor)
        else:
            dim, stride = list(tensor.dim), list(tensor.stride)
            if tensor.is_pass_by_value and len(dim) < 2:
                dim = stride = [1, 1, 1, 1]
            made = self._made.tensor(
                dim=dim,
                stride=stride,
                data_type=self._enum(tensor.data_type),
                is_virtual=tensor.is_virtual,
                is_pass_by_value=tensor.is_pass_by_value,
                ragged_offset=self._offset(tensor),
                reordering_type=self._reordering(tensor),
                name=tensor.name,
                uid=tensor.uid,
                ragged_offset_multiplier=tensor.ragged_offset_multiplier,
                alignment_value=tensor.alignment_value,
            )
        self._tensors[tensor.uid] = made
        return made

    def _constant(self, tensor: Tensor) -> Any:
        value = tensor.pass_by_value
        if _CONSTANT_TYPES.get(type(value)) is not tensor.data_type:
            dtype = tensor.data_type.name if tensor.data_type else "no type"
            raise _unsupported(f"{tensor}: a constant {value!r} of {dtype}")
        made = self._made.tensor_scalar(value, self._enum(tensor.scalar_type), tensor.name)
        return made.set_uid(tensor.uid)

    def _add(self, node: Node) -> None:
        spec = node.spec
        arguments: dict[str, Any] = {"name": node.name}
        if spec.has_compute_data_type and node.compute_data_type is not None:
            arguments["compute_data_type"] = self._enum(node.compute_data_type)
        for port in spec.ports:
            value = self._argument(node, port)
            if value is not None:
                arguments[port.name] = value
        for attr in spec.attrs:
            if attr.name in node.attrs and attr.is_parameter:
                arguments[attr.name] = self._value(node, attr.name, attr.type)
        result = getattr(self._made, spec.name)(**arguments)
        results = result if isinstance(result, list) else [result]
        for output, made in zip(spec.outputs, results, strict=True):
            tensor = node.outputs.get(output.name)
            if (tensor is None) != (made is None):
                raise _unsupported(
                    f"{node}: output {output.name!r} is {'absent' if tensor is None else 'present'}"
                    " here and not in the frontend"
                )
            if tensor is not None:
                self._describe(tensor, made)

    def _argument(self, node: Node, port: Port) -> Any:
        """The tensors of a port, or None for an open one."""
        if not port.is_list:
            tensor = (node.outputs if port.is_result else node.inputs).get(port.name)
            return None if tensor is None else self._declare(tensor)
        items: list[Any] = []
        while True:  # an attribute may stand in the place of a tensor, as in `dropout`
            name = f"{port.name}_{len(items)}"
            if name in node.inputs:
                items.append(self._declare(node.inputs[name]))
            elif name in node.attrs:
                items.append(node.attrs[name])
            else:
                return items or None

    def _value(self, node: Node, name: str, kind: attr_types.AttrType) -> Any:
        value = node.attr(name)
        if kind is attr_types.FUNCTION:
            raise _unsupported(f"{node}: {name} is a Python function")
        if kind is attr_types.SLICES:
            return [slice(*bounds) for bounds in value]
        if isinstance(value, enum.Enum):
            return self._enum(value)
        return list(value) if isinstance(value, tuple) else value

    def _describe(self, tensor: Tensor, made: Any) -> None:
        """Give a result of the frontend what this graph says of it."""
        made.set_uid(tensor.uid)
        if tensor.name:
            made.set_name(tensor.name)
        made.set_output(not tensor.is_virtual)
        if tensor.dim_assigned or not tensor.is_virtual:
            made.set_dim(list(tensor.dim))
        if tensor.stride_assigned or not tensor.is_virtual:
            made.set_stride(list(tensor.stride))
        if tensor.data_type_assigned or not tensor.is_virtual:
            made.set_data_type(self._enum(tensor.data_type))
        if tensor.ragged_offset is not None:
            made.set_ragged_offset(self._offset(tensor))
            made.set_ragged_offset_multiplier(tensor.ragged_offset_multiplier)
        if tensor.reordering_type is not tensor_reordering.NONE:
            made.set_reordering_type(self._reordering(tensor))
        self._tensors[tensor.uid] = made

    def _offset(self, tensor: Tensor) -> Any:
        return None if tensor.ragged_offset is None else self._declare(tensor.ragged_offset)

    def _reordering(self, tensor: Tensor) -> Any:
        return self._enum(tensor.reordering_type)

    def _enum(self, value: enum.Enum | None) -> Any:
        """The frontend's member of the same name; some of its enums are in its compiled part."""
        if value is None:
            return None
        name = type(value).__name__
        kind = getattr(self._frontend, name, None)
        if kind is None:
            kind = getattr(self._frontend._pybind_module, name)
        return getattr(kind, value.name)


def _unsupported(reason: str) -> cudnnGraphNotSupportedError:
    return cudnnGraphNotSupportedError(reason, [reason])
