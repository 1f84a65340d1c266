"""The key: the same for everything that does not count, different for everything that does."""

import copy
import json
import random
import re
from typing import Any

import pytest
from graph_strategies import graphs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph import form
from cudnn_aot.compiler.graph.bucket import graph_class
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.op import Op
from cudnn_aot.compiler.graph.ops.table import OPS

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def key_of(document: dict[str, Any]) -> str:
    return graph_json.loads(json.dumps(document)).key()


@quick
@given(graph=graphs(), seed=st.integers(0, 2**32))
def test_names_order_and_virtual_uids_do_not_count(graph: Graph, seed: int) -> None:
    document = json.loads(graph_json.dumps(graph))
    rng = random.Random(seed)
    uids = [row["uid"] for row in document["tensors"] if row.get("is_virtual")]
    renumbered = dict(zip(uids, rng.sample(range(1000, 2000), len(uids)), strict=True))
    document["name"] = f"graph{seed}"
    for row in document["tensors"]:
        row["uid"] = renumbered.get(row["uid"], row["uid"])
        row["name"] = f"tensor{rng.random()}"
    for row in document["nodes"]:
        row["name"] = f"node{rng.random()}"
        for side in ("inputs", "outputs"):
            ports = [(port, renumbered.get(uid, uid)) for port, uid in row[side].items()]
            row[side] = dict(rng.sample(ports, len(ports)))
    rng.shuffle(document["tensors"])
    rng.shuffle(document["nodes"])
    assert key_of(document) == graph.key()


@quick
@given(graph=graphs(), data=st.data())
def test_each_visible_uid_counts(graph: Graph, data: st.DataObject) -> None:
    document = json.loads(graph_json.dumps(graph))
    visible = [row["uid"] for row in document["tensors"] if not row.get("is_virtual")]
    old = data.draw(st.sampled_from(visible))
    for row in document["tensors"]:
        row["uid"] = 9999 if row["uid"] == old else row["uid"]
    for row in document["nodes"]:
        for side in ("inputs", "outputs"):
            row[side] = {port: 9999 if uid == old else uid for port, uid in row[side].items()}
    assert key_of(document) != graph.key()


BASE: dict[str, Any] = {
    "cudnn_aot_graph": 1,
    "io_data_type": "BFLOAT16",
    "intermediate_data_type": "FLOAT",
    "compute_data_type": "FLOAT",
    "symbols": {"M": {"min": 1, "max": 64, "hint": 8}},
    "tensors": [
        {"uid": 1, "name": "A", "dim": [1, "M", 8]},
        {"uid": 2, "name": "B", "dim": [1, 8, 16]},
        {"uid": 3, "name": "s", "dim": [1], "is_pass_by_value": True, "pass_by_value": 2.0},
        {"uid": 4, "is_virtual": True},
        {"uid": 5},
        {"uid": 6},
    ],
    "nodes": [
        {"op": "matmul", "inputs": {"A": 1, "B": 2}, "outputs": {"C": 4}},
        {"op": "scale", "inputs": {"input": 4, "scale": 3}, "outputs": {"OUT_0": 5}},
        {"op": "swish", "inputs": {"input": 5}, "outputs": {"OUT_0": 6}},
    ],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(BASE)
    target: Any = document
    *parents, last = path.split(".")
    for part in parents:
        target = target[int(part)] if isinstance(target, list) else target[part]
    target[last] = value
    return document


SEMANTIC = [
    ("symbols.M.min", 2),
    ("symbols.M.max", 65),
    ("symbols.M.multiple_of", 2),
    ("tensors.0.dim", [2, "M", 8]),
    ("tensors.0.dim", ["M", "M", 8]),
    ("tensors.0.stride", ["8*M", 1, "M"]),
    ("tensors.1.stride", [128, 1, 8]),
    ("tensors.0.data_type", "HALF"),
    ("tensors.0.alignment_value", 16),
    ("tensors.2.pass_by_value", 3.0),
    ("tensors.2.pass_by_value", 2.015625),
    ("tensors.2.scalar_type", "COMPILE_TIME_CONST"),
    ("tensors.3.data_type", "BFLOAT16"),
    ("tensors.3.stride", ["16*M", 1, "M"]),
    ("tensors.3.is_virtual", False),
    ("tensors.4.is_virtual", True),
    ("tensors.4.data_type", "FLOAT"),
    ("tensors.4.is_optional", True),
    ("tensors.4.stride", ["16*M", 1, "M"]),
    ("tensors.5.is_optional", True),
    ("nodes.0.compute_data_type", "HALF"),
    ("nodes.1.op", "mul"),
    ("nodes.2.op", "sigmoid"),
    ("nodes.2.attrs", {"swish_beta": 2.0}),
    ("nodes.2.inputs.input", 4),
]


def test_every_semantic_field_counts() -> None:
    keys = {"base": key_of(BASE)}
    for path, value in SEMANTIC:
        document = changed(path, value)
        if path == "nodes.1.op":
            document["nodes"][1]["inputs"] = {"a": 4, "b": 3}
        keys[f"{path}={value}"] = key_of(document)
    assert len(set(keys.values())) == len(keys)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("symbols.M.hint", 9),
        ("symbols.M.multiple_of", 1),
        ("name", "other"),
        ("tensors.0.name", "other"),
        ("tensors.0.stride", ["M*8", 8, 1]),
        ("tensors.0.data_type", "BFLOAT16"),
        ("tensors.0.alignment_value", 1),
        ("tensors.2.pass_by_value", 2),
        ("tensors.2.scalar_type", "RUNTIME_PARAM"),
        ("tensors.3.uid", 40),
        ("tensors.5.dim", [1, "M", 16]),
        ("nodes.0.compute_data_type", "FLOAT"),
        ("nodes.0.attrs", {"padding": 0}),
        ("nodes.2.attrs", {"swish_beta": 1.0}),
    ],
)
def test_what_does_not_count(path: str, value: Any) -> None:
    document = changed(path, value)
    if path == "tensors.3.uid":
        document["nodes"][0]["outputs"]["C"] = document["nodes"][1]["inputs"]["input"] = value
    assert key_of(document) == key_of(BASE)


def test_swapped_operands_count() -> None:
    def product(swap: bool) -> str:
        graph = Graph("", "HALF", "FLOAT", "FLOAT")
        a, b = graph.tensor([4, 4]), graph.tensor([4, 4])
        graph.matmul(*((b, a) if swap else (a, b))).set_output(True)
        return graph.key()

    assert product(False) != product(True)


def test_a_value_read_twice_differs_from_two_equal_values() -> None:
    def square(shared: bool) -> str:
        graph = Graph("", "HALF", "FLOAT", "FLOAT")
        x = graph.tensor([4, 4])
        left = graph.tanh(x)
        graph.mul(left, left if shared else graph.tanh(x)).set_output(True).set_uid(100)
        return graph.key()

    assert square(True) != square(False)
    assert square(True) == square(True)


def test_who_reads_which_of_two_equal_values_counts() -> None:
    def build(crossed: bool) -> str:
        graph = Graph("", "HALF", "FLOAT", "FLOAT")
        x = graph.tensor([4, 4])
        first, second = graph.tanh(x), graph.tanh(x)
        readers = [first, first, second] if crossed else [first, second, second]
        for uid, (op, value) in enumerate(zip(("relu", "gelu", "sigmoid"), readers, strict=True)):
            getattr(graph, op)(value).set_output(True).set_uid(100 + uid)
        return graph.key()

    assert build(True) != build(False)


def test_the_key_is_pinned() -> None:
    """Stored plans are found by this key: a change of it orphans every store."""
    assert key_of(BASE) == "d89fe32cc032ac0d1d88efdf84c723e1b4c42d874175e77d43eb7758559f4180"


@quick
@given(graph=graphs())
def test_what_is_hashed_is_canonical_json(graph: Graph) -> None:
    """It is spelled out by hand: the json module writes the same of what it reads there."""
    graph.freeze()
    rows, nodes = form.form_of(graph)
    uids = [row.uid for row in rows]
    tensors = {uid: f"{uid:064x}" for uid in uids}
    texts = [form._node_facts(node, tensors) for node in nodes]
    texts += [form._tensor_facts(row, tensors) for row in rows]
    for text in texts:
        assert text == form.canonical(json.loads(text))
        assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


def test_constants_that_python_takes_for_equal_are_told_apart() -> None:
    """Forms are compared, and 0.0 and -0.0, or 1 and True, are equal in Python."""

    def build(value: object) -> Graph:
        graph = Graph("", "FLOAT", "FLOAT", "FLOAT")
        x = graph.tensor([4, 4], uid=1)
        constant = graph.tensor_scalar(value, "COMPILE_TIME_CONST")
        graph.mul(x, constant).set_output(True).set_uid(10)
        return graph

    buckets = {graph_class(build(value)).bucket for value in (0.0, -0.0, 1.0, 2.0)}
    assert len(buckets) == 4


@pytest.mark.parametrize("spec", OPS.values(), ids=str)
def test_words_of_the_op_table_need_no_escapes(spec: Op) -> None:
    names = [spec.name, *(port.name for port in spec.ports), *(out.name for out in spec.outputs)]
    for name in (*names, *spec.declared, *(attr.name for attr in spec.attrs)):
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name), name


def test_a_value_that_json_has_no_word_for_is_not_hashed() -> None:
    for value in (float("nan"), b"bytes", {1, 2}):
        with pytest.raises((TypeError, ValueError)):
            form.digest("node", value)
