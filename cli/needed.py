"""Whether a store has everything that some graphs need, as serving would find it.

Asks for what is there and whole, not whether a build would make the same again today; so nothing is
planned, and neither the recipes nor the compiler's packages are needed.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from cudnn_aot.cache.layout import is_digest
from cudnn_aot.cache.plan_record import need_servable, parse_record
from cudnn_aot.cache.progress import silent
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.compiler.build.nearest import nearest_entry
from cudnn_aot.compiler.build.sources import Source, expand, read_sources
from cudnn_aot.compiler.formats.user_file import opened
from cudnn_aot.errors import NotInStoreError, StoreError, UsageError
from cudnn_aot.runtime.classes import ClassIndex, passed_scalars

_MAX_LIST_BYTES = 64 << 20
_SHOWN_REASONS = 3


class State(str, Enum):
    """How a store stands to a graph that is needed on a target."""

    WHOLE = "whole"  # its plan is there, every byte as recorded
    SERVED = "served"  # the plan of a symbolic graph serves it, and is whole
    DECLINED = "declined"  # the build found no engine for it
    DAMAGED = "damaged"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Need:
    """A graph that is needed: from a file, or by its name or key alone."""

    name: str
    key: str = ""
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the store has of a graph for a target, and why that is not enough where it is not.

    Attributes:
        graph_key: of the stored graph where it was needed by name, empty where that is absent.
        by: name or key of the symbolic graph that serves it.
    """

    name: str
    graph_key: str
    target: str
    state: State
    by: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        return self.state in (State.WHOLE, State.SERVED)


def read_needs(path: Path) -> tuple[list[Need], list[str]]:
    """The graphs that a folder or a list names, and what of it cannot be read, a line each.

    A folder stands for its ``*.json`` files, and a file that ends in ``.json`` or ``.py`` for its
    graphs. Any other file is a list: in each line a graph file, by its path from here or from the
    list's folder, or a graph's name or key; lines that start with ``#`` are skipped.

    Raises:
        UsageError: it cannot be read, or names nothing.
    """
    needs: list[Need] = []
    files = expand([path])
    failures: list[str] = []
    if not os.path.isdir(path) and path.suffix not in (".json", ".py"):
        files = []
        for line in _lines(path):
            found = [p for p in (Path(line), path.parent / line) if os.path.isfile(p)]
            if found:
                files.append(found[0])
            elif line.endswith(".json"):
                failures.append(f"{line}: there is no such graph file")
            else:
                needs.append(Need(line, line if is_digest(line) else ""))
    sources, unread = read_sources(files, silent)
    needs += [Need(source.name, source.key, source) for source in sources]
    failures += [f"{result.file}: {reason}" for result in unread for reason in result.reasons]
    if not needs and not failures:
        raise UsageError(f"{str(path)!r} names no graph: want graph files, or a list of them")
    return needs, failures


def _lines(path: Path) -> list[str]:
    with opened(path, "list of graphs") as file:
        data = file.read(_MAX_LIST_BYTES)
    try:
        lines = [line.strip() for line in data.decode().splitlines()]
    except UnicodeDecodeError:
        raise UsageError(f"list of graphs {str(path)!r} is no text") from None
    return [line for line in lines if line and not line.startswith("#")]


def answers(reader: StoreReader, needs: Iterable[Need], targets: Sequence[str]) -> list[Answer]:
    """What the store has of every graph for every target, in their order."""
    whole: set[str] = set()
    classes = ClassIndex(reader)
    return [_answer(reader, classes, need, target, whole) for target in targets for need in needs]


def _answer(
    reader: StoreReader, classes: ClassIndex, need: Need, target: str, whole: set[str]
) -> Answer:
    key = need.key
    try:
        if not key:
            key = reader.name(target, need.name)["graph_key"]
        pointer = reader.pointer(target, key)
    except NotInStoreError:
        if need.source is not None:
            return _of_its_class(reader, classes, need.source, target, whole)
        return Answer(
            need.name, key, target, State.ABSENT, reasons=_other_names(reader, need, target)
        )
    except StoreError as error:
        return Answer(need.name, key, target, State.DAMAGED, reasons=(str(error),))
    if not pointer["records"]:
        return Answer(need.name, key, target, State.DECLINED, reasons=tuple(pointer["reasons"]))
    fault = _fault(reader, pointer, whole)
    state = State.WHOLE if fault is None else State.DAMAGED
    return Answer(need.name, key, target, state, reasons=(fault,) if fault is not None else ())


def _of_its_class(
    reader: StoreReader, classes: ClassIndex, source: Source, target: str, whole: set[str]
) -> Answer:
    """Of a graph that is not stored: the symbolic graph that serves it, else what is nearest."""
    reasons: list[str] = []
    try:
        found = classes.find(source.graph, target) if not source.graph.symbols else []
        if isinstance(found, list):
            reasons += found[:_SHOWN_REASONS]
        else:
            by = found.member.pattern.graph.name or found.member.graph_key
            pointer = reader.pointer(target, found.member.graph_key)
            digest = pointer["records"][0]
            record = parse_record(reader.blob(digest), digest)
            scalars = passed_scalars(found, record["table"])
            if not isinstance(scalars, str):
                fault = _fault(reader, pointer, whole)
                state = State.SERVED if fault is None else State.DAMAGED
                said = (fault,) if fault is not None else ()
                return Answer(source.name, source.key, target, state, by, said)
            reasons.append(scalars)
    except (StoreError, LookupError, TypeError, ValueError) as error:
        reasons.append(f"its class cannot be read: {error}")
    reasons = reasons or _nearest(reader, source, target)
    return Answer(source.name, source.key, target, State.ABSENT, reasons=tuple(reasons))


def _nearest(reader: StoreReader, source: Source, target: str) -> list[str]:
    nearest = nearest_entry(reader, target, source.name, source.graph)
    if nearest is None:
        return [f"the store has no graph for {target} that is like it"]
    differences = nearest.differences
    said = [difference.in_words("here", "there") for difference in differences[:_SHOWN_REASONS]]
    if len(differences) > len(said):
        said.append(f"and {len(differences) - len(said)} more")
    name = repr(nearest.name) if nearest.name else nearest.graph_key[:12]
    return [f"the nearest there is {name}: {'; '.join(said) or 'a build adds it to its class'}"]


def _other_names(reader: StoreReader, need: Need, target: str) -> tuple[str, ...]:
    if need.key:
        return (f"the store has no graph of that key for {target}",)
    names = [name for holder, name in reader.names() if holder == target]
    near = difflib.get_close_matches(need.name, names, 3)
    there = f"; the nearest are {', '.join(map(repr, near))}" if near else ""
    return (f"the store has no graph of that name for {target}{there}",)


def _fault(reader: StoreReader, pointer: dict[str, Any], whole: set[str]) -> str | None:
    """What of a graph's plans is missing or damaged; ``whole`` has the blobs that were read."""
    try:
        for digest in pointer["records"]:
            record = parse_record(reader.blob(digest), digest)
            need_servable(record, digest, pointer["target"], pointer["graph_key"])
            for kernel in record["kernels"]:
                reader.kernel(kernel["key"])
            for part in (*record["kernels"], *record.get("blobs", ())):
                if part["blob"] not in whole:
                    reader.blob(part["blob"])
                    whole.add(part["blob"])
    except StoreError as error:
        return str(error)
    return None
