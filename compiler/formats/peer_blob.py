"""Reader of the cuDNN frontend's plan-blob form, what its ``serialize`` writes of a graph.

Takes the graph part alone, the blob's JSON header, or a whole blob, of which the kernels are
ignored. uids, names and types are kept as they are. Pointwise ports ``IN_0`` ... become the ports
of the op. A graph with override shapes becomes symbolic in its rows (`compiler.graph.override`).
"""

from __future__ import annotations

import enum
from typing import Any

from cudnn_aot.compiler.formats.json_reader import Value
from cudnn_aot.compiler.graph.enums import data_type, scalar_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.op import Op
from cudnn_aot.compiler.graph.ops.table import OPS
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
    """Read a graph and validate it.

    Raises `cudnnGraphNotSupportedError` for what is right but not supported here (an op outside the
    table, ragged offsets) and `InvalidGraphError` for what is wrong.
    """
    if "json_version" in root.object():
        raise cudnnGraphNotSupportedError(
            "the cuDNN frontend's lowered form (json_version) is not read: "
            "save the graph before it is lowered"
        )
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
    used: set[int] = {
        uid for node in nodes for uid in (*node.inputs.values(), *node.outputs.values())
    }
    for item in top["tensors"].items():
        fields = item.fields(("uid",), _TENSOR)
        uid = fields["uid"].integer()
        if uid in used:
            _refuse_unsupported(fields)
            _read_tensor(graph, item, fields)
    for node in nodes:
        node.add(graph)
    graph.validate()
    return graph


def _refuse_unsupported(fields: dict[str, Value]) -> None:
    for field, neutral in (
        ("reordering_type", (None, "NONE")),
        ("ragged_offset", (None,)),
        ("ragged_offset_multiplier", (None, 1)),
    ):
        if field in fields:
            raw = fields[field].raw
            shown = raw.get("name", raw) if isinstance(raw, dict) else raw
            if shown not in neutral:
                raise cudnnGraphNotSupportedError(
                    f"{fields[field].path}: got {shown!r}: not supported for the ops of this graph"
                )


def _read_tensor(graph: Graph, value: Value, fields: dict[str, Value]) -> None:
    def get(name: str) -> Any:
        return _plain(fields[name]) if name in fields else None

    with value.locate():
        tensor = graph.tensor(
            get("dim") or (),
            get("stride") or None,
            _enum(fields["data_type"], data_type) if "data_type" in fields else None,
            _flag(fields, "is_virtual"),
            _flag(fields, "is_pass_by_value"),
            name=get("name") or "",
            uid=get("uid"),
            alignment_value=1 if get("alignment_value") is None else get("alignment_value"),
        )
        tensor.pass_by_value = get("pass_by_value")
        if "scalar_type" in fields:
            tensor.scalar_type = _enum(fields["scalar_type"], scalar_type)


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
        op = params.pop("mode").text() if node_type == "POINTWISE" and "mode" in params else ""
        op = op or node_type.lower()
        if op not in OPS or OPS[op].node_type != node_type:
            raise cudnnGraphNotSupportedError(
                f"{value.path}: op {op!r} (node {self.name!r}) is not supported "
                f"(supported: {', '.join(sorted(OPS))})"
            )
        self.spec: Op = OPS[op]
        self.attrs = {name: _plain(member) for name, member in params.items()}
        self.compute = (
            _enum(fields["compute_data_type"], data_type) if "compute_data_type" in fields else None
        )
        self.inputs = self._ports(fields["inputs"], self.spec.inputs)
        self.outputs = self._ports(fields["outputs"], tuple(o.name for o in self.spec.outputs))

    def _ports(self, value: Value, names: tuple[str, ...]) -> dict[str, int]:
        ports = {}
        for port, member in value.object().items():
            if self.spec.is_pointwise and port.startswith("IN_") and port[3:].isdecimal():
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
    if isinstance(value.raw, dict):
        value = value.fields(("$enum", "name"), ("value",))["name"]
    return value.member(choices)


def _plain(value: Value) -> Any:
    """A plain value, or a list or ``{"$tuple": [...]}`` of plain values."""
    raw = value.raw
    if isinstance(raw, dict):
        value = value.fields(("$tuple",))["$tuple"]
        raw = value.raw
    if isinstance(raw, list):
        return tuple(_plain(item) for item in value.items())
    return None if raw is None else value.scalar()
