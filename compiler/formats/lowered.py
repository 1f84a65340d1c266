"""Reader of the cuDNN frontend's lowered form: the JSON that its C++ half prints and logs.

Versions: 2.0 lists tensors and names them by uid; 1.0 has an object of tensors, keyed by uid where
the caller gave one and by name where not. Numbers of attributes may be hexadecimal bit patterns of
a float. One row of `TAGS` translates one class of node; fields that a row does not name must hold
nothing that matters (null, false), so that no meaning is lost in silence.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cudnn_aot.compiler.formats.json_reader import Value
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.op import Op
from cudnn_aot.compiler.graph.ops.table import op_row
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import cudnnGraphNotSupportedError

VERSIONS = ("1.0", "2.0")
_CONTEXT = ("io_data_type", "intermediate_data_type", "compute_data_type")


@dataclass(frozen=True, slots=True)
class Row:
    """How a node of one tag becomes one of the op table.

    Attributes:
        op: the op's name; for POINTWISE, found by the mode.
        ports: op's port by the file's, of either direction; others keep their name.
        attrs: op's attribute by the file's field.
        inert: fields that a value other than null is allowed in without having a meaning.
    """

    op: str
    ports: Mapping[str, str] = field(default_factory=dict)
    attrs: Mapping[str, str] = field(default_factory=dict)
    inert: frozenset[str] = frozenset()


TAGS: dict[str, Row] = {
    "MATMUL": Row("matmul", attrs={"padding_value": "padding"}),
    "POINTWISE": Row(
        "",
        attrs={
            "relu_lower_clip_slope": "negative_slope",
            "relu_lower_clip": "lower_clip",
            "relu_upper_clip": "upper_clip",
            "swish_beta": "swish_beta",
            "axis": "axis",
        },
    ),
}
_NODE = ("tag", "name", "inputs", "outputs", "compute_data_type", "mode")
_DIRECTIONS = {"_FWD": "", "_BWD": "_backward"}


def is_lowered(root: Value) -> bool:
    """Whether parsed JSON is of this form."""
    return isinstance(root.raw, dict) and {"json_version", "nodes"} <= root.raw.keys()


def read(root: Value, name: str = "") -> Graph:
    """Read a graph and validate it.

    Raises `cudnnGraphNotSupportedError` for what is right but not read here (a tag without a row)
    and `InvalidGraphError` for what is wrong.
    """
    top = root.object()
    for required in ("json_version", "nodes", "tensors"):
        if required not in top:
            root.fail(f"field {required!r} is missing")
    version = top["json_version"].text()
    if version not in VERSIONS:
        raise cudnnGraphNotSupportedError(
            f"json_version {version!r} is not read (read: {', '.join(VERSIONS)})"
        )
    nodes = [_Node(value) for value in top["nodes"].items()]
    context = top["context"].object() if "context" in top else {}
    types: dict[str, Any] = {
        field: _data_type(context[field]) for field in _CONTEXT if field in context
    }
    graph = Graph(
        _text(context.get("name")) or name,
        **types,
        is_override_shape_enabled=_flag(context.get("is_override_shape_enabled")),
    )
    tensors = _read_tensors(graph, top["tensors"])
    for node in nodes:
        node.add(graph, tensors)
    graph.validate()
    return graph


def _read_tensors(graph: Graph, value: Value) -> dict[str | int, Tensor]:
    """Every tensor by how nodes refer to it: uid, or name in version 1.0."""
    rows = value.object() if isinstance(value.raw, dict) else None
    items = list(rows.values()) if rows is not None else list(value.items())
    tensors: dict[str | int, Tensor] = {}
    for item in items:
        fields = item.object()
        for refused in ("ragged_offset_uid", "ragged_offset_name"):
            if refused in fields:
                raise cudnnGraphNotSupportedError(
                    f"{item.path}: ragged offsets are not read from the lowered form"
                )
        reordering = fields["reordering_type"].raw if "reordering_type" in fields else None
        uid_given = rows is None or _flag(fields.get("uid_assigned"))
        with item.locate():
            tensor = graph.tensor(
                _integers(fields.get("dim")),
                _integers(fields.get("stride")) or None,
                _data_type(fields["data_type"]) if "data_type" in fields else None,
                _flag(fields.get("is_virtual")),
                _flag(fields.get("is_pass_by_value")),
                reordering_type=None if reordering == "NONE" else reordering,
                name=_text(fields.get("name")),
                uid=fields["uid"].integer() if uid_given and "uid" in fields else None,
            )
            scalar = fields.get("pass_by_value")
            if scalar is not None and scalar.raw is not None:
                tensor.pass_by_value = _number(scalar)
        tensors[tensor.uid if uid_given else tensor.name] = tensor
    return tensors


class _Node:
    """A node of the file, translated to a row of the op table."""

    def __init__(self, value: Value) -> None:
        fields = value.object()
        for required in ("tag", "inputs", "outputs"):
            if required not in fields:
                value.fail(f"field {required!r} is missing")
        self.value = value
        self.name = _text(fields.get("name"))
        tag = fields["tag"].text()
        row = TAGS.get(tag)
        if row is None:
            raise cudnnGraphNotSupportedError(
                f"{value.path}: node {self.name!r}: tag {tag!r} is not read "
                f"(read: {', '.join(sorted(TAGS))})"
            )
        self.row = row
        self.op = row.op or _pointwise(fields["mode"].text() if "mode" in fields else "")
        self.compute = fields.get("compute_data_type")
        self.inputs, self.outputs = fields["inputs"], fields["outputs"]
        self.attrs: dict[str, Any] = {}
        for name, member in fields.items():
            if name in row.attrs and member.raw is not None:
                self.attrs[row.attrs[name]] = _number(member)
            elif name not in (*_NODE, *row.attrs, *row.inert) and member.raw not in (None, False):
                raise cudnnGraphNotSupportedError(
                    f"{member.path}: got {member.describe()}: a field that is not read"
                )

    def add(self, graph: Graph, tensors: Mapping[str | int, Tensor]) -> None:
        spec = op_row(self.op)
        with self.value.locate():
            graph.add_node(
                spec,
                self._wired(self.inputs, spec, tensors),
                # A field that this op's row lacks belongs to another mode of the same tag.
                {name: value for name, value in self.attrs.items() if spec.has_attr(name)},
                outputs=self._wired(self.outputs, spec, tensors),
                compute_data_type=_data_type(self.compute) if self.compute is not None else None,
                name=self.name,
            )

    def _wired(
        self, ports: Value, spec: Op, tensors: Mapping[str | int, Tensor]
    ) -> dict[str, Tensor]:
        wired = {}
        for port, member in ports.object().items():
            name = self.row.ports.get(port, port)
            if spec.is_pointwise and name.startswith("IN_") and name[3:].isdecimal():
                index = int(name[3:])
                if index >= len(spec.inputs):
                    member.fail(f"{spec.name} has {len(spec.inputs)} inputs")
                name = spec.inputs[index]
            if not isinstance(member.raw, str | int) or member.raw not in tensors:
                member.fail(f"no tensor {member.describe()}")
            wired[name] = tensors[member.raw]
        return wired


def _pointwise(mode: str) -> str:
    """``RELU_FWD`` is relu, ``RELU_BWD`` relu_backward, any other mode the op of that name."""
    for ending, replacement in _DIRECTIONS.items():
        if mode.endswith(ending):
            return mode.removesuffix(ending).lower() + replacement
    return mode.lower()


def _data_type(value: Value) -> data_type | None:
    return None if value.raw is None else value.member(data_type)


def _text(value: Value | None) -> str:
    return "" if value is None or value.raw is None else value.text()


def _flag(value: Value | None) -> bool:
    return value is not None and value.raw is not None and value.boolean()


def _integers(value: Value | None) -> tuple[int, ...]:
    if value is None or value.raw is None:
        return ()
    return tuple(item.integer() for item in value.items())


def _number(value: Value) -> int | float:
    """A number, or the bits of a float as eight hexadecimal digits."""
    if isinstance(value.raw, str):
        try:
            bits = bytes.fromhex(value.raw)
        except ValueError:
            bits = b""
        if len(bits) != 4:
            value.want("a number, or the bits of a float as 8 hexadecimal digits")
        number: float = struct.unpack(">f", bits)[0]
        return number
    return value.number()
