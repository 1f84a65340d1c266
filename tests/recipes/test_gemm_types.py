"""The types of operands that the GEMM family takes, by engine, and what is declined."""

from __future__ import annotations

from dataclasses import replace

import gemm_graphs
import pytest
from gemm_facts import facts_of
from graph_tables import PEER

import cudnn_aot as cudnn
from cudnn_aot.compiler.formats.load import load_graphs
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError
from cudnn_aot.recipes.gemm import tma

H200, CPU = load_target("h200"), load_target("cpu")
BF16, FLOAT = cudnn.data_type.BFLOAT16, cudnn.data_type.FLOAT
E4M3, E5M2 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FP8_E5M2
INT8, INT32 = cudnn.data_type.INT8, cudnn.data_type.INT32
HALF, FP4 = cudnn.data_type.HALF, cudnn.data_type.FP4_E2M1


def typed(a_type, b_type, out=BF16, accumulator=FLOAT, k=64, relu=False):
    """A matmul of these types, and a relu behind it if asked."""
    g = gemm_graphs.graph("g")
    a = gemm_graphs.operand(g, "A", 32, k, data_type=a_type)
    b = gemm_graphs.operand(g, "B", k, 48, transposed=True, data_type=b_type)
    y = g.matmul(a, b, compute_data_type=accumulator).set_data_type(accumulator)
    if relu:
        y = g.relu(y)
    y.set_output(True).set_data_type(out).set_name("y")
    return g


HOST, SIMT, TMA = (f"gemm.kernels.{name}:matmul" for name in ("host", "simt", "sm90"))


@pytest.mark.parametrize(
    ("types", "templates"),
    [
        ((E4M3, E4M3), [TMA, SIMT]),
        ((E4M3, E5M2), [TMA, SIMT]),
        ((E5M2, E4M3), [TMA, SIMT]),
        ((FLOAT, FLOAT), [SIMT]),
    ],
)
def test_fp8_and_float_are_taken_everywhere(types, templates):
    names = tuple(dtype.name for dtype in types)
    for target, want in ((CPU, [HOST]), (H200, templates)):
        kernels = plan_graph(typed(*types), target).kernels
        assert [kernel.template for kernel in kernels] == want
        for kernel in kernels:
            assert (kernel.params["a_dtype"], kernel.params["b_dtype"]) == names


def along_k(types=(E4M3, E5M2), a_transposed=False, b_transposed=True, k=144, out=BF16, m=200):
    g = gemm_graphs.graph("g", symbols={"M": {"min": 0, "max": 4096}} if m == "M" else None)
    a = gemm_graphs.operand(g, "A", m, k, transposed=a_transposed, data_type=types[0])
    b = gemm_graphs.operand(g, "B", k, 336, transposed=b_transposed, data_type=types[1])
    sums = INT32 if types[0] is INT8 else FLOAT
    y = g.matmul(a, b, compute_data_type=sums)
    y.set_output(True).set_data_type(out).set_name("y")
    return g


@pytest.mark.parametrize("m", [200, "M"])
@pytest.mark.parametrize("types", [(E4M3, E5M2), (INT8, INT8)], ids=["fp8", "int8"])
def test_bytes_along_k_are_multiplied_by_tensor_cores(types, m):
    plan = plan_graph(along_k(types, m=m), H200)
    assert plan.engine_name == "gemm.sm90.persistent"
    tensor_cores = [kernel for kernel in plan.kernels if kernel.template == TMA]
    assert tensor_cores and {kernel.template for kernel in plan.kernels} == {TMA, SIMT}
    for kernel in tensor_cores:
        assert kernel.params["tile"][2] == 128


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"b_transposed": False}, "'A' and 'B' are 8-bit and not both contiguous along K"),
        ({"a_transposed": True}, "'A' and 'B' are 8-bit and not both contiguous along K"),
        ({"k": 136}, "stride 136 of 'A' on axis 1 is not a multiple of 16 bytes"),
    ],
)
@pytest.mark.parametrize("types", [(E4M3, E5M2), (INT8, INT8)], ids=["fp8", "int8"])
def test_bytes_that_wgmma_or_tma_cannot_read_are_left_to_the_kernel_for_any_strides(
    types, change, reason
):
    graph = along_k(types, **change)
    assert tma.why_never(facts_of(graph)) == reason
    plan = plan_graph(graph, H200)
    assert [kernel.template for kernel in plan.kernels] == [SIMT]


def test_8_bit_outputs_are_stored_by_tma_where_their_rows_allow():
    for types in ((E4M3, E5M2), (INT8, INT8)):
        for out in (E4M3, E5M2, INT8):
            graph = along_k(types, out=out)
            assert plan_graph(graph, H200).kernels[0].params["store"] == "tma"
    assert plan_graph(along_k((INT8, INT8), out=INT32), H200).kernels[0].params["store"] == "tma"
    g = typed(BF16, BF16, E4M3, relu=True)
    assert plan_graph(g, H200).kernels[0].params["store"] == "tma"


TYPES = "want one of BFLOAT16/HALF"
MIXED = "A 'A' is {} and B 'B' is {}, want the same dtype"


@pytest.mark.parametrize(
    ("types", "persistent", "gemv"),
    [
        (
            (FLOAT, FLOAT),
            f"A 'A' is FLOAT, {TYPES}/FP8_E4M3/FP8_E5M2/INT8: tensor cores multiply it as TF32",
            f"A 'A' is FLOAT, {TYPES}",
        ),
        ((E4M3, BF16), MIXED.format("FP8_E4M3", "BFLOAT16"), f"A 'A' is FP8_E4M3, {TYPES}"),
        ((BF16, E4M3), MIXED.format("BFLOAT16", "FP8_E4M3"), f"B 'B' is FP8_E4M3, {TYPES}"),
        ((BF16, HALF), *[MIXED.format("BFLOAT16", "HALF")] * 2),
        ((INT8, E4M3), MIXED.format("INT8", "FP8_E4M3"), f"A 'A' is INT8, {TYPES}"),
    ],
)
def test_what_tensor_cores_take_here_is_said(types, persistent, gemv):
    try:
        reasons = PlanList(typed(*types), H200).reasons
    except cudnnGraphNotSupportedError as declined:
        reasons = (str(declined),)
    for engine, reason in (("persistent", persistent), ("gemv", gemv)):
        assert any(f"gemm.sm90.{engine}: {reason}" in line for line in reasons)


def test_int8_is_summed_in_int32_on_tensor_cores_in_every_form():
    """Plain, with chains, gated and folded; what it may not be is said as on the CUDA cores."""
    plain = typed(INT8, INT8, INT32, INT32)
    graphs = (plain, *(gemm_graphs.sums("g", 64, 96, 128, largest=fold) for fold in (True, False)))
    made = (gemm_graphs.dequantized, gemm_graphs.gated_int8)
    for graph in (*graphs, *(make("g", 64, 96, 128) for make in made)):
        plan = plan_graph(graph, H200)
        assert plan.engine_name == "gemm.sm90.persistent"
        params = plan.kernels[0].params
        assert (plan.kernels[0].template, params["a_dtype"], params["tile"][2]) == (
            TMA,
            "INT8",
            128,
        )
    too_long = typed(INT8, INT8, INT32, INT32, k=131072)
    reason = "K may reach 131072, want at most 131071: sums of INT8 products are INT32"
    with pytest.raises(cudnnGraphNotSupportedError, match=reason):
        plan_graph(too_long, H200)


@pytest.mark.parametrize("make", gemm_graphs.ANY_STRIDE_GRAPHS, ids=lambda make: make().name)
def test_what_no_other_engine_takes_is_left_to_the_one_for_any_strides(make):
    plans = PlanList(make(), H200)
    assert [plans.name(index) for index in range(len(plans))] == ["gemm.sm90.any_stride"]


def test_the_engine_for_any_strides_comes_behind_all_others():
    plans = PlanList(gemm_graphs.plain("g", 64, 64, 64), H200)
    names = [plans.name(index) for index in range(len(plans))]
    assert names.index("gemm.sm90.any_stride") == len(names) - 1 > 0


@pytest.mark.parametrize("out", [INT32, FLOAT, INT8])
def test_the_result_of_int8_is_the_int32_sum_which_its_store_rounds(out):
    facts = facts_of(typed(INT8, INT8, out, INT32))
    assert facts.accumulators == ("INT32",)
    assert facts.epilogue.nodes == ()
    (kernel,) = plan_graph(typed(INT8, INT8, out, INT32), CPU).kernels
    assert [dict(output) for output in kernel.params["epilogue"]["outputs"]] == [
        {"value": 0, "dtype": out.name}
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"accumulator": FLOAT}, "of INT8, has compute data type FLOAT, want INT32"),
        ({"k": 131072}, "K may reach 131072, want at most 131071: sums of INT8 products are INT32"),
        ({"relu": True}, "'y' is INT32, want one of BFLOAT16/HALF/FLOAT/FP8_E4M3/FP8_E5M2/INT8"),
        ({"out": FP4}, "'y' is FP4_E2M1, want one of BFLOAT16/HALF/FLOAT/FP8_E4M3/FP8_E5M2/INT8"),
        ({"out": FP4, "relu": True}, "'y' is FP4_E2M1, want one of BFLOAT16/HALF/FLOAT/FP8_E4M3"),
        ({"a_type": BF16, "b_type": BF16, "accumulator": FLOAT}, "'y' is INT32, want one of BFLO"),
        ({"b_type": E4M3}, MIXED.format("INT8", "FP8_E4M3")),
        ({"a_type": BF16, "b_type": BF16}, "has compute data type INT32, want FLOAT"),
        ({"a_type": E4M3, "b_type": BF16}, MIXED.format("FP8_E4M3", "BFLOAT16")),
    ],
)
def test_types_that_do_not_go_together_are_declined(change, reason):
    graph = typed(**{"a_type": INT8, "b_type": INT8, "out": INT32, "accumulator": INT32} | change)
    with pytest.raises(cudnnGraphNotSupportedError) as declined:
        plan_graph(graph, CPU)
    assert reason in str(declined.value)


def real_program(name):
    (graph,) = load_graphs(PEER / "real_programs" / f"{name}.json")
    return graph


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
def test_real_programs_of_8_and_4_bits(target):
    """FP8 with scales by one kernel for any strides, whatever the size; FP4 declined with its
    reason.
    """
    plans = [plan_graph(real_program(f"fi_bmm_fp8_{n}"), target) for n in ("b64", "b256")]
    templates = [HOST] if target is CPU else [TMA, SIMT]
    assert all([k.template for k in plan.kernels] == templates for plan in plans)
    kernels = [plan.kernels[-1:] for plan in plans]
    assert kernels[0] == kernels[1]
    assert [entry["kind"] for entry in kernels[0][0].params["epilogue"]["inputs"]] == ["scalar"] * 2
    with pytest.raises(cudnnGraphNotSupportedError) as declined:
        plan_graph(real_program("fi_mm_fp4_m512"), target)
    reason = "'a_descale' has the reordering F8_128x4, want strides alone"
    assert reason in str(declined.value)


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
def test_a_tensor_whose_elements_do_not_lie_as_strides_say_is_declined(target):
    reordered = typed(E4M3, E4M3)
    reordered.nodes[0].inputs["A"].set_reordering_type(cudnn.tensor_reordering.F8_128x4)
    ragged = gemm_graphs.plain("g", 32, 48, 64, batch=2)
    offset = ragged.tensor(name="offset", dim=[3, 1, 1], data_type=INT32)
    ragged.nodes[0].inputs["A"].set_ragged_offset(offset)
    for g, reason in (
        (reordered, "'A' has the reordering F8_128x4, want strides alone"),
        (ragged, "'A' has a ragged offset, want rows of one extent"),
    ):
        with pytest.raises(cudnnGraphNotSupportedError, match=reason):
            plan_graph(g, target)


def test_an_engine_that_is_not_enabled_is_named_only_where_it_would_serve(monkeypatch):
    gemm = manifest.FAMILIES[0]
    slots = tuple(replace(slot, opt_in="any_stride" in slot.name) for slot in gemm.engines)
    monkeypatch.setattr(manifest, "FAMILIES", (replace(gemm, engines=slots),))

    def reasons(g, target):
        with pytest.raises(cudnnGraphNotSupportedError) as declined:
            plan_graph(g, target)
        return str(declined.value)

    fp32 = typed(FLOAT, FLOAT)
    assert "not enabled: set CUDNN_AOT_OPT_IN_ENGINES=gemm.sm90.any_stride" in reasons(fp32, H200)
    int8 = typed(INT8, INT8)  # which no engine multiplies in FLOAT
    assert "not enabled" not in reasons(int8, H200) + reasons(int8, CPU)
