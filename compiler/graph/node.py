"""One node of a graph: an op applied to tensors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.dtypes import as_data_type
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.errors import FrozenGraphError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph
    from cudnn_aot.compiler.graph.ops import Op
    from cudnn_aot.compiler.graph.tensor import Tensor


class Node:
    """An op, its operands by port, and its attributes.

    Attributes:
        op: method name, such as ``"matmul"``.
        spec: the op's row in the table.
        compute_data_type: type of the arithmetic, or None until inferred.
        inputs: tensor by input port; an optional port that is not wired is absent.
        outputs: tensor by output port.
        attrs: the attributes that differ from their defaults; `attr` reads any of them.
    """

    __slots__ = ("_graph", "_name", "_compute", "compute_data_type_assigned", "_spec", "_ports")

    def __init__(
        self,
        graph: Graph,
        spec: Op,
        name: str,
        inputs: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
        attrs: Mapping[str, Any],
        compute_data_type: data_type | None,
    ) -> None:
        self._graph = graph
        self._spec = spec
        self._name = name
        self._compute = compute_data_type
        self.compute_data_type_assigned = compute_data_type is not None
        self._ports = tuple(MappingProxyType(dict(part)) for part in (inputs, outputs, attrs))

    @property
    def name(self) -> str:
        return self._name

    @name.setter
    def name(self, value: str) -> None:
        self._check_open("name")
        self._name = value

    @property
    def spec(self) -> Op:
        return self._spec

    @property
    def op(self) -> str:
        return self._spec.name

    @property
    def compute_data_type(self) -> data_type | None:
        return self._compute

    @compute_data_type.setter
    def compute_data_type(self, value: Any) -> None:
        self._check_open("compute_data_type")
        self._compute = as_data_type(value)
        self.compute_data_type_assigned = self._compute is not None

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        return self._ports[0]

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        return self._ports[1]

    @property
    def attrs(self) -> Mapping[str, Any]:
        return self._ports[2]

    def attr(self, name: str) -> Any:
        """The attribute's value, its default included."""
        return self.attrs.get(name, self._spec.attr(name).default)

    def __str__(self) -> str:
        return f"node {self.name!r} ({self.op})"

    def __repr__(self) -> str:
        return f"<{self}>"

    def _check_open(self, field: str) -> None:
        if self._graph.is_frozen:
            raise FrozenGraphError(
                f"cannot set {field} of {self}: the graph is frozen; build a new graph"
            )
