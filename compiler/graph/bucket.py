"""The class bucket: the graph key without what one plan may leave open.

Ranks stand in place of extents and strides, and there are no symbols. Of an attribute that no
kernel bakes (`Attr.is_baked`), and of a pass-by-value tensor that is no constant, only whether
there is a value counts. A concrete graph and the symbolic graphs that may stand for it share a
bucket (see `compiler.graph.unify`).

Every node of a valid graph has a hash of its own: it leads to an output, whose uid is in the hash,
and two equal nodes would have to be read by the same port of one reader. So the hashes pair the
nodes of two graphs of one bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cudnn_aot.compiler.graph.form import form_of, shape_of
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import Tensor

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class GraphClass:
    """What a graph is apart from extents, strides and scalars that no kernel bakes.

    Attributes:
        bucket: 64 hex digits, equal for graphs that differ in nothing else.
        tensors: every tensor that counts, by what is equal in graphs of one bucket, and in an order
            that is: a caller's by its uid, a virtual one by its producer's hash and port.
        nodes: every node by its hash.
    """

    bucket: str
    tensors: Mapping[int | str, Tensor]
    nodes: Mapping[str, Node]


def graph_class(graph: Graph) -> GraphClass:
    """The class of a graph's canonical form."""
    graph = graph.canonical()
    bucket, places, hashed = shape_of(form_of(graph))
    tensors = {tensor.uid: tensor for tensor in graph.tensors.values()}
    nodes = graph.nodes
    return GraphClass(
        bucket,
        {place: tensors[uid] for place, uid in places},
        {own: nodes[position] for own, position in hashed},
    )
