"""One tensor of a graph: what it is, where its declaration may still be inferred, and its setters.

`dim`, `stride` and `data_type` are empty until they are set or inferred; the ``*_assigned`` flags
say which of them the caller set. Every write goes through one place, which refuses once the graph
is frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.dtypes import as_data_type
from cudnn_aot.compiler.graph.enums import data_type, scalar_type
from cudnn_aot.compiler.graph.extents import INT64_MAX, Extent, as_extents
from cudnn_aot.errors import FrozenGraphError, InvalidGraphError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph


def _alignment(value: Any) -> int:
    if type(value) is not int or value < 1 or value & (value - 1):
        raise InvalidGraphError(f"bad alignment_value: got {value!r}, want a power of two in bytes")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidGraphError(f"bad name: got {value!r}, want text")
    return value


def _scalar_type(value: Any) -> scalar_type | None:
    if value is None or isinstance(value, scalar_type):
        return value
    name = getattr(value, "name", value)
    if name in scalar_type.__members__:
        return scalar_type[name]
    raise InvalidGraphError(
        f"bad scalar_type: got {value!r}, want one of {', '.join(scalar_type.__members__)}"
    )


_NORMALISE: dict[str, Callable[[Any], Any]] = {
    "name": _name,
    "data_type": as_data_type,
    "dim": as_extents,
    "stride": as_extents,
    "is_virtual": bool,
    "is_pass_by_value": bool,
    "is_optional": bool,
    "alignment_value": _alignment,
    "scalar_type": _scalar_type,
}


class Tensor:
    """A tensor of one graph; made by `Graph.tensor` or as an op's output.

    Attributes:
        uid: the caller's handle for a non-virtual tensor, unique in the graph.
        data_type: element type, or None until inferred.
        dim: extents, or ``()`` until inferred.
        stride: strides in elements, or ``()`` until inferred.
        is_virtual: the tensor exists inside the graph only.
        is_pass_by_value: a host number rather than a buffer; `pass_by_value` is its value, or None
            when each call gives it.
        is_optional: an output that a call may leave out.
        alignment_value: the least alignment in bytes that calls promise.
    """

    __slots__ = (
        "_graph",
        "uid",
        "name",
        "data_type",
        "dim",
        "stride",
        "is_virtual",
        "is_pass_by_value",
        "pass_by_value",
        "is_optional",
        "alignment_value",
        "scalar_type",
        "uid_assigned",
        "data_type_assigned",
        "dim_assigned",
        "stride_assigned",
    )
    _graph: Graph
    uid: int
    name: str
    data_type: data_type | None
    dim: tuple[Extent, ...]
    stride: tuple[Extent, ...]
    is_virtual: bool
    is_pass_by_value: bool
    pass_by_value: int | float | None
    is_optional: bool
    alignment_value: int
    scalar_type: scalar_type | None
    uid_assigned: bool
    data_type_assigned: bool
    dim_assigned: bool
    stride_assigned: bool

    def __init__(self, graph: Graph, uid: int, *, uid_assigned: bool, **fields: Any) -> None:
        fill(
            self,
            _graph=graph,
            uid=uid,
            uid_assigned=uid_assigned,
            name="",
            data_type=None,
            dim=(),
            stride=(),
            is_virtual=False,
            is_pass_by_value=False,
            pass_by_value=None,
            is_optional=False,
            alignment_value=1,
            scalar_type=None,
            data_type_assigned=False,
            dim_assigned=False,
            stride_assigned=False,
        )
        for field, value in fields.items():
            setattr(self, field, value)

    def __setattr__(self, field: str, value: Any) -> None:
        if self._graph.is_frozen:
            raise FrozenGraphError(
                f"cannot set {field} of {self}: the graph is frozen; build a new graph"
            )
        if field == "uid":
            self._graph._claim_uid(self, value)
        elif field in _NORMALISE:
            value = _NORMALISE[field](value)
            fill(self, **{field: value})
            if field in ("dim", "stride", "data_type"):
                fill(self, **{f"{field}_assigned": value not in ((), None)})
        elif field == "pass_by_value":
            if value is not None and type(value) not in (int, float, bool):
                raise InvalidGraphError(f"bad pass_by_value: got {value!r}, want a number")
            if type(value) is int and not -INT64_MAX <= value <= INT64_MAX:
                raise InvalidGraphError("bad pass_by_value: want an integer below 2**63")
            fill(self, pass_by_value=value)
        else:
            raise AttributeError(f"cannot set {field!r} of a tensor")

    def __str__(self) -> str:
        return f"tensor {self.name!r} (uid {self.uid})" if self.name else f"tensor uid {self.uid}"

    def __repr__(self) -> str:
        dtype = self.data_type.name if self.data_type else "?"
        dim = "x".join(str(extent) for extent in self.dim) or "?"
        return f"<{self} {dtype} {dim}{' virtual' if self.is_virtual else ''}>"

    # Fluent setters, as programs written for the cuDNN frontend call them.

    def set_output(self, value: bool = True, *, optional: bool = False) -> Tensor:
        """Make an op's result an output; `optional` lets a call leave it out."""
        self.is_virtual = not value
        self.is_optional = bool(value and optional)
        return self

    def set_data_type(self, value: Any) -> Tensor:
        """Set the element type."""
        self.data_type = value
        return self

    def set_dim(self, value: Any) -> Tensor:
        """Set the extents."""
        self.dim = value
        return self

    def set_stride(self, value: Any) -> Tensor:
        """Set the strides, in elements."""
        self.stride = value
        return self

    def set_uid(self, value: int) -> Tensor:
        """Claim a uid; an automatic holder of it is renumbered."""
        self.uid = value
        return self

    def set_name(self, value: str) -> Tensor:
        """Set the name."""
        self.name = value
        return self

    def set_is_virtual(self, value: bool) -> Tensor:
        """Say whether the tensor exists inside the graph only."""
        self.is_virtual = value
        return self

    def set_is_pass_by_value(self, value: bool) -> Tensor:
        """Say whether the tensor is a host number."""
        self.is_pass_by_value = value
        return self

    def set_alignment_value(self, value: int) -> Tensor:
        """Promise an alignment in bytes."""
        self.alignment_value = value
        return self

    def get_uid(self) -> int:
        return self.uid

    def get_name(self) -> str:
        return self.name

    def get_data_type(self) -> Any:
        """The element type; ``NOT_SET`` until set or inferred."""
        return self.data_type or data_type.NOT_SET

    def get_dim(self) -> list[Extent]:
        return list(self.dim)

    def get_stride(self) -> list[Extent]:
        return list(self.stride)

    def get_is_virtual(self) -> bool:
        return self.is_virtual


def fill(tensor: Tensor, **fields: Any) -> None:
    """Write fields past the freeze check; for the graph package itself."""
    for field, value in fields.items():
        object.__setattr__(tensor, field, value)
