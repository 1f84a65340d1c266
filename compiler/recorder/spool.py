"""Reads what recorded processes left in a spool folder.

A process may have been killed at any point: a last line without an end, a line torn by a full disk
and a missing file of counters are expected, and cost no more than themselves.
"""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudnn_aot.compiler.formats.json_reader import MAX_DEPTH, is_deeper
from cudnn_aot.compiler.formats.user_file import opened
from cudnn_aot.compiler.recorder.hook import DROPPED, FAILURES
from cudnn_aot.errors import UsageError


@dataclass(frozen=True, slots=True)
class Call:
    """The geometry of an execution with override shapes: three lists of one length."""

    uids: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class RecordedGraph:
    """A graph as a program declared it, and how often it was used.

    Attributes:
        form: ``peer``, ``lowered`` or ``cudnn_aot`` (see `hook.capture`).
        document: the graph in that form.
        built: graph objects that were validated like this.
        executed: executions with the declared shapes.
        calls: executions by override shapes.
        processes: how many processes used it.
    """

    form: str
    document: dict[str, Any]
    built: int = 0
    executed: int = 0
    calls: Counter[Call] = field(default_factory=Counter)
    processes: int = 0

    @property
    def executions(self) -> int:
        return self.executed + sum(self.calls.values())


@dataclass(slots=True)
class Spool:
    """Everything a program's processes recorded.

    Attributes:
        graphs: the distinct graphs, in the order of first sight.
        pids: the processes that imported a graph class or built a graph.
        modules: versions of the modules whose graphs are recorded, by name.
        failures: what went wrong inside the recorder, with counts by text.
        failed: how often, those without a text included.
        dropped: records that did not fit.
        damaged: lines and files that could not be read.
    """

    graphs: list[RecordedGraph] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    failed: int = 0
    dropped: int = 0
    damaged: int = 0


def read_spool(folder: Path) -> Spool:
    """Merge the records of every process in `folder`: equal graphs become one."""
    spool = Spool()
    graphs: dict[str, RecordedGraph] = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: path.lstat().st_mtime_ns):
        _Process(path, spool).merge_into(graphs)
    spool.graphs = list(graphs.values())
    return spool


# What the reader takes of each kind of record, which is told by its first field.
_RECORDS: dict[str, dict[str, type]] = {
    "process": {"process": int},
    "module": {"module": str, "version": str},
    "failure": {"failure": str, "error": str},
    "document": {"document": dict, "structure": int, "form": str},
    "numbers": {
        "numbers": list,
        "instance": int,
        "structure": int,
        "built": int,
        "executed": int,
        "superseded": int,
    },
    "call": {"call": int, "instance": int, "uids": list, "shapes": list, "strides": list},
}


class _Process:
    """The files of one process."""

    def __init__(self, path: Path, spool: Spool) -> None:
        self.spool = spool
        data = self._read(path.with_suffix(".counts"), is_needed=False)
        self.counts = struct.unpack(f"={len(data) // 8}q", data[: len(data) // 8 * 8])
        self.structures: dict[int, tuple[str, dict[str, Any]]] = {}
        self.instances: dict[int, tuple[dict[str, Any], list[tuple[Call, int]]]] = {}
        for line in self._read(path).split(b"\n"):
            if line:
                try:
                    self._take(json.loads(line))
                except (ValueError, KeyError, TypeError, RecursionError):
                    spool.damaged += 1
        spool.failed += self._count(FAILURES)
        spool.dropped += self._count(DROPPED)

    def _read(self, path: Path, *, is_needed: bool = True) -> bytes:
        """What the file holds; nothing if it cannot be read, which counts as damaged if it is
        needed or there."""
        try:
            with opened(path, "records") as file:
                return file.read()
        except UsageError:
            self.spool.damaged += is_needed or os.path.exists(path)
            return b""

    def _count(self, index: int) -> int:
        return self.counts[index] if 0 <= index < len(self.counts) else 0

    def _take(self, record: Any) -> None:
        if not isinstance(record, dict):
            raise ValueError("not a record")
        kind = next((kind for kind in _RECORDS if kind in record), None)
        if kind is None:
            raise ValueError("not a record")
        for name, wanted in _RECORDS[kind].items():
            if type(record[name]) is not wanted:
                raise ValueError(f"{name}: want {wanted.__name__}")
        if kind == "process":
            self.spool.pids.append(record["process"])
        elif kind == "module":
            self.spool.modules[record["module"]] = record["version"]
        elif kind == "failure":
            text = f"{record['failure']}: {record['error']}"
            if text not in self.spool.failures:
                self.spool.failures.append(text)
        elif kind == "document":
            if is_deeper(record["document"], MAX_DEPTH):
                raise ValueError("deeper than a graph is")
            self.structures[record["structure"]] = (record["form"], record["document"])
        elif kind == "numbers":
            self.structures[record["structure"]]  # a record that lost its structure is damaged
            self.instances[record["instance"]] = (record, [])
        else:
            shapes, strides = (tuple(map(tuple, record[name])) for name in ("shapes", "strides"))
            call = Call(tuple(record["uids"]), shapes, strides)
            hash(call)  # fails for what is no list of numbers
            self.instances[record["instance"]][1].append((call, record["call"]))

    def merge_into(self, graphs: dict[str, RecordedGraph]) -> None:
        for record, calls in self.instances.values():
            built, executed = self._count(record["built"]), self._count(record["executed"])
            # A later look at the same graph object replaced this one, for each of its objects.
            if built and built == self._count(record["superseded"]) and not executed and not calls:
                continue
            form, document = self.structures[record["structure"]]
            try:
                document = fill_numbers(document, record["numbers"])
            except (ValueError, KeyError, TypeError, AttributeError):
                self.spool.damaged += 1
                continue
            text = json.dumps([form, document], sort_keys=True)
            graph = graphs.setdefault(text, RecordedGraph(form, document))
            graph.built += built
            graph.executed += executed
            graph.processes += 1
            for call, counter in calls:
                graph.calls[call] += self._count(counter)


def fill_numbers(document: dict[str, Any], numbers: list[int]) -> dict[str, Any]:
    """The graph that `hook.capture` split: every length becomes the next so many numbers.

    Raises `ValueError`, `KeyError`, `TypeError` or `AttributeError` if the two are no halves of one
    graph.
    """
    document = json.loads(json.dumps(document))
    begin = 0
    tensors = document.get("tensors") or []
    for row in tensors.values() if isinstance(tensors, dict) else tensors:
        for name in ("dim", "stride"):
            end = begin + row[name]
            if not begin <= end <= len(numbers):
                raise ValueError(f"{name}: got {row[name]} of {len(numbers) - begin} numbers")
            row[name] = numbers[begin:end]
            begin = end
    if begin != len(numbers):
        raise ValueError(f"got {len(numbers)} numbers, want {begin}")
    return document
