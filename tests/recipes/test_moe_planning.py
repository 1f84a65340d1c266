"""The family of grouped matmuls without a compiler: facts, capability rows, and what a lowering
says.
"""

from __future__ import annotations

import moe_graphs
import pytest
from table_model import declared

import cudnn_aot as cudnn
from cudnn_aot import _native
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError
from cudnn_aot.recipes.moe.any_stride import MoeSm90AnyStride
from cudnn_aot.recipes.moe.capability import MODES
from cudnn_aot.recipes.moe.facts import ROUTE, analyze

H200, CPU = load_target("h200"), load_target("cpu")
BF16, FLOAT, INT64 = (getattr(cudnn.data_type, name) for name in ("BFLOAT16", "FLOAT", "INT64"))
ROWS = {"M": {"min": 0, "max": 4096, "hint": 100}}


def facts_of(graph):
    graph.freeze()
    facts = analyze(graph)
    assert not isinstance(facts, Refusal), facts.reason
    return facts


@pytest.mark.parametrize(
    ("experts", "offsets", "groups"),
    [(4, 4, 4), (4, 5, 4), (4, 12, 12), (4, 13, 12), (1, 2, 1), (1, 5, 4)],
    ids=["starts", "boundaries", "rounds", "rounds-and-end", "one", "one-expert-many-groups"],
)
def test_groups_follow_from_how_many_offsets_there_are(experts, offsets, groups):
    assert facts_of(moe_graphs.grouped(experts=experts, offsets=offsets)).groups == groups


def test_facts_of_each_mode():
    assert ROUTE.keys() == {mode.name for mode in cudnn.moe_grouped_matmul_mode}
    for mode in MODES:
        facts = facts_of(moe_graphs.grouped(mode))
        want = {"tokens": 12 if mode == "GATHER" else 24, "rows": 24, "n": 20, "k": 16}
        assert facts.extents == {**want, "experts": 4, "offsets": 5}
        assert [operand.name for operand in facts.route] == [
            "token_index", "token_ks"
        ][: MODES.index(mode)]  # fmt: skip
        assert [operand.uid for operand in facts.operands()] == sorted(
            operand.uid for operand in facts.operands()
        )
        assert facts.layout_class.startswith(f"{mode} BFLOAT16xBFLOAT16 kn [INT32")
        described = facts.describe()
        assert described["mode"] == mode and described["groups"] == "4"
        assert ("top_k" in described) == (mode == "SCATTER")


def test_symbols_follow_from_extents():
    symbols = {"M": {"min": 0, "max": 4096}, "T": {"min": 8, "max": 64, "multiple_of": 8}}
    facts = facts_of(moe_graphs.grouped("GATHER", rows="M", tokens="T", symbols=symbols))
    assert facts.extents["rows"] == 4096
    assert facts.symbols_at(facts.extents_at({"M": 7, "T": 16})) == {"M": 7, "T": 16}
    assert facts.symbols_at({**facts.extents, "tokens": 20}) is None  # not in T's domain
    assert facts.symbols_at({**facts.extents, "n": 21}) is None


def with_relu():
    g = moe_graphs.grouped()
    g.relu(g.nodes[0].outputs["OUT_0"]).set_output(True)
    return g


def two_products():
    g = moe_graphs.grouped()
    (node,) = g.nodes
    g.moe_grouped_matmul(*node.inputs.values()).set_output(True)
    return g


def reordered():
    g = moe_graphs.grouped(io=cudnn.data_type.FP8_E4M3, rows=128, k=128)
    g.nodes[0].inputs["token"].set_reordering_type(cudnn.tensor_reordering.F8_128x4)
    return g


def weight_of_another_type():
    g = moe_graphs.grouped()
    g.nodes[0].inputs["weight"].set_data_type(FLOAT)
    return g


E = {"E": {"min": 2, "max": 8}}


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (with_relu, "is relu beside 'moe_grouped_matmul.0', want one moe_grouped_matmul alone"),
        (two_products, "is moe_grouped_matmul beside 'moe_grouped_matmul.0'"),
        (lambda: moe_graphs.grouped("COMBINE"), "mode COMBINE is not in NONE/GATHER/SCATTER"),
        (reordered, "'token' has the reordering F8_128x4, want strides alone"),
        (weight_of_another_type, "token is BFLOAT16 and weight is FLOAT, want the same dtype"),
        (
            lambda: moe_graphs.grouped(out=cudnn.data_type.INT8),
            "output is INT8, want one of BFLOAT16/HALF/FLOAT/FP8_E4M3/FP8_E5M2",
        ),
        (
            lambda: moe_graphs.grouped(experts="E", symbols=E),
            "5 offsets for E experts, want two numbers",
        ),
        (
            lambda: moe_graphs.grouped(rows="2*M", symbols={"M": {"min": 0, "max": 2**30}}),
            "tokens may reach 2147483648, want at most 2147483647",
        ),
    ],
    ids=["chain", "two", "combine", "reordered", "types", "int8", "open-groups", "rows"],
)
def test_what_no_engine_takes_is_declined_with_its_reason(build, reason):
    with pytest.raises(cudnnGraphNotSupportedError) as declined:
        plan_graph(build(), CPU)
    assert reason in str(declined.value)


def test_the_gpu_engine_serves():
    planned = plan_graph(moe_graphs.grouped(), H200)
    assert planned.engine_name == "moe.sm90.any_stride"
    assert [kernel.template for kernel in planned.kernels] == ["moe.kernels.simt:grouped_matmul"]


@pytest.mark.parametrize("make", moe_graphs.TEST_GRAPHS, ids=lambda make: make().name)
def test_every_graph_of_the_gpu_tests_has_a_plan(make):
    for target in (H200, CPU):
        assert plan_graph(make(), target).kernels


# --- lowering ------------------------------------------------------------------------------------


def arguments(table, branch):
    """Of the last step, before which SCATTER on a GPU has one that zeroes."""
    return table["branches"][branch]["steps"][-1]["args"]


@pytest.mark.parametrize("mode", MODES)
def test_a_launch_that_reads_the_offsets_where_they_are(mode):
    facts = facts_of(moe_graphs.grouped(mode, rows="M", symbols=ROWS, integers=INT64))
    lowering = MoeSm90AnyStride().lower(facts, None, H200)
    table = lowering.table
    assert _native.Plan(table, None).workspace_bytes(None) == 0
    uid = {operand["name"]: operand["uid"] for operand in table["operands"]}
    route = ("token_index", "token_ks")[: MODES.index(mode)]
    named = ("token", "weight", "first_token_offset", *route, "y")
    args = arguments(table, "any_stride")
    assert args[:2] == [{"arg": "launch"}, {"arg": "int", "value": 4}]
    assert [arg["operand"] for arg in args if arg["arg"] == "tensor"] == [
        uid[name] for name in named
    ]
    assert [arg["value"] for arg in args[2:] if arg["arg"] == "int"] == [2] * (mode == "SCATTER")
    *zero, kernel = lowering.kernels
    assert list(kernel.params["route_dtypes"]) == ["INT64"] * len(route)
    assert [each.template for each in zero] == ["moe.kernels.simt:zero"] * (mode == "SCATTER")
    assert declared(table, {"M": 0}).branch(table) == "empty"
    assert declared(table, {"M": 1}).branch(table) == "any_stride"


def test_views_are_the_operands_turned():
    facts = facts_of(moe_graphs.grouped())
    table = MoeSm90AnyStride().lower(facts, None, H200).table
    token, weight, offsets, out = (
        arg for arg in arguments(table, "any_stride") if arg["arg"] == "tensor"
    )
    call = declared(table, {})
    spelled = [
        [[call.value(e) for e in view[field]] for field in ("dim", "stride")]
        for view in (token, weight, offsets, out)
    ]
    assert spelled == [
        [[24, 16], [16, 1]],
        [[20, 16, 4], [1, 20, 320]],
        [[5], [1]],
        [[24, 20], [20, 1]],
    ]


def test_extents_of_two_symbols_have_to_be_equal_at_a_call():
    symbols = {name: {"min": 1, "max": 64} for name in ("K", "L")}
    g = moe_graphs.grouped(k="K", symbols=symbols)
    g.nodes[0].inputs["weight"].set_dim([4, "L", 20]).set_stride(["20*L", 20, 1])
    table = plan_graph(g, CPU).table
    weight = next(o["uid"] for o in table["operands"] if o["name"] == "weight")
    assert table["checks"] == [{"rule": "equal", "operand": weight, "a": "L", "b": "K"}]


def test_an_input_that_the_mode_does_not_read_is_bound_and_not_passed():
    g = cudnn.pygraph(io_data_type=BF16, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
    token, weight = g.tensor(dim=[1, 24, 16]), g.tensor(dim=[4, 16, 20])
    offset = g.tensor(dim=[5, 1, 1], data_type=INT64)
    index = g.tensor(dim=[1, 24, 1], data_type=INT64, name="unread")
    g.moe_grouped_matmul(token, weight, offset, index).set_output(True)
    table = plan_graph(g, CPU).table
    assert "unread" in [operand["name"] for operand in table["operands"]]
    assert len(arguments(table, "blocked")) == 5
