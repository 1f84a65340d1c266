"""Reductions of the result on Hopper's tensor cores, without a compiler: who takes them, and what
the plans say of partial values and of the second step.
"""

from __future__ import annotations

import json

import gemm_graphs
import pytest
from gemm_graphs import EVERY_AXES, FLOAT, reduced
from table_model import declared

import cudnn_aot as cudnn
from cudnn_aot import _native
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError
from cudnn_aot.recipes.gemm import sm90
from cudnn_aot.recipes.gemm.config import GemmConfig
from cudnn_aot.recipes.gemm.heuristics import SM90_ANY_STRIDE, SM90_PERSISTENT
from cudnn_aot.recipes.gemm.kernels import sm90_config as kernel

H200 = load_target("h200")
UP_TO = {"M": {"min": 0, "max": 4096, "hint": 512}}


def planned(graph, schedule):
    plans = PlanList(graph, H200)
    return plans.lower(plans.append(SM90_PERSISTENT, schedule.to_public()))


def templates(plan, branch):
    steps = plan.table["branches"][branch]["steps"]
    return [plan.kernels[s["kernel"]].template if "kernel" in s else s["step"] for s in steps]


# --- who takes them ------------------------------------------------------------------------------


def test_the_tensor_cores_come_first_and_the_cuda_cores_last():
    for kind in ("A", "FALLBACK"):
        plans = PlanList(
            reduced("g", 512, 1024, 256, EVERY_AXES), H200, modes=[cudnn.heur_mode[kind]]
        )
        ids = [entry.engine_id for entry in plans.entries]
        assert ids[-1] == SM90_ANY_STRIDE and set(ids[:-1]) == {SM90_PERSISTENT}


def test_what_has_scales_of_blocks_is_folded_on_the_tensor_cores():
    plan = plan_graph(gemm_graphs.block_amax("g", 64, 128, 256), H200)
    assert plan.engine_name == "gemm.sm90.persistent"


@pytest.mark.parametrize("mode", ["MUL", "MUL_NO_ZEROS"])
def test_a_mode_that_is_not_folded_is_declined(mode):
    with pytest.raises(cudnnGraphNotSupportedError) as declined:
        plan_graph(reduced("g", 64, 96, 128, [(mode, "m")]), H200)
    assert f"gemm.sm90.persistent: '{mode}_m' is a reduction {mode}, which no kernel folds" in str(
        declined.value
    )


def test_a_reduction_in_another_type_is_declined():
    g = reduced("g", 64, 96, 128, [("ADD", "m")])
    (folded,) = (tensor for tensor in g.outputs() if tensor.name == "ADD_m")
    folded.set_data_type(gemm_graphs.E4M3)
    reason = "gemm.sm90.persistent: 'ADD_m' is FP8_E4M3, want one of BFLOAT16/HALF/FLOAT"
    with pytest.raises(cudnnGraphNotSupportedError) as declined:
        plan_graph(g, H200)
    assert reason in str(declined.value)


# --- what the plans say --------------------------------------------------------------------------


@pytest.mark.parametrize("make", gemm_graphs.FOLD_GRAPHS, ids=lambda make: make().name)
def test_graphs_lower_to_tables_that_the_executor_parses(make):
    plan = plan_graph(make(), H200)
    _native.Plan(json.loads(json.dumps(plan.table)), None)
    steps = [s for b in plan.table["branches"].values() for s in b["steps"]]
    assert {s["kernel"] for s in steps if "kernel" in s} == set(range(len(plan.kernels)))


def test_the_rows_of_a_partial_value_are_those_of_a_math_warpgroup():
    assert sm90.GROUP_ROWS == kernel.GROUP_ROWS


@pytest.mark.parametrize(
    ("schedule", "columns"),
    [
        (GemmConfig(128, 256, 64, 2, 1, 1), 256),
        (GemmConfig(64, 96, 64, 1, 2, 1), 96),
        (GemmConfig(64, 128, 64, 1, 1, 4), 32),  # blocks of a cluster share the columns out
        (GemmConfig(128, 64, 64, 1, 1, 2), 32),
        (GemmConfig(64, 64, 64, 1, 1, 1, 1), 64),  # the last piece of a tile finishes all of them
    ],
)
@pytest.mark.parametrize("rows", [1, 64, 65, 130, 300])  # the last is many
def test_tiles_are_counted_as_the_schedule_has_them(schedule, columns, rows):
    """A partial value for each 64 rows, for the columns that a block finishes, or for both."""
    graph = reduced("g", "M", 328, 1024, EVERY_AXES, batch=3, symbols=UP_TO)
    plan = planned(graph, schedule)
    name = "stream_k" if schedule.stream_k else "tma"
    name += "_few" if rows <= sm90.FEW_ROWS else ""
    branch, call = plan.table["branches"][name], declared(plan.table, {"M": rows})
    assert call.branch(plan.table) == name
    matmul = "gemm.kernels.sm90:matmul"
    head = ["fill", matmul] if schedule.stream_k else [matmul]
    assert templates(plan, name) == head + ["gemm.kernels.fold:fold"] * 3
    down, across = -(-rows // 64), -(-328 // columns)
    want = [(down, 328, 3, rows), (across, rows, 3, 328), (down * across, 1, 3, rows * 328)]
    step, *folds = branch["steps"][len(head) - 1 :]
    uids = {tensor.name: tensor.uid for tensor in graph.tensors.values()}
    assert [arg.get("operand", arg.get("slice")) for arg in step["args"][-4:]] == [
        uids["Y"],
        *(f"partials{uids[f'{mode}_{axes}']}" for mode, axes in EVERY_AXES),
    ]
    for fold, view, (tiles, kept, batch, count) in zip(folds, step["args"][-3:], want, strict=True):
        _, counted, partials, out = fold["args"]
        assert partials == view
        assert [call.value(e) for e in view["dim"]] == [tiles, kept, batch]
        assert [call.value(e) for e in view["stride"]] == [1, tiles, tiles * kept]
        assert call.value(counted["value"]) == count
        assert [call.value(e) for e in out["dim"]] == [kept, batch]
    slices = {piece["name"]: call.value(piece["bytes"]) for piece in branch["workspace"]}
    views = step["args"][-3:]
    assert [slices[view["slice"]] for view in views] == [4 * t * r * b for t, r, b, _ in want]
    assert len(slices) == len(branch["workspace"]) == (5 if schedule.stream_k else 3)


def test_the_same_kernel_serves_whatever_the_extents():
    one, two = (
        {spec.key for spec in planned(reduced("g", *shape, EVERY_AXES), schedule).kernels}
        for shape in ((512, 1024, 256), (300, 328, 1024))
        for schedule in [GemmConfig(128, 128, 64, 1, 1, 1)]
    )
    assert one == two


def test_what_is_reduced_has_no_say_in_how_outputs_are_stored():
    """Its strides may be any, beside outputs that TMA stores; alone, it leaves nothing to store."""
    for whole in (True, False):
        g = reduced("g", 64, 1024, 512, [("ADD", "m"), ("MAX", "n")], whole=whole)
        columns, rows = (t for t in g.outputs() if t.name != "Y")
        columns.set_stride([3 * 1024, 1024, 3])
        rows.set_stride([64 * 5, 5, 1])
        plan = planned(g, GemmConfig(64, 128, 64, 1, 1, 1))
        assert plan.kernels[0].params["store"] == "tma"
        call = declared(plan.table, {}, u1={"address": 1 << 20})
        assert call.branch(plan.table) == "tma"
        folds = plan.table["branches"]["tma"]["steps"][1:]
        outs = [[call.value(e) for e in fold["args"][-1]["stride"][:1]] for fold in folds]
        assert outs == [[3], [5]]
        misaligned = declared(plan.table, {}, u1={"address": (1 << 20) + 2})
        assert misaligned.branch(plan.table) == "any_stride"


def test_the_blocks_of_a_kernel_are_as_wide_as_what_it_stores_allows():

    def config(graph):
        plan = planned(graph, GemmConfig(128, 128, 64, 1, 1, 1))
        return kernel.Config.parse(plan.kernels[0].params)

    beside = config(reduced("g", 512, 1024, 512, [("ADD", "m")]))
    alone = config(reduced("g", 512, 1024, 512, [("ADD", "m")], whole=False))
    rows = config(reduced("g", 512, 1024, 512, [("ADD", "n")], whole=False))
    assert (beside.block_columns, alone.block_columns) == (64, 64)
    assert (beside.fold_bytes, alone.fold_bytes, rows.fold_bytes) == (2048, 2048, 0)
    floats = gemm_graphs.plain("g", 512, 1024, 512, out=FLOAT)
    gemm_graphs.fold(floats, next(iter(floats.outputs())), "ADD", "m", 512, 1024)
    assert config(floats).block_columns == 32


@pytest.mark.parametrize(
    ("folds", "branch"),
    [([("ADD", "n")], "empty"), ([("ADD", "m")], "tma_few"), ([("AMAX", "mn")], "tma_few")],
)
def test_a_result_without_rows_is_folded_from_no_partial_values(folds, branch):
    """The sum of no row is 0, and it has elements."""
    plan = planned(reduced("g", "M", 96, 64, folds, symbols=UP_TO), GemmConfig(64, 64, 64, 1, 1, 1))
    call = declared(plan.table, {"M": 0})
    assert call.branch(plan.table) == branch
    if branch != "empty":
        *_, fold = plan.table["branches"][branch]["steps"]
        tiles, kept, _ = (call.value(e) for e in fold["args"][2]["dim"])
        assert (tiles, kept) == (0, 96 if folds[0][1] == "m" else 1)


def test_an_absent_output_takes_its_fold_with_it():
    g = gemm_graphs.quantized("g", 512, 1024, 512)
    (amax,) = (tensor for tensor in g.outputs() if tensor.name == "AMAX_mn")
    amax.set_output(True, optional=True)
    plan = planned(g, GemmConfig(128, 128, 64, 1, 1, 1))
    matmul, fold = "gemm.kernels.sm90:matmul", "gemm.kernels.fold:fold"
    seen = {name: templates(plan, name) for name in plan.table["branches"] if "tma" in name}
    assert seen == {
        "tma": [matmul, fold],
        f"tma_no{amax.uid}": [matmul],
    }
    assert "reduce" not in str(plan.kernels[-2].params["epilogue"])


def test_gated_ffns_and_fp8_are_folded_on_the_tensor_cores():
    for graph in (
        gemm_graphs.gated_amax("g", 512, 1024, 512),
        gemm_graphs.gated_amax("g", 512, 1024, 512, io=gemm_graphs.E4M3, out=gemm_graphs.BF16),
        gemm_graphs.quantized("g", 512, 1024, 512, io=gemm_graphs.E4M3),
    ):
        plan = plan_graph(graph, H200)
        assert plan.engine_name == "gemm.sm90.persistent"
        assert templates(plan, "tma")[0] == "gemm.kernels.sm90:matmul"
