"""Graph JSON, version 1: cudnn-aot's own graph file (see docs/graph-format.md).

Reading refuses whatever it does not know, with the JSON path. Writing leaves out what is the
default, so a graph has one shortest text; reading that text gives a graph of the same key.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cudnn_aot.compiler.formats.json_reader import Value, parse
from cudnn_aot.compiler.graph.enums import data_type, scalar_type
from cudnn_aot.compiler.graph.extents import Extent, as_extent, extent_json, row_major
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.compiler.graph.tensor import Tensor

VERSION = 1
MARKER = "cudnn_aot_graph"

_CONTEXT = ("io_data_type", "intermediate_data_type", "compute_data_type")
_SYMBOL_FIELDS = ("min", "max", "hint", "multiple_of")
_UNSET = ("NOT_SET",)


def loads(text: str | bytes, name: str = "") -> Graph:
    """Read a graph; `name` is its name if the file gives none. Raises one `InvalidGraphError`."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return read(parse(data), name)


def read(root: Value, name: str = "") -> Graph:
    """Read a graph from parsed JSON and validate it."""
    top = root.fields((MARKER, "tensors", "nodes"), ("name", *_CONTEXT, "symbols"))
    version = top[MARKER].integer()
    if version != VERSION:
        top[MARKER].fail(f"got version {version}, want {VERSION}: this release reads no other")
    context: dict[str, Any] = {
        field: top[field].member(data_type, _UNSET) for field in _CONTEXT if field in top
    }
    with top.get("symbols", root).locate():
        graph = Graph(
            top["name"].text() if "name" in top else name,
            **context,
            symbols=_read_symbols(top["symbols"]) if "symbols" in top else None,
        )
    for value in top["tensors"].items():
        with value.locate():
            _read_tensor(graph, value)
    uids = frozenset(graph.tensors)
    produced: dict[int, str] = {}
    pending = [_NodeRecord(value, uids, produced) for value in top["nodes"].items()]
    for record in _in_order(pending, uids.difference(produced)):
        with record.value.locate():
            record.build(graph)
    graph.validate()
    return graph


def _read_symbols(value: Value) -> dict[str, dict[str, int]]:
    symbols = {}
    for name, item in value.object().items():
        members = item.fields((), _SYMBOL_FIELDS)
        symbols[name] = {field: member.integer() for field, member in members.items()}
    return symbols


def _read_extents(value: Value) -> tuple[Extent, ...]:
    extents = []
    for item in value.items():
        if type(item.raw) is not int and not isinstance(item.raw, str):
            item.want("an integer or text such as '4096*M'")
        with item.locate():
            extents.append(as_extent(item.raw))
    if not extents:
        value.fail("got no extents, want at least one")
    return tuple(extents)


def _read_tensor(graph: Graph, value: Value) -> Tensor:
    fields = value.fields(
        ("uid",),
        (
            "name",
            "data_type",
            "dim",
            "stride",
            "is_virtual",
            "is_optional",
            "is_pass_by_value",
            "pass_by_value",
            "scalar_type",
            "alignment_value",
        ),
    )

    def get(name: str, read: Callable[[Value], Any], default: Any = None) -> Any:
        return read(fields[name]) if name in fields else default

    tensor = graph.tensor(
        get("dim", _read_extents, ()),
        get("stride", _read_extents),
        get("data_type", lambda value: value.member(data_type, _UNSET)),
        get("is_virtual", Value.boolean, False),
        get("is_pass_by_value", Value.boolean, False),
        name=get("name", Value.text, ""),
        uid=fields["uid"].integer(),
        alignment_value=get("alignment_value", Value.integer, 1),
    )
    tensor.is_optional = get("is_optional", Value.boolean, False)
    tensor.pass_by_value = get("pass_by_value", Value.number)
    tensor.scalar_type = get("scalar_type", lambda value: value.member(scalar_type))
    return tensor


class _NodeRecord:
    """A node of the file whose ports are checked, not yet added to the graph."""

    def __init__(self, value: Value, uids: frozenset[int], produced: dict[int, str]) -> None:
        fields = value.fields(("op", "inputs", "outputs"), ("name", "attrs", "compute_data_type"))
        self.value = value
        self.uids = uids
        self.op = fields["op"].text()
        if self.op not in OPS:
            fields["op"].fail(f"unknown op {self.op!r} (known: {', '.join(sorted(OPS))})")
        self.name = fields["name"].text() if "name" in fields else ""
        self.compute = (
            fields["compute_data_type"].member(data_type, _UNSET)
            if "compute_data_type" in fields
            else None
        )
        self.attrs: dict[str, Any] = {}
        if "attrs" in fields:
            names = [attr.name for attr in OPS[self.op].attrs]
            members = fields["attrs"].fields((), names)
            self.attrs = {name: member.scalar() for name, member in members.items()}
        self.inputs = self._ports(fields["inputs"])
        self.outputs = self._ports(fields["outputs"])
        for port, uid in self.outputs.items():
            if uid in produced:
                fields["outputs"].at(port).fail(f"uid {uid} is already produced at {produced[uid]}")
            produced[uid] = value.path

    def _ports(self, value: Value) -> dict[str, int]:
        ports = {port: member.integer() for port, member in value.object().items()}
        for port, uid in ports.items():
            if uid not in self.uids:
                value.at(port).fail(f"no tensor has uid {uid}")
        return ports

    def build(self, graph: Graph) -> None:
        tensors = graph.tensors
        graph.add_node(
            self.op,
            {port: tensors[uid] for port, uid in self.inputs.items()},
            self.attrs,
            outputs={port: tensors[uid] for port, uid in self.outputs.items()},
            compute_data_type=self.compute,
            name=self.name,
        )


def _in_order(records: list[_NodeRecord], inputs: frozenset[int]) -> list[_NodeRecord]:
    """`records` with every node after those it reads from, else in file order."""
    ready = set(inputs)
    ordered: list[_NodeRecord] = []
    while records:
        waiting = []
        for record in records:
            if ready.issuperset(record.inputs.values()):
                ordered.append(record)
                ready.update(record.outputs.values())
            else:
                waiting.append(record)
        if len(waiting) == len(records):
            records[0].value.fail("the node depends on its own result")
        records = waiting
    return ordered


def dumps(graph: Graph) -> str:
    """The graph as text, one tensor and one node per line; validates it first."""
    graph.validate()
    head: dict[str, Any] = {MARKER: VERSION}
    if graph.name:
        head["name"] = graph.name
    for field in _CONTEXT:
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
    return "{\n" + ",\n".join(lines) + "\n}\n"


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
    automatic = ""
    if producer is not None:
        port = next(port for port, result in producer.outputs.items() if result is tensor)
        automatic = f"{producer.name}::{port}"
    if tensor.name != automatic:
        row["name"] = tensor.name
    if producer is None:
        row["dim"] = [extent_json(extent) for extent in tensor.dim]
    if tensor.stride != row_major(tensor.dim):
        row["stride"] = [extent_json(extent) for extent in tensor.stride]
    context = graph.intermediate_data_type if tensor.is_virtual else graph.io_data_type
    assert tensor.data_type is not None
    if tensor.data_type is not context:
        row["data_type"] = tensor.data_type.name
    for field in ("is_virtual", "is_optional", "is_pass_by_value"):
        if getattr(tensor, field):
            row[field] = True
    if tensor.pass_by_value is not None:
        row["pass_by_value"] = tensor.pass_by_value
    if tensor.scalar_type not in (None, scalar_type.RUNTIME_PARAM):
        row["scalar_type"] = tensor.scalar_type.name
    if tensor.alignment_value != 1:
        row["alignment_value"] = tensor.alignment_value
    return row


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
            row["attrs"] = dict(node.attrs)
        assert node.compute_data_type is not None
        if node.compute_data_type is not graph.compute_data_type:
            row["compute_data_type"] = node.compute_data_type.name
        rows.append(row)
    return rows
