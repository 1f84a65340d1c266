"""One node of a graph: an op applied to tensors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.dtypes import as_data_type
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.op import Dim, NodeView, SealedView
from cudnn_aot.compiler.graph.tensor import DATA_TYPE, DIM, STRIDE, fill
from cudnn_aot.compiler.graph.text import as_name
from cudnn_aot.errors import InvalidGraphError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.op import Op
    from cudnn_aot.compiler.graph.tensor import Tensor


class Node:
    """An op, its operands by port, and its attributes.

    Attributes:
        op: method name, such as ``"matmul"``.
        spec: the op's row in the table.
        compute_data_type: type of the arithmetic, or None until inferred.
        inputs: tensor by input port, in the order of the row; an optional port that is not wired
            is absent.
        outputs: tensor by port that the node writes: the outputs that exist, then the tensors
            given as arguments for it to write.
        attrs: the attributes that differ from their defaults; `attr` reads any of them.
        said: `attrs` in one spelling each, as in `NodeView.said`.
        view: the node as rules read it; made when it is asked for, and for reading alone.
    """

    __slots__ = ("_view",)

    def __init__(self, view: NodeView) -> None:
        self._view = view

    @property
    def name(self) -> str:
        return self._view.name

    @name.setter
    def name(self, value: str) -> None:
        self._view.graph._check_open(f"set name of {self}")
        self._view.name = as_name(value)

    @property
    def spec(self) -> Op:
        return self._view.spec

    @property
    def op(self) -> str:
        return self._view.spec.name

    @property
    def compute_data_type(self) -> data_type | None:
        return self._view.compute_data_type

    @compute_data_type.setter
    def compute_data_type(self, value: Any) -> None:
        self._view.graph._check_open(f"set compute_data_type of {self}")
        self._view.compute_data_type = dtype = as_data_type(value)
        self._view.compute_data_type_assigned = dtype is not None

    @property
    def compute_data_type_assigned(self) -> bool:
        return self._view.compute_data_type_assigned

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        return MappingProxyType(self._view.inputs)

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        return MappingProxyType(self._view.outputs)

    @property
    def attrs(self) -> Mapping[str, Any]:
        return MappingProxyType(self._view.attrs)

    def attr(self, name: str) -> Any:
        """The attribute's value, its default included."""
        return self._view.attr(name)

    @property
    def said(self) -> Mapping[str, Any]:
        return MappingProxyType(self._view.said)

    @property
    def view(self) -> NodeView:
        return SealedView(self._view)

    def __delattr__(self, field: str) -> None:
        raise AttributeError(f"cannot delete {field!r} of a node")

    def infer_early(self, dims: Mapping[str, Any]) -> None:
        """Set the extents of outputs that the caller gives; infer the rest as far as possible."""
        for port, dim in dims.items():
            if port not in self.outputs:
                known = ", ".join(self.outputs)
                raise InvalidGraphError(
                    f"{self}: out_dims: no output {port!r} (the node has: {known})"
                )
            self.outputs[port].dim = dim
        is_known = all(operand.dim for operand in self.inputs.values())
        for output in self.spec.outputs:
            tensor = self.outputs.get(output.name)
            if tensor is None:
                continue
            if isinstance(output.data_type, str):
                source = self._view.tensor(output.data_type)
                fill(tensor, DATA_TYPE, data_type=None if source is None else source.data_type)
            shape: Dim | None = tensor.dim
            inferred = STRIDE if shape else DIM | STRIDE
            if not shape and is_known:
                try:
                    shape = output.shape.rule(self._view)
                except (
                    InvalidGraphError
                ):  # a setter may still change an operand; validation decides
                    continue
            if shape:
                stride = output.layout.rule(self._view, shape)
                fill(tensor, inferred, dim=shape, stride=stride)

    def __str__(self) -> str:
        return str(self._view)

    def __repr__(self) -> str:
        return f"<{self}>"
