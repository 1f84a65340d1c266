"""The graph key: what a graph computes and its caller's ABI, and nothing else.

In the key: ops, attributes that differ from their defaults (those that say one thing in several
ways in one of them, see `compiler.graph.op.Spelling`), compute types, wiring by port; every
tensor's data type, extents, strides, ragged offset, reordering, alignment; non-virtual uids; which
outputs are optional; pass-by-value values; symbols with their ranges. Not in it: names, virtual
uids, the order of nodes and tensors, a symbol's hint, whether a value was written or inferred, and
results that nobody reads or asked for.

It is the class bucket (`compiler.graph.bucket`) and what that leaves open, in the order in which
the class has tensors and nodes, which depends on neither names nor order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.attr import plain
from cudnn_aot.compiler.graph.bucket import GraphClass, graph_class
from cudnn_aot.compiler.graph.extents import Extent
from cudnn_aot.compiler.graph.form import KEY_VERSION, digest
from cudnn_aot.compiler.graph.node import Node

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph


def graph_key(graph: Graph, known: GraphClass | None = None) -> str:
    """The key of a graph's canonical form; `known` is its class, if it was asked for before."""
    graph = graph.canonical()
    known = known or graph_class(graph)
    tensors = known.tensors.values()
    layouts = [[_words(tensor.dim), _words(tensor.stride)] for tensor in tensors]
    values = [t.pass_by_value for t in tensors if t.pass_by_value is not None]
    attributes = [_open_attributes(node) for node in known.nodes.values() if node._view.said]
    domains = [[name, s.min, s.max, s.multiple_of] for name, s in sorted(graph.symbols.items())]
    return digest("graph", [KEY_VERSION, known.bucket, layouts, values, attributes, domains])


def _words(extents: tuple[Extent, ...]) -> list[int | str]:
    return [extent if type(extent) is int else str(extent) for extent in extents]


def _open_attributes(node: Node) -> dict[str, Any]:
    """The attributes that no kernel bakes, which the class leaves open."""
    said = node._view.said
    return {name: plain(value) for name, value in said.items() if not node.spec.attr(name).is_baked}
