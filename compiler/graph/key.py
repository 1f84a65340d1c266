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

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.attr import plain
from cudnn_aot.compiler.graph.enums import data_type, scalar_type, tensor_reordering
from cudnn_aot.compiler.graph.extents import Extent, SymExpr
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
        tensors[tensor.uid] = _hash(f'["tensor",{_tensor_facts(tensor, tensors, is_exact)}]')
    computed: list[str] = []
    for node in graph.nodes:
        facts = _node_facts(node, tensors, is_exact)
        computed.append(_hash(f'["node",{facts}]'))
        for port, tensor in node.outputs.items():
            if not graph.is_discarded(tensor):
                result = _tensor_facts(tensor, tensors, is_exact)
                tensors[tensor.uid] = _hash(f'["result",[{facts},"{port}",{result}]]')
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


# What counts of tensors and nodes, as canonical JSON: fields sorted, no blanks. It is spelled out,
# since a graph is hashed each time that a program asks for its plan. Ports, types, attributes and
# symbols are words, which JSON need not escape; other values are written by the json module.


def _tensor_facts(tensor: Tensor, tensors: dict[int, str], is_exact: bool) -> str:
    assert tensor.data_type is not None
    is_constant = tensor.scalar_type is scalar_type.COMPILE_TIME_CONST
    value = tensor.pass_by_value
    more = ""
    if is_exact or is_constant:
        more = f',"pass_by_value":{"null" if value is None else canonical(value)}'
    if tensor.ragged_offset is not None:
        offset = tensors[tensor.ragged_offset.uid]
        more += f',"ragged":["{offset}",{tensor.ragged_offset_multiplier}]'
    if not is_exact:
        more += f',"rank":{len(tensor.dim)}'
    if tensor.reordering_type is not tensor_reordering.NONE:
        more += f',"reordering":"{tensor.reordering_type.name}"'
    if is_exact:
        layout = f'"dim":{_extents(tensor.dim)}'
        more += f',"stride":{_extents(tensor.stride)}'
    else:
        layout = f'"has_value":{_BOOL[value is not None]}'
        if is_constant:
            layout = ""
    uid = "null" if tensor.is_virtual else tensor.uid
    return (
        f'{{"alignment":{tensor.alignment_value},"data_type":"{tensor.data_type.name}",'
        f'{layout}{"," if layout else ""}"is_constant":{_BOOL[is_constant]},'
        f'"is_optional":{_BOOL[tensor.is_optional]},'
        f'"is_pass_by_value":{_BOOL[tensor.is_pass_by_value]}{more},"uid":{uid}}}'
    )


_BOOL = {False: "false", True: "true"}


def _extents(extents: tuple[Extent, ...]) -> str:
    return f"[{','.join([str(e) if type(e) is int else _quoted(e) for e in extents])}]"


def _quoted(extent: Extent) -> str:
    assert isinstance(extent, SymExpr)
    return f'"{extent}"'


def _node_facts(node: Node, tensors: dict[int, str], is_exact: bool) -> str:
    compute = node.compute_data_type
    attrs = "{}"
    said = node._view.said
    if said:
        attrs = canonical(
            {
                name: plain(value) if is_exact or node.spec.attr(name).is_baked else "given"
                for name, value in said.items()
            }
        )
    inputs = [f'"{port}":"{tensors[tensor.uid]}"' for port, tensor in sorted(node.inputs.items())]
    return (
        f'{{"attrs":{attrs},"compute":{"null" if compute is None else _quoted_name(compute)},'
        f'"inputs":{{{",".join(inputs)}}},"op":"{node.op}"}}'
    )


def _quoted_name(dtype: data_type) -> str:
    return f'"{dtype.name}"'


def digest(kind: str, value: Any) -> str:
    """sha256 of canonical JSON; a type that JSON has no word for raises."""
    return _hash(canonical([kind, value]))


def _hash(text: str) -> str:
    global _sha256
    if _sha256 is None:  # late: declaring a graph needs no hash
        from hashlib import sha256

        _sha256 = sha256
    return str(_sha256(text.encode("ascii")).hexdigest())


def canonical(value: Any) -> str:
    """JSON with sorted fields, no blanks, ASCII only and no NaN."""
    global _write
    if _write is None:
        _write = _canonical_json()
    return _write(value)


_sha256: Any = None
_write: Callable[[Any], str] | None = None


def _canonical_json() -> Callable[[Any], str]:
    """What `canonical` does; made once, as making the standard encoder takes longer than most."""
    from json import encoder

    standard = encoder.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
    make: Any = getattr(encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without the C half of json
        return standard.encode
    escape = encoder.encode_basestring_ascii
    # No record of what is being written: it finds cycles, which nothing hashed here has.
    write = make(None, standard.default, escape, None, ":", ",", True, False, False)
    return lambda value: "".join(write(value, 0))
