"""Several matmuls of one A, and reductions of the result, without a compiler: facts, declines,
ranking, and what a lowering says.
"""

from __future__ import annotations

import json

import gemm_graphs
import pytest
from gemm_facts import facts_of
from table_model import declared

import cudnn_aot as cudnn
from cudnn_aot import _native
from cudnn_aot.compiler.graph.enums import heur_mode, reduction_mode
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError
from cudnn_aot.recipes.gemm.analyze import analyze
from cudnn_aot.recipes.gemm.config import GemmConfig, TileClass
from cudnn_aot.recipes.gemm.facts import Reduction
from cudnn_aot.recipes.gemm.heuristics import SM90_ANY_STRIDE, SM90_PERSISTENT
from cudnn_aot.recipes.gemm.model import menu_for, rank_sm90
from cudnn_aot.recipes.reductions import FOLDED, UNFOLDED
from cudnn_aot.recipes.trace.reductions import FOLDS

H200, CPU = load_target("h200"), load_target("cpu")
BF16, HALF, FLOAT = cudnn.data_type.BFLOAT16, cudnn.data_type.HALF, cudnn.data_type.FLOAT
INT32 = cudnn.data_type.INT32
UP_TO = {"M": {"min": 0, "max": 4096, "hint": 512}}


def refused(graph):
    graph.freeze()
    refusal = analyze(graph)
    assert isinstance(refusal, Refusal)
    return refusal.reason


# --- facts ---------------------------------------------------------------------------------------


def test_facts_of_a_gated_ffn():
    """Products are numbered as the output reaches them: the gate's before the other."""
    facts = facts_of(gemm_graphs.gated("g", 64, 512, 256))
    assert [b.name for b in facts.every_b] == ["Bg", "Bu"]
    assert facts.epilogue.products == 2
    assert [(node.op, node.args) for node in facts.epilogue.nodes] == [
        ("swish", (0,)),
        ("mul", (2, 1)),
    ]
    assert [operand.name for operand in facts.operands()] == ["A", "Bg", "Bu", "Y"]
    assert facts.layout_class == "BFLOAT16xBFLOAT16+BFLOAT16 kk+k [] swish mul -> BFLOAT16"
    assert facts.describe()["B of another product 'Bu'"].endswith("k-major")


def test_products_are_ordered_by_use_and_not_by_name_node_or_uid():
    def build(swap):
        g = gemm_graphs.graph("g")
        a = gemm_graphs.operand(g, "A", 32, 64)
        one, two = (gemm_graphs.operand(g, name, 64, 48) for name in ("one", "two"))
        if swap:
            second = g.matmul(a, one)
            first = g.matmul(a, two)
        else:
            first = g.matmul(a, one)
            second = g.matmul(a, two)
        g.sub(g.relu(first), second).set_output(True).set_uid(50)
        return plan_graph(g, CPU)

    one, two = build(False), build(True)
    assert one.kernels == two.kernels

    def matrices(plan):
        return [arg["operand"] for arg in plan.table["branches"]["blocked"]["steps"][0]["args"][:3]]

    assert (matrices(one), matrices(two)) == ([1, 2, 3], [1, 3, 2])


def test_facts_of_reductions():
    folds = [("ADD", "m"), ("AMAX", "n"), ("MAX", "mn")]
    facts = facts_of(gemm_graphs.reduced("g", 64, 96, 128, folds))
    assert facts.epilogue.reductions == tuple(Reduction(*fold) for fold in folds)
    # What is reduced is what is read through the tensor: the accumulator, rounded. What is stored
    # is the accumulator itself, which the store rounds.
    assert [(node.op, node.args) for node in facts.epilogue.nodes] == [("cast", (0,))]
    assert [output.value for output in facts.epilogue.outputs] == [0, 1, 1, 1]
    assert facts.layout_class.endswith("-> BFLOAT16,FLOAT:ADD/m,FLOAT:AMAX/n,FLOAT:MAX/mn")
    assert facts.describe()["output 'AMAX_n'"].startswith("AMAX along n, FLOAT [1, 64, 1]")


def test_an_axis_of_one_element_is_folded_too():
    """AMAX of one number is its magnitude."""
    assert facts_of(gemm_graphs.reduced("g", 1, 96, 64, [("AMAX", "m")])).epilogue.reductions == (
        Reduction("AMAX", "m"),
    )
    assert facts_of(gemm_graphs.reduced("g", 1, 96, 64, [("AMAX", "n")])).epilogue.reductions == (
        Reduction("AMAX", "mn"),
    )


def test_every_mode_is_folded_or_has_its_reason():
    assert set(FOLDED) == set(FOLDS)
    assert {mode.name for mode in reduction_mode} == {*FOLDED, *UNFOLDED}


def matmuls(g, *shapes, io=BF16):
    """Products of A by matrices of these shapes."""
    a = gemm_graphs.operand(g, "A", 96, 64)
    return [
        g.matmul(a, gemm_graphs.operand(g, f"B{i}", *shape, data_type=io), name=f"mm{i}")
        for i, shape in enumerate(shapes)
    ]


def reduction(g, tensor, dim, mode="ADD"):
    folded = g.reduction(tensor, mode=reduction_mode[mode], name="fold")
    return folded.set_dim(dim).set_data_type(FLOAT).set_name("folded")


def different_a(g):
    (one,) = matmuls(g, (64, 80))
    other = gemm_graphs.operand(g, "A2", 96, 64)
    return g.add(one, g.matmul(other, gemm_graphs.operand(g, "B", 64, 80), name="mm1"))


def different_b(g):
    a = gemm_graphs.operand(g, "A", 96, 64)
    one = g.matmul(a, gemm_graphs.operand(g, "B0", 64, 80), name="mm0")
    return g.add(one, g.matmul(a, gemm_graphs.operand(g, "B1", 64, 1), name="mm1"))


def chained(g):
    (one,) = matmuls(g, (64, 80))
    return g.matmul(one, gemm_graphs.operand(g, "B", 80, 80), name="mm1")


def read_again(g):
    (one,) = matmuls(g, (64, 80))
    return g.div(one, reduction(g, one, [1, 96, 1]))


def twice(g):
    (one,) = matmuls(g, (64, 80))
    rows = reduction(g, one, [1, 96, 1])
    return g.reduction(rows, mode=reduction_mode.ADD, name="again").set_dim([1, 1, 1])


def of_an_input(g):
    (one,) = matmuls(g, (64, 80))
    one.set_output(True)
    return reduction(g, gemm_graphs.operand(g, "x", 96, 80), [1, 96, 1])


def of_a_row(g):
    (one,) = matmuls(g, (64, 80))
    rows = [g.tensor(name=name, dim=[1, 1, 80]) for name in "xy"]
    sums = g.add(*rows).set_name("sums")
    g.add(one, sums).set_output(True)
    return reduction(g, sums, [1, 1, 1])


def over_the_batch(g):
    a, b = gemm_graphs.operand(g, "A", 96, 64, 2), gemm_graphs.operand(g, "B", 64, 80, 2)
    return reduction(g, g.matmul(a, b), [1, 1, 1])


def along_nothing(g):
    (one,) = matmuls(g, (64, 80))
    return reduction(g, one, [1, 96, 80])


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (different_a, "matmuls 'mm0' and 'mm1' read different A, 'A' and 'A2': those of one A are"),
        (
            different_b,
            "B of 'mm1' has extents [1, 64, 1] and B of 'mm0' has [1, 64, 80], want the same",
        ),
        (chained, "A of 'mm1', 'mm0::C', is what 'mm0' computes, want a graph input"),
        (read_again, "reads 'folded', which a reduction gives: it is known only when the whole"),
        (twice, "reduction 'again' reads 'folded', the result of a reduction: reduce along both"),
        (of_an_input, "reduction 'fold' reads 'x', want what a node computes"),
        (of_a_row, "reads 'sums' of extents [1, 1, 80], want those of the matmul's result [1, 96,"),
        (over_the_batch, "gives extents [1, 1, 1], want the batch of the matmul's result [2, 96,"),
        (along_nothing, "gives extents [1, 96, 80] of a result [1, 96, 80], want 1 row, 1 column"),
    ],
)
def test_what_is_not_fused_says_why(build, reason):
    g = gemm_graphs.graph("g")
    build(g).set_output(True)
    assert reason in refused(g)


# --- capability rows -----------------------------------------------------------------------------


def declined(graph, target=CPU):
    with pytest.raises(cudnnGraphNotSupportedError) as caught:
        plan_graph(graph, target)
    return str(caught.value)


def test_a_third_product_is_declined():
    g = gemm_graphs.graph("g")
    one, two, three = matmuls(g, (64, 80), (64, 80), (64, 80))
    g.add(g.add(one, two), three).set_output(True)
    assert "3 matmuls of one A, want at most 2" in declined(g)


def test_products_of_two_types_are_declined():
    g = gemm_graphs.graph("g")
    a = gemm_graphs.operand(g, "A", 96, 64)
    b, other = (
        gemm_graphs.operand(g, name, 64, 80, data_type=io)
        for name, io in (("B", BF16), ("C", HALF))
    )
    g.add(g.matmul(a, b), g.matmul(a, other)).set_output(True)
    assert "'B' is BFLOAT16 and 'C' is HALF, want one" in declined(g)


@pytest.mark.parametrize("mode", ["MUL", "MUL_NO_ZEROS"])
def test_a_mode_that_no_kernel_folds_is_declined(mode):
    text = declined(gemm_graphs.reduced("g", 64, 96, 128, [(mode, "m")]))
    assert f"is a reduction {mode}, which no kernel folds: the product of a tile's values" in text


@pytest.mark.parametrize("dtype", ["INT32", "INT8", "FP8_E4M3"])
@pytest.mark.parametrize("a_dtype", ["BFLOAT16", "INT8"])
def test_a_reduction_in_another_type_is_declined(a_dtype, dtype):
    """Of the sums of INT8 too, which may be written as the INT32 that they are."""
    g = gemm_graphs.graph("g", cudnn.data_type[a_dtype])
    a, b = gemm_graphs.operand(g, "A", 96, 64), gemm_graphs.operand(g, "B", 64, 80)
    sums = INT32 if a_dtype == "INT8" else FLOAT
    one = g.matmul(a, b, compute_data_type=sums).set_data_type(sums)
    fold = reduction(g, one, [1, 1, 80]).set_output(True)
    fold.set_data_type(cudnn.data_type[dtype])
    assert f"'folded' is {dtype}, want one of BFLOAT16/HALF/FLOAT" in declined(g)


def int8_pair(second=INT32):
    """Two products of INT8, the second in a type of its own arithmetic, written and folded."""
    g = gemm_graphs.graph("g", cudnn.data_type.INT8)
    a = gemm_graphs.operand(g, "A", 96, 64)
    for i, compute in enumerate((INT32, second)):
        b = gemm_graphs.operand(g, f"B{i}", 64, 80)
        y = g.matmul(a, b, compute_data_type=compute).set_data_type(INT32)
        y.set_output(True).set_name(f"y{i}")
    reduction(g, y, [1, 1, 80]).set_output(True)
    return g


def test_every_product_of_int8_may_be_written_as_its_sums_and_folded():
    facts = facts_of(int8_pair())
    assert facts.accumulators == ("INT32", "INT32")
    assert [output.value for output in facts.epilogue.outputs] == [0, 1, 1]
    for target in (CPU, H200):
        assert plan_graph(int8_pair(), target).kernels[0].params["products"] == 2


def test_a_second_product_of_int8_in_fp32_is_declined():
    reason = "a matmul of INT8, has compute data type FLOAT, want INT32"
    assert reason in declined(int8_pair(FLOAT))


def test_a_gated_ffn_of_two_fp8_types_is_one_plan():
    dt = cudnn.data_type
    g = gemm_graphs.graph("g", dt.FP8_E4M3)
    a = gemm_graphs.operand(g, "A", 96, 64)
    one, two = (
        g.matmul(a, gemm_graphs.operand(g, name, 64, 80, data_type=dt.FP8_E5M2))
        for name in ("Bg", "Bu")
    )
    y = g.mul(g.swish(one), two).set_data_type(BF16).set_output(True)
    reduction(g, y, [1, 1, 1], "AMAX").set_output(True)
    for target, count in ((CPU, 1), (H200, 2)):  # on the GPU a second kernel folds
        kernels = plan_graph(g, target).kernels
        assert len(kernels) == count
        names = ("a_dtype", "b_dtype", "products")
        assert [kernels[0].params[name] for name in names] == ["FP8_E4M3", "FP8_E5M2", 2]


def test_the_engine_without_accumulators_or_folds_says_so():
    for graph, reason in (
        (gemm_graphs.gated("g", 8, 512, 256), "2 matmuls of one A, want at most 1"),
        (
            gemm_graphs.reduced("g", 8, 512, 256, [("ADD", "m")]),
            "'ADD_m' is a reduction of the result, want none",
        ),
    ):
        plans = PlanList(graph, H200)
        assert plans.entries[-1].engine_id == SM90_ANY_STRIDE
        assert {entry.engine_id for entry in plans.entries[:-1]} == {SM90_PERSISTENT}
        assert any(f"gemm.sm90.gemv: {reason}" in line for line in plans.reasons), plans.reasons


def test_a_gated_ffn_is_one_kernel_on_the_tensor_cores_where_its_b_lie_alike():
    for fields, templates in (
        ({}, ["sm90", "simt"]),
        ({"b_transposed": False, "up_transposed": False}, ["sm90", "simt"]),
        ({"b_transposed": False}, ["simt"]),
        ({"io": cudnn.data_type.FP8_E4M3}, ["sm90", "simt"]),
        ({"io": cudnn.data_type.FP8_E4M3, "up_transposed": False}, ["simt"]),
    ):
        plan = plan_graph(gemm_graphs.gated("g", 512, 4096, 1024, **fields), H200)
        names = [f"gemm.kernels.{name}:matmul" for name in templates]
        assert [kernel.template for kernel in plan.kernels] == names, fields
        assert all(kernel.params["products"] == 2 for kernel in plan.kernels)
        args = plan.table["branches"].get("tma", {"steps": []})["steps"]
        for step in args:  # launch, SMs, A and both B
            assert [arg.get("operand") for arg in step["args"][2:5]] == [1, 2, 3]


def test_two_products_are_not_split_and_their_accumulators_fit():
    extents = {"batch": 1, "m": 64, "n": 256, "k": 1 << 16}
    for element_bytes, is_integer in ((1, False), (2, False), (1, True)):
        tiles = TileClass(element_bytes, 2, is_integer=is_integer)
        menu = menu_for(tiles)
        ranked = [config for config, _ in rank_sm90(extents, 132, menu)]
        for config in (*ranked, *GemmConfig.measured(1 << 16, tiles), menu.fallback):
            assert config.splits == 1 and config.why_not_for(tiles) is None
            assert config.tile_k * element_bytes in (128, 256)
    graph = gemm_graphs.gated("g", 64, 256, 1 << 16)
    plans = PlanList(graph, H200)
    index = plans.append(SM90_PERSISTENT, GemmConfig(64, 64, 64, 1, 1, 2).to_public())
    with pytest.raises(cudnnGraphNotSupportedError, match="2 splits of K of 2 matmuls, want 1"):
        plans.lower(index)


# --- ranking -------------------------------------------------------------------------------------


def test_the_engine_for_any_strides_is_behind_those_that_serve():
    for mode in (heur_mode.A, heur_mode.FALLBACK):
        plain = PlanList(gemm_graphs.plain("g", 512, 512, 512), H200, modes=[mode])
        ids = [entry.engine_id for entry in plain.entries]
        assert ids[0] == SM90_PERSISTENT and ids[-1] == SM90_ANY_STRIDE
        gated = PlanList(gemm_graphs.gated("g", "M", 64, 64, symbols=UP_TO), H200, modes=[mode])
        ids = [getattr(entry, "engine_id", None) for entry in gated.entries]
        assert ids[-1] == SM90_ANY_STRIDE and SM90_PERSISTENT in ids[:-1]


# --- lowering ------------------------------------------------------------------------------------

FOLDS_OF_ALL = [("ADD", "m"), ("AVG", "n"), ("AMAX", "mn")]


def fused_graphs():
    return [
        gemm_graphs.gated("gated", "M", 512, 256, symbols=UP_TO),
        gemm_graphs.gated("majors", 64, 512, 256, b_transposed=True, up_transposed=False),
        gemm_graphs.reduced("folds", "M", 96, 128, FOLDS_OF_ALL, batch=3, symbols=UP_TO),
    ]


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
def test_fused_graphs_lower_to_tables_that_the_executor_parses(target):
    for graph in fused_graphs():
        plan = plan_graph(graph, target)
        _native.Plan(json.loads(json.dumps(plan.table)), None)
        steps = [s for b in plan.table["branches"].values() for s in b["steps"]]
        assert {s["kernel"] for s in steps} == set(range(len(plan.kernels)))


def test_products_share_kernels_whatever_their_majors():
    one, two = (
        plan_graph(gemm_graphs.gated("g", 64, 512, 256, up_transposed=major), H200)
        for major in (True, False)
    )
    assert one.kernels[-1] == two.kernels[-1]
    params = one.kernels[-1].params
    assert params["products"] == 2 and len(params["epilogue"]["nodes"]) == 2


def test_reductions_are_folded_from_the_tiles_in_a_second_step():
    graph = gemm_graphs.reduced("g", "M", 200, 128, FOLDS_OF_ALL, batch=3, symbols=UP_TO)
    plan = plan_graph(graph, H200)
    branch = plan.table["branches"]["any_stride"]
    call = declared(plan.table, {"M": 130})
    templates = [plan.kernels[step["kernel"]].template for step in branch["steps"]]
    assert templates == ["gemm.kernels.simt:matmul"] + ["gemm.kernels.fold:fold"] * 3
    # 3 x 4 tiles of 64 x 64; (T, R, L) of each fold, and of how many values it is.
    want = [(3, 200, 3, 130), (4, 130, 3, 200), (12, 1, 3, 130 * 200)]
    matmul, *folds = branch["steps"]
    written = [arg for arg in matmul["args"] if "slice" in arg]
    for fold, view, (tiles, kept, batch, count) in zip(folds, written, want, strict=True):
        launch, counted, partials, out = fold["args"]
        assert launch == {"arg": "launch"} and partials == view
        assert [call.value(e) for e in view["dim"]] == [tiles, kept, batch]
        assert [call.value(e) for e in view["stride"]] == [1, tiles, tiles * kept]
        assert call.value(counted["value"]) == count
        assert [call.value(e) for e in out["dim"]] == [kept, batch]
        assert call.value(out["stride"][1]) == kept
    sizes = [call.value(piece["bytes"]) for piece in branch["workspace"]]
    assert sizes == [4 * tiles * kept * batch for tiles, kept, batch, _ in want]


def test_the_cpu_folds_in_fp64_totals_of_the_outputs_shape():
    graph = gemm_graphs.reduced("g", "M", 200, 128, FOLDS_OF_ALL, batch=3, symbols=UP_TO)
    plan = plan_graph(graph, CPU)
    branch, call = plan.table["branches"]["blocked"], declared(plan.table, {"M": 130})
    assert [call.value(p["bytes"]) for p in branch["workspace"]] == [
        8 * 200 * 3, 8 * 130 * 3, 8 * 3,
    ]  # fmt: skip
    views = [arg for arg in branch["steps"][0]["args"] if "slice" in arg]
    assert [[call.value(e) for e in view["stride"]] for view in views] == [
        [0, 1, 200], [1, 0, 130], [0, 0, 1],
    ]  # fmt: skip
    assert all([call.value(e) for e in v["dim"]] == [130, 200, 3] for v in views)


@pytest.mark.parametrize(
    ("folds", "branch"),
    [([], "empty"), ([("ADD", "n")], "empty"), ([("ADD", "m")], None), ([("ADD", "mn")], None)],
)
def test_a_result_without_rows_is_no_step_unless_they_are_folded(folds, branch):
    """The sum of no row is 0, and it has elements."""
    for target, serves in ((CPU, "blocked"), (H200, "any_stride")):
        graph = gemm_graphs.reduced("g", "M", 96, 64, folds, io=FLOAT, symbols=UP_TO)
        table = plan_graph(graph, target).table
        assert declared(table, {"M": 0}).branch(table) == (branch or serves)
        assert declared(table, {"M": 1}).branch(table) == serves


def test_an_absent_output_takes_its_product_and_its_fold_with_it():
    g = gemm_graphs.graph("g")
    one, two = matmuls(g, (64, 80), (64, 80))
    g.relu(one).set_output(True).set_uid(90)
    g.neg(two).set_output(True, optional=True).set_uid(91)
    fold = reduction(g, one, [1, 1, 80])
    fold.set_output(True, optional=True).set_uid(92)
    plan = plan_graph(g, CPU)
    seen = {}
    for name, branch in plan.table["branches"].items():
        (step,) = branch["steps"]
        names = [arg.get("operand") or arg["slice"] for arg in step["args"]]
        seen[name] = (plan.kernels[step["kernel"]].params["products"], names)
    assert seen == {
        "blocked": (2, [1, 2, 4, 90, 91, 92, "totals92"]),
        "blocked_no92": (2, [1, 2, 4, 90, 91]),
        "blocked_no91": (1, [1, 2, 90, 92, "totals92"]),
        "blocked_no91_no92": (1, [1, 2, 90]),
    }
