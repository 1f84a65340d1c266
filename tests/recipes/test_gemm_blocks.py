"""Matmuls of FP8 with a scale for each block, without a compiler: facts, plans, declines."""

from __future__ import annotations

import json

import gemm_graphs
import pytest
from gemm_facts import facts_of
from gemm_graphs import BF16, E4M3, FLOAT, HALF, INT8, block_gated, block_scaled
from table_model import declared

import cudnn_aot as cudnn
from cudnn_aot import _native
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError
from cudnn_aot.recipes.gemm import tma
from cudnn_aot.recipes.gemm.gemv import GemmSm90Gemv

H200, CPU = load_target("h200"), load_target("cpu")


def test_facts_name_the_numbers_the_scales_and_their_blocks():
    facts = facts_of(block_scaled("g", 200, 328, 336))
    assert [operand.name for operand in facts.operands()] == ["A", "B", "a_scale", "b_scale", "Y"]
    assert (facts.a.dtype, facts.b.dtype, facts.majors()) == ("FP8_E4M3", "FP8_E4M3", ("k", "k"))
    scales = [(scale.operand.name, scale.rows, scale.depth) for scale in facts.scales]
    assert scales == [("a_scale", 1, 128), ("b_scale", 128, 128)]
    assert facts.layout_class == "FP8_E4M3xFP8_E4M3 by 1x128+128x128 kk []  -> BFLOAT16"
    assert facts.describe()["scales 'b_scale'"].endswith("one for each 128 rows and 128 of K")
    alone = facts_of(block_scaled("g", 200, 328, 336, rows=(1, None)))
    assert alone.scales[1] is None and "by 1x128+1" in alone.layout_class
    assert not facts_of(gemm_graphs.plain("g", 8, 8, 8)).is_scaled


def test_a_gated_ffn_has_scales_of_a_once_and_of_each_b():
    facts = facts_of(block_gated("g", 200, 328, 336))
    assert [scale.operand.name for scale in facts.scales] == ["a_scale", "Bg_scale", "Bu_scale"]
    (kernel, _) = plan_graph(block_gated("g", 200, 328, 336), H200).kernels
    assert (kernel.params["products"], kernel.params["scales"]["rows"]) == (2, (1, 128, 128))


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
def test_scales_are_operands_of_the_kernel_after_the_matrices(target):
    symbols = {"M": {"min": 0, "max": 4096}}
    plan = plan_graph(block_scaled("g", "M", 328, 336, batch=2, symbols=symbols), target)
    assert plan.engine_name == ("gemm.host.blocked" if target is CPU else "gemm.sm90.persistent")
    name = "blocked" if target is CPU else "any_stride"
    branches = plan.table["branches"]
    (branch,) = [b for key, b in branches.items() if key.endswith(name)][:1]
    (step,) = branch["steps"]
    kernel = plan.kernels[step["kernel"]]
    assert kernel.params["scales"] == {"depth": 128, "rows": (1, 128)}
    call = declared(plan.table, {"M": 200})
    views = [arg for arg in step["args"] if "operand" in arg]
    shapes = [[call.value(e) for e in view["dim"]] for view in views]
    strides = [[call.value(e) for e in view["stride"]] for view in views]
    assert shapes[2:4] == [[200, 3, 2], [3, 3, 2]]
    assert strides[2:4] == [[3, 1, 600], [3, 1, 9]]


def test_one_scale_for_all_rows_is_read_by_all():
    """A scale tensor of one row has no step along rows, whatever its stride."""
    g = gemm_graphs.graph("g")
    a = gemm_graphs.operand(g, "A", 32, 256, data_type=E4M3)
    b = gemm_graphs.operand(g, "B", 256, 48, transposed=True, data_type=E4M3)
    scale = g.tensor(name="s", dim=[1, 1, 2], stride=[2, 2, 1], data_type=FLOAT)
    a = g.block_scale_dequantize(a, scale, block_size=[128])
    g.matmul(a, b).set_output(True).set_data_type(BF16)
    assert [(s.rows, s.depth) for s in facts_of(g).scales if s] == [(1, 128)]
    plan = plan_graph(g, CPU)
    (step,) = plan.table["branches"]["blocked"]["steps"]
    call = declared(plan.table, {})
    assert [call.value(e) for e in step["args"][2]["stride"]] == [0, 1, 0]


def scaled(scale_type=FLOAT, between=FLOAT, a_type=E4M3, depth=128, b_depth=None, read=False):
    g = gemm_graphs.graph("g")
    a = gemm_graphs.operand(g, "A", 64, 256, data_type=a_type)
    b = gemm_graphs.operand(g, "B", 256, 48, transposed=True, data_type=a_type)
    blocks = -(-256 // depth)
    scale = gemm_graphs.operand(g, "s", 64, blocks, data_type=scale_type)
    a = g.block_scale_dequantize(a, scale, block_size=[1, depth], name="dqa")
    a.set_data_type(between).set_name("wide")
    if b_depth:
        scale = gemm_graphs.operand(g, "t", -(-256 // b_depth), 48, data_type=FLOAT)
        b = g.block_scale_dequantize(b, scale, block_size=[b_depth, 1])
    y = g.matmul(a, b, name="mm")
    if read:
        other = g.reduction(a, mode=cudnn.reduction_mode.ADD, name="sum").set_dim([1, 64, 1])
        other.set_output(True).set_data_type(FLOAT)
    y.set_output(True).set_data_type(BF16)
    return g


def by_itself():
    """One tensor is A and B: its blocks are other ones of K on each side."""
    g = gemm_graphs.graph("g")
    a = gemm_graphs.operand(g, "A", 128, 128, data_type=E4M3)
    scale = gemm_graphs.operand(g, "s", 8, 2, data_type=FLOAT)
    wide = g.block_scale_dequantize(a, scale, block_size=[16, 64])
    g.matmul(wide, wide).set_output(True).set_data_type(BF16)
    return g


def beside(read):
    """Numbers with scales that no matmul multiplies."""
    g = gemm_graphs.graph("g")
    y = g.matmul(gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 128))
    x = gemm_graphs.operand(g, "X", 64, 128, data_type=E4M3)
    scale = gemm_graphs.operand(g, "s", 64, 1, data_type=FLOAT)
    wide = g.block_scale_dequantize(x, scale, block_size=[1, 128], name="dq")
    if read == "node":
        y = g.add(y, wide)
    else:
        gemm_graphs.fold(g, wide, "ADD", "m", 64, 128)
    y.set_output(True).set_data_type(BF16)
    return g


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (by_itself, "blocks along K have 64 in 's' and 16 in 's', want one number"),
        (
            lambda: beside("node"),
            "node 'dq' is block_scale_dequantize, want it of what a matmul",
        ),
        (
            lambda: beside("fold"),
            "node 'dq' is block_scale_dequantize, want it of what a matmul",
        ),
    ],
)
def test_scales_belong_to_a_side_of_a_matmul(make, reason):
    for target in (CPU, H200):
        with pytest.raises(cudnnGraphNotSupportedError) as declined:
            plan_graph(make(), target)
        assert reason in str(declined.value)


DT = cudnn.data_type


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scale_type": DT.FP8_E8M0, "depth": 32}, "scales 's' are FP8_E8M0, want FLOAT"),
        ({"scale_type": E4M3, "depth": 16}, "scales 's' are FP8_E4M3, want FLOAT"),
        ({"a_type": DT.FP4_E2M1, "scale_type": E4M3, "depth": 16}, "is FP4_E2M1, want one of"),
        ({"between": BF16}, "'wide', which 'dqa' gives ahead of a matmul, is BFLOAT16, want FLOAT"),
        ({"depth": 8}, "'s' has a scale for each 8 of K, want a multiple of 16"),
        ({"b_depth": 64}, "blocks along K have 128 in 's' and 64 in 't', want one number"),
        ({"read": True}, "reduction 'sum' reads 'wide', an operand of a matmul"),
    ],
)
def test_scales_that_no_kernel_takes_are_declined(change, reason):
    for target in (CPU, H200):
        with pytest.raises(cudnnGraphNotSupportedError) as declined:
            plan_graph(scaled(**change), target)
        assert reason in str(declined.value)


def test_the_engine_that_takes_no_scales_says_so():
    (row,) = GemmSm90Gemv.caps
    reason = row.why_not_facts(facts_of(block_scaled("g", 2, 128, 128, types=(BF16, BF16))))
    assert reason == "'A' has a scale for each block, want none"


@pytest.mark.parametrize("dtype", [INT8, HALF])
def test_scales_are_of_fp8(dtype):
    for target, reason in (
        (CPU, f"gemm.host.blocked: 'A' has a scale for each block and is {dtype.name}, want FP8"),
        (H200, f"gemm.sm90.any_stride: 'A' has a scale for each block and is {dtype.name}, want "),
    ):
        with pytest.raises(cudnnGraphNotSupportedError) as declined:
            plan_graph(scaled(a_type=dtype), target)
        assert reason in str(declined.value)


@pytest.mark.parametrize("make", gemm_graphs.BLOCK_SCALED_GRAPHS, ids=lambda make: make().name)
def test_graphs_lower_to_tables_that_the_executor_parses(make):
    for target in (H200, CPU):
        plan = plan_graph(make(), target)
        _native.Plan(json.loads(json.dumps(plan.table)), None)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"rows": (128, 256), "depth": 256}, None),
        ({"rows": (1, None)}, None),
        ({"rows": (1, 32)}, None),
        ({"rows": (128, 1)}, "'b_scale' has a scale for each 1 columns, want a multiple of 32"),
        ({"depth": 64}, "'a_scale' has a scale for each 64 of K, want a multiple of 128"),
    ],
)
def test_the_tensor_cores_take_blocks_of_whole_tiles(fields, reason):
    graph = block_scaled("g", 200, 512, 1024, **fields)
    assert tma.why_never(facts_of(graph)) == reason
    kernels = plan_graph(graph, H200).kernels
    names = ["simt"] if reason else ["sm90", "simt"]
    assert [kernel.template for kernel in kernels] == [f"gemm.kernels.{n}:matmul" for n in names]
    for mode in ("A", "FALLBACK"):
        plans = PlanList(graph, H200, modes=[cudnn.heur_mode[mode]])
        assert all(plans.lower(index).kernels for index in range(len(plans)))


def with_scales_of_a(a_dim, scale_dim, block_size, b_batch, n=24, symbols=None):
    g = gemm_graphs.graph("g", E4M3, symbols)
    a, b = g.tensor(name="A", dim=a_dim), g.tensor(name="B", dim=[*b_batch, a_dim[-1], n])
    scale = g.tensor(name="s", dim=scale_dim, data_type=FLOAT)
    a = g.block_scale_dequantize(a, scale, block_size=block_size, name="dqa")
    g.matmul(a, b, name="mm").set_output(True).set_data_type(BF16)
    return g


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
@pytest.mark.parametrize(
    ("a_batch", "scale_batch", "b_batch", "want"),
    [
        ([2, 3], [2, 4], [2, 3], "[2, 4], want that of 'A', [2, 3], or 1"),  # one too many a row
        ([1], [3], [3], "[3], want that of 'A', [1], or 1"),  # every product has the A of the first
        ([2], [3], [2], "[3], want that of 'A', [2], or 1"),
        (["B"], [8], ["B"], "[8], want that of 'A', [B], or 1"),
        (["B"], ["B"], ["B"], None),
        ([3], [1], [3], None),
        ([1], [1], [3], None),
    ],
)
def test_scales_have_the_batch_of_what_they_scale(target, a_batch, scale_batch, b_batch, want):
    symbols = {"B": {"min": 0, "max": 64}} if "B" in a_batch else None
    a_dim, scale_dim = [*a_batch, 16, 32], [*scale_batch, 16, 2]
    g = with_scales_of_a(a_dim, scale_dim, [1, 16], b_batch, symbols=symbols)
    if want is None:
        assert plan_graph(g, target).kernels
        return
    with pytest.raises(cudnnGraphNotSupportedError) as declined:
        plan_graph(g, target)
    assert f"scales 's' have the batch {want}" in str(declined.value)


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
@pytest.mark.parametrize(
    ("rows_and_k", "scales", "block_size", "call", "needed"),
    [
        (("M", 256), (8, 2), [128, 128], {"M": 1025}, [(9, 8)]),
        (("M", 256), (8, 2), [128, 128], {"M": 1024}, [(8, 8)]),
        (("M", 256), ("R", 2), [128, 128], {"M": 300, "R": 2}, [(3, 2)]),
        ((64, "K"), (64, 4), [1, 128], {"K": 640}, [(5, 4)]),
        (("M", "K"), (8, 4), [128, 128], {"M": 1, "K": 1}, [(1, 8), (1, 4)]),
        # Of these the declaration tells that there are enough.
        (("M", 256), ("M", 2), [1, 128], {"M": 7}, []),
        (("M", 256), (1, 2), [1, 128], {"M": 7}, []),
        (("M", 256), (32, 2), [128, 128], {"M": 4096}, []),
        (("128*R", 256), ("R", 2), [128, 128], {"R": 3}, []),
        ((200, 200), (3, 2), [128, 128], {}, []),
    ],
)
def test_a_call_has_a_scale_for_every_block(target, rows_and_k, scales, block_size, call, needed):
    every = {"M": {"min": 0, "max": 4096}, "K": {"min": 1, "max": 4096}, "R": {"max": 4096}}
    symbols = {name: every[name] for name in call} or None
    g = with_scales_of_a([1, *rows_and_k], [1, *scales], block_size, [1], symbols=symbols)
    table = plan_graph(g, target).table
    _native.Plan(json.loads(json.dumps(table)), None)
    at = declared(table, call)
    got = [(at.value(c["expr"]), at.value(c["max"])) for c in table["checks"]]
    assert got == needed
    assert all((c["rule"], c["min"]) == ("range", 0) for c in table["checks"])
