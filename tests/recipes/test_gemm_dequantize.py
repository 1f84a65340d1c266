"""A matrix that is times one number, or one for each row or column, ahead of the matmul: kernels
multiply what is stored, and scale the product.
"""

from __future__ import annotations

import gemm_graphs
import pytest
from cpu_runs import assert_right, build_for_cpu
from gemm_facts import facts_of
from gemm_graphs import BF16, E4M3, E5M2, FLOAT, HALF, INT8, operand, scaled_before

from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError

CPU, H200 = load_target("cpu"), load_target("h200")


def test_a_kernel_scales_the_product():
    """The same kernel as where the graph does."""
    before = plan_graph(scaled_before("g", 256, 512, 1024, each=(False, False)), H200)
    after = plan_graph(gemm_graphs.scaled("g", 256, 512, 1024, by_column=False), H200)
    assert before.kernels == after.kernels and before.knobs == after.knobs


def test_scales_of_rows_and_columns_are_inputs_of_the_epilogue():
    facts = facts_of(scaled_before("g", 64, 72, 80, each=(True, True)))
    kinds = [(tensor.name, kind) for tensor, kind in facts.epilogue.inputs]
    assert kinds == [("A_scale", "col"), ("B_scale", "row")]
    assert [node.op for node in facts.epilogue.nodes] == ["mul", "mul"]
    assert (facts.a.dtype, facts.b.dtype) == ("FP8_E4M3", "FP8_E4M3")


def of_one_matrix(name, m, n, k, types):
    """A times two numbers and B as it is."""
    g = gemm_graphs.graph(name)
    a, b = operand(g, "A", m, k, data_type=types[0]), operand(g, "B", k, n, data_type=types[1])
    factor = g.tensor(name="factor", dim=[1, 1, 1], stride=[1, 1, 1], data_type=FLOAT)
    wide = g.scale(g.mul(a, g.tensor_scalar(0.5)), factor)
    y = g.matmul(wide, b, name="mm")
    if types[0] is INT8:
        y = g.mul(y, g.tensor_scalar(1 / (gemm_graphs.INT8_VARIANCE * k**0.5)))
    y.set_output(True).set_data_type(FLOAT)
    return g


def test_int8_is_summed_exactly():
    graph = scaled_before("g", 64, 72, 80, types=(INT8, INT8))
    assert facts_of(graph).accumulators == ("INT32",)
    for target in (CPU, H200):
        plan_graph(graph, target)
    one = of_one_matrix("g", 64, 72, 80, (INT8, INT8))
    assert facts_of(one).accumulators == ("INT32",)
    # Where the other is of another type, the product is no sum of INT8.
    with pytest.raises(cudnnGraphNotSupportedError, match="want the same dtype"):
        plan_graph(of_one_matrix("g", 64, 72, 80, (INT8, BF16)), CPU)


def along_k():
    g = gemm_graphs.graph("g")
    a, b = operand(g, "A", 64, 80), operand(g, "B", 80, 72)
    factors = g.tensor(name="factors", dim=[1, 1, 80], stride=[80, 80, 1], data_type=FLOAT)
    g.matmul(g.mul(a, factors), b, name="mm").set_output(True).set_data_type(BF16)
    return g


def computed():
    g = gemm_graphs.graph("g")
    a, b = operand(g, "A", 64, 80), operand(g, "B", 80, 72)
    factor = g.tensor(name="factor", dim=[1, 1, 1], stride=[1, 1, 1], data_type=FLOAT)
    wide = g.mul(a, g.exp(factor, name="exp"), name="times")
    g.matmul(wide, b, name="mm").set_output(True).set_data_type(BF16)
    return g


def activated():
    g = gemm_graphs.graph("g")
    a, b = operand(g, "A", 64, 80), operand(g, "B", 80, 72)
    g.matmul(g.relu(a, name="act"), b, name="mm").set_output(True).set_data_type(BF16)
    return g


def batched():
    g = gemm_graphs.graph("g")
    a, b = operand(g, "A", 64, 80), operand(g, "B", 80, 72)
    factor = g.tensor(name="factor", dim=[3, 1, 1], stride=[1, 1, 1], data_type=FLOAT)
    g.matmul(g.mul(a, factor).set_name("wide"), b, name="mm").set_output(True).set_data_type(BF16)
    return g


def behind_another():
    g = gemm_graphs.graph("g")
    a, b, c = (operand(g, name, 64, 64) for name in "ABC")
    y = g.mul(g.matmul(a, b, name="first"), g.tensor_scalar(0.5))
    g.matmul(y, c, name="second").set_output(True).set_data_type(BF16)
    return g


def stored():
    g = scaled_before("g", 64, 72, 80)
    wide = next(tensor for tensor in g.tensors.values() if tensor.name == "A_wide")
    wide.set_output(True)
    return g


def read_after():
    g = scaled_before("g", 80, 80, 80)
    named = {tensor.name: tensor for tensor in g.tensors.values()}
    y = g.add(named["Y"], named["A_wide"], name="sum")
    y.set_output(True).set_data_type(BF16)
    return g


def folded():
    g = scaled_before("g", 80, 80, 80)
    wide = next(tensor for tensor in g.tensors.values() if tensor.name == "A_wide")
    gemm_graphs.fold(g, wide, "ADD", "m", 80, 80)
    return g


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (along_k, "'factors', by which 'mul.0' multiplies ahead of a matmul, has extents "
         "[1, 1, 80], want 1 along K"),
        (computed, "by which 'times' multiplies ahead of a matmul, is what 'exp' computes, want a"),
        (activated, "A of 'mm', 'act::OUT_0', is what 'act' computes, want a graph input, or what"),
        (behind_another, "'first::C', of which A of 'second' is made, is what 'first' computes"),
        (batched, "gives 'wide' axes that 'A' does not have"),
        (stored, "'A_wide', which 'scale_A' gives ahead of a matmul, is an output, want it"),
        (read_after, "node 'sum' reads 'A_wide', an operand of a matmul"),
        (folded, "reads 'A_wide', an operand of a matmul"),
        (lambda: scaled_before("g", 64, 72, 80, between=HALF),
         "'A_wide', which 'scale_A' gives ahead of a matmul, is HALF, want FLOAT"),
    ],
)  # fmt: skip
def test_what_does_not_move_behind_the_product_is_declined(make, reason):
    for target in (CPU, H200):
        with pytest.raises(cudnnGraphNotSupportedError) as declined:
            plan_graph(make(), target)
        assert reason in str(declined.value), str(declined.value)


def test_a_factor_is_no_matrix_where_both_have_the_same_extents():
    """Either has the extents of what they give."""
    g = gemm_graphs.graph("g")
    a, b = operand(g, "A", 1, 1), operand(g, "B", 1, 72)
    scalar = {"dim": [1, 1, 1], "stride": [1, 1, 1], "data_type": FLOAT}
    number = g.tensor(name="number", is_pass_by_value=True, **scalar)
    wide = g.mul(g.tensor(name="factor", **scalar), g.mul(number, a))
    g.matmul(wide, b).set_output(True).set_data_type(BF16)
    facts = facts_of(g)
    assert facts.a.name == "A"
    kinds = [(tensor.name, kind) for tensor, kind in facts.epilogue.inputs]
    assert kinds == [("number", "value"), ("factor", "scalar")]
    g = gemm_graphs.graph("g")
    rows = g.tensor(name="rows", dim=[1, 9, 1], stride=[9, 1, 1], data_type=FLOAT)
    wide = g.mul(rows, operand(g, "A", 9, 1, data_type=E4M3))
    g.matmul(wide, operand(g, "B", 1, 72, data_type=E4M3)).set_output(True).set_data_type(BF16)
    assert facts_of(g).a.name == "A"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dequantized")
    few = {"M": {"min": 0, "max": 64}}
    gated = gemm_graphs.graph("gated")
    a = operand(gated, "A", 17, 48, data_type=E4M3)
    scale = gated.tensor(name="a_scale", dim=[1, 17, 1], stride=[17, 1, 1], data_type=FLOAT)
    wide = gated.mul(a, scale)
    gate, up = (
        gated.matmul(wide, operand(gated, name, 48, 40, data_type=E5M2)) for name in ("Bg", "Bu")
    )
    gated.mul(gated.swish(gate), up).set_output(True).set_data_type(BF16)
    graphs = [
        scaled_before("all", 37, 24, 40, each=(False, False)),
        scaled_before("each", "M", 24, 40, each=(True, True), batch=2, symbols=few),
        scaled_before("types", 9, 16, 32, types=(E4M3, E5M2), each=(True, False)),
        scaled_before("int8", 33, 20, 50, types=(INT8, INT8), each=(True, True), out=FLOAT),
        of_one_matrix("one", 33, 20, 50, (HALF, HALF)),
        of_one_matrix("int8_one", 33, 20, 50, (INT8, INT8)),
        gated,
    ]
    return build_for_cpu(folder, graphs)


@pytest.mark.parametrize("name", ["all", "types", "int8", "one", "int8_one", "gated"])
def test_values(store, name):
    assert_right(store, name)


@pytest.mark.parametrize("m", [0, 1, 64])
def test_values_of_any_number_of_rows(store, m):
    assert_right(store, "each", M=m)
