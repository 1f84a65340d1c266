"""Every field of every op is in the key; names, order and virtual uids of no op are."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_cases import graph_of, without_rules

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.formats.load import load_graphs, read_bytes
from cudnn_aot.compiler.graph.attr import Attr
from cudnn_aot.compiler.graph.bucket import graph_class
from cudnn_aot.compiler.graph.enums import data_type, scalar_type, tensor_reordering
from cudnn_aot.compiler.graph.extents import SymExpr
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.key import graph_key
from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.compiler.graph.tensor import Tensor, fill

PEER = sorted((Path(__file__).parents[2] / "data/peer_graphs").glob("*/*.json"))
_rules = pytest.fixture(autouse=True)(without_rules)


def tensor_changes(graph: Graph, tensor: Tensor) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """What changes a tensor means: a name, the fields to write, and whether the class keeps."""
    first, *rest = tensor.dim
    yield "extent", {"dim": (first + 1 if isinstance(first, int) else 7, *rest)}, True
    yield "last extent", {"dim": (*tensor.dim[:-1], 77)}, True
    yield "symbol", {"dim": (SymExpr(1, ("M",)), *rest)}, True
    yield "rank", {"dim": (1, *tensor.dim), "stride": (1, *tensor.stride)}, False
    yield "stride", {"stride": (*tensor.stride[:-1], 12345)}, True
    yield "symbolic stride", {"stride": (SymExpr(4, ("M",)), *tensor.stride[1:])}, True
    other = data_type.DOUBLE if tensor.data_type is not data_type.DOUBLE else data_type.INT8
    yield "data type", {"data_type": other}, False
    yield "alignment", {"alignment_value": 32}, False
    yield "reordering", {"reordering_type": tensor_reordering.F8_128x4}, False
    yield "scalar", {"is_pass_by_value": True}, False
    yield "value", {"is_pass_by_value": True, "pass_by_value": 2.0}, False
    constant = {"scalar_type": scalar_type.COMPILE_TIME_CONST, "is_pass_by_value": True}
    yield "constant", {**constant, "pass_by_value": 2.0}, False
    yield "other constant", {**constant, "pass_by_value": 3.0}, False
    if not tensor.is_virtual:
        yield "optional", {"is_optional": True}, False
        yield "uid", {"uid": 900}, False
    other_input = next((t for t in graph.inputs() if t is not tensor), None)
    if other_input is not None and other_input.ragged_offset is None:
        yield "ragged", {"ragged_offset": other_input}, False
        ragged = {"ragged_offset": other_input, "ragged_offset_multiplier": 8}
        yield "ragged multiplier", ragged, False


@pytest.mark.parametrize("op", OPS)
def test_every_field_of_every_tensor_counts(op: str) -> None:
    graph = graph_of(op, "everything")
    base, bucket = graph_key(graph), graph_class(graph).bucket
    for tensor in [t for t in graph.tensors.values() if not graph.is_discarded(t)]:
        keys = {base}
        for what, change, same_class in tensor_changes(graph, tensor):
            before = {field: getattr(tensor, field) for field in change}
            if "uid" in change:
                graph._tensors[900] = graph._tensors.pop(tensor.uid)
                graph._by_uid = None
            fill(tensor, **change)
            key, changed_bucket = graph_key(graph), graph_class(graph).bucket
            fill(tensor, **before)
            if "uid" in change:
                graph._tensors[tensor.uid] = graph._tensors.pop(900)
                graph._by_uid = None
            assert key not in keys, f"{tensor}: {what}"
            assert (changed_bucket == bucket) == same_class, f"{tensor}: {what}"
            keys.add(key)
    assert (graph_key(graph), graph_class(graph).bucket) == (base, bucket)


def other_value(attr: Attr, value: Any) -> Any:
    """A legal value that is neither `value` nor the default."""
    if attr.choices:
        names = [choice for choice in attr.choices if choice not in (value, attr.default)]
        return names[0] if names else None
    if attr.type.members:
        default = getattr(attr.default, "name", None)
        names = [n for n in attr.type.members if n not in (value.name, default)]
        return names[0] if names else None
    if isinstance(value, bool):
        return None if attr.default is not None else not value
    if isinstance(value, int | float):
        return value + 1
    return {"block_size": (1, 1, 1, 16), "permutation": (0, 3, 1, 2)}.get(attr.name) or (
        (*value[:-1], (0, None, 1)) if attr.name == "slices" else (*value[:-1], value[-1] + 1)
    )


@pytest.mark.parametrize("op", OPS)
def test_every_attribute_of_every_op_counts(op: str) -> None:
    """Off, one value and another give three keys; one class, if no kernel bakes the attribute.

    Attributes that say the same as others are covered by test_spellings.py.
    """
    graph = graph_of(op, "attributes")
    (node,) = graph.nodes
    base, bucket = graph_key(graph), graph_class(graph).bucket
    view = node._view
    respelled = {name for spelling in node.spec.spellings for name in spelling.attrs}
    for attr in node.spec.attrs:
        if attr.name not in node.attrs or attr.name in respelled:
            continue
        given = dict(node.attrs)
        value, without = given[attr.name], {n: v for n, v in given.items() if n != attr.name}
        other = other_value(attr, value)
        view.attrs = without
        keys = {base, graph_key(graph)}
        assert graph_class(graph).bucket != bucket
        wanted = 2
        if other is not None:
            view.attrs = {**without, attr.name: attr.normalise(other)}
            keys.add(graph_key(graph))
            wanted = 3
            assert (graph_class(graph).bucket == bucket) == (not attr.is_baked), attr.name
        view.attrs = given
        assert len(keys) == wanted, attr.name
    assert graph_key(graph) == base


def test_what_no_kernel_bakes() -> None:
    unbaked = {
        (op.name, attr.name) for op in OPS.values() for attr in op.attrs if not attr.is_baked
    }
    assert {name for _, name in unbaked} == {"attn_scale", "scale"}
    assert ("sdpa", "attn_scale") in unbaked and ("gdn", "scale") in unbaked


@pytest.mark.parametrize("op", OPS)
def test_wiring_and_compute_type_of_every_op_count(op: str) -> None:
    graph = graph_of(op, "everything")
    (node,) = graph.nodes
    base, bucket = graph_key(graph), graph_class(graph).bucket
    keys = {base}
    view, inputs = node._view, dict(node.inputs)
    ports = list(inputs)
    for one, other in zip(ports, ports[1:], strict=False):
        view.inputs = {**inputs, one: inputs[other], other: inputs[one]}
        keys.add(graph_key(graph))
        assert graph_class(graph).bucket != bucket
    view.inputs = inputs
    assert len(keys) == max(1, len(ports))
    compute = view.compute_data_type
    view.compute_data_type = data_type.DOUBLE
    assert graph_key(graph) not in keys
    view.compute_data_type = compute
    assert graph_key(graph) == base


def renamed_and_shuffled(graph: Graph, rng: random.Random) -> Graph:
    """The same graph under other names, other virtual uids, in another order."""
    document = json.loads(graph_json.dumps(graph))
    virtual = [row["uid"] for row in document["tensors"] if row.get("is_virtual")]
    new = dict(zip(virtual, rng.sample(range(10_000, 20_000), len(virtual)), strict=True))
    document["name"] = f"graph{rng.random()}"
    for row in document["tensors"]:
        row["uid"] = new.get(row["uid"], row["uid"])
        row["name"] = f"tensor{rng.random()}"
    for row in document["nodes"]:
        row["name"] = f"node{rng.random()}"
        for side in ("inputs", "outputs"):
            ports = [(port, new.get(uid, uid)) for port, uid in row[side].items()]
            row[side] = dict(rng.sample(ports, len(ports)))
        if "attrs" in row:
            row["attrs"] = dict(rng.sample(list(row["attrs"].items()), len(row["attrs"])))
    rng.shuffle(document["tensors"])
    rng.shuffle(document["nodes"])
    return graph_json.loads(json.dumps(document, indent=3))


@pytest.mark.parametrize("op", OPS)
def test_names_and_order_do_not_count(op: str) -> None:
    graph = graph_of(op, "everything")
    other = renamed_and_shuffled(graph, random.Random(op))
    assert other.key() == graph.key()
    assert graph_class(other).bucket == graph_class(graph).bucket


@pytest.mark.parametrize("path", PEER, ids=[path.stem for path in PEER])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_graphs_of_real_programs_keep_their_key(path: Path, seed: int) -> None:
    (graph,) = load_graphs(path)
    other = renamed_and_shuffled(graph, random.Random(seed))
    assert other.key() == graph.key()
    assert graph_class(other).bucket == graph_class(graph).bucket


def shuffled(document: Any, rng: random.Random) -> Any:
    """A document with the members of its objects, its tensors and its nodes in another order."""
    if isinstance(document, dict):
        members = rng.sample(list(document.items()), len(document))
        document = {name: shuffled(value, rng) for name, value in members}
        for rows in ("tensors", "nodes"):
            if isinstance(document.get(rows), list):
                rng.shuffle(document[rows])
        return document
    return [shuffled(item, rng) for item in document] if isinstance(document, list) else document


@pytest.mark.parametrize("path", PEER, ids=[path.stem for path in PEER])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_files_of_the_frontend_may_be_in_any_order(path: Path, seed: int) -> None:
    document = json.loads(path.read_text())
    for other in (
        shuffled(document, random.Random(seed)),
        {**document, "nodes": document["nodes"][::-1]},
    ):
        graph = read_bytes(json.dumps(other).encode())
        assert graph.key() == read_bytes(path.read_bytes()).key()


def test_nodes_of_one_class_are_paired_whatever_their_order() -> None:
    """Equal computations are told apart by who reads them."""

    def build(order: int) -> Graph:
        graph = Graph("", "HALF", "FLOAT", "FLOAT")
        x = graph.tensor([4, 4], uid=1)
        left, right = [graph.tanh(x) for _ in range(2)][:: 1 if order else -1]
        graph.relu(left).set_output(True).set_uid(10)
        graph.gelu(right).set_output(True).set_uid(11)
        return graph

    one, other = graph_class(build(0)), graph_class(build(1))
    assert one.bucket == other.bucket and list(one.tensors) == list(other.tensors)
    assert list(one.nodes) == list(other.nodes) and len(one.nodes) == 4
    for place, node in one.nodes.items():
        assert other.nodes[place].op == node.op
