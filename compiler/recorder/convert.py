"""Turns what a program's processes recorded into graphs, one for every shape that was used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cudnn_aot.compiler.formats import graph_json, lowered, peer_blob
from cudnn_aot.compiler.formats.json_reader import Value, parse
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.recorder.spool import Call, RecordedGraph
from cudnn_aot.errors import Error, InvalidGraphError, cudnnGraphNotSupportedError

# Settings of a live device, which a target takes the place of.
_DEVICE_SETTINGS = ("sm_count", "sm_version")


@dataclass(frozen=True, slots=True)
class Use:
    """A graph and how often it was declared and executed with these very extents.

    `is_override` says that the extents are those of a call with override shapes.
    """

    graph: Graph
    built: int
    executed: int
    is_override: bool = False


def uses_of(recorded: RecordedGraph) -> tuple[list[Use], list[str]]:
    """The graph as declared, one more for each set of override shapes, and what was left out.

    With recorded override shapes the declared extents are kept as numbers; without any, a graph
    with override shapes enabled has the symbols that its importer gives it, if it gives any.

    Raises:
        Error: the graph cannot be read.
    """
    notes: list[str] = []
    if not recorded.calls:
        try:
            graph = read_graph(recorded)
        except cudnnGraphNotSupportedError as error:
            # It is not clear what calls would override: the graph is kept as it is declared.
            graph = read_graph(recorded, is_override_shape_enabled=False)
            notes.append(str(error))
        graph_json.loads(graph_json.dumps(graph))  # a file that does not read back is no use
        return [Use(graph, recorded.built, recorded.executed)], notes
    graph = read_graph(recorded, is_override_shape_enabled=False)
    uses = [Use(graph, recorded.built, recorded.executed)]
    document = json.loads(graph_json.dumps(graph))
    for call, count in recorded.calls.items():
        try:
            uses.append(Use(_override(graph, document, call), 0, max(count, 1), is_override=True))
        except Error as error:
            notes.append(f"override shapes {list(call.shapes)} of uids {list(call.uids)}: {error}")
    return uses, notes


def read_graph(recorded: RecordedGraph, *, is_override_shape_enabled: bool = True) -> Graph:
    """The validated graph of a record."""
    if recorded.form == "cudnn_aot":
        return graph_json.loads(recorded.document["text"])
    document = recorded.document
    if recorded.form == "peer":
        kwargs = {
            name: value
            for name, value in document["graph_kwargs"].items()
            if name not in _DEVICE_SETTINGS
            and (name != "is_override_shape_enabled" or is_override_shape_enabled)
        }
        document = {**document, "graph_kwargs": kwargs}
        _refuse_opaque(document)
        return peer_blob.read(_as_value(document))
    return read_lowered(document)


def read_lowered(document: dict[str, Any]) -> Graph:
    """The validated graph of the JSON that the cuDNN frontend's C++ half prints."""
    return lowered.read(_as_value(document))


def _as_value(document: dict[str, Any]) -> Value:
    return parse(json.dumps(document).encode())


def _refuse_opaque(document: dict[str, Any]) -> None:
    for node in document["nodes"]:
        for name, value in node["params"].items():
            kind = _opaque_in(value)
            if kind:
                raise cudnnGraphNotSupportedError(
                    f"node {node['name']!r}: {name} holds a {kind}, which no file can hold"
                )
    for tensor in document["tensors"]:
        for name, value in tensor.items():
            kind = _opaque_in(value)
            if kind:
                raise cudnnGraphNotSupportedError(
                    f"tensor {tensor['name']!r}: {name} holds a {kind}, which no file can hold"
                )


def _opaque_in(value: Any) -> str | None:
    if isinstance(value, dict):
        if "$opaque" in value:
            return str(value["$opaque"])
        value = list(value.values())
    if isinstance(value, list):
        return next(filter(None, map(_opaque_in, value)), None)
    return None


def _override(graph: Graph, document: dict[str, Any], call: Call) -> Graph:
    """`graph` with the extents and strides of one call."""
    if not len(call.uids) == len(call.shapes) == len(call.strides):
        raise InvalidGraphError(
            f"got {len(call.uids)} uids, {len(call.shapes)} shapes, {len(call.strides)} strides"
        )
    rows = {row["uid"]: row for row in document["tensors"]}
    changed = dict(rows)
    for uid, dim, stride in zip(call.uids, call.shapes, call.strides, strict=True):
        if uid not in rows:
            raise InvalidGraphError(f"no tensor has uid {uid}")
        changed[uid] = {**rows[uid], "stride": list(stride)}
        if "dim" in rows[uid]:
            changed[uid]["dim"] = list(dim)
    for uid, row in rows.items():
        if row.get("is_virtual") and uid not in call.uids:  # follows from the others
            changed[uid] = {name: value for name, value in row.items() if name != "stride"}
    overridden = graph_json.loads(json.dumps({**document, "tensors": list(changed.values())}))
    for uid, dim in zip(call.uids, call.shapes, strict=True):
        if overridden.tensors[uid].dim != dim:
            raise InvalidGraphError(
                f"uid {uid}: got {list(dim)}, but {list(overridden.tensors[uid].dim)} follows from "
                "the other operands"
            )
    return overridden
