"""The stored graph that is most like one that the store does not hold, and how they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from cudnn_aot.cache.layers import AnyReader
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.bucket import graph_class
from cudnn_aot.compiler.graph.difference import Difference, class_difference, differences
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.unify import Match, unify
from cudnn_aot.errors import Error


@dataclass(frozen=True, slots=True)
class Nearest:
    """A stored graph beside the one that was looked for.

    Attributes:
        graph_key, name: which one; the name is empty when no name leads to it.
        likeness: ``"class"``: they differ in extents, strides and numbers alone; ``"name"``;
            ``"ops"``.
        differences: every field within a class, the cause first; else the first one.
        serves_for: symbol values for which the stored plan is one of the graph that was looked
            for; None when it is none.
    """

    graph_key: str
    name: str
    likeness: str
    differences: tuple[Difference, ...]
    serves_for: dict[str, int] | None = field(default=None, hash=False)


def nearest_entry(reader: AnyReader, target: str, name: str, graph: Graph) -> Nearest | None:
    """The stored graph for ``target`` that is most like ``graph``; None when none is like it.

    One that serves it comes first, then those of its class by the number of fields that differ,
    then the one of its name, then those of its ops. Entries that cannot be read are passed over.
    """
    found: list[tuple[tuple[int, int, str], Nearest]] = []
    bucket = graph_class(graph).bucket
    ops = _ops(graph)
    for graph_key, names, other in _stored_graphs(reader, target):
        shown = name if name in names else min(names, default="")
        if graph_class(other).bucket == bucket:
            fields = tuple(differences(graph, other))
            match = unify(graph, other)
            serves = dict(match.symbols) if isinstance(match, Match) else None
            nearest = Nearest(graph_key, shown, "class", fields, serves)
            rank = (0 if serves is not None else 1, len(fields), shown)
        elif name in names or _ops(other) == ops:
            likeness = "name" if name in names else "ops"
            nearest = Nearest(graph_key, shown, likeness, (class_difference(graph, other),))
            rank = (2 if likeness == "name" else 3, 0, shown)
        else:
            continue
        found.append((rank, nearest))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _ops(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes)


def _stored_graphs(reader: AnyReader, target: str) -> Iterator[tuple[str, set[str], Graph]]:
    """Key, names and graph of everything stored for a target that can be read."""
    names: dict[str, set[str]] = {}
    for owner, name in reader.names():
        if owner == target:
            try:
                names.setdefault(reader.name(owner, name)["graph_key"], set()).add(name)
            except (Error, KeyError, TypeError):
                continue
    for owner, graph_key in reader.pointers():
        if owner == target:
            try:
                digest = reader.pointer(owner, graph_key)["graph"]
                graph = graph_json.loads(reader.blob(digest).decode())
            except (Error, KeyError, TypeError, ValueError):
                continue
            yield graph_key, names.get(graph_key, set()), graph
