"""A concrete graph is a case of a symbolic one, with these values, or it is not and says why."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from graph_strategies import graphs
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.bucket import graph_class
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.instantiate import instantiate
from cudnn_aot.compiler.graph.unify import Match, Mismatch, _root, unify
from cudnn_aot.errors import InvalidGraphError

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def matmul() -> Graph:
    symbols = {
        "B": {"min": 1, "max": 64},
        "M": {"min": 1, "max": 4096, "multiple_of": 8},
        "K": {"min": 16, "max": 1024},
    }
    graph = Graph("mm", "BFLOAT16", "FLOAT", "FLOAT", symbols=symbols)
    a = graph.tensor(["B", "M", "K"], uid=1)
    b = graph.tensor([1, "K", 256], ["256*K", 1, "K"], uid=2)
    bias = graph.tensor([1, 1, 256], uid=3, alignment_value=16)
    scale = graph.tensor_scalar(0.5)
    scale.uid = 4
    product = graph.bias(graph.matmul(a, b), bias)
    graph.relu(graph.scale(product, scale), upper_clip=6.0).set_output(True).set_uid(5)
    return graph


def attention() -> Graph:
    """Fused q, k, v: strides that are products; page counts that only a product settles."""
    symbols = {"B": {"max": 64}, "S": {"min": 1, "max": 8192}, "H": {"min": 1, "max": 16}}
    graph = Graph("attn", "HALF", "FLOAT", "FLOAT", symbols=symbols)
    stride = ["384*H*S", 128, "384*H", 1]
    q, k, v = (graph.tensor(["B", "H", "S", 128], stride, uid=u) for u in (1, 2, 3))
    o, stats = graph.sdpa(q, k, v, is_inference=False, attn_scale=0.125, use_causal_mask=True)
    o.set_output(True).set_uid(4).set_dim(["B", "H", "S", 128]).set_stride(
        ["128*H*S", 128, "128*H", 1]
    )
    stats.set_output(True).set_uid(5)
    return graph


def rows() -> Graph:
    """Rows that a reshape folds: ``B*S`` is an extent, and ``S*S`` too."""
    symbols = {"B": {"min": 1, "max": 64}, "S": {"min": 1, "max": 512}}
    graph = Graph("rows", "HALF", "FLOAT", "FLOAT", symbols=symbols)
    x = graph.tensor(["B*S", 64], uid=1)
    square = graph.tensor(["S*S", 64], uid=2)
    graph.tanh(x).set_output(True).set_uid(3)
    graph.tanh(square).set_output(True).set_uid(4)
    return graph


BUILDERS: dict[str, tuple[Callable[[], Graph], dict[str, st.SearchStrategy[int]]]] = {
    "matmul": (
        matmul,
        {
            "B": st.integers(1, 64),
            "M": st.integers(1, 512).map(lambda n: 8 * n),
            "K": st.integers(16, 1024),
        },
    ),
    "attention": (
        attention,
        {"B": st.integers(1, 64), "S": st.integers(1, 8192), "H": st.integers(1, 16)},
    ),
    "rows": (rows, {"B": st.integers(1, 64), "S": st.integers(1, 512)}),
}


@pytest.mark.parametrize("name", BUILDERS)
@quick
@given(data=st.data())
def test_a_member_unifies_and_is_made_again(name: str, data: st.DataObject) -> None:
    build, domains = BUILDERS[name]
    symbolic = build()
    values = {symbol: data.draw(domain) for symbol, domain in domains.items()}
    concrete = instantiate(symbolic, values)
    assert not concrete.symbols and concrete.key() != symbolic.key()
    match = unify(concrete, symbolic)
    assert isinstance(match, Match) and match.symbols == values
    assert instantiate(symbolic, match.symbols).key() == concrete.key()


@quick
@given(graph=graphs(), value=st.integers(1, 64))
def test_random_graphs_unify_with_what_they_are_a_case_of(graph: Graph, value: int) -> None:
    graph.validate()
    concrete = instantiate(graph, {"M": value} if graph.symbols else {})
    match = unify(concrete, graph)
    assert isinstance(match, Match)
    assert match.symbols == ({"M": value} if graph.symbols else {})
    assert instantiate(graph, match.symbols).key() == concrete.key()
    assert graph_class(concrete).bucket == graph_class(graph).bucket


@quick
@given(one=graphs(), other=graphs(), value=st.integers(1, 64))
def test_no_graph_unifies_with_one_that_it_is_no_case_of(
    one: Graph, other: Graph, value: int
) -> None:
    """Whatever unifies is made again from the answer: never a wrong match."""
    for graph in (one, other):
        graph.validate()
    concrete = instantiate(one, {"M": value} if one.symbols else {})
    match = unify(concrete, other)
    if isinstance(match, Match):
        assert instantiate(other, match.symbols).key() == concrete.key()
    else:
        assert match.reason and "\n" not in match.reason and not match


VALUES = {"B": 2, "M": 64, "K": 128}


def concrete_document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(graph_json.dumps(instantiate(matmul(), VALUES)))
    return document


def tensor(document: dict[str, Any], uid: int) -> dict[str, Any]:
    row: dict[str, Any] = next(row for row in document["tensors"] if row["uid"] == uid)
    return row


def move_uid(document: dict[str, Any]) -> None:
    tensor(document, 5)["uid"] = 50
    document["nodes"][-1]["outputs"]["OUT_0"] = 50


def other_op(document: dict[str, Any]) -> None:
    document["nodes"][-1] |= {"op": "gelu"}
    del document["nodes"][-1]["attrs"]


def swap_operands(document: dict[str, Any]) -> None:
    node = next(node for node in document["nodes"] if node["op"] == "scale")
    inputs = node["inputs"]
    node["inputs"] = {"input": inputs["scale"], "scale": inputs["input"]}


def keep_the_product(document: dict[str, Any]) -> None:
    uid = document["nodes"][0]["outputs"]["C"]
    del tensor(document, uid)["is_virtual"]
    tensor(document, uid)["data_type"] = "FLOAT"


NEAR_MISSES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "fixed extent": (
        lambda d: (
            tensor(d, 2).update(dim=[1, 128, 512], stride=[65536, 1, 128]),
            tensor(d, 3).update(dim=[1, 1, 512]),
        ),
        "dim[2]: got 512, want 256",
    ),
    "broadcast rows": (
        lambda d: tensor(d, 3).update(dim=[1, 64, 256]),
        "tensor uid 3: dim[1]: got 64, want 1",
    ),
    "two symbols differ": (
        lambda d: tensor(d, 2).update(dim=[2, 128, 256], stride=[32768, 1, 128]),
        "tensor uid 2: dim[0]: got 2, want 1",
    ),
    "stride": (
        lambda d: tensor(d, 1).update(stride=[8448, 132, 1]),
        "tensor uid 1: stride[0]: got 8448, want K*M = 8192 (K = 128, M = 64)",
    ),
    "major": (
        lambda d: tensor(d, 2).update(stride=[32768, 256, 1]),
        "tensor uid 2: stride[1]: got 256, want 1",
    ),
    "stride of a unit axis": (
        lambda d: tensor(d, 2).update(stride=[0, 1, 128]),
        "tensor uid 2: stride[0]: got 0, want 256*K = 32768 (K = 128)",
    ),
    "above the domain": (
        lambda d: tensor(d, 1).update(dim=[65, 64, 128]),
        "symbol 'B': got 65, want 1..64",
    ),
    "below the domain": (
        lambda d: (
            tensor(d, 1).update(dim=[2, 64, 8]),
            tensor(d, 2).update(dim=[1, 8, 256], stride=[2048, 1, 8]),
        ),
        "symbol 'K': got 8, want 16..1024",
    ),
    "not a multiple": (
        lambda d: tensor(d, 1).update(dim=[2, 60, 128]),
        "symbol 'M': got 60, want a multiple of 8",
    ),
    "uid": (move_uid, "uids of the outputs: got [50], want [5]"),
    "data type": (
        lambda d: tensor(d, 3).update(data_type="HALF"),
        "tensor uid 3: data_type: got HALF, want BFLOAT16",
    ),
    "virtual data type": (
        lambda d: tensor(d, d["nodes"][0]["outputs"]["C"]).update(data_type="HALF"),
        "differ in the type of a virtual tensor",
    ),
    "alignment": (
        lambda d: tensor(d, 3).update(alignment_value=8),
        "tensor uid 3: alignment_value: got 8, want 16",
    ),
    "rank": (lambda d: tensor(d, 3).update(dim=[256]), "tensor uid 3: rank: got 1, want 3"),
    "optional": (keep_the_product, "uids of the outputs: got"),
    "constant": (
        lambda d: tensor(d, 4).update(scalar_type="COMPILE_TIME_CONST"),
        "pass_by_value: got the constant 0.5, want a value",
    ),
    "no value": (
        lambda d: tensor(d, 4).pop("pass_by_value"),
        "pass_by_value: got no value, want a value",
    ),
    "attribute": (
        lambda d: d["nodes"][-1]["attrs"].update(upper_clip=7.0),
        "a node relu: got compute_data_type=FLOAT, upper_clip=7.0, want",
    ),
    "compute type": (
        lambda d: d["nodes"][0].update(compute_data_type="HALF"),
        "a node matmul: got compute_data_type=HALF, want compute_data_type=FLOAT",
    ),
    "op": (other_op, "ops: got bias gelu matmul scale, want bias matmul relu scale"),
    "wiring": (swap_operands, "wired differently"),
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_misses_say_what_is_different(case: str) -> None:
    change, reason = NEAR_MISSES[case]
    document = concrete_document()
    assert isinstance(unify(graph_json.loads(json.dumps(document)), matmul()), Match)
    change(document)
    found = unify(graph_json.loads(json.dumps(document)), matmul())
    assert isinstance(found, Mismatch) and not found
    assert reason in found.reason and "\n" not in found.reason


def test_a_symbolic_graph_is_no_case_of_anything() -> None:
    found = unify(matmul(), matmul())
    assert isinstance(found, Mismatch) and "not concrete: it has symbols B, M, K" in found.reason


def test_what_no_equation_settles_is_a_mismatch() -> None:
    """0 rows of any length: no value of the length is right or wrong."""
    symbols = {"B": {"min": 0, "max": 8}, "S": {"min": 1, "max": 8}}
    graph = Graph("", "HALF", "FLOAT", "FLOAT", symbols=symbols)
    graph.tanh(graph.tensor(["B*S"], [1], uid=1)).set_output(True).set_uid(2)
    other = Graph("", "HALF", "FLOAT", "FLOAT")
    other.tanh(other.tensor([6], uid=1)).set_output(True).set_uid(2)
    found = unify(other, graph)
    assert isinstance(found, Mismatch) and "symbol 'B': no extent or stride" in found.reason


def test_scalars_that_no_kernel_bakes_are_answered() -> None:
    symbolic = attention()
    document = json.loads(graph_json.dumps(instantiate(symbolic, {"B": 2, "S": 16, "H": 4})))
    document["nodes"][0]["attrs"]["attn_scale"] = 0.25
    match = unify(graph_json.loads(json.dumps(document)), symbolic)
    assert isinstance(match, Match)
    assert match.attributes == {"sdpa.0": {"attn_scale": 0.25}}
    document["nodes"][0]["attrs"].pop("attn_scale")  # whether there is one counts
    assert isinstance(unify(graph_json.loads(json.dumps(document)), symbolic), Mismatch)
    product = concrete_document()
    tensor(product, 4)["pass_by_value"] = 3.0
    scaled = unify(graph_json.loads(json.dumps(product)), matmul())
    assert isinstance(scaled, Match) and scaled.scalars == {4: 3.0}


def test_frozen_graphs_unify() -> None:
    symbolic = matmul().freeze()
    assert unify(instantiate(symbolic, VALUES).freeze(), symbolic)


@given(value=st.integers(0, 2**63), power=st.integers(1, 5))
def test_roots_are_exact(value: int, power: int) -> None:
    root = _root(value, power)
    assert root**power <= value < (root + 1) ** power


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"B": 2, "M": 8}, "symbol 'K' has no value"),
        ({"B": 2, "M": 9, "K": 16}, "symbol 'M': got 9, want a multiple of 8"),
        ({"B": 0, "M": 8, "K": 16}, "symbol 'B': got 0, want 1..64"),
    ],
)
def test_instances_need_legal_values(values: dict[str, int], reason: str) -> None:
    with pytest.raises(InvalidGraphError) as caught:
        instantiate(matmul(), values)
    assert reason in str(caught.value)


@quick
@given(graph=graphs())
def test_an_instance_keeps_names_and_uids(graph: Graph) -> None:
    graph.validate()
    assume(not graph.symbols)
    copy = instantiate(graph, {})
    assert graph_json.dumps(copy) == graph_json.dumps(graph)


@pytest.mark.parametrize("stride", [None, [8, 8, 1], [0, 8, 1], [99, 8, 1]])
def test_no_rows_are_a_case_whatever_their_strides(stride: list[int] | None) -> None:
    symbolic = Graph("", "HALF", "FLOAT", "FLOAT", symbols={"M": {"min": 0, "max": 64}})
    concrete = Graph("", "HALF", "FLOAT", "FLOAT")
    for graph, rows in ((symbolic, "M"), (concrete, 0)):
        a = graph.tensor([2, rows, 8], stride if rows == 0 else None)
        graph.matmul(a, graph.tensor([2, 8, 4])).set_output(True)
    found = unify(concrete, symbolic)
    assert isinstance(found, Match) and found.symbols == {"M": 0}
    made = instantiate(symbolic, {"M": 0})
    assert isinstance(unify(made, symbolic), Match)
    if stride is None:
        assert made.key() == concrete.key()
        assert [t.stride for t in concrete.tensors.values()] == [(0, 8, 1), (32, 4, 1), (0, 4, 1)]
