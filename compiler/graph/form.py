"""The form of a graph: all that counts of it but extents, strides and scalars that no kernel bakes.

It is plain data, read off the graph in its order and with its uids, and hashed as often as one form
differs from another rather than as often as a graph is declared: a program that declares a graph
for each step mostly declares one form.

A tensor is identified by the hash of how it is computed (its producer's op and operands, down to
the uids of the inputs), a node further by the hashes of what reads it, so that neither depends on
order, on names or on virtual uids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from cudnn_aot.compiler.graph.attr import plain
from cudnn_aot.compiler.graph.enums import data_type, scalar_type, tensor_reordering
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import Tensor

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph

KEY_VERSION = 2


class TensorForm(NamedTuple):
    """What counts of a tensor; `rare` is None where every rare field has its default."""

    uid: int
    is_virtual: bool
    data_type: data_type
    rank: int
    rare: RareForm | None


class RareForm(NamedTuple):
    """Fields that few tensors set. `constant` is the value of a compile-time constant, as JSON."""

    alignment: int = 1
    is_optional: bool = False
    is_pass_by_value: bool = False
    has_value: bool = False
    constant: str = ""
    reordering: tensor_reordering = tensor_reordering.NONE
    ragged: int | None = None
    ragged_multiplier: int = 1


class NodeForm(NamedTuple):
    """What counts of a node; `attrs` is JSON, in which attributes that no kernel bakes are given
    or not; operands and results are uids, by port."""

    op: str
    compute: data_type | None
    attrs: str
    ports: tuple[str, ...]
    operands: tuple[int, ...]
    written: tuple[str, ...]
    results: tuple[int, ...]


Form = tuple[tuple[TensorForm, ...], tuple[NodeForm, ...]]


class Shape(NamedTuple):
    """What hashing says of a form.

    Attributes:
        bucket: 64 hex digits, equal for forms that differ in order and virtual uids alone.
        tensors: (place, uid) of every tensor that counts, in an order that is equal in one bucket;
            a caller's tensor has its uid for a place, a virtual one its producer's hash and port.
        nodes: (hash, position in the graph) of every node, sorted by hash.
    """

    bucket: str
    tensors: tuple[tuple[int | str, int], ...]
    nodes: tuple[tuple[str, int], ...]


_RARE = frozenset(
    (
        "alignment_value",
        "is_optional",
        "is_pass_by_value",
        "pass_by_value",
        "ragged_offset",
        "ragged_offset_multiplier",
        "reordering_type",
        "scalar_type",
    )
)


def form_of(graph: Graph) -> Form:
    """The form of a validated graph in its canonical form."""
    tensors = [
        TensorForm(
            tensor.uid,
            tensor.is_virtual,
            tensor.data_type,  # type: ignore[arg-type]  # a valid graph's is known
            len(tensor.dim),
            # An instance's dictionary has what is not the default.
            None if _RARE.isdisjoint(tensor.__dict__) else _rare_form(tensor),
        )
        for tensor in graph.tensors.values()
        if not graph.is_discarded(tensor)
    ]
    return tuple(tensors), tuple([_node_form(graph, node) for node in graph.nodes])


def _rare_form(tensor: Tensor) -> RareForm:
    is_constant = tensor.scalar_type is scalar_type.COMPILE_TIME_CONST
    ragged = tensor.ragged_offset
    return RareForm(
        tensor.alignment_value,
        tensor.is_optional,
        tensor.is_pass_by_value,
        tensor.pass_by_value is not None,
        canonical(tensor.pass_by_value) if is_constant else "",
        tensor.reordering_type,
        None if ragged is None else ragged.uid,
        tensor.ragged_offset_multiplier,
    )


def _node_form(graph: Graph, node: Node) -> NodeForm:
    view = node._view
    spec, inputs, outputs = view.spec, view.inputs, view.outputs
    attrs = "{}"
    if view.said:
        attrs = canonical(
            {
                name: plain(value) if spec.attr(name).is_baked else "given"
                for name, value in view.said.items()
            }
        )
    written = [port for port, tensor in outputs.items() if not graph.is_discarded(tensor)]
    return NodeForm(
        spec.name,
        view.compute_data_type,
        attrs,
        tuple(inputs),
        tuple([tensor.uid for tensor in inputs.values()]),
        tuple(written),
        tuple([outputs[port].uid for port in written]),
    )


@lru_cache(maxsize=128)  # of 200 nodes each some 10 MB
def shape_of(form: Form) -> Shape:
    """Hash a form."""
    rows, nodes = form
    produced = {uid for node in nodes for uid in node.results}
    by_uid = {row.uid: row for row in rows}
    tensors: dict[int, str] = {}
    inputs = [row for row in rows if row.uid not in produced]
    for row in sorted(inputs, key=lambda row: row.rare is not None and row.rare.ragged is not None):
        tensors[row.uid] = _hash(f'["tensor",{_tensor_facts(row, tensors)}]')
    computed: list[str] = []
    for node in nodes:
        facts = _node_facts(node, tensors)
        computed.append(_hash(f'["node",{facts}]'))
        for port, uid in zip(node.written, node.results, strict=True):
            result = _tensor_facts(by_uid[uid], tensors)
            tensors[uid] = _hash(f'["result",[{facts},"{port}",{result}]]')
    hashed = _with_readers(nodes, computed, tensors)
    assert len(set(hashed)) == len(hashed), "two nodes of a valid graph have one hash"
    in_order = sorted((own, position) for position, own in enumerate(hashed))
    called = [row.uid for row in inputs]
    called += [row.uid for row in rows if row.uid in produced and not row.is_virtual]
    named: list[tuple[int | str, int]] = [(uid, uid) for uid in called]
    for own, position in in_order:
        node = nodes[position]
        for port, uid in sorted(zip(node.written, node.results, strict=True)):
            if by_uid[uid].is_virtual:
                named.append((f"{own}::{port}", uid))
    bucket = digest("class", [KEY_VERSION, sorted(hashed), sorted(tensors[uid] for uid in called)])
    return Shape(bucket, tuple(named), tuple(in_order))


def _with_readers(
    nodes: tuple[NodeForm, ...], computed: list[str], tensors: Mapping[int, str]
) -> list[str]:
    """One hash per node, in order, over how it is computed and who reads its results.

    It tells a value that is read twice from two equal values that are read once each.
    """
    readers: dict[int, list[list[str]]] = {uid: [] for uid in tensors}
    digests: list[str] = []
    for node, own in zip(reversed(nodes), reversed(computed), strict=True):
        results = [
            [port, tensors[uid], sorted(readers[uid])]
            for port, uid in zip(node.written, node.results, strict=True)
        ]
        whole = digest("reader", [own, results])
        for port, uid in zip(node.ports, node.operands, strict=True):
            readers[uid].append([port, whole])
        digests.append(whole)
    return digests[::-1]


# What counts of tensors and nodes, as canonical JSON: fields sorted, no blanks. It is spelled out,
# since the json module takes longer. Ports, types and attributes are words, which it need not
# escape.


def _tensor_facts(row: TensorForm, tensors: Mapping[int, str]) -> str:
    rare = row.rare or RareForm()
    constant = rare.constant
    value = f'"pass_by_value":{constant},' if constant else ""
    has_value = "" if constant else f'"has_value":{_BOOL[rare.has_value]},'
    ragged = ""
    if rare.ragged is not None:
        ragged = f'"ragged":["{tensors[rare.ragged]}",{rare.ragged_multiplier}],'
    reordering = ""
    if rare.reordering is not tensor_reordering.NONE:
        reordering = f'"reordering":"{rare.reordering.name}",'
    return (
        f'{{"alignment":{rare.alignment},"data_type":"{row.data_type.name}",'
        f'{has_value}"is_constant":{_BOOL[bool(constant)]},'
        f'"is_optional":{_BOOL[rare.is_optional]},'
        f'"is_pass_by_value":{_BOOL[rare.is_pass_by_value]},'
        f'{value}{ragged}"rank":{row.rank},{reordering}'
        f'"uid":{"null" if row.is_virtual else row.uid}}}'
    )


_BOOL = {False: "false", True: "true"}


def _node_facts(node: NodeForm, tensors: Mapping[int, str]) -> str:
    compute = "null" if node.compute is None else f'"{node.compute.name}"'
    operands = sorted(zip(node.ports, node.operands, strict=True))
    inputs = ",".join([f'"{port}":"{tensors[uid]}"' for port, uid in operands])
    return f'{{"attrs":{node.attrs},"compute":{compute},"inputs":{{{inputs}}},"op":"{node.op}"}}'


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
