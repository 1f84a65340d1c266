"""Reader of the cuDNN frontend's lowered form: the JSON that its C++ half prints and logs.

Versions: 2.0 lists tensors and names them by uid; 1.0 has an object of tensors, keyed by uid where
the caller gave one and by name where not. Numbers of attributes may be hexadecimal bit patterns of
a float. One row of `TAGS` translates one class of node; fields that a row does not name must hold
nothing that matters (null, false, no items), so that no meaning is lost in silence.

What C++ does not write cannot be read: the value of a compile-time constant, a score modifier, the
``transpose`` of block_scale_quantize, alignments.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from cudnn_aot.compiler.formats.attributes import read_attribute
from cudnn_aot.compiler.formats.json_reader import Value, is_index
from cudnn_aot.compiler.formats.lowered_tags import TAGS, integers
from cudnn_aot.compiler.formats.node_order import in_order
from cudnn_aot.compiler.graph.attr import FLOAT, Attr
from cudnn_aot.compiler.graph.enums import data_type, tensor_reordering
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.ops.table import op_row
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import cudnnGraphNotSupportedError

VERSIONS = ("1.0", "2.0")
_CONTEXT = ("io_data_type", "intermediate_data_type", "compute_data_type")
_NODE = ("tag", "name", "inputs", "outputs", "compute_data_type", "mode", "peer_stats")
_DIRECTIONS = {"_FWD": "", "_BWD": "_backward"}


def is_lowered(root: Value) -> bool:
    """Whether parsed JSON is of this form."""
    return isinstance(root.raw, dict) and {"json_version", "nodes"} <= root.raw.keys()


def read(root: Value, name: str = "") -> Graph:
    """Read a graph and validate it; override shapes are symbols in it.

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
    tensors = _read_tensors(graph, top["tensors"], nodes)
    for node in nodes:
        node.wire(tensors)
    for place in in_order(nodes, top["nodes"]):
        nodes[place].add(graph)
    return graph.canonical()


Tensors = dict[str | int, Tensor]  # by how nodes refer to them: uid, or name in version 1.0


def _read_tensors(graph: Graph, value: Value, nodes: Iterable[_Node]) -> Tensors:
    rows = value.object() if isinstance(value.raw, dict) else None
    items = list(rows.values()) if rows is not None else list(value.items())
    listed = [item.raw.get("uid") for item in items if isinstance(item.raw, dict)]
    for node in nodes:  # peers' tensors stand in the node alone
        items += [peer for peer in node.peers if peer.at("uid").raw not in listed]
    tensors: Tensors = {}
    offsets: list[tuple[Tensor, Value]] = []
    for item in items:
        fields = item.object()
        uid_given = rows is None or _flag(fields.get("uid_assigned"))
        multiplier = fields.get("ragged_offset_multiplier")
        with item.locate():
            tensor = graph.tensor(
                integers(fields.get("dim")),
                integers(fields.get("stride")) or None,
                _data_type(fields["data_type"]) if "data_type" in fields else None,
                _flag(fields.get("is_virtual")),
                _flag(fields.get("is_pass_by_value")),
                reordering_type=_reordering(fields.get("reordering_type")),
                name=_text(fields.get("name")),
                uid=fields["uid"].integer() if uid_given and "uid" in fields else None,
                ragged_offset_multiplier=multiplier.integer() if multiplier is not None else 1,
            )
            scalar = fields.get("pass_by_value")
            if scalar is not None and scalar.raw is not None:
                tensor.pass_by_value = _scalar(scalar)
        tensors[tensor.uid if uid_given else tensor.name] = tensor
        for reference in ("ragged_offset_uid", "ragged_offset_name"):
            if reference in fields and fields[reference].raw is not None:
                offsets.append((tensor, fields[reference]))
    for tensor, value in offsets:
        if isinstance(value.raw, str | int) and value.raw in tensors:
            tensor.ragged_offset = tensors[value.raw]
    for tensor, value in offsets:
        if tensor.ragged_offset is None:
            value.fail(f"no tensor {value.describe()}")
    return tensors


def _reordering(value: Value | None) -> tensor_reordering | None:
    return None if value is None or value.raw is None else value.member(tensor_reordering)


def _scalar(value: Value) -> int | float:
    """A number, or ``{"index": which C++ type, "value": number}``."""
    if isinstance(value.raw, dict):
        value = value.fields(("index", "value"))["value"]
    return _number(value)


class _Node:
    """A node of the file, translated to a row of the op table; `wire` gives it its tensors."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]

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
        self.spec = op_row(row.op or _pointwise(fields["mode"].text() if "mode" in fields else ""))
        self.compute = fields.get("compute_data_type")
        self.reads, self.writes = fields["inputs"], fields["outputs"]
        peers = fields.get("peer_stats")
        self.peers = [] if peers is None or peers.raw is None else list(peers.items())
        for peer in self.peers:
            if "uid" not in peer.object():
                peer.fail("field 'uid' is missing")
        self.attrs = self._attrs(fields)

    def _attrs(self, fields: Mapping[str, Value]) -> dict[str, Any]:
        row, spec = self.row, self.spec
        attrs = {} if row.finish is None else row.finish(fields)
        for name, member in fields.items():
            attr = row.attrs.get(name)
            if attr is not None and spec.has_attr(attr):
                if not _is_nothing(member):
                    attrs[attr] = _attribute(spec.attr(attr), member)
            elif name not in (*_NODE, *row.inert) and not _is_nothing(member):
                raise cudnnGraphNotSupportedError(
                    f"{member.path}: got {member.describe()}: a field that is not read"
                )
        return attrs

    def wire(self, tensors: Tensors) -> None:
        self.inputs = self._wired(self.reads, tensors)
        for place, peer in enumerate(self.peers):
            self.inputs[f"peer_stats_{place}"] = tensors[peer.at("uid").integer()]
        self.outputs = self._wired(self.writes, tensors)

    def add(self, graph: Graph) -> None:
        with self.value.locate():
            graph.add_node(
                self.spec,
                self.inputs,
                self.attrs,
                outputs=self.outputs,
                compute_data_type=_data_type(self.compute) if self.compute is not None else None,
                name=self.name,
            )

    def _wired(self, ports: Value, tensors: Tensors) -> dict[str, Tensor]:
        spec, wired = self.spec, {}
        for port, member in ports.object().items():
            name = self.row.ports.get(port, port)
            if spec.is_pointwise and name.startswith("IN_") and is_index(name[3:]):
                index = int(name[3:])
                if index >= len(spec.inputs):
                    member.fail(f"{spec.name} has {len(spec.inputs)} inputs")
                name = spec.inputs[index]
            elif is_index(name) and spec.list_port(f"{spec.inputs[0]}_{name}"):
                name = f"{spec.inputs[0]}_{name}"
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


def _is_nothing(value: Value) -> bool:
    return value.raw is None or value.raw is False or value.raw == []


def _attribute(row: Attr, value: Value) -> Any:
    return _number(value) if row.type is FLOAT else read_attribute(row, value)


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
