"""Running graphs: rounding at every port, operands, symbols; and what the tolerance catches."""

import numpy as np
import pytest

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.reference.execute import execute, random_operands
from cudnn_aot.compiler.reference.storage import round_to
from cudnn_aot.compiler.reference.tolerance import Tolerance, tolerance, tolerances
from cudnn_aot.errors import InvalidGraphError

BF16, FP32 = data_type.BFLOAT16, data_type.FLOAT


def gemm(m="M", k=16, n=8, batch=1, out=None):
    symbols = {"M": {"min": 0, "max": 64}} if m == "M" else None
    graph = Graph("", BF16, FP32, FP32, symbols=symbols)
    a, b = graph.tensor([batch, m, k]), graph.tensor([1, k, n])
    y = graph.matmul(a, b).set_output(True).set_data_type(out)
    return graph, a, b, y


def test_values_of_a_chain_with_every_kind_of_operand():
    graph, a, b, product = gemm(m=2, k=2, n=3, out="FLOAT")
    row, alpha = graph.tensor([1, 1, 3]), graph.tensor_scalar(0.5)
    column = graph.tensor([1, 2, 1])
    y = graph.mul(graph.scale(graph.bias(product, row), alpha), column)
    y.set_output(True).set_data_type("FLOAT")
    values = {
        a.uid: np.array([[[1.0, 2.0], [3.0, 4.0]]]),
        b.uid: np.array([[[1.0, 0.0, -1.0], [0.0, 1.0, 2.0]]]),
        row.uid: np.array([[[10.0, 20.0, 30.0]]]),
        column.uid: np.array([[[1.0], [-2.0]]]),
    }
    results = execute(graph, values)
    assert results[product.uid].tolist() == [[[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]]]
    assert results[y.uid].tolist() == [[[5.5, 11.0, 16.5], [-13.0, -24.0, -35.0]]]
    replaced = execute(graph, {**values, alpha.uid: 1.0})
    assert replaced[y.uid].tolist() == [[[11.0, 22.0, 33.0], [-26.0, -48.0, -70.0]]]


@pytest.mark.parametrize(("inner", "wanted"), [("FLOAT", 2.0**-9), ("BFLOAT16", 0.0)])
def test_a_virtual_tensor_rounds_to_its_own_type(inner, wanted):
    graph = Graph("", FP32, FP32, FP32)
    x, minus = graph.tensor([1]), graph.tensor_scalar(-1.0)
    rounded = graph.identity(x).set_data_type(inner)
    y = graph.add(rounded, minus).set_output(True)
    assert execute(graph, {x.uid: np.array([1 + 2.0**-9])})[y.uid].tolist() == [wanted]


def test_inputs_round_to_their_type_first():
    graph, a, b, y = gemm(m=1, k=1, n=1, out="FLOAT")
    values = {a.uid: np.array([[[1 + 2.0**-9]]]), b.uid: np.array([[[1.0]]])}
    assert execute(graph, values)[y.uid].tolist() == [[[1.0]]]


@pytest.mark.parametrize("m", [0, 1, 7])
def test_symbols_set_the_extents(m):
    graph, a, _, y = gemm(batch=3)
    values = random_operands(graph, {"M": m})
    assert values[a.uid].shape == (3, m, 16)
    assert execute(graph, values, {"M": m})[y.uid].shape == (3, m, 8)


def test_random_operands_are_exact_seeded_and_of_order_one():
    graph, a, b, y = gemm(m=128, k=512, n=64, out="FLOAT")
    values = random_operands(graph, seed=1)
    for tensor in (a, b):
        got = values[tensor.uid]
        assert np.array_equal(round_to(got, BF16), got)
        assert np.array_equal(random_operands(graph, seed=1)[tensor.uid], got)
        assert not np.array_equal(random_operands(graph, seed=2)[tensor.uid], got)
        assert len(np.unique(got)) > 500
    assert values[a.uid].std() == pytest.approx(1.0, rel=0.05)
    assert execute(graph, values)[y.uid].std() == pytest.approx(1.0, rel=0.1)


def test_a_weight_of_integers_is_random_too():
    graph = Graph("", "INT8", FP32, FP32)
    a, b = graph.tensor([1, 8, 400]), graph.tensor([1, 400, 16])
    graph.matmul(a, b, compute_data_type="INT32").set_output(True).set_data_type("INT32")
    values = random_operands(graph)
    assert set(np.unique(values[a.uid])) == set(np.unique(values[b.uid])) == set(range(-8, 9))


def test_random_operands_of_other_types():
    graph = Graph("", "INT8", FP32, FP32)
    x, mask = graph.tensor([1000]), graph.tensor([1000], data_type="BOOLEAN")
    s = graph.tensor([1], is_pass_by_value=True, data_type=FP32)
    fixed = graph.tensor_scalar(0.25)
    graph.scale(graph.scale(graph.mul(x, mask), s), fixed).set_output(True)
    values = random_operands(graph)
    assert set(np.unique(values[x.uid])) == set(range(-8, 9))
    assert set(np.unique(values[mask.uid])) == {0.0, 1.0}
    assert values[s.uid].shape == (1,) and values[s.uid][0] != 0
    assert values[fixed.uid].tolist() == [0.25]


def test_refusals():
    graph, a, b, _ = gemm(m=2)
    with pytest.raises(
        InvalidGraphError, match=r"tensor uid 1: got shape \(2, 16\), want \(1, 2, 16\)"
    ):
        execute(graph, {a.uid: np.zeros((2, 16)), b.uid: np.zeros((1, 16, 8))})
    with pytest.raises(InvalidGraphError, match="tensor uid 2 has no value"):
        execute(graph, {a.uid: np.zeros((1, 2, 16))})
    symbolic, *_ = gemm()
    with pytest.raises(InvalidGraphError, match="symbol 'M' has no value"):
        random_operands(symbolic)
    padded = Graph("", BF16, FP32, FP32)
    x = padded.tensor([4, 4])
    padded.matmul(x, x, padding=1.0).set_output(True)
    with pytest.raises(InvalidGraphError, match="reference of matmul: padding: got 1.0, want 0"):
        execute(padded, random_operands(padded))


def fp32_result(graph, a, b, values):
    """What a kernel may give: products summed in fp32, in another order."""
    left, right = values[a.uid].astype(np.float32), values[b.uid].astype(np.float32)
    total = np.zeros((left.shape[1], right.shape[2]), np.float32)
    for k in reversed(range(left.shape[2])):
        total += left[0, :, k : k + 1] * right[0, k : k + 1, :]
    return total[None]


@pytest.mark.parametrize("out", ["FLOAT", "HALF", "BFLOAT16"])
@pytest.mark.parametrize("k", [1, 64, 2048])
def test_a_right_kernel_is_within_tolerance_and_wrong_ones_are_not(out, k):
    graph, a, b, y = gemm(m=33, k=k, n=65, out=out)
    values = random_operands(graph)
    want = execute(graph, values)[y.uid]
    allowed = tolerances(graph)[y.uid]
    assert allowed == tolerance(y.data_type, k)
    got = round_to(fp32_result(graph, a, b, values), y.data_type)
    assert allowed.error(got, want) <= 1.0
    dropped = values[a.uid].copy()
    dropped[0, 5, k // 2] = 0.0  # one product of the sum is missing
    wrong = execute(graph, {**values, a.uid: dropped})[y.uid]
    assert allowed.error(wrong, want) > 1.0
    shifted = np.roll(got, 1, axis=2)
    assert allowed.error(shifted, want) > 1.0


@pytest.mark.parametrize(
    ("dtype", "least"),
    [(data_type.FP8_E4M3, 2.0**-9), (data_type.FP8_E5M2, 2.0**-16), (data_type.HALF, 2.0**-24)],
)
def test_a_step_between_numbers_near_zero_is_the_last_rounding_too(dtype, least):
    allowed = tolerance(dtype, 1)
    assert allowed.error([least], [0.0]) <= 1.0
    if dtype is data_type.FP8_E4M3:  # what accumulation allows is less than another
        assert allowed.error([2 * least], [0.0]) > 1.0


def test_error_counts_units_of_the_tolerance_and_catches_poison():
    allowed = Tolerance(relative=0.1, absolute=1.0)
    assert allowed.error([20.0, 0.0], [10.0, 0.0]) == 5.0
    assert allowed.error([np.nan, 1.0], [np.nan, 1.0]) == 0.0
    assert allowed.error([np.inf], [np.inf]) == 0.0
    for got, want in (([np.nan], [1.0]), ([1.0], [np.nan]), ([np.inf], [1.0]), ([0.0, 0.0], [0.0])):
        assert allowed.error(got, want) == np.inf
    assert allowed.error([], []) == 0.0


def test_sums_of_every_kind_count() -> None:
    def allowed(build) -> float:
        graph = Graph("", FP32, FP32, FP32)
        y = build(graph)
        y.set_output(True)
        return tolerances(graph)[y.uid].absolute / tolerance(FP32, 1).absolute

    def conv(graph: Graph):
        return graph.conv_fprop(graph.tensor([2, 4, 8, 8]), graph.tensor([6, 4, 3, 3]))

    def attention(graph: Graph):
        q, k = graph.tensor([1, 2, 8, 64]), graph.tensor([1, 2, 192, 64])
        return graph.sdpa(q=q, k=k, v=k)[0]

    def total(graph: Graph):
        return graph.reduction(graph.tensor([5, 100]), mode="ADD", out_dims=[5, 1])

    assert allowed(conv) == pytest.approx(6.0)
    assert allowed(attention) == pytest.approx(16.0)
    assert allowed(total) == pytest.approx(10.0)
    assert allowed(lambda graph: graph.tanh(graph.tensor([4]))) == pytest.approx(1.0)


def test_a_narrow_port_inside_widens_the_tolerance_of_what_follows():
    def build(inner):
        graph, a, b, product = gemm(m=4, out=inner)
        product.set_output(False)
        y = graph.tanh(product).set_output(True).set_data_type("FLOAT")
        return tolerances(graph)[y.uid]

    wide, narrow = build("FLOAT"), build("BFLOAT16")
    assert wide == tolerance(FP32, 16)
    assert narrow.absolute > 2.0**-7 > 100 * wide.absolute
    assert narrow.relative > 2.0**-7 > 100 * wide.relative


def check_transpose(graph, x):
    return graph.transpose(x, [1, 0])


def check_slice(graph, x):
    return graph.slice(x, [slice(0, 2), slice(0, 1)])


def check_reshape(graph, x):
    return graph.reshape(x, out_dims=[2])


def check_logical_reshape(graph, x):
    return graph.reshape(x, "LOGICAL", out_dims=[2])


def check_concatenate(graph, x):
    return graph.concatenate(inputs=[x, x], axis=0)


def check_identity(graph, x):
    return graph.identity(x)


def check_select(graph, x):
    return graph.binary_select(x, x, graph.tensor([1, 1], data_type="BOOLEAN", uid=8))


@pytest.mark.parametrize(
    "move",
    [check_transpose, check_slice, check_reshape, check_logical_reshape, check_concatenate,
     check_identity, check_select],
)  # fmt: skip
def test_moves_keep_every_bit_of_an_integer(move):
    graph = Graph("", "INT64", "INT64", "INT64")
    x = graph.tensor([2, 1], uid=1)
    y = move(graph, x).set_output(True).set_uid(9)
    large = np.array([[2**53 + 1], [-(2**62) - 1]], np.int64)
    got = execute(graph, {1: large, 8: np.ones((1, 1))})[9]
    assert got.reshape(-1).tolist()[:2] == large.reshape(-1).tolist()
    assert got.shape == y.dim


LEAST, MOST = -(2**63), 2**63 - 1
LARGE = [2**53 + 1, -(2**62) - 1, LEAST, MOST]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("abs", [2**53 + 1, 2**62 + 1, MOST, MOST]),
        ("neg", [-(2**53) - 1, 2**62 + 1, MOST, -MOST]),
        ("relu", [2**53 + 1, 0, 0, MOST]),
        ("max", [2**53 + 1, 7, 7, MOST]),
        ("min", [7, -(2**62) - 1, LEAST, 7]),
        ("cmp_eq", [0, 0, 0, 1]),
        ("MAX", [MOST]),
        ("MIN", [LEAST]),
        ("AMAX", [MOST]),
    ],
)
def test_choices_and_signs_keep_every_bit_of_an_integer(name, wanted):
    graph = Graph("", "INT64", "INT64", "INT64")
    x, other = graph.tensor([4], uid=1), [7, 7, 7, 7]
    if name.isupper():
        y = graph.reduction(x, mode=name, out_dims=[1])
    elif name in ("max", "min", "cmp_eq"):
        y = getattr(graph, name)(x, graph.tensor([4], uid=2))
        other = [2**53, 0, 0, MOST] if name == "cmp_eq" else other
    else:
        y = getattr(graph, name)(x)
    y.set_output(True).set_uid(3).set_data_type("INT64")
    values = {1: np.array(LARGE), 2: np.array(other)}
    assert execute(graph, values)[3].tolist() == wanted


def test_a_nan_is_no_integer():
    graph = Graph("", "FLOAT", "FLOAT", "FLOAT")
    y = graph.identity(graph.tensor([2], uid=1)).set_output(True).set_data_type("INT32").set_uid(2)
    assert execute(graph, {1: np.array([np.nan, 3.0])})[y.uid].tolist() == [0, 3]


def test_sums_of_fp8_products_may_be_those_of_tensor_cores():
    def build(dtype):
        graph, a, b, y = gemm(m=4, out="FLOAT")
        a.set_data_type(dtype)
        b.set_data_type(dtype)
        return tolerances(graph)[y.uid]

    exact, coarse = build("BFLOAT16"), build("FP8_E4M3")
    assert coarse.absolute == exact.absolute + 2.0**-7
    assert coarse.relative == exact.relative + 2.0**-8


def test_what_is_scaled_ahead_of_a_matmul_may_be_summed_as_fp8():
    def build(dtype):
        graph = Graph("", dtype, FP32, FP32)
        wide = graph.mul(graph.tensor([4, 16]), graph.tensor_scalar(0.5))
        y = graph.matmul(wide, graph.tensor([16, 8])).set_output(True).set_data_type("FLOAT")
        return tolerances(graph)[y.uid]

    exact, coarse = build("BFLOAT16"), build("FP8_E4M3")
    assert coarse.absolute == exact.absolute + 2.0**-7
