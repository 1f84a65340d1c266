"""The GEMM family without a compiler: facts, and what a lowering says."""

from __future__ import annotations

import json
from dataclasses import replace

import gemm_graphs
import pytest
from gemm_facts import facts_of
from graph_strategies import graphs
from hypothesis import HealthCheck, given, settings
from table_model import declared

import cudnn_aot as cudnn
from cudnn_aot import _native
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError
from cudnn_aot.recipes.gemm.config import GemmConfig
from cudnn_aot.recipes.gemm.kernels.raster import StreamK
from cudnn_aot.recipes.gemm.sm90 import MAX_SMS

H200, CPU = load_target("h200"), load_target("cpu")
BF16, HALF, FLOAT = cudnn.data_type.BFLOAT16, cudnn.data_type.HALF, cudnn.data_type.FLOAT


def branches(plan):
    return {name: [s["step"] for s in b["steps"]] for name, b in plan.table["branches"].items()}


# --- facts ---------------------------------------------------------------------------------------


def test_facts_of_a_chain():
    facts = facts_of(gemm_graphs.chain("g", 64, 512, 1024, "swish"))
    assert (facts.m, facts.n, facts.k, facts.batch) == (64, 512, 1024, (1,))
    assert [(operand.name, kind) for operand, kind in facts.epilogue.inputs] == [
        ("bias", "row"),
        ("residual", "full"),
    ]
    assert [(node.op, node.args) for node in facts.epilogue.nodes] == [
        ("bias", (0, 1)),
        ("swish", (3,)),
        ("add", (4, 2)),
    ]
    (output,) = facts.epilogue.outputs
    assert output.value == 5


def test_a_narrow_result_is_the_accumulator_which_its_store_rounds():
    facts = facts_of(gemm_graphs.plain("g", 64, 64, 64))
    assert facts.epilogue.nodes == ()
    assert [(output.value, output.operand.dtype) for output in facts.epilogue.outputs] == [
        (0, "BFLOAT16")
    ]
    assert facts.describe()["epilogue"] == "none"


def test_a_tensor_rounds_what_is_read_through_it():
    """A tensor of a narrow type is rounded once for all that read it, and by its own store where it
    is an output as well.
    """
    g = gemm_graphs.graph("g")
    a, b = gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64)
    middle = g.matmul(a, b).set_output(True).set_data_type(BF16)
    last = g.relu(middle).set_data_type(HALF)
    g.add(last, g.neg(middle)).set_output(True).set_data_type(BF16)
    facts = facts_of(g)
    got = [(node.op, node.args, dict(node.attrs).get("dtype")) for node in facts.epilogue.nodes]
    assert got == [
        ("cast", (0,), "BFLOAT16"),
        ("relu", (1,), None),
        ("neg", (1,), None),
        ("cast", (2,), "HALF"),
        ("add", (4, 3), None),
    ]
    assert [output.value for output in facts.epilogue.outputs] == [0, 5]


def test_a_reader_of_an_output_that_a_call_leaves_out_still_sees_it_rounded():
    g = gemm_graphs.graph("g")
    a, b = gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64)
    middle = g.matmul(a, b).set_output(True, optional=True).set_data_type(BF16).set_uid(90)
    g.relu(middle).set_output(True).set_data_type(BF16).set_uid(91)
    plan = plan_graph(g, CPU)
    values = {}
    for branch in ("blocked", "blocked_no90"):
        step = plan.table["branches"][branch]["steps"][0]
        epilogue = plan.kernels[step["kernel"]].params["epilogue"]
        assert [tuple(node)[:2] for node in epilogue["nodes"]] == [("cast", (0,)), ("relu", (1,))]
        values[branch] = [output["value"] for output in epilogue["outputs"]]
    assert values == {"blocked": [0, 2], "blocked_no90": [2]}


def test_facts_do_not_depend_on_the_order_or_names_of_nodes():
    def build(swap):
        g = gemm_graphs.graph("x" if swap else "y")
        a = gemm_graphs.operand(g, "A" if swap else "left", 32, 64)
        b = gemm_graphs.operand(g, "B", 64, 48)
        c = g.matmul(a, b)
        first, second = (g.tanh, g.sigmoid) if swap else (g.sigmoid, g.tanh)
        results = {f.__name__: f(c) for f in (first, second)}
        by_op = {n.op: n.outputs["OUT_0"] for n in g.nodes if n.op != "matmul"}
        assert results
        by_op["tanh"].set_output(True).set_uid(50)
        by_op["sigmoid"].set_output(True).set_uid(60)
        return facts_of(g)

    one, two = build(True), build(False)
    assert one.epilogue.nodes == two.epilogue.nodes
    assert [o.value for o in one.epilogue.outputs] == [o.value for o in two.epilogue.outputs]


@pytest.mark.parametrize(
    ("dim", "kind"),
    [
        ([1, 96, 80], "full"),
        ([1, 1, 80], "row"),
        ([80], "row"),
        ([1, 96, 1], "col"),
        ([1, 1, 1], "scalar"),
        ([2, 96, 80], "full"),
        ([2, 1, 1], "scalar"),
    ],
)
def test_broadcast_kinds(dim, kind):
    g = gemm_graphs.graph("g")
    c = g.matmul(gemm_graphs.operand(g, "A", 96, 64, 2), gemm_graphs.operand(g, "B", 64, 80, 2))
    g.add(c, g.tensor(name="extra", dim=dim)).set_output(True)
    ((_, got),) = facts_of(g).epilogue.inputs
    assert got == kind


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (
            lambda g, a, b: g.matmul(g.relu(a), b),
            "A of 'matmul.0', 'relu.0::OUT_0', is what 'relu.0' computes",
        ),
        (lambda g, a, b: g.matmul(a, b, padding=1.0), "has padding 1.0"),
    ],
    ids=["prologue", "padding"],
)
def test_what_is_no_matmul_then_pointwise_is_declined_with_its_reason(build, reason):
    g = gemm_graphs.graph("g")
    a, b = gemm_graphs.operand(g, "A", 96, 64), gemm_graphs.operand(g, "B", 64, 80)
    build(g, a, b).set_output(True)
    with pytest.raises(cudnnGraphNotSupportedError) as declined:
        plan_graph(g, H200)
    assert reason in str(declined.value)
    assert declined.value.reasons


# --- lowering ------------------------------------------------------------------------------------


def test_every_test_graph_lowers_to_a_table_that_the_executor_parses():
    for make in (*gemm_graphs.TEST_GRAPHS, *gemm_graphs.ANY_STRIDE_GRAPHS):
        for target in (H200, CPU):
            plan = plan_graph(make(), target)
            _native.Plan(json.loads(json.dumps(plan.table)), None)
            steps = [s for b in plan.table["branches"].values() for s in b["steps"]]
            used = {s["kernel"] for s in steps if s["step"] == "kernel"}
            assert used == set(range(len(plan.kernels)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs())
def test_any_graph_of_a_matmul_and_pointwise_ops_is_lowered_or_declined_in_words(graph):
    text = graph_json.dumps(graph)
    for target in (H200, CPU):
        try:
            plan = plan_graph(graph_json.loads(text), target)
        except cudnnGraphNotSupportedError as declined:
            assert all(" want " in reason or "which no" in reason for reason in declined.reasons)
            continue
        _native.Plan(json.loads(json.dumps(plan.table)), None)


def test_one_kernel_per_layout_class_not_per_shape():
    keys = {
        frozenset(spec.key for spec in plan_graph(gemm_graphs.plain("g", m, n, k), CPU).kernels)
        for m, n, k in ((64, 64, 64), (1, 4096, 4096), (100, 200, 300))
    }
    assert len(keys) == 1
    big = plan_graph(gemm_graphs.plain("g", 8192, 8192, 8192), H200)
    other = plan_graph(gemm_graphs.plain("g", 16384, 8192, 8192), H200)
    assert big.knobs == other.knobs
    assert [s.key for s in big.kernels] == [s.key for s in other.kernels]


def test_branches_of_a_dynamic_graph():
    graph = gemm_graphs.chain("g", "M", 1000, 520, "gelu", symbols={"M": {"min": 0, "max": 4096}})
    plan = plan_graph(graph, H200)
    # Every range of M has its schedule; what TMA cannot take goes to one branch for all.
    bounds = [part.bounds["M"] for part in plan.ranges]
    assert bounds[0][0] == 0 and bounds[-1][1] == 4096 and len(bounds) > 1
    by_range = [
        f"{'stream_k' if part.knobs['STREAM_K'] else 'tma'} M={low}..{high}"
        for part, (low, high) in zip(plan.ranges, bounds, strict=True)
    ]
    first, last = by_range[0], by_range[-1]
    empty = "empty " + first.partition(" ")[2]
    assert set(branches(plan)) == {*by_range, empty, "any_stride"}
    table, out = plan.table, max(o["uid"] for o in plan.table["operands"])
    for m, branch in ((1, first), (bounds[0][1], first), (bounds[1][0], by_range[1]), (4096, last)):
        assert declared(table, {"M": m}).branch(table) == branch
        for uid in (1, 2, out):
            call = declared(table, {"M": m}, **{f"u{uid}": {"address": (1 << 20) + 2}})
            assert call.branch(table) == "any_stride"
    assert declared(table, {"M": 0}).branch(table) == empty
    odd_pitch = {"u1": {"stride": (521 * 8, 521, 1)}}
    assert declared(table, {"M": 8}, **odd_pitch).branch(table) == "any_stride"
    padded_pitch = {"u1": {"stride": (528 * 8, 528, 1)}}
    assert declared(table, {"M": 8}, **padded_pitch).branch(table) == first
    strided = {"u1": {"stride": (1040 * 8, 1040, 2)}}
    assert declared(table, {"M": 8}, **strided).branch(table) == "any_stride"


def test_what_tma_can_never_take_has_no_tma_branch():
    assert branches(plan_graph(gemm_graphs.plain("g", 130, 96, 77), H200)) == {
        "any_stride": ["kernel"]
    }
    assert branches(plan_graph(gemm_graphs.plain("g", 8, 16, 0), H200)) == {
        "any_stride": ["kernel"]
    }


def store_of(plan):
    (kernel,) = {s["store"] for s in (spec.params for spec in plan.kernels) if "store" in s}
    return kernel


def test_outputs_whose_rows_tma_cannot_store_are_stored_directly():
    assert store_of(plan_graph(gemm_graphs.plain("g", 201, 333, 264), H200)) == "direct"
    assert store_of(plan_graph(gemm_graphs.plain("g", 201, 336, 264), H200)) == "tma"


@pytest.mark.parametrize(
    ("m", "n", "cluster", "sms", "slots", "tiles"),
    [
        (16, 512, (1, 2), 132, 2 * 24, 3),  # of 96 columns in whole clusters, in 8 pieces at most
        (16, 512, (1, 2), 7, 2 * 3, 3),
        (4096, 4096, (2, 1), 132, 2 * 66, 2 * 66),  # of 32 times 43, two waves have counters
        (4096, 4096, (1, 1), 132, 2 * 132, 2 * 132),
        (4096, 4096, (2, 1), 1, 2, 2),  # fewer SMs than a cluster has blocks
        (4096, 4096, (1, 1), 1000, 2 * MAX_SMS, 2 * MAX_SMS),
    ],
)
def test_stream_k_zeroes_its_counters_first_and_sizes_its_workspace(
    m, n, cluster, sms, slots, tiles
):
    plans = PlanList(gemm_graphs.plain("g", m, n, 16384), H200)
    knobs = GemmConfig(64, 96, 64, *cluster, 1, 1).to_public()
    plan = plans.lower(plans.append(20_000, knobs))
    branch = plan.table["branches"]["stream_k"]
    assert [s["step"] for s in branch["steps"]] == ["fill", "kernel"]
    call = replace(declared(plan.table, {}), attributes={"sm_count": sms})
    blocks = cluster[0] * cluster[1]
    partials = slots * blocks * 64 * 96 * 4
    assert call.workspace_bytes(branch) == -(-partials // 256) * 256 + 4 * tiles * blocks
    fill, kernel = branch["steps"]
    assert (fill["slice"], fill["pattern"], fill["width"]) == ("counters", 0, 4)
    assert call.value(fill["bytes"]) == 4 * tiles * blocks
    views = {a["slice"]: a for a in kernel["args"] if "slice" in a}
    assert call.value(views["partials"]["dim"][0]) * 4 == partials
    # The kernel is told of no more SMs than there is room for.
    assert [call.value(a["value"]) for a in kernel["args"] if a["arg"] == "int"] == [
        min(sms, MAX_SMS)
    ]
    clusters = max(min(sms, MAX_SMS) // blocks, 1)
    walk = StreamK.of(-(-m // (64 * cluster[0])) * -(-n // (96 * cluster[1])), 256, clusters)
    assert 2 * walk.shares <= slots and walk.tiles - walk.whole <= tiles


def test_graphs_that_are_to_be_split_are():
    """Those of the GPU tests, on the SMs of their target."""
    streamed = set()
    for make in (*gemm_graphs.TEST_GRAPHS, *gemm_graphs.BLOCK_SCALED_GRAPHS):
        graph = make()
        name = graph.name
        if not name.startswith("split_k") and not name.endswith("stream_k"):
            continue
        plan = plan_graph(graph, H200)
        config = GemmConfig.from_public({knob_type[k]: v for k, v in plan.knobs.items()})
        if name.startswith("split_k"):
            assert config.splits > 1
            continue
        assert config.stream_k == 1
        facts = facts_of(graph).extents
        blocks = config.cluster_m * config.cluster_n
        tiles = -(-facts["m"] // (config.tile_m * config.cluster_m))
        tiles *= -(-facts["n"] // (config.tile_n * config.cluster_n)) * facts["batch"]
        walk = StreamK.of(tiles, -(-facts["k"] // config.tile_k), H200.sm_count // blocks)
        assert max(walk.pieces(tile).count for tile in range(tiles)) > 1
        streamed.add(name)
    assert streamed == {
        *("stream_k", "fp8_stream_k", "blocks_stream_k"),
        *("int8_stream_k", "int8_scaled_stream_k"),
    }


@pytest.mark.parametrize(
    ("make", "dtype"),
    [(gemm_graphs.plain, "FLOAT"), (gemm_graphs.scaled, "FLOAT"), (gemm_graphs.sums, "INT32")],
)
def test_partial_tiles_are_of_the_type_of_the_sums(make, dtype):
    plans = PlanList(make("g", 16, 512, 16384), H200)
    tile_k = 64 if make is gemm_graphs.plain else 128
    plan = plans.lower(plans.append(20_000, GemmConfig(64, 96, tile_k, 1, 1, 1, 1).to_public()))
    _, kernel = plan.table["branches"]["stream_k"]["steps"]
    (partials,) = [arg for arg in kernel["args"] if arg.get("slice") == "partials"]
    assert partials["dtype"] == dtype


def test_optional_outputs_have_a_branch_for_each_presence():
    plan = plan_graph(gemm_graphs.optional_output("g", 192, 256, 128), H200)
    table = plan.table
    (optional,) = [o["uid"] for o in table["operands"] if o.get("optional")]
    assert declared(table, {}).branch(table) == "tma"
    assert declared(table, {}, **{f"u{optional}": None}).branch(table) == f"tma_no{optional}"
    both, one = (
        plan.kernels[table["branches"][name]["steps"][0]["kernel"]].params["epilogue"]
        for name in ("tma", f"tma_no{optional}")
    )
    assert (len(both["outputs"]), len(one["outputs"])) == (2, 1)


def test_an_epilogue_without_an_output_drops_what_only_that_output_needs():
    g = gemm_graphs.graph("g")
    a, b = gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64)
    c = g.matmul(a, b)
    g.add(c, gemm_graphs.operand(g, "R", 64, 64)).set_output(True, optional=True).set_uid(90)
    g.relu(c).set_output(True).set_uid(91)
    plan = plan_graph(g, CPU)
    step = plan.table["branches"]["blocked_no90"]["steps"][0]
    epilogue = plan.kernels[step["kernel"]].params["epilogue"]
    assert list(epilogue["inputs"]) == []
    assert [tuple(node)[:2] for node in epilogue["nodes"]] == [("relu", (0,))]
    assert [arg.get("operand") for arg in step["args"]] == [1, 2, 91]


def test_broadcast_axes_have_stride_zero():
    plan = plan_graph(gemm_graphs.column_and_scalars("g", 150, 256, 128), CPU)
    args = plan.table["branches"]["blocked"]["steps"][0]["args"]
    by_uid = {a["operand"]: a for a in args}
    names = {o["uid"]: o["name"] for o in plan.table["operands"]}
    views = {names[uid]: a for uid, a in by_uid.items()}
    assert views["column"]["stride"][1:] == [0, 0]
    assert views["alpha"]["stride"] == [0, 0, 0]
    assert views["column"]["dim"] == views["alpha"]["dim"] == [150, 256, 1]
    assert views["beta"]["arg"] == "scalar"


def test_a_constant_is_part_of_the_plan_and_no_operand():
    g = gemm_graphs.graph("g")
    a, b = gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64)
    half = g.tensor_scalar(0.5, cudnn.scalar_type.COMPILE_TIME_CONST)
    g.scale(g.matmul(a, b), half).set_output(True).set_uid(9)
    plan = plan_graph(g, CPU)
    assert [o["uid"] for o in plan.table["operands"]] == [1, 2, 9]
    args = plan.table["branches"]["blocked"]["steps"][0]["args"]
    assert args[2] == {"arg": "float", "value": 0.5}
