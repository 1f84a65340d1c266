"""Class plans: which stored symbolic graph a concrete graph is a case of.

Imported when a graph is looked up, not before: it needs the graph half of the compiler, which a
process that asks for plans by name does not load. The symbolic graphs of a bucket are read and
parsed once per store; what was not there is looked for again each time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cudnn_aot.cache.layers import AnyReader
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.bucket import GraphClass
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.unify import Match, Pattern
from cudnn_aot.errors import (
    DamagedError,
    InvalidGraphError,
    NotInStoreError,
    StoreError,
    UsageError,
)


@dataclass(frozen=True, slots=True)
class Member:
    """A stored symbolic graph that has a plan."""

    graph_key: str
    pattern: Pattern

    @property
    def label(self) -> str:
        name = self.pattern.graph.name
        return f"{name!r} ({self.graph_key[:12]})" if name else self.graph_key[:12]

    @property
    def rank(self) -> tuple[int, str]:
        """The narrowest comes first: its plan was ranked for the fewest graphs."""
        cases = 1
        for symbol in self.pattern.graph.symbols.values():
            cases *= symbol.max // symbol.multiple_of - (symbol.min - 1) // symbol.multiple_of
        return cases, self.graph_key


@dataclass(frozen=True, slots=True)
class Found:
    """The member that stands for a graph, and the values with which it does."""

    member: Member
    match: Match


def as_graph(value: object) -> Graph | None:
    """`value` as a graph, or None if it is none; a `with` builder's is the one that it built."""
    graph = value if isinstance(value, Graph) else getattr(value, "graph", None)
    return graph if isinstance(graph, Graph) else None


class ClassIndex:
    """The classes of one store, as far as they were asked for; safe to use from many threads."""

    def __init__(self, reader: AnyReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._members: dict[tuple[str, str], tuple[Member, ...]] = {}
        self._patterns: dict[str, Pattern] = {}

    def find(self, graph: Graph, target: str) -> Found | list[str]:
        """The plan's graph for a concrete graph on a target, or the reasons why there is none.

        Of several that match, the one with the fewest cases is taken, then the lowest key.
        """
        if graph.symbols:
            return [f"it is not concrete (it has symbols {', '.join(graph.symbols)})"]
        known = graph.graph_class()
        members = self._members.get((target, known.bucket), ())
        reasons: list[str] = []
        found = _first_match(graph, known, members, reasons)
        if found is None:
            again = self._read(target, known.bucket)
            if again is not members:
                reasons = []
                found = _first_match(graph, known, again, reasons)
        return reasons if found is None else found

    def why_not(self, graph: Graph, target: str, name: str) -> str | None:
        """What a graph has otherwise than the stored graph of a name, if there is one."""
        try:
            key = self._reader.name(target, name)["graph_key"]
            pattern = self._pattern(key, self._reader.pointer(target, key))
        except (StoreError, UsageError, KeyError):  # no name is as long as a graph's may be
            return None
        return getattr(pattern.match(graph), "reason", None)

    def _read(self, target: str, bucket: str) -> tuple[Member, ...]:
        """The members as stored now; the same tuple as before if nothing changed."""
        with self._lock:
            before = self._members.get((target, bucket), ())
            try:
                keys = self._reader.class_members(target, bucket)
            except NotInStoreError:
                return before
            if keys == sorted(member.graph_key for member in before):
                return before
            members = []
            for key in keys:
                try:
                    pointer = self._reader.pointer(target, key)
                except NotInStoreError as error:
                    raise DamagedError(f"class {bucket} for {target} is damaged: {error}") from None
                if pointer.get("records"):  # else it was declined since
                    members.append(Member(key, self._pattern(key, pointer)))
            after = tuple(sorted(members, key=lambda member: member.rank))
            self._members[target, bucket] = after
            return after

    def _pattern(self, graph_key: str, pointer: Mapping[str, Any]) -> Pattern:
        known = self._patterns.get(graph_key)
        if known is not None:
            return known
        try:
            graph = graph_json.loads(self._reader.blob(pointer["graph"]))
        except (InvalidGraphError, KeyError) as error:
            raise StoreError(f"the stored graph {graph_key} cannot be read: {error}") from None
        if graph.key() != graph_key:
            raise DamagedError(f"the stored graph {graph_key} is another one: {graph.key()}")
        return self._patterns.setdefault(graph_key, Pattern(graph))


def _first_match(
    graph: Graph, known: GraphClass, members: tuple[Member, ...], reasons: list[str]
) -> Found | None:
    for member in members:
        match = member.pattern.match(graph, known)
        if isinstance(match, Match):
            reason = member.pattern.attribute_difference(known) if match.attributes else None
            if reason is None:
                return Found(member, match)
            reason += ", and no launch passes another"
        else:
            reason = match.reason
        reasons.append(f"it is no case of {member.label}: {reason}")
    return None


def passed_scalars(found: Found, table: Mapping[str, Any]) -> dict[int, int | float] | str:
    """The scalars of the concrete graph that a launch passes, or why the plan has no place for one.

    A value that is the symbolic graph's own needs none.
    """
    passed: dict[int, int | float] = {}
    if not found.match.scalars:
        return passed
    places = {op["uid"] for op in table["operands"] if op["kind"] == "scalar"}
    for uid, value in found.match.scalars.items():
        if uid in places:
            passed[uid] = value
            continue
        own = found.member.pattern.graph.tensors[uid].pass_by_value
        if str(value) != str(own):  # as text, in which 0.0 and -0.0 differ too
            return (
                f"it is no case of {found.member.label}: tensor uid {uid}: pass_by_value: got "
                f"{value}, want {own}, and no launch passes another"
            )
    return passed
