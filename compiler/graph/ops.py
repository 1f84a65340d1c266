"""The op table: one row per op; builders, files, inference and validation read it.

A row names the ports in positional order, the attributes with type and default, the outputs with
their data type rule, and the shape rule. Numerical references live in `compiler.reference`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.extents import Extent, broadcast, format_extents
from cudnn_aot.errors import InvalidGraphError

Dim: TypeAlias = tuple[Extent, ...]


class ShapeError(InvalidGraphError):
    """A shape rule's refusal: the port at fault, what it has and what is wanted."""

    def __init__(self, port: str, got: str, want: str) -> None:
        super().__init__(f"port {port}: got {got}, want {want}")


ShapeRule: TypeAlias = Callable[[Mapping[str, Dim]], Mapping[str, Dim]]


@dataclass(frozen=True, slots=True)
class Attr:
    """A scalar attribute; ``default`` None means that it is off unless given."""

    name: str
    type: type
    default: Any = None

    def normalise(self, value: Any) -> Any:
        """`value` as this attribute's type; refuses other types and numbers that are not finite."""
        if self.type is float and type(value) in (int, float):
            if not math.isfinite(value):
                raise InvalidGraphError(
                    f"attribute {self.name}: got {value!r}, want a finite number"
                )
            return float(value)
        if type(value) is self.type:
            return value
        raise InvalidGraphError(
            f"attribute {self.name}: got {value!r}, want {_TYPE_WORDS[self.type]}"
        )


_TYPE_WORDS = {float: "a number", int: "an integer", bool: "true or false", str: "text"}


@dataclass(frozen=True, slots=True)
class Output:
    """An output port. ``data_type`` None follows the graph's io or intermediate type."""

    name: str
    data_type: data_type | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One row.

    Attributes:
        name: method name, and the op's name in files.
        inputs: input ports in positional order.
        outputs: output ports.
        shape: input shapes by port to output shapes by port; raises `ShapeError`.
        attrs: attributes in positional order.
        parameters: the builder's parameters in order, when not inputs, attrs, compute_data_type,
            name.
        node_type: the op's class in the cuDNN frontend's files.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    shape: ShapeRule
    attrs: tuple[Attr, ...] = ()
    parameters: tuple[str, ...] = ()
    node_type: str = "POINTWISE"

    @property
    def is_pointwise(self) -> bool:
        return self.node_type == "POINTWISE"

    @property
    def signature(self) -> tuple[str, ...]:
        """Parameter names of the builder method, in order."""
        if self.parameters:
            return self.parameters
        return (*self.inputs, *(a.name for a in self.attrs), "compute_data_type", "name")

    def attr(self, name: str) -> Attr:
        """The attribute's row; refuses a name that the op does not have."""
        for attr in self.attrs:
            if attr.name == name:
                return attr
        known = ", ".join(attr.name for attr in self.attrs) or "none"
        raise InvalidGraphError(f"{self.name} has no attribute {name!r} (it has: {known})")

    def given_attrs(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """`values` by attribute name, normalised, without those at their default."""
        given = {}
        for name, value in sorted(values.items()):
            row = self.attr(name)
            if value is not None:
                value = row.normalise(value)
                if value != row.default:
                    given[name] = value
        return given


def _matmul_shape(dims: Mapping[str, Dim]) -> Mapping[str, Dim]:
    """Batches broadcast; ``[..., M, K] @ [..., K, N] -> [..., M, N]``."""
    a, b = dims["A"], dims["B"]
    for port, dim in (("A", a), ("B", b)):
        if len(dim) < 2:
            raise ShapeError(port, f"rank {len(dim)}", "at least 2")
    if a[-1] != b[-2]:
        raise ShapeError("B", f"dim {format_extents(b)}", f"K = {a[-1]} (A's last axis) on axis -2")
    batch = broadcast(a[:-2], b[:-2])
    if batch is None:
        raise ShapeError(
            "B",
            f"batch {format_extents(b[:-2])}",
            f"one that broadcasts with A's {format_extents(a[:-2])}",
        )
    return {"C": (*batch, a[-2], b[-1])}


def _broadcast_shape(dims: Mapping[str, Dim]) -> Mapping[str, Dim]:
    """Right-aligned broadcast over all inputs."""
    shape: Dim = ()
    for port, dim in dims.items():
        merged = broadcast(shape, dim)
        if merged is None:
            raise ShapeError(
                port,
                f"dim {format_extents(dim)}",
                f"one that broadcasts with {format_extents(shape)}",
            )
        shape = merged
    return {"OUT_0": shape}


def _pointwise(name: str, ports: Sequence[str], *attrs: Attr) -> Op:
    return Op(name, tuple(ports), (Output("OUT_0"),), _broadcast_shape, attrs)


_UNARY = ("input",)

OPS: dict[str, Op] = {
    row.name: row
    for row in (
        Op(
            "matmul",
            ("A", "B"),
            (Output("C"),),
            _matmul_shape,
            (Attr("padding", float, 0.0),),
            ("A", "B", "compute_data_type", "padding", "name"),
            "MATMUL",
        ),
        _pointwise("add", ("a", "b")),
        _pointwise("mul", ("a", "b")),
        _pointwise("bias", ("input", "bias")),
        _pointwise("scale", ("input", "scale")),
        _pointwise("identity", _UNARY),
        _pointwise(
            "relu",
            _UNARY,
            Attr("negative_slope", float, 0.0),
            Attr("lower_clip", float, 0.0),
            Attr("upper_clip", float),
        ),
        _pointwise("gelu", _UNARY),
        _pointwise("gelu_approx_tanh", _UNARY),
        _pointwise("swish", _UNARY, Attr("swish_beta", float, 1.0)),
        _pointwise("sigmoid", _UNARY),
        _pointwise("tanh", _UNARY),
    )
}


def op_row(name: str) -> Op:
    """The row of `name`; refuses an op that is not in the table, listing those that are."""
    row = OPS.get(name)
    if row is None:
        raise InvalidGraphError(f"unknown op {name!r} (known: {', '.join(sorted(OPS))})")
    return row
