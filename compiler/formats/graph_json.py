"""Graph JSON, version 1: cudnn-aot's own graph file (see docs/graph-format.md).

Reading refuses whatever it does not know, with the JSON path. Writing leaves out what is the
default, so a graph has one shortest text; reading that text gives a graph of the same key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from cudnn_aot.compiler.formats.attributes import read_attributes
from cudnn_aot.compiler.formats.json_reader import MAX_BYTES, MAX_ITEMS, Value, parse
from cudnn_aot.compiler.formats.node_order import in_order
from cudnn_aot.compiler.graph.attr import plain
from cudnn_aot.compiler.graph.enums import data_type, scalar_type, tensor_reordering
from cudnn_aot.compiler.graph.extents import (
    INT64_MAX,
    MAX_RANK,
    Extent,
    as_extent,
    check_rank,
    extent_json,
    row_major,
)
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.infer import default_data_type, default_dim
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.op import NOTHING, NodeView
from cudnn_aot.compiler.graph.ops.table import OPS, closest
from cudnn_aot.compiler.graph.tensor import NORMAL_FORMS, Tensor
from cudnn_aot.errors import InvalidGraphError

VERSION = 1
MARKER = "cudnn_aot_graph"

CONTEXT = ("io_data_type", "intermediate_data_type", "compute_data_type")
SYMBOL_FIELDS = ("min", "max", "hint", "multiple_of")
NODE_FIELDS = ("name", "attrs", "compute_data_type")
_NODE_REQUIRED = ("op", "inputs", "outputs")
_NODE = dict.fromkeys((*_NODE_REQUIRED, *NODE_FIELDS))  # quick to look into, and in order
_SCHEMA = "$schema"  # what editors find the schema by; no part of the graph
_UNSET = ("NOT_SET",)


def loads(text: str | bytes, name: str = "", into: Graph | None = None) -> Graph:
    """Read a graph; `name` is its name if the file gives none. Raises one `InvalidGraphError`.

    `into` is an empty graph that becomes the one that is read.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return read(parse(data), name, into)


def read(root: Value, name: str = "", into: Graph | None = None) -> Graph:
    """Read a graph from parsed JSON and validate it."""
    top = root.fields((MARKER, "tensors", "nodes"), ("name", *CONTEXT, "symbols", _SCHEMA))
    version = top[MARKER].integer()
    if version != VERSION:
        top[MARKER].fail(f"got version {version}, want {VERSION}: this release reads no other")
    if _SCHEMA in top:
        top[_SCHEMA].text()
    context: dict[str, Any] = {
        field: top[field].member(data_type, _UNSET) for field in CONTEXT if field in top
    }
    with top.get("symbols", root).locate():
        graph = into if into is not None else Graph.__new__(Graph)
        Graph.__init__(
            graph,
            top["name"].text() if "name" in top else name,
            **context,
            symbols=_read_symbols(top["symbols"]) if "symbols" in top else None,
        )
    _read_tensors(graph, top["tensors"])
    _read_nodes(graph, top["nodes"])
    graph.validate()
    return graph


def _read_symbols(value: Value) -> dict[str, dict[str, int]]:
    symbols = {}
    for name, item in value.object().items():
        members = item.fields((), SYMBOL_FIELDS)
        symbols[name] = {field: member.integer() for field, member in members.items()}
    return symbols


def _read_extents(value: Value) -> tuple[Extent, ...]:
    raw = value.raw
    if type(raw) is list and 0 < len(raw) <= MAX_RANK:  # mostly, and mostly of numbers
        for extent in raw:
            if type(extent) is not int or not 0 <= extent <= INT64_MAX:
                break
        else:
            return tuple(raw)
    items = value.items()
    if not raw:
        value.fail("got no extents, want at least one")
    with value.locate():
        check_rank(len(raw))
    extents = []
    for item in items:
        if type(item.raw) is not int and not isinstance(item.raw, str):
            item.want("an integer or text such as '4096*M'")
        with item.locate():
            extents.append(as_extent(item.raw))
    return tuple(extents)


def _uid(value: Value, known: Collection[int] | None = None) -> int:
    """A uid, of a tensor of the file if `known` is given."""
    uid = value.raw
    if type(uid) is not int or not 0 <= uid <= INT64_MAX:
        value.integer()
        value.want("0 <= uid < 2**63")
    if known is not None and uid not in known:
        value.fail(f"no tensor has uid {uid}")
    return uid


def _read_tensors(graph: Graph, rows: Value) -> None:
    ragged: list[tuple[Value, Tensor]] = []
    row = Value(None, rows)  # one for all rows, and one for all of their fields: they move along
    field = Value(None, row)
    for place, raw_row in enumerate(rows.raw_items()):
        row.key, row.raw = place, raw_row
        given = {}
        try:
            for name, raw in row.raw_fields(_TENSOR_REQUIRED, _TENSOR).items():
                field.key, field.raw = name, raw
                given[name] = _TENSOR[name](field)
            tensor = graph.declare(given, given.pop("uid"))
        except InvalidGraphError as error:
            row.blame(error)
            raise
        if "ragged_offset" in raw_row:
            ragged.append((rows.at(place).at("ragged_offset"), tensor))
    for offset, tensor in ragged:
        with offset.locate():
            tensor.ragged_offset = graph.tensors[_uid(offset, graph.tensors)]


def _checked(field: str, read: Callable[[Value], Any]) -> Callable[[Value], Any]:
    """`read`, then what a tensor itself asks of the field."""
    normal_form = NORMAL_FORMS[field]
    return lambda value: normal_form(read(value))


# How each field of a tensor is read; all but the uid may be left out.
_TENSOR: dict[str, Callable[[Value], Any]] = {
    "uid": _uid,
    "name": Value.text,
    "data_type": lambda value: value.member(data_type, _UNSET),
    "dim": _read_extents,
    "stride": _read_extents,
    "is_virtual": Value.boolean,
    "is_optional": Value.boolean,
    "is_pass_by_value": Value.boolean,
    "pass_by_value": _checked("pass_by_value", Value.number),
    "scalar_type": lambda value: value.member(scalar_type),
    "ragged_offset": lambda value: None,  # read once every tensor is there
    "ragged_offset_multiplier": _checked("ragged_offset_multiplier", Value.integer),
    "reordering_type": lambda value: value.member(tensor_reordering),
    "alignment_value": _checked("alignment_value", Value.integer),
}
_TENSOR_REQUIRED = ("uid",)
TENSOR_FIELDS = tuple(name for name in _TENSOR if name not in _TENSOR_REQUIRED)


def _read_nodes(graph: Graph, rows: Value) -> None:
    tensors = dict(graph.tensors)
    produced: dict[Tensor, int] = {}
    nodes = []
    for place, row in enumerate(rows.each()):
        node = _read_node(graph, row, tensors)
        for port, tensor in node.outputs.items():
            if tensor in produced:
                first = rows.at(produced[tensor]).path
                row.at("outputs").at(port).fail(f"uid {tensor.uid} is already produced at {first}")
            produced[tensor] = place
        nodes.append(node)
    for place in in_order(nodes, rows):
        try:
            graph.add_view(nodes[place])
        except InvalidGraphError as error:
            rows.at(place).blame(error)
            raise


def _read_node(graph: Graph, row: Value, tensors: dict[int, Tensor]) -> NodeView:
    """A node of the file, not yet added to the graph."""
    fields = row.raw_fields(_NODE_REQUIRED, _NODE)
    op = fields["op"]
    spec = OPS.get(op) if type(op) is str else None
    if spec is None:
        op = row.at("op").text()
        row.at("op").fail(f"unknown op {op!r}{closest(op)}")
    name, attrs, compute = "", NOTHING, None
    if len(fields) > len(_NODE_REQUIRED):
        if "name" in fields:
            name = row.at("name").text()
        if "compute_data_type" in fields:
            compute = row.at("compute_data_type").member(data_type, _UNSET)
        if "attrs" in fields:
            attrs = read_attributes(spec, row.at("attrs"))
    inputs = _read_ports(row, "inputs", tensors)
    outputs = _read_ports(row, "outputs", tensors)
    return NodeView(graph, spec, name, inputs, outputs, attrs, compute)


def _read_ports(node: Value, field: str, tensors: dict[int, Tensor]) -> dict[str, Tensor]:
    """The tensors of the file on the ports of `field`."""
    raw = node.raw[field]
    if type(raw) is dict:
        found = {}
        for port, uid in raw.items():
            if type(uid) is not int or uid not in tensors:
                break
            found[port] = tensors[uid]
        else:
            return found
    members = node.at(field).object()  # refuses what is not on the way above
    return {port: tensors[_uid(member, tensors)] for port, member in members.items()}


def dumps(graph: Graph) -> str:
    """The graph's canonical form as text, one tensor and one node per line; validates it first.

    Raises `InvalidGraphError` for a graph too large for a file, as well.
    """
    graph = graph.canonical()
    for field in ("symbols", "tensors", "nodes"):
        if len(getattr(graph, field)) > MAX_ITEMS:
            raise InvalidGraphError(
                f"got {len(getattr(graph, field))} {field}, want at most {MAX_ITEMS} in a file"
            )
    head: dict[str, Any] = {MARKER: VERSION}
    if graph.name:
        head["name"] = graph.name
    for field in CONTEXT:
        if (dtype := getattr(graph, field)) is not None:
            head[field] = dtype.name
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    if graph.symbols:
        symbols = [
            f"    {json.dumps(name)}: {json.dumps(_symbol(symbol))}"
            for name, symbol in graph.symbols.items()
        ]
        lines.append('  "symbols": {\n' + ",\n".join(symbols) + "\n  }")
    for key, rows in (
        ("tensors", [_tensor(graph, tensor) for tensor in graph.tensors.values()]),
        ("nodes", _nodes(graph)),
    ):
        body = ",\n".join(f"    {json.dumps(row, allow_nan=False)}" for row in rows)
        lines.append(f'  "{key}": [\n{body}\n  ]')
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    if len(text) > MAX_BYTES:  # it is ASCII
        raise InvalidGraphError(f"got a file of {len(text)} bytes, want at most {MAX_BYTES}")
    return text


def _symbol(symbol: Any) -> dict[str, int]:
    fields = {"min": symbol.min, "max": symbol.max}
    if symbol.hint is not None:
        fields["hint"] = symbol.hint
    if symbol.multiple_of != 1:
        fields["multiple_of"] = symbol.multiple_of
    return fields


def _tensor(graph: Graph, tensor: Tensor) -> dict[str, Any]:
    producer = graph.producer(tensor)
    row: dict[str, Any] = {"uid": tensor.uid}
    automatic, dim, stride, dtype = _defaults(graph, tensor, producer)
    if tensor.name != automatic:
        row["name"] = tensor.name
    if tensor.dim != (dim or ()):
        row["dim"] = [extent_json(extent) for extent in tensor.dim]
    if tensor.stride != stride:
        row["stride"] = [extent_json(extent) for extent in tensor.stride]
    assert tensor.data_type is not None
    if tensor.data_type is not dtype:
        row["data_type"] = tensor.data_type.name
    for field in ("is_virtual", "is_optional", "is_pass_by_value"):
        if getattr(tensor, field):
            row[field] = True
    if tensor.pass_by_value is not None:
        row["pass_by_value"] = tensor.pass_by_value
    if tensor.scalar_type not in (None, scalar_type.RUNTIME_PARAM):
        row["scalar_type"] = tensor.scalar_type.name
    if tensor.ragged_offset is not None:
        row["ragged_offset"] = tensor.ragged_offset.uid
        if tensor.ragged_offset_multiplier != 1:
            row["ragged_offset_multiplier"] = tensor.ragged_offset_multiplier
    if tensor.reordering_type is not tensor_reordering.NONE:
        row["reordering_type"] = tensor.reordering_type.name
    if tensor.alignment_value != 1:
        row["alignment_value"] = tensor.alignment_value
    return row


def _defaults(
    graph: Graph, tensor: Tensor, producer: Node | None
) -> tuple[str, tuple[Extent, ...] | None, tuple[Extent, ...], data_type | None]:
    """What a reader gives the tensor where the file says nothing: name, dim, stride, data type."""
    if producer is None:
        return "", None, row_major(tensor.dim), default_data_type(graph, tensor)
    port = next(port for port, result in producer.outputs.items() if result is tensor)
    output = producer.spec.output(port)
    if output is None:
        dtype = default_data_type(graph, tensor)
        return f"{producer.name}::{port}", None, row_major(tensor.dim), dtype
    view = producer.view
    return (
        f"{producer.name}::{output.suffix or port}",
        default_dim(view, output),
        output.layout.rule(view, tensor.dim) if tensor.dim else (),
        default_data_type(graph, tensor, view, output),
    )


def _nodes(graph: Graph) -> list[dict[str, Any]]:
    rows = []
    counts: dict[str, int] = {}
    for node in graph.nodes:
        row: dict[str, Any] = {"op": node.op}
        if node.name == f"{node.op}.{counts.get(node.op, 0)}":
            counts[node.op] = counts.get(node.op, 0) + 1
        else:
            row["name"] = node.name
        row["inputs"] = {port: tensor.uid for port, tensor in node.inputs.items()}
        row["outputs"] = {port: tensor.uid for port, tensor in node.outputs.items()}
        if node.attrs:
            row["attrs"] = {name: plain(value) for name, value in node.attrs.items()}
        if node.compute_data_type not in (None, graph.compute_data_type):
            row["compute_data_type"] = node.compute_data_type.name
        rows.append(row)
    return rows
