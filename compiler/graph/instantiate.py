"""A copy of a symbolic graph in which the symbols have values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cudnn_aot.compiler.graph.extents import evaluate
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.compiler.graph.twin import Layout, twin_of
from cudnn_aot.errors import InvalidGraphError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph


def instantiate(graph: Graph, symbols: Mapping[str, int]) -> Graph:
    """The concrete graph that `graph` is for these values of its symbols, validated.

    uids, names, types and attributes are those of `graph`. Raises `InvalidGraphError` for a symbol
    without a legal value, and what validation raises where the extents do not go together.
    """
    graph = graph.canonical()
    for name, symbol in graph.symbols.items():
        if name not in symbols:
            raise InvalidGraphError(f"symbol {name!r} has no value")
        reason = symbol.refuse(symbols[name])
        if reason:
            raise InvalidGraphError(f"symbol {name!r}: {reason}")

    def layout(tensor: Tensor) -> Layout:
        return (
            tuple(evaluate(extent, symbols) for extent in tensor.dim),
            tuple(evaluate(extent, symbols) for extent in tensor.stride),
        )

    copy = twin_of(graph, layout)
    copy.validate()
    return copy
