"""The GEMM family without a compiler: facts, capability rows, ranking, and what a lowering says."""

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
from cudnn_aot.compiler.graph.enums import heur_mode
from cudnn_aot.compiler.graph.ops import pointwise
from cudnn_aot.compiler.planning import plan as planning
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.planning.plan import plan_graph, plan_key
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError
from cudnn_aot.recipes.gemm.config import GemmConfig
from cudnn_aot.recipes.gemm.kernels.raster import StreamK
from cudnn_aot.recipes.gemm.sm90 import MAX_SMS
from cudnn_aot.recipes.pointwise import UNTRACED

H200, CPU = load_target("h200"), load_target("cpu")
BF16, HALF, FLOAT = cudnn.data_type.BFLOAT16, cudnn.data_type.HALF, cudnn.data_type.FLOAT
BOOLEAN = cudnn.data_type.BOOLEAN


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


# --- capability rows -----------------------------------------------------------------------------


def test_a_decline_names_every_engine():
    g = gemm_graphs.plain("g", 64, 64, 64, io=cudnn.data_type.INT8)  # summed in FLOAT
    with pytest.raises(cudnnGraphNotSupportedError) as declined:
        plan_graph(g, H200)
    text = str(declined.value)
    reason = "node 'mm', a matmul of INT8, has compute data type FLOAT, want INT32"
    assert f"gemm.sm90.persistent: {reason}" in text
    assert "gemm.sm90.gemv: A 'A' is INT8, want one of BFLOAT16/HALF" in text
    assert "gemm.host.blocked: target h200 is a cuda target, want cpu" in text
    assert f"gemm.sm90.any_stride: {reason}" in text
    assert plan_graph(gemm_graphs.plain("g", 64, 64, 64, io=FLOAT), CPU).engine_name == (
        "gemm.host.blocked"
    )


def test_batch_axes_that_do_not_merge_are_declined():
    g = gemm_graphs.graph("g")
    a = g.tensor(name="A", dim=[2, 3, 32, 64])
    b = g.tensor(name="B", dim=[1, 3, 64, 32])
    g.matmul(a, b).set_output(True)
    reason = r"'B' is broadcast over some batch axes .* it has \[1, 3\], want \[2, 3\], or 1 on"
    with pytest.raises(cudnnGraphNotSupportedError, match=reason):
        plan_graph(g, CPU)


@pytest.mark.parametrize(
    ("batch", "strides", "want"),
    [
        ((2, 3), (2048, 4096), "on axis 0 is 2048, want 12288"),
        (("B", 3), (2048, "2048*B"), r"on axis 0 is 2048, want 6144\*B"),  # heads first
        ((2, "H"), (64, 128), r"on axis 0 is 64, want 128\*H"),
        (("B", "H"), ("4096*H", 2048), r"on axis 0 is 4096\*H, want 2048\*H"),  # every second
        (("B", "H"), ("2048*H", 2048), None),
        (("B", "ONE"), (7, 2048), None),  # no call has more than one element along both
        (("B", "TWO"), (4096, 2048), None),
        (("B", "H"), ("P", 2048), None),  # a call tells
    ],
)
@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
def test_batch_axes_that_merge_in_no_call_are_declined(target, batch, strides, want):
    ranges = {"B": (1, 64), "H": (0, 64), "ONE": (0, 1), "TWO": (2, 2), "P": (1, 1 << 20)}
    used = (name for name in ranges if name in (*batch, *strides))
    symbols = {name: dict(zip(("min", "max"), ranges[name], strict=True)) for name in used}
    g = gemm_graphs.graph("g", symbols=symbols)
    a = g.tensor(name="A", dim=[*batch, 32, 64], stride=[*strides, 64, 1])
    b = g.tensor(name="B", dim=[1, 1, 64, 32])
    g.matmul(a, b).set_output(True)
    if want is None:
        assert plan_graph(g, target).kernels
        return
    with pytest.raises(cudnnGraphNotSupportedError, match=want):
        plan_graph(g, target)


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize(
    ("dim", "kind"), [([48], "row"), ([1], "scalar"), ([1, 48], "row"), ([32, 1], "col")]
)
def test_an_input_of_the_epilogue_may_have_fewer_axes(target, rank, dim, kind):
    g = gemm_graphs.graph("g")
    batch = [3] * (rank - 2)
    a, b = g.tensor(name="A", dim=[*batch, 32, 64]), g.tensor(name="B", dim=[*batch, 64, 48])
    x = g.tensor(name="x", dim=dim)
    g.add(g.matmul(a, b), x).set_output(True)
    plan = plan_graph(g, target)
    for branch in plan.table["branches"].values():
        kernel, args = branch["steps"][0]["kernel"], branch["steps"][0]["args"]
        assert plan.kernels[kernel].params["epilogue"]["inputs"][0]["kind"] == kind
        (view,) = (arg for arg in args if arg.get("operand") == x.uid)
        strides = [declared(plan.table, {}).value(stride) for stride in view["stride"]]
        assert strides == [int(kind == "col"), int(kind == "row"), 0]


def test_batch_axes_that_merge_are_one_axis_and_checked_at_the_call():
    g = gemm_graphs.graph("g")
    a = g.tensor(name="A", dim=[2, 3, 32, 64])
    b = g.tensor(name="B", dim=[2, 3, 64, 32])
    g.matmul(a, b).set_output(True)
    plan = plan_graph(g, CPU)
    view = plan.table["branches"]["blocked"]["steps"][0]["args"][0]
    assert view["dim"] == [32, 64, 6]
    assert declared(plan.table, {}).value(view["stride"][2]) == 2048
    assert [(c["rule"], c["operand"]) for c in plan.table["checks"]] == [
        ("equal", 1), ("equal", 2), ("equal", 3),
    ]  # fmt: skip


BATCHES = {"B": {"min": 1, "max": 64}, "H": {"min": 1, "max": 64}}


@pytest.mark.parametrize(
    ("batch", "heads", "strides", "legal", "step"),
    [
        (2, 4, (8192, 2048), True, 2048),  # dense
        (2, 4, (32768, 8192), True, 8192),  # a slice of a longer pool: both axes step further
        (1, 4, (999, 8192), True, 8192),  # one sequence: its stride moves nothing
        (2, 1, (32768, 999), True, 32768),  # one head: the step is the outer axis's
        (1, 1, (999, 999), True, 999),
        (2, 4, (8192, 8192), False, 8192),
    ],
)
def test_unit_batch_axes_of_a_call_do_not_count(batch, heads, strides, legal, step):
    """A call whose batch happens to be 1 is as legal as any other."""
    g = gemm_graphs.graph("g", symbols=BATCHES)
    a = g.tensor(name="A", dim=["B", "H", 32, 64])
    b = g.tensor(name="B", dim=["B", "H", 64, 32])
    g.matmul(a, b).set_output(True)
    table = plan_graph(g, CPU).table
    own = {"u1": {"stride": (*strides, 64, 1)}}
    call = declared(table, {"B": batch, "H": heads}, **own)
    checks = [c for c in table["checks"] if c["operand"] == 1]
    assert all(call.value(c["a"]) == call.value(c["b"]) for c in checks) is legal
    view = table["branches"]["blocked"]["steps"][0]["args"][0]
    if batch * heads > 1:
        assert call.value(view["stride"][2]) == step


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


# --- ranking and keys ----------------------------------------------------------------------------


def declared_graph(a_stride=(64 * 512, 512, 1), y_stride=(64 * 256, 256, 1), optional=False):
    """[64, 512] by [512, 256], with the strides of A and of the output."""
    g = gemm_graphs.graph("g")
    a = g.tensor(name="A", dim=[1, 64, 512], stride=list(a_stride))
    y = g.matmul(a, gemm_graphs.operand(g, "B", 512, 256, transposed=True), name="mm")
    y.set_output(True, optional=optional).set_data_type(BF16).set_name("Y")
    y.set_stride(list(y_stride))
    if optional:
        rows = g.relu(y).set_output(True).set_data_type(BF16)
        rows.set_stride([64 * 256, 256, 1])
    return g


def up_to_4096(*names):
    return {name: {"min": 1, "max": 4096} for name in names}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: gemm_graphs.plain("g", 130, 96, 77),
            "stride 77 of 'A' on axis 1 is not a multiple of 16 bytes",
        ),
        (
            lambda: gemm_graphs.other_majors("g", 256, 333, 128, False, False),
            "stride 333 of 'B' on axis 1 is not a multiple of 16 bytes",
        ),
        (
            lambda: gemm_graphs.plain("g", "M", 64, "K", symbols=up_to_4096("M", "K")),
            "stride K of 'A' on axis 1 need not be a multiple of 16 bytes",
        ),
        (
            lambda: gemm_graphs.plain("g", "M", 96, 77, symbols=up_to_4096("M")),
            "stride 77 of 'A' on axis 1 is not a multiple of 16 bytes",
        ),
        (lambda: gemm_graphs.plain("g", 8, 16, 0), "K is 0"),
        (
            lambda: declared_graph(a_stride=(64 * 1024, 1024, 2)),
            "'A' or 'B' has no contiguous axis",
        ),
        (lambda: declared_graph(a_stride=(512, 0, 1)), "stride of 'A' on axis 1 is 0"),
        (
            lambda: declared_graph(y_stride=(64 * 512, 512, 2)),
            "the rows of 'Y' are not contiguous",
        ),
    ],
    ids=["odd-k", "odd-n", "any-k", "odd-k-any-m", "no-k", "no-major", "stride-0", "no-rows"],
)
def test_a_graph_that_rules_tma_out_has_one_plan_which_says_so(make, why):
    """Without TMA there is no schedule to choose: whatever the knobs, one kernel is built."""
    plans = PlanList(make(), H200, engines=["gemm.sm90.persistent"])
    assert [entry.why for entry in plans.entries] == [f"no TMA: {why}"]
    planned = plans.lower(0)
    assert "any_stride" in planned.table["branches"] and planned.ranges == ()
    assert not any("tile" in spec.params for spec in planned.kernels)
    # What was recorded when other plans were listed still builds, and builds the same.
    engine_id, knobs = plans.engine_and_knobs(0)
    other = GemmConfig(128, 256, 64, 2, 1, 1).to_public()
    assert other != knobs
    replayed = plans.lower(plans.append(engine_id, other))
    assert (replayed.kernels, replayed.table) == (planned.kernels, planned.table)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gemm_graphs.plain("g", 201, 333, 264),  # stored by threads
        lambda: gemm_graphs.plain(
            "g", 64, 64, "K", symbols={"K": {"min": 8, "max": 4096, "multiple_of": 8}}
        ),
        lambda: declared_graph(y_stride=(64 * 256, 1, 64), optional=True),  # may be left out
    ],
    ids=["direct", "multiples", "optional-columns"],
)
def test_a_graph_that_tma_may_serve_has_its_schedules_ranked(make):
    plans = PlanList(make(), H200, engines=["gemm.sm90.persistent"])
    assert len(plans) > 3
    assert all(any("tile" in s.params for s in plans.lower(i).kernels) for i in range(len(plans)))


def test_plan_key_follows_graph_target_and_planner(monkeypatch):
    graph = gemm_graphs.plain("g", 64, 64, 64)
    key = plan_key(graph, H200)
    assert key == plan_key(gemm_graphs.plain("renamed", 64, 64, 64), H200)
    others = [
        plan_key(graph, load_target("h100")),
        plan_key(gemm_graphs.plain("g", 64, 64, 128), H200),
    ]
    others += [
        plan_key(
            graph, replace(H200, **{name: f"{value}x" if isinstance(value, str) else value + 1})
        )
        for name, value in H200.descriptor().items()
    ]
    others.append(plan_key(graph, replace(H200, sm_count=float(H200.sm_count))))  # equal in Python
    others.append(plan_key(graph, H200, modes=(heur_mode.FALLBACK, heur_mode.A)))
    monkeypatch.setattr(planning, "_source_digest", lambda family: "edited")
    others.append(plan_key(graph, H200))
    assert len({key, *others}) == 1 + len(others)


def test_a_constant_is_part_of_the_plan_and_no_operand():
    g = gemm_graphs.graph("g")
    a, b = gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64)
    half = g.tensor_scalar(0.5, cudnn.scalar_type.COMPILE_TIME_CONST)
    g.scale(g.matmul(a, b), half).set_output(True).set_uid(9)
    plan = plan_graph(g, CPU)
    assert [o["uid"] for o in plan.table["operands"]] == [1, 2, 9]
    args = plan.table["branches"]["blocked"]["steps"][0]["args"]
    assert args[2] == {"arg": "float", "value": 0.5}


def test_a_long_chain_is_declined_before_it_is_compiled():
    g = gemm_graphs.graph("g")
    y = g.matmul(gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64))
    for _ in range(70):
        y = g.relu(y)
    y.set_output(True)
    with pytest.raises(cudnnGraphNotSupportedError, match="70 pointwise steps .* at most 64"):
        plan_graph(g, CPU)


def with_op(name, dtype=FLOAT, compute=None):
    """An op between the matmul and an add; ``dtype`` is of the tensor between the two."""
    g = gemm_graphs.graph("g")
    y = g.matmul(gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64))
    (row,) = [row for row in pointwise.ROWS if row.name == name]
    others = [gemm_graphs.operand(g, f"x{i}", 64, 64) for i in range(1, len(row.ports))]
    required = {"axis": 1} if name == "gen_index" else {a.name: 0.5 for a in row.attrs}
    between = getattr(g, name)(y, *others, **required, compute_data_type=compute)
    between.set_data_type(dtype)
    g.add(between, gemm_graphs.operand(g, "r", 64, 64)).set_output(True).set_data_type(BF16)
    return g


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
def test_every_pointwise_op_is_taken_or_declined_with_its_reason(target):
    for row in pointwise.ROWS:
        if row.name not in UNTRACED:
            assert plan_graph(with_op(row.name), target).kernels, row.name
            continue
        with pytest.raises(cudnnGraphNotSupportedError) as caught:
            plan_graph(with_op(row.name), target)
        assert f"is {row.name}, which no kernel traces: " in str(caught.value)
        assert UNTRACED[row.name] in str(caught.value)


@pytest.mark.parametrize(
    ("op", "dtype", "casts"),
    [
        ("sub", FLOAT, []),
        ("sub", BOOLEAN, ["BOOLEAN"]),
        ("cmp_lt", BOOLEAN, []),  # gives 1 or 0
        ("logical_not", BOOLEAN, []),
        ("binary_select", BOOLEAN, ["BOOLEAN"]),
        ("cmp_lt", BF16, ["BFLOAT16"]),
    ],
)
def test_a_tensor_between_ops_is_a_cast_where_its_type_may_change_a_value(op, dtype, casts):
    nodes = facts_of(with_op(op, dtype)).epilogue.nodes
    got = [dict(node.attrs)["dtype"] for node in nodes if node.op == "cast"]
    assert got == casts  # none of the output, which is BFLOAT16: no op reads it


def test_truth_values_may_be_computed_in_boolean_and_nothing_else_may():
    assert plan_graph(with_op("cmp_lt", BOOLEAN, compute=BOOLEAN), CPU).kernels
    with pytest.raises(
        cudnnGraphNotSupportedError,
        match=r"node 'binary_select.0' has compute data type BOOLEAN, want FLOAT",
    ):
        plan_graph(with_op("binary_select", compute=BOOLEAN), CPU)


def test_numbers_passed_by_value_are_no_tensors_of_the_epilogue():
    """Twelve outputs, and a constant for each node: kernels have room for numbers."""
    g = gemm_graphs.graph("g")
    y = g.matmul(gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64))
    for i in range(12):
        y = g.add(g.mul(y, g.tensor_scalar(0.5 + i)), g.tensor_scalar(0.25 - i))
        y.set_output(True).set_data_type(BF16)
    assert plan_graph(g, H200).engine_name == "gemm.sm90.persistent"
    g = gemm_graphs.graph("g")
    y = g.matmul(gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64))
    for i in range(12):
        y = g.add(y, gemm_graphs.operand(g, f"x{i}", 64, 64))
    y.set_output(True)
    with pytest.raises(cudnnGraphNotSupportedError, match="13 epilogue tensors, want at most 12"):
        plan_graph(g, H200)


def test_types_that_no_kernel_holds_are_declined():
    reason = "'floor.0::OUT_0', between ops, is INT32, want one of BFLOAT16/HALF/FLOAT"
    with pytest.raises(cudnnGraphNotSupportedError, match=reason):
        plan_graph(with_op("floor", cudnn.data_type.INT32), CPU)
    g = gemm_graphs.graph("g")
    y = g.matmul(gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64))
    mask = g.cmp_lt(y, gemm_graphs.operand(g, "x", 64, 64))
    mask.set_output(True).set_data_type(BOOLEAN).set_name("mask")
    with pytest.raises(cudnnGraphNotSupportedError, match="'mask' is BOOLEAN, want one of BFLOAT1"):
        plan_graph(g, CPU)
