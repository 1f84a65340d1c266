"""Joining stores: what several builds made becomes one, every byte checked before it is taken.

What agrees is united: kernels, the parts of a pointer that different providers made, the members of
a class. Two parts of one provider agree when they were made under one plan key and say the same but
for linked bytes: machines whose linkers differ make the same kernels of other bytes, and each plan
names its own. What does not agree is a conflict: it is listed, and the destination, or else the
first source, has its way unless told otherwise. Nothing of a source is changed, so nothing is lost.

Without conflicts the order of the sources does not count, and merging again changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cudnn_aot.cache import held, layout
from cudnn_aot.cache.plan_record import parse_record
from cudnn_aot.cache.progress import Event, ProgressCallback, Stage, silent
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.errors import NotInStoreError, NotReproducibleError, StoreError, UsageError

# Whose word counts where two differ: the one that was there before, or the later source.
Prefer = Literal["keep", "replace"]


@dataclass(slots=True)
class Merged:
    """What merging did.

    Attributes:
        builds: records of builds that were added.
        conflicts: what differs between the stores and was decided for one of them, a line each.
        failures: what could not be taken: damaged, or another object under one kernel key.
    """

    plans: int = 0
    kernels: int = 0
    names: int = 0
    builds: int = 0
    conflicts: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    files_written: int = 0
    bytes_written: int = 0


def merge(
    sources: Sequence[StoreReader],
    destination: Path,
    prefer: Prefer | None = None,
    progress: ProgressCallback = silent,
) -> Merged:
    """Add all that the sources hold to the store at ``destination``, which is made if need be.

    ``prefer`` decides conflicts; None keeps what was there before as well.

    Raises:
        UsageError: no source, or the destination is one.
        StoreError: the destination cannot be written.
    """
    if not sources:
        raise UsageError("nothing to merge: name at least one store")
    for source in sources:
        if os.path.realpath(source.path) == os.path.realpath(destination):
            raise UsageError(f"cannot merge {str(destination)!r} into itself: leave it out")
    with contextlib.ExitStack() as stack:
        for source in sources:  # nobody prunes it meanwhile
            stack.callback(held.join_builders(source.path).close)
        writer = stack.enter_context(StoreWriter(destination))
        merging = _Merging(writer, sources, prefer == "replace", progress)
        steps = merging.builds, merging.kernels, merging.pointers, merging.classes, merging.names
        for step in steps:
            step()
    merging.did.files_written = writer.files_written
    merging.did.bytes_written = writer.bytes_written
    return merging.did


@dataclass(frozen=True, slots=True)
class _Part:
    """What one store has of one provider for a graph; ``like`` is its plan without linked bytes."""

    source: StoreReader
    part: Mapping[str, Any]
    records: tuple[dict[str, Any], ...]
    like: str


class _NothingTaken(Exception):
    """No store has a plan of a graph whole, which was noted."""


class _Merging:
    def __init__(
        self,
        writer: StoreWriter,
        sources: Sequence[StoreReader],
        is_later_taken: bool,
        progress: ProgressCallback,
    ) -> None:
        self._writer = writer
        self._sources = sources
        self._is_later_taken = is_later_taken
        self._progress = progress
        self._keys = sorted({key for source in sources for key in source.kernels()})
        self._places: dict[tuple[str, str], list[StoreReader]] = {}
        for source in sources:
            for place in source.pointers():
                self._places.setdefault(place, []).append(source)
        self._taken: set[str] = set()  # blobs that are there and whole
        self.did = Merged()

    def builds(self) -> None:
        """The record of every build, first as a build has it."""
        known = set(self._writer.reader.builds())
        for source in self._sources:
            for digest in source.builds():
                with self._noting(source):
                    self._writer.put_build(source.build(digest))
                    self.did.builds += digest not in known
                    known.add(digest)

    def kernels(self) -> None:
        """Every kernel that a source has whole; of several that of the lowest blob digest."""
        for done, key in enumerate(self._keys, start=1):
            found: list[tuple[str, StoreReader, dict[str, Any]]] = []
            for source in self._sources:
                with self._noting(source), contextlib.suppress(NotInStoreError):
                    record = source.kernel(key)
                    found.append((record["blob"]["sha256"], source, record))
            for digest, source, record in sorted(found, key=lambda each: each[0]):
                with self._noting(source):
                    if not self._has_kernel(key):
                        self._take(source, digest)
                    self.did.kernels += self._writer.put_kernel(record)
            self._tell(done, f"kernel {key[:12]}")

    def pointers(self) -> None:
        """What every source has for every graph, with all that it needs."""
        places = sorted(self._places.items())
        for done, ((target, key), holders) in enumerate(places, start=1 + len(self._keys)):
            found: list[tuple[StoreReader, dict[str, Any]]] = []
            for source in holders:
                with self._noting(source):
                    found.append((source, source.pointer(target, key)))
            with contextlib.suppress(_NothingTaken):
                union = self._union(target, key, found)
                self.did.plans += self._writer.update_pointer(target, key, union)
            self._tell(done, f"graph {key[:12]} for {target}")

    def _tell(self, done: int, label: str) -> None:
        total = len(self._keys) + len(self._places)
        self._progress(Event(Stage.MERGE, done, total, label))

    def classes(self) -> None:
        for source in self._sources:
            for target, bucket in source.classes():
                with self._noting(source):
                    for key in source.class_members(target, bucket):
                        if self._has_pointer(target, key):
                            self._writer.put_class_member(target, bucket, key)

    def names(self) -> None:
        for source in self._sources:
            for target, name in source.names():
                with self._noting(source):
                    self._name(source, target, name, source.name(target, name))

    def _name(
        self, source: StoreReader, target: str, name: str, document: Mapping[str, Any]
    ) -> None:
        key, uids = document["graph_key"], document["uids"]
        if not self._has_pointer(target, key):
            return  # it could not be taken, which is said
        try:
            known: Mapping[str, Any] = self._writer.reader.name(target, name)
        except StoreError:  # not there, or damaged
            known = document
        if (known["graph_key"], known["uids"]) != (key, uids):
            what = f"graph {known['graph_key'][:12]}, and in {source.where!r} {key[:12]}"
            if known["graph_key"] == key:
                what = f"uids {known['uids']}, and in {source.where!r} {uids}"
            self.did.conflicts.append(f"name {name!r} for {target}: stands for {what}")
            if not self._is_later_taken:
                return
        self.did.names += self._writer.put_name(target, name, key, uids)

    def _union(
        self, target: str, key: str, found: Sequence[tuple[StoreReader, dict[str, Any]]]
    ) -> Callable[[dict[str, Any] | None], Mapping[str, Any]]:
        """How the pointer of the destination changes by those of the sources."""

        def change(known: dict[str, Any] | None) -> Mapping[str, Any]:
            pointers = [*([(self._writer.reader, known)] if known is not None else []), *found]
            parts: dict[str, list[_Part]] = {}
            for source, pointer in pointers:
                for provider, part in layout.providers_of(pointer).items():
                    with self._noting(source):
                        parts.setdefault(provider, []).append(_part(source, part))
            taken = {}
            for provider, each in parts.items():
                what = f"{provider} plan of {key[:12]} for {target}"
                for candidate in self._ranked(what, each):
                    with self._noting(candidate.source):
                        self._take_part(candidate)
                        taken[provider] = candidate.part
                        break
            if not taken:
                raise _NothingTaken
            made = _pointer([pointer for _, pointer in pointers], taken, known)
            for source, pointer in pointers:
                if made["graph"] is not None and pointer.get("graph") == made["graph"]:
                    self._take(source, made["graph"])
                    break
            return made

        return change

    def _ranked(self, what: str, parts: Sequence[_Part]) -> list[_Part]:
        """Of the parts of one provider those that agree with the one that is preferred."""
        first = parts[0]
        for other in parts[1:]:
            if other.like != first.like:
                here, there = first.source.where, other.source.where
                self.did.conflicts.append(f"{what}: {_difference(first, other, here, there)}")
                if self._is_later_taken:
                    first = other
        alike = [part for part in parts if part.like == first.like]
        mine = self._writer.reader
        return sorted(alike, key=lambda p: (p.source is not mine, list(p.part["records"])))

    def _take_part(self, part: _Part) -> None:
        """The blobs of a provider's plans, once their kernels are in the destination."""
        for record in part.records:
            for kernel in record["kernels"]:
                stored = self._writer.reader.kernel(kernel["key"])
                made = kernel.get("object", stored["object"]["sha256"])
                if stored["object"]["sha256"] != made:
                    raise NotReproducibleError(
                        f"its kernel {kernel['key']} is object {made}, and the destination's is "
                        f"{stored['object']['sha256']}"
                    )
            for blob in (*record["kernels"], *record.get("blobs", ())):
                self._take(part.source, blob["blob"])
        for digest in part.part["records"]:
            self._take(part.source, digest)

    def _take(self, source: StoreReader, digest: str) -> None:
        if digest not in self._taken:
            self._writer.put_blob(source.blob(digest))
            self._taken.add(digest)

    def _has_kernel(self, key: str) -> bool:
        try:
            self._writer.reader.blob(self._writer.reader.kernel(key)["blob"]["sha256"])
        except StoreError:  # not there, damaged or unreadable
            return False
        return True

    def _has_pointer(self, target: str, key: str) -> bool:
        try:
            self._writer.reader.pointer(target, key)
        except StoreError:
            return False
        return True

    @contextlib.contextmanager
    def _noting(self, source: StoreReader) -> Iterator[None]:
        """What cannot be taken from a source is noted once, and stops nothing else."""
        try:
            yield
        except (StoreError, KeyError, TypeError, ValueError) as error:
            said = str(error) if isinstance(error, StoreError) else "a document cannot be read"
            line = f"{source.where}: {said}"
            if line not in self.did.failures:
                self.did.failures.append(line)


def _part(source: StoreReader, part: Mapping[str, Any]) -> _Part:
    records = tuple(parse_record(source.blob(digest), digest) for digest in part["records"])
    bare = [
        {**record, "kernels": [_unlinked(kernel) for kernel in record["kernels"]]}
        for record in records
    ]
    reasons = [] if records else sorted(part["reasons"])
    like = json.dumps([part["plan_key"], bare, reasons], sort_keys=True)
    return _Part(source, part, records, like)


def _unlinked(kernel: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kernel.items() if name not in ("blob", "bytes")}


def _pointer(
    pointers: Sequence[Mapping[str, Any]],
    parts: Mapping[str, Mapping[str, Any]],
    known: Mapping[str, Any] | None,
) -> Mapping[str, Any]:
    """What a pointer with these parts says; one that says so already stays as it is."""
    graphs = [known["graph"]] if known is not None else [p.get("graph") for p in pointers]
    graph = min((g for g in graphs if g is not None), default=None)
    same = [p for p in pointers if p.get("graph") == graph and layout.providers_of(p) == parts]
    if same:
        return known if known in same else min(same, key=lambda p: json.dumps(p, sort_keys=True))
    order = ["native"]
    for pointer in pointers:  # as the first one has its providers that has several
        records = pointer["records"]
        held_by = {
            name: records.index(part["records"][0])
            for name, part in layout.providers_of(pointer).items()
            if part["records"]
        }
        if len(held_by) > 1:
            order = sorted(held_by, key=held_by.__getitem__)
            break
    return layout.pointer_of(graph, parts, order)


def _difference(one: _Part, other: _Part, here: str, there: str) -> str:
    """The first thing that tells two parts apart, of those that a person can act on."""
    if bool(one.records) != bool(other.records):
        words = ["a plan" if part.records else "declined" for part in (one, other)]
        return f"{words[0]} in {here!r}, {words[1]} in {there!r}"
    if one.records and other.records:
        requirements = [part.records[0].get("requirements", {}) for part in (one, other)]
        hosts = [str(each.get("host_triple", "")) for each in requirements]
        if hosts[0] != hosts[1]:
            return (
                f"made for host {hosts[0]} in {here!r}, for {hosts[1]} in {there!r}: a target has "
                "one host, so give the targets of two hosts two names"
            )
        for name in ("engine", "knobs", "table", "requirements"):
            if one.records[0].get(name) != other.records[0].get(name):
                return f"its {name} in {here!r} is another than in {there!r}"
        keys = [[k["key"] for k in part.records[0].get("kernels", ())] for part in (one, other)]
        if keys[0] != keys[1]:
            return f"its kernels in {here!r} are others than in {there!r}"
    return f"the planner, the target's description or the tuning differs: {here!r}, {there!r}"


__all__ = ["Merged", "Prefer", "merge"]
