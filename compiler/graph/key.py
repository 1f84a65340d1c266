"""The graph key: what a graph computes and its caller's ABI, and nothing else.

In the key: ops, attributes that differ from their defaults (those that say one thing in several
ways in one of them, see `compiler.graph.op.Spelling`), compute types, wiring by port; every
tensor's data type, extents, strides, ragged offset, reordering, alignment; non-virtual uids; which
outputs are optional; pass-by-value values; symbols with their ranges. Not in it: names, virtual
uids, the order of nodes and tensors, a symbol's hint, whether a value was written or inferred, and
results that nobody reads or asked for.

A tensor is identified by the hash of how it is computed (its producer's op and operands, down to
the uids of the inputs), a node further by the hashes of what reads it, so that neither depends on
order. Hashes that are not exact leave out what `compiler.graph.bucket` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.attr import plain
from cudnn_aot.compiler.graph.enums import scalar_type, tensor_reordering
from cudnn_aot.compiler.graph.extents import extent_json
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import Tensor

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph

KEY_VERSION = 1


def graph_key(graph: Graph) -> str:
    """The key of a frozen graph."""
    computed, tensors = hashes(graph, is_exact=True)
    return digest(
        "graph",
        [
            KEY_VERSION,
            sorted(with_readers(graph, computed, tensors)),
            sorted(tensors[tensor.uid] for tensor in (*graph.inputs(), *graph.outputs())),
            [[name, s.min, s.max, s.multiple_of] for name, s in sorted(graph.symbols.items())],
        ],
    )


def hashes(graph: Graph, *, is_exact: bool) -> tuple[list[str], dict[int, str]]:
    """The hash of every node by how it is computed, and of every tensor that counts, by uid."""
    tensors: dict[int, str] = {}
    for tensor in sorted(graph.inputs(), key=lambda tensor: tensor.ragged_offset is not None):
        tensors[tensor.uid] = digest("tensor", _tensor_facts(tensor, tensors, is_exact))
    computed: list[str] = []
    for node in graph.nodes:
        facts = _node_facts(node, tensors, is_exact)
        computed.append(digest("node", facts))
        for port, tensor in node.outputs.items():
            if not graph.is_discarded(tensor):
                tensors[tensor.uid] = digest(
                    "result", [facts, port, _tensor_facts(tensor, tensors, is_exact)]
                )
    return computed, tensors


def with_readers(graph: Graph, computed: list[str], tensors: dict[int, str]) -> list[str]:
    """One hash per node, in order, over how it is computed and who reads its results.

    It tells a value that is read twice from two equal values that are read once each.
    """
    readers: dict[int, list[list[str]]] = {uid: [] for uid in tensors}
    digests: list[str] = []
    for node, own in zip(reversed(graph.nodes), reversed(computed), strict=True):
        results = [
            [port, tensors[tensor.uid], sorted(readers[tensor.uid])]
            for port, tensor in node.outputs.items()
            if not graph.is_discarded(tensor)
        ]
        whole = digest("reader", [own, results])
        for port, tensor in node.inputs.items():
            readers[tensor.uid].append([port, whole])
        digests.append(whole)
    return digests[::-1]


def _tensor_facts(tensor: Tensor, tensors: dict[int, str], is_exact: bool) -> dict[str, Any]:
    assert tensor.data_type is not None
    is_constant = tensor.scalar_type is scalar_type.COMPILE_TIME_CONST
    facts: dict[str, Any] = {
        "uid": None if tensor.is_virtual else tensor.uid,
        "data_type": tensor.data_type.name,
        "alignment": tensor.alignment_value,
        "is_optional": tensor.is_optional,
        "is_pass_by_value": tensor.is_pass_by_value,
        "is_constant": is_constant,
    }
    if is_exact:
        facts["dim"] = [extent_json(extent) for extent in tensor.dim]
        facts["stride"] = [extent_json(extent) for extent in tensor.stride]
    else:
        facts["rank"] = len(tensor.dim)
    if is_exact or is_constant:
        facts["pass_by_value"] = tensor.pass_by_value
    else:
        facts["has_value"] = tensor.pass_by_value is not None
    if tensor.ragged_offset is not None:
        offset = tensors[tensor.ragged_offset.uid]
        facts["ragged"] = [offset, tensor.ragged_offset_multiplier]
    if tensor.reordering_type is not tensor_reordering.NONE:
        facts["reordering"] = tensor.reordering_type.name
    return facts


def _node_facts(node: Node, tensors: dict[int, str], is_exact: bool) -> dict[str, Any]:
    compute = node.compute_data_type
    return {
        "op": node.op,
        "compute": None if compute is None else compute.name,
        "attrs": {
            name: plain(value) if is_exact or node.spec.attr(name).is_baked else "given"
            for name, value in node.view.said.items()
        },
        "inputs": {port: tensors[tensor.uid] for port, tensor in node.inputs.items()},
    }


def digest(kind: str, value: Any) -> str:
    """sha256 of canonical JSON; a type that JSON has no word for raises."""
    import hashlib  # late: declaring a graph needs neither
    import json

    text = json.dumps(
        [kind, value], sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()
