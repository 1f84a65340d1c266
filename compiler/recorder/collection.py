"""From records to files: graphs merged by class, what could not be read, and the report."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.recorder.convert import Use, uses_of
from cudnn_aot.compiler.recorder.merge import MergedGraph, merge
from cudnn_aot.compiler.recorder.spool import RecordedGraph, Spool
from cudnn_aot.errors import Error, UsageError

REPORT = "recording.jsonl"  # beside the graphs; not *.json, so that it is not taken for one
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Unread:
    """A recorded graph that has no graph file: kept as it was recorded, with the reason."""

    file: str
    recorded: RecordedGraph
    reason: str


@dataclass(slots=True)
class Recording:
    """What a program's graphs came to.

    Attributes:
        graphs: one per class, or per layout of a class; the file is ``<name>.json``.
        unread: recorded graphs that cannot be read, in files of their own form.
        notes: what was left out of a graph that was read.
        spool: the records, with what went wrong while they were made.
    """

    graphs: list[MergedGraph] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    spool: Spool = field(default_factory=Spool)

    def to_json(self) -> dict[str, Any]:
        """The report as one document."""
        return {
            "format": FORMAT,
            "graphs": [_graph_row(graph) for graph in self.graphs],
            "unread": [
                {
                    "file": item.file,
                    "reason": item.reason,
                    "built": item.recorded.built,
                    "executed": item.recorded.executions,
                }
                for item in self.unread
            ],
            "notes": self.notes,
            "processes": len(self.spool.pids),
            "modules": self.spool.modules,
            "recorder": {
                "failed": self.spool.failed,
                "failures": self.spool.failures,
                "dropped": self.spool.dropped,
                "damaged": self.spool.damaged,
            },
        }


def collect(spool: Spool, *, symbolize: bool = True) -> Recording:
    """Read every record; one that cannot be read is kept, not raised."""
    recording = Recording(spool=spool)
    uses: list[Use] = []
    refused: list[tuple[RecordedGraph, str]] = []
    for recorded in spool.graphs:
        try:
            found, notes = uses_of(recorded)
        except Exception as error:  # a record is never lost, whatever it trips over
            refused.append((recorded, _reason(error)))
            continue
        uses += found
        recording.notes += notes
    recording.graphs = merge(uses, symbolize=symbolize)
    recording.unread = _name_unread(refused)
    return recording


def write_recording(recording: Recording, folder: Path) -> None:
    """Write the graphs, the unread records and the report; files of other names stay."""
    for graph in recording.graphs:
        _write(folder / f"{graph.name}.json", graph_json.dumps(graph.graph))
    for item in recording.unread:
        _write(folder / item.file, json.dumps(item.recorded.document, indent=1) + "\n")
    report = recording.to_json()
    graphs, unread = report.pop("graphs"), report.pop("unread")
    lines = [json.dumps(row) for row in (report, *graphs, *unread)]
    _write(folder / REPORT, "\n".join(lines) + "\n")


def prepare_folder(folder: Path) -> None:
    """Make the output folder before the program runs, so that a wrong one costs no run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{folder}: cannot write graphs there: {reason}") from None


def _graph_row(graph: MergedGraph) -> dict[str, Any]:
    return {
        "name": graph.name,
        "file": f"{graph.name}.json",
        "graph_key": graph.graph.key(),
        "class": graph.digest,
        "built": graph.built,
        "executed": graph.executed,
        "symbols": {
            name: {"min": symbol.min, "max": symbol.max, "hint": symbol.hint}
            for name, symbol in graph.graph.symbols.items()
        },
        "shapes": [
            {"symbols": dict(shape.symbols), "built": shape.built, "executed": shape.executed}
            for shape in graph.shapes
        ],
    }


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, Error) else f"internal error: {type(error).__name__}: {text}"


def _name_unread(refused: Sequence[tuple[RecordedGraph, str]]) -> list[Unread]:
    """``<ops>-<digest of the record>.peer.json``: equal from run to run."""
    items = []
    for recorded, reason in refused:
        text = json.dumps(recorded.document, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        kind = "graph" if recorded.form == "cudnn_aot" else recorded.form
        items.append(Unread(f"{_ops(recorded.document)}-{digest}.{kind}.json", recorded, reason))
    return sorted(items, key=lambda item: (-item.recorded.executions, item.file))


def _ops(document: dict[str, Any]) -> str:
    """The ops of a document that may be anything."""
    names = []
    nodes = document.get("nodes")
    for node in nodes if isinstance(nodes, list) else ():
        if not isinstance(node, dict):
            continue
        kind = str(node.get("node_type") or node.get("tag") or "node").lower()
        params = node.get("params")
        mode = (params if isinstance(params, dict) else node).get("mode")
        names.append(str(mode).lower() if kind == "pointwise" and mode else kind)
    names = list(dict.fromkeys(names))[:4]
    return re.sub(r"[^a-z0-9_.]+", "_", "_".join(names))[:80] or "graph"


def _write(path: Path, text: str) -> None:
    """Replace a file whole."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        staged.write_text(text, encoding="utf-8")
        staged.replace(path)
    except OSError:
        staged.unlink(missing_ok=True)
        raise
