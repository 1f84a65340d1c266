"""One tensor of a graph: what it is, where its declaration may still be inferred, and its setters.

`dim`, `stride` and `data_type` are empty until they are set or inferred; the ``*_assigned`` flags
say which of them the caller set. Every write goes through one place, which refuses once the graph
is frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.dtypes import as_data_type
from cudnn_aot.compiler.graph.enums import data_type, scalar_type, tensor_reordering
from cudnn_aot.compiler.graph.extents import INT64_MAX, Extent, as_extents
from cudnn_aot.compiler.graph.text import as_name
from cudnn_aot.errors import InvalidGraphError, did_you_mean

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph


def _count(field: str) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not 1 <= value <= INT64_MAX:
            raise InvalidGraphError(f"bad {field}: got {value!r}, want an integer of at least 1")
        return value

    return read


def _member(field: str, kind: Any, default: Any) -> Callable[[Any], Any]:
    """Reads a member of `kind`, its name, or another library's member of that name."""

    def read(value: Any) -> Any:
        if value is None or isinstance(value, kind):
            return default if value is None else value
        name = getattr(value, "name", value)
        if isinstance(name, str) and name in kind.__members__:
            return kind[name]
        near = did_you_mean(name, kind.__members__) if isinstance(name, str) else ""
        raise InvalidGraphError(
            f"bad {field}: got {value!r}{near}, want one of {', '.join(kind.__members__)}"
        )

    return read


def _number(value: Any) -> int | float | None:
    if value is not None and type(value) not in (int, float, bool):
        raise InvalidGraphError(f"bad pass_by_value: got {value!r}, want a number")
    if type(value) is int and not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise InvalidGraphError("bad pass_by_value: want an integer from -2**63 to 2**63 - 1")
    return value


def as_uid(value: Any) -> int:
    """`value`, which is a uid; refuses anything else."""
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise InvalidGraphError(f"bad uid: got {value!r}, want 0 <= uid < 2**63")
    return value


# The one form of every field that a tensor keeps: what reads it from a caller's value, or refuses.
NORMAL_FORMS: dict[str, Callable[[Any], Any]] = {
    "name": as_name,
    "data_type": as_data_type,
    "dim": as_extents,
    "stride": as_extents,
    "is_virtual": bool,
    "is_pass_by_value": bool,
    "pass_by_value": _number,
    "is_optional": bool,
    "ragged_offset_multiplier": _count("ragged_offset_multiplier"),
    "alignment_value": _count("alignment_value"),
    "reordering_type": _member("reordering_type", tensor_reordering, tensor_reordering.NONE),
    "scalar_type": _member("scalar_type", scalar_type, None),
}


# The fields that inference fills in where the caller leaves them open, or rounds, as bits.
DIM, STRIDE, DATA_TYPE, PASS_BY_VALUE = 1, 2, 4, 8
_INFERRED = {
    "dim": DIM,
    "stride": STRIDE,
    "data_type": DATA_TYPE,
    "pass_by_value": PASS_BY_VALUE,
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
        declared_value: `pass_by_value` as it was set, once validation has rounded it to the type.
        is_optional: an output that a call may leave out.
        ragged_offset: a tensor of ``B + 1`` offsets at which the rows of axis 0 start, or None. It
            is an operand of the graph, though it is on no port.
        ragged_offset_multiplier: how many elements an offset counts.
        reordering_type: how the elements are permuted in memory.
        alignment_value: the least alignment in bytes that calls promise of the address, a power of
            two; of ``first_token_offset`` instead what every value in it is a multiple of.
    """

    # An instance has what is not the default in its dictionary, so that making one is cheap.
    _graph: Graph
    uid: int = -1
    name: str = ""
    data_type: data_type | None = None
    dim: tuple[Extent, ...] = ()
    stride: tuple[Extent, ...] = ()
    is_virtual: bool = False
    is_pass_by_value: bool = False
    pass_by_value: int | float | None = None
    declared_value: int | float | None = None
    is_optional: bool = False
    ragged_offset: Tensor | None = None
    ragged_offset_multiplier: int = 1
    reordering_type: tensor_reordering = tensor_reordering.NONE
    alignment_value: int = 1
    scalar_type: scalar_type | None = None
    uid_assigned: bool = True
    _inferred: int = 0  # the fields that have what inference found

    def __init__(self, graph: Graph, fields: dict[str, Any]) -> None:
        """`fields` are in their normal forms, and become the tensor's own."""
        fields["_graph"] = graph
        object.__setattr__(self, "__dict__", fields)

    @property
    def dim_assigned(self) -> bool:
        return bool(self.dim) and not self._inferred & DIM

    @property
    def stride_assigned(self) -> bool:
        return bool(self.stride) and not self._inferred & STRIDE

    @property
    def data_type_assigned(self) -> bool:
        return self.data_type is not None and not self._inferred & DATA_TYPE

    def __setattr__(self, field: str, value: Any) -> None:
        if self._graph._stage:  # not open: the message is worth making
            if field == "uid" and value == self.uid and self._graph.is_frozen:
                return  # nothing changes
            self._graph._check_open(f"set {field} of {self}")
        self._write(field, value)

    def __delattr__(self, field: str) -> None:
        raise AttributeError(f"cannot delete {field!r} of a tensor")

    def _write(self, field: str, value: Any) -> None:
        """Write a field in its normal form; refuses a wrong value."""
        read = NORMAL_FORMS.get(field)
        if read is not None:
            self.__dict__[field] = read(value)
            if field == "pass_by_value":
                self.__dict__.pop("declared_value", None)
            if field in _INFERRED:
                self.__dict__["_inferred"] = self._inferred & ~_INFERRED[field]
        elif field == "uid":
            self._graph._claim_uid(self, as_uid(value))
        elif field == "ragged_offset":
            if value is not None:
                try:
                    value = self._graph._operand("", "ragged_offset", value)
                except InvalidGraphError as error:
                    raise InvalidGraphError(f"{self}: {error}") from None
            self.__dict__[field] = value
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

    def set_ragged_offset(self, value: Tensor | None) -> Tensor:
        """Set the tensor of offsets at which the rows of axis 0 start."""
        self.ragged_offset = value
        return self

    def set_ragged_offset_multiplier(self, value: int) -> Tensor:
        """Set how many elements a ragged offset counts."""
        self.ragged_offset_multiplier = value
        return self

    def set_reordering_type(self, value: Any) -> Tensor:
        """Say how the elements are permuted in memory."""
        self.reordering_type = value
        return self

    def set_alignment_value(self, value: int) -> Tensor:
        """Promise an alignment in bytes (of ``first_token_offset``: of the values)."""
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

    def get_is_pass_by_value(self) -> bool:
        return self.is_pass_by_value

    def get_reordering_type(self) -> tensor_reordering:
        return self.reordering_type

    def get_ragged_offset_multiplier(self) -> int:
        return self.ragged_offset_multiplier


tensor = Tensor  # the name in annotations of programs


def forget(tensor: Tensor) -> None:
    """Empty what inference filled in, and undo what it rounded."""
    state = tensor.__dict__
    inferred = state.pop("_inferred", 0)
    if inferred & DIM:
        state["dim"] = ()
    if inferred & STRIDE:
        state["stride"] = ()
    if inferred & DATA_TYPE:
        state["data_type"] = None
    if inferred & PASS_BY_VALUE:
        state["pass_by_value"] = state.pop("declared_value")


def fill(tensor: Tensor, inferred: int = 0, **fields: Any) -> None:
    """Write fields past the freeze check; `inferred` are those that the caller left open.

    For the graph package itself.
    """
    if inferred:
        fields["_inferred"] = tensor._inferred | inferred
    tensor.__dict__.update(fields)
