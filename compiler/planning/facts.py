"""One description per graph and family, shared by the ranking and the engines.

Facts are made once, of a graph that can no longer change, and are kept for as long as the graph
lives. They are keyed by the analyzer, so two families may share one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from cudnn_aot.compiler.graph.graph import Graph

_facts: WeakKeyDictionary[Graph, dict[Callable[[Graph], Any], Any]] = WeakKeyDictionary()


def facts_for(graph: Graph, analyzer: Callable[[Graph], Any]) -> Any:
    """What ``analyzer`` says of ``graph``: its facts record, or a ``Refusal``.

    Raises:
        RuntimeError: the graph is not frozen, so that facts could describe one that is gone.
    """
    if not graph.is_frozen:
        raise RuntimeError(f"graph {graph.name!r} can still change: freeze it before analyzing it")
    known = _facts.setdefault(graph, {})
    if analyzer not in known:
        known[analyzer] = analyzer(graph)
    return known[analyzer]
