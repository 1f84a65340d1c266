"""Publishing what one provider has for a graph, as every builder does it.

Order: graph, pointer, class, names; kernels and plan records are there before. A reader therefore
never meets a pointer to something absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build import records
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph


def publish(
    writer: StoreWriter,
    target: str,
    graph: Graph,
    names: Iterable[str],
    provider: str,
    made: Mapping[str, Any],
    *,
    order: Sequence[str],
) -> None:
    """Let a store say what a provider made of a graph (see `records.provider`).

    ``order`` is that of the providers, whose plans come first first.
    """
    graph_blob = writer.put_blob(graph_json.dumps(graph).encode())
    change = partial(records.with_provider, graph_blob, order, provider, made)
    writer.update_pointer(target, graph.key(), change)
    if made["records"]:
        add_to_class(writer, target, graph)
    put_names(writer, target, graph, names)


def add_to_class(writer: StoreWriter, target: str, graph: Graph) -> None:
    """Let the concrete graphs that a symbolic one stands for find its plan."""
    canonical = graph.canonical()
    if canonical.symbols:
        writer.put_class_member(target, canonical.graph_class().bucket, graph.key())


def put_names(writer: StoreWriter, target: str, graph: Graph, names: Iterable[str]) -> None:
    """Let a graph be found by its names."""
    for name in names:
        writer.put_name(target, name, graph.key(), graph.uids())
