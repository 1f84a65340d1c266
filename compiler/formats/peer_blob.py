"""Reader of the cuDNN frontend's plan-blob form, what its ``serialize`` writes of a graph.

Takes the graph part alone, the blob's JSON header, or a whole blob, of which the kernels are
ignored. uids, names and types are kept as they are. Pointwise ports ``IN_0`` ... become the ports
of the op; the counts of list arguments (``_n_inputs``, ``_dropout_n``) are dropped, since the ports
say them. Values are plain, or ``{"$enum": type, "name": member}``, ``{"$tensor": uid}``,
``{"$tuple": [...]}``; a slice, which ``serialize`` refuses, is the recorder's
``{"$slice": [start, stop, step]}``.

A result's strides and a scalar's extents count where the caller set them: what the frontend fills
in before it lowers a graph is provisional, and inference gives what lowering does. A graph with
override shapes becomes symbolic in its rows (`compiler.graph.override`).
"""

from __future__ import annotations

import enum
from typing import Any

from cudnn_aot.compiler.formats.json_reader import Value, is_index
from cudnn_aot.compiler.formats.node_order import in_order
from cudnn_aot.compiler.graph.enums import data_type, scalar_type, tensor_reordering
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.op import Op
from cudnn_aot.compiler.graph.ops.table import BY_NODE_TYPE, OPS, closest
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import InvalidGraphError, cudnnGraphNotSupportedError

MAGIC = b"CUDNN_FE_PYPLAN\0"
DEFAULT_NAME = "test_graph"  # what the frontend calls a graph that was given no name

_GRAPH = ("context", "graph_kwargs", "tensors", "nodes")
_GRAPH_EXTRA = ("is_cuda_graph_replay_expected", "next_uid", "reserved_uids", "node_count")
_CONTEXT = ("io_data_type", "intermediate_data_type", "compute_data_type")
_GRAPH_KWARGS = (
    "name",
    "sm_count",
    "sm_version",
    "is_dynamic_shape_enabled",
    "is_override_shape_enabled",
)
_TENSOR = (
    "name",
    "data_type",
    "dim",
    "stride",
    "is_virtual",
    "is_pass_by_value",
    "pass_by_value",
    "uid",
    "uid_assigned",
    "dim_assigned",
    "stride_assigned",
    "reordering_type",
    "ragged_offset",
    "ragged_offset_multiplier",
    "alignment_value",
    "scalar_type",
)
_MAX_DEPTH = 4  # of lists in a value: slices take two
_NODE = ("name", "node_type", "inputs", "outputs", "params")


def is_peer(root: Value) -> bool:
    """Whether parsed JSON looks like this form."""
    raw = root.raw
    return isinstance(raw, dict) and (
        {"context", "nodes"} <= raw.keys() or {"frontend_version", "graph"} <= raw.keys()
    )


def header_of(blob: bytes) -> bytes:
    """The JSON header of a whole blob, which starts with `MAGIC`."""
    start = len(MAGIC) + 8
    length = int.from_bytes(blob[len(MAGIC) : start], "little")
    if len(blob) < start or length > len(blob) - start:
        raise InvalidGraphError(
            f"plan blob: got {len(blob)} bytes, want a header of {length} bytes after the magic"
        )
    return blob[start : start + length]


def read(root: Value, name: str = "") -> Graph:
    """Read a graph and validate it; override shapes are symbols in it.

    Raises `cudnnGraphNotSupportedError` for what is right but not supported here (an op outside the
    table, settings of a live device) and `InvalidGraphError` for what is wrong.
    """
    value = root.at("graph") if "graph" in root.object() else root
    top = value.fields(_GRAPH, _GRAPH_EXTRA)
    nodes = [_Node(item) for item in top["nodes"].items()]
    kwargs = top["graph_kwargs"].fields((), _GRAPH_KWARGS)
    context = top["context"].fields((), _CONTEXT)
    given = _text(kwargs["name"]) if "name" in kwargs else ""
    graph = Graph(
        given if given not in ("", DEFAULT_NAME) else name,
        **{field: _enum(context[field], data_type) for field in context},
        **{field: _plain(kwargs[field]) for field in kwargs if field != "name"},
    )
    used = {uid for node in nodes for uid in (*node.inputs.values(), *node.outputs.values())}
    rows = {}
    for item in top["tensors"].items():
        fields = item.fields(("uid",), _TENSOR)
        uid = fields["uid"].integer()
        if uid in rows:
            item.fail(f"uid {uid} is used twice")
        rows[uid] = (item, fields)
    offsets = {
        uid: _tensor_uid(fields["ragged_offset"])
        for uid, (_, fields) in rows.items()
        if uid in used and "ragged_offset" in fields and fields["ragged_offset"].raw is not None
    }
    produced = {uid for node in nodes for uid in node.outputs.values()}
    for uid, (item, fields) in rows.items():
        if uid in used or uid in offsets.values():
            _read_tensor(graph, item, fields, uid in produced)
    for uid, offset in offsets.items():
        with rows[uid][1]["ragged_offset"].locate():
            if offset not in rows:
                raise InvalidGraphError(f"no tensor has uid {offset}")
            graph.tensors[uid].ragged_offset = graph.tensors[offset]
    for place in in_order(nodes, top["nodes"]):
        nodes[place].add(graph)
    return graph.canonical()


def _tensor_uid(value: Value) -> int:
    return value.fields(("$tensor",))["$tensor"].integer()


def _read_tensor(graph: Graph, value: Value, fields: dict[str, Value], is_produced: bool) -> None:
    def get(name: str) -> Any:
        return _plain(fields[name]) if name in fields else None

    def member(name: str, choices: type[enum.Enum]) -> Any:
        return _enum(fields[name], choices) if name in fields else None

    scalar = get("pass_by_value")
    dtype = member("data_type", data_type)
    if dtype is None and scalar is not None:  # what the frontend gives a scalar when it lowers it
        dtype = data_type.INT32 if type(scalar) is int else data_type.FLOAT
    dim, stride = get("dim") or (), get("stride") or None
    if is_produced and get("stride_assigned") is False:
        stride = None
    if scalar is not None and get("dim_assigned") is False:
        dim, stride = (1,), None
    with value.locate():
        tensor = graph.tensor(
            dim,
            stride,
            dtype,
            _flag(fields, "is_virtual"),
            _flag(fields, "is_pass_by_value"),
            None,
            member("reordering_type", tensor_reordering),
            get("name") or "",
            get("uid"),
            1 if get("ragged_offset_multiplier") is None else get("ragged_offset_multiplier"),
            1 if get("alignment_value") is None else get("alignment_value"),
        )
        tensor.pass_by_value = scalar
        tensor.scalar_type = member("scalar_type", scalar_type)


def _flag(fields: dict[str, Value], name: str) -> bool:
    return name in fields and fields[name].boolean()


class _Node:
    """A node of the file, translated to a row of the table."""

    def __init__(self, value: Value) -> None:
        fields = value.fields(_NODE, ("compute_data_type",))
        self.value = value
        self.name = fields["name"].text()
        params = fields["params"].object()
        node_type = fields["node_type"].text()
        spec = BY_NODE_TYPE.get(node_type)
        op = node_type.lower() if spec is None else spec.name
        if node_type == "POINTWISE" and "mode" in params:
            op = params.pop("mode").text()
            spec = OPS.get(op)
        if spec is None or spec.node_type != node_type:
            raise cudnnGraphNotSupportedError(
                f"{value.path}: op {op!r} (node {self.name!r}) is not supported{closest(op)}"
            )
        self.spec: Op = spec
        counts = {
            form.format(port.name)
            for port in spec.ports
            if port.is_list
            for form in ("_n_{}", "_{}_n")
        }
        self.attrs = {name: _plain(member) for name, member in params.items() if name not in counts}
        self.compute = (
            _enum(fields["compute_data_type"], data_type) if "compute_data_type" in fields else None
        )
        self.inputs = self._ports(fields["inputs"])
        self.outputs = self._ports(fields["outputs"])

    def _ports(self, value: Value) -> dict[str, int]:
        names = self.spec.inputs
        ports = {}
        for port, member in value.object().items():
            if self.spec.is_pointwise and port.startswith("IN_") and is_index(port[3:]):
                index = int(port[3:])
                if index >= len(names):
                    member.fail(f"{self.spec.name} has {len(names)} inputs")
                port = names[index]
            ports[port] = member.integer()
        return ports

    def add(self, graph: Graph) -> None:
        tensors = graph.tensors

        def wired(ports: dict[str, int]) -> dict[str, Tensor]:
            for port, uid in ports.items():
                if uid not in tensors:
                    self.value.fail(f"port {port}: no tensor has uid {uid}")
            return {port: tensors[uid] for port, uid in ports.items()}

        with self.value.locate():
            graph.add_node(
                self.spec,
                wired(self.inputs),
                self.attrs,
                outputs=wired(self.outputs),
                compute_data_type=self.compute,
                name=self.name,
            )


def _text(value: Value) -> str:
    return "" if value.raw is None else value.text()


def _enum(value: Value, choices: type[enum.Enum]) -> Any:
    """``{"$enum": "module:type", "name": ...}``, a bare name, or null."""
    if value.raw is None:
        return None
    return _member(value).member(choices)


def _member(value: Value) -> Value:
    """The name of an enum member."""
    if not isinstance(value.raw, dict):
        return value
    fields = value.fields(("$enum", "name"), ("value",))
    kind = fields["$enum"].text()
    if kind.partition(":")[0].partition(".")[0] != "cudnn":
        fields["$enum"].want("an enum of the module cudnn")
    return fields["name"]


def _plain(value: Value, depth: int = 0) -> Any:
    """A plain value, the name of an enum member, or a list, tuple or slice of such values."""
    raw = value.raw
    if depth > _MAX_DEPTH:
        value.fail(f"nested deeper than {_MAX_DEPTH} lists")
    if isinstance(raw, dict):
        if "$enum" in raw:
            return _member(value).text()
        if "$tensor" in raw or "$dict" in raw:
            value.want("a number, text, an enum member or a list of them")
        word = "$slice" if "$slice" in raw else "$tuple"
        value = value.fields((word,))[word]
        raw = value.raw
    if isinstance(raw, list):
        return tuple(_plain(item, depth + 1) for item in value.items())
    return None if raw is None else value.scalar()
