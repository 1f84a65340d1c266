"""Every rule refuses with one line that names what, got and want."""

import numpy as np
import pytest

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.enums import data_type, scalar_type
from cudnn_aot.compiler.graph.extents import Symbol
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import InvalidGraphError


def new_graph(io="HALF", intermediate="FLOAT", compute="FLOAT", **kwargs):
    return Graph("", io, intermediate, compute, **kwargs)


def gemm(graph, a=(1, 4, 8), b=(1, 8, 16), a_stride=None):
    return graph.matmul(graph.tensor(a, a_stride, name="A"), graph.tensor(b, name="B"), name="mm")


def check_k():
    graph = new_graph()
    gemm(graph, b=(1, 9, 16)).set_output(True)
    return graph


def check_batch():
    graph = new_graph()
    gemm(graph, a=(2, 4, 8), b=(3, 8, 16)).set_output(True)
    return graph


def check_rank():
    graph = new_graph()
    gemm(graph, a=(8,), b=(8, 16)).set_output(True)
    return graph


def check_broadcast():
    graph = new_graph()
    graph.bias(gemm(graph), graph.tensor([1, 1, 15])).set_output(True)
    return graph


def check_symbol_against_number():
    graph = new_graph(symbols={"M": Symbol(1, 8)})
    y = graph.add(gemm(graph, a=(1, "M", 8)), graph.tensor([1, 4, 16]))
    y.set_output(True)
    return graph


def check_output_dim():
    graph = new_graph()
    gemm(graph).set_output(True).set_dim([1, 4, 17])
    return graph


def check_no_output():
    graph = new_graph()
    gemm(graph)
    return graph


def check_dead_node():
    graph = new_graph()
    y = gemm(graph).set_output(True)
    graph.tanh(y)
    return graph


def check_unused():
    graph = new_graph()
    gemm(graph).set_output(True)
    graph.tensor([1], name="left_over")
    return graph


def check_virtual_input():
    graph = new_graph()
    graph.relu(graph.tensor([4], is_virtual=True, name="x")).set_output(True)
    return graph


def check_optional_input():
    graph = new_graph()
    x = graph.tensor([4], name="x").set_output(True, optional=True)
    graph.relu(x).set_output(True)
    return graph


def check_all_optional():
    graph = new_graph()
    gemm(graph).set_output(True, optional=True)
    return graph


def check_by_value_output():
    graph = new_graph()
    gemm(graph).set_output(True).set_is_pass_by_value(True)
    return graph


def check_by_value_shape():
    graph = new_graph()
    s = graph.tensor([1, 2], is_pass_by_value=True, name="s")
    graph.scale(graph.tensor([4, 2]), s).set_output(True)
    return graph


def check_value_of_buffer():
    graph = new_graph()
    x = graph.tensor([4], name="x")
    x.pass_by_value = 1.0
    graph.relu(x).set_output(True)
    return graph


def check_value_not_finite():
    graph = new_graph()
    graph.scale(graph.tensor([4]), graph.tensor_scalar(float("inf"), name="s")).set_output(True)
    return graph


def check_value_not_integral():
    graph = new_graph()
    s = graph.tensor_scalar(1, name="s")
    s.pass_by_value = 1.5
    graph.scale(graph.tensor([4]), s).set_output(True)
    return graph


def check_value_out_of_range():
    graph = new_graph()
    graph.scale(graph.tensor([4]), graph.tensor_scalar(2**31, name="s")).set_output(True)
    return graph


def check_value_beyond_its_type():
    graph = new_graph()
    scale = graph.tensor([1], data_type="HALF", is_pass_by_value=True)
    scale.pass_by_value = 1e300
    graph.scale(graph.tensor([4]), scale).set_output(True)
    return graph


def check_value_of_a_scale():
    graph = new_graph()
    scale = graph.tensor([1], data_type="FP8_E8M0", is_pass_by_value=True)
    scale.pass_by_value = -3.0
    graph.scale(graph.tensor([4]), scale).set_output(True)
    return graph


def check_value_beyond_64_bits():
    graph = new_graph()
    graph.scale(graph.tensor([4]), graph.tensor_scalar(10**400, name="s")).set_output(True)
    return graph


def check_constant_without_value():
    graph = new_graph()
    s = graph.tensor([1], is_pass_by_value=True, name="s")
    s.scalar_type = scalar_type.COMPILE_TIME_CONST
    graph.scale(graph.tensor([4]), s).set_output(True)
    return graph


def check_no_dim():
    graph = new_graph()
    graph.relu(graph.tensor([], name="x")).set_output(True)
    return graph


def check_stride_count():
    graph = new_graph()
    gemm(graph, a_stride=(8, 1)).set_output(True)
    return graph


def check_output_overlap():
    graph = new_graph()
    gemm(graph).set_output(True).set_stride([64, 0, 1])
    return graph


def check_huge():
    graph = new_graph()
    gemm(graph, a=(1, 2**40, 8), a_stride=(1, 2**40, 1)).set_output(True)
    return graph


def check_huge_symbol():
    graph = new_graph(symbols={"M": Symbol(1, 2**31 - 1)})
    gemm(graph, a=("M", "M", 8)).set_output(True)
    return graph


def check_undeclared_symbol():
    graph = new_graph(symbols={"M": Symbol(1, 8)})
    gemm(graph, a=("M", "Q", 8)).set_output(True)
    return graph


def check_unused_symbol():
    graph = new_graph(symbols={"M": Symbol(1, 8)})
    gemm(graph).set_output(True)
    return graph


def check_rank_9():
    graph = new_graph()
    graph.relu(graph.tensor([1] * 9, name="x")).set_output(True)
    return graph


def check_no_io_type():
    graph = new_graph(io=None)
    gemm(graph).set_output(True)
    return graph


def ragged(dim, dtype):
    graph = new_graph()
    x = graph.tensor([2, 8], name="x", ragged_offset=graph.tensor(dim, data_type=dtype, name="o"))
    graph.relu(x).set_output(True)
    return graph


def reordered(dim, dtype, reordering):
    graph = new_graph()
    x = graph.tensor(dim, data_type=dtype, reordering_type=reordering, name="x")
    graph.relu(x).set_output(True)
    return graph


def computing(op, dtype):
    graph = new_graph()
    operands = [graph.tensor([4, 4]), graph.tensor([4, 4])]
    getattr(graph, op)(*operands, compute_data_type=dtype, name="n").set_output(True)
    return graph


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (ragged, ([3], "INT32"), None),
        (ragged, ([3, 1, 1, 1], "INT64"), None),
        (
            ragged,
            ([2], "INT32"),
            r"'x' .*offset tensor 'o' .*: got dim \[2\], want 3 offsets on axis",
        ),
        (ragged, ([99], "INT32"), r"got dim \[99\], want 3 offsets"),
        (ragged, ([3, 2], "INT32"), r"got dim \[3, 2\], want 3 offsets"),
        (ragged, ([3], "FLOAT"), "got FLOAT, want INT32 or INT64"),
        (ragged, ([3], "BOOLEAN"), "got BOOLEAN, want INT32 or INT64"),
        (reordered, ([4, 4], "FP8_E8M0", "F8_128x4"), None),
        (reordered, ([4, 4], "INT8", "INT8x32"), None),
        (reordered, ([4, 4], "HALF", "F16x16"), None),
        (
            reordered,
            ([4, 4], "FLOAT", "F8_128x4"),
            "got FLOAT with reordering F8_128x4, want FP8_E4",
        ),
        (
            reordered,
            ([4, 4], "FLOAT", "INT8x32"),
            "got FLOAT with reordering INT8x32, want INT8 or",
        ),
        (reordered, ([4], "FP8_E8M0", "F8_128x4"), "got rank 1 with reordering F8_128x4"),
        (computing, ("logical_or", "BOOLEAN"), None),
        (
            computing,
            ("matmul", "BOOLEAN"),
            "'n'.*compute_data_type: got BOOLEAN, want a type that has",
        ),
        (computing, ("add", "FP8_E8M0"), "compute_data_type: got FP8_E8M0"),
        (computing, ("matmul", "INT8x4"), "compute_data_type: got INT8x4"),
    ],
)
def test_offsets_orders_and_arithmetic(build, arguments, message):
    graph = build(*arguments)
    if message is None:
        return graph.validate()
    with pytest.raises(InvalidGraphError, match=message):
        graph.validate()


CASES = [
    (check_k, r"node 'mm' \(matmul\): port B: got dim \[1, 9, 16\], want K = 8 \(A's last axis\)"),
    (check_batch, r"\(matmul\): port B: got batch \[3\], want one that broadcasts .*\[2\]"),
    (check_rank, r"node 'mm' \(matmul\): port A: got rank 1, want at least 2"),
    (check_broadcast, r"\(bias\): port bias: got dim \[1, 1, 15\], want .*\[1, 4, 16\]"),
    (check_symbol_against_number, r"port b: got dim \[1, 4, 16\], want .* \[1, M, 16\]"),
    (check_output_dim, r"port C: got dim \[1, 4, 17\], want \[1, 4, 16\]"),
    (check_no_output, r"no output: call set_output\(True\)"),
    (check_dead_node, r"node 'tanh.0' \(tanh\) feeds no output"),
    (check_unused, r"tensor 'left_over' \(uid 4\) is not used by any node"),
    (check_virtual_input, r"tensor 'x' \(uid 1\) is virtual, but no node produces it"),
    (check_optional_input, r"tensor 'x' \(uid 1\) is optional, but only an output can be"),
    (check_all_optional, "every output is optional"),
    (check_by_value_output, "is pass-by-value, but only an input can be"),
    (check_by_value_shape, r"'s' \(uid 1\) is pass-by-value: got dim \[1, 2\], want one element"),
    (check_value_of_buffer, "has a pass_by_value but is not pass-by-value"),
    (check_value_not_finite, "pass_by_value: got inf, want a finite number"),
    (check_value_not_integral, "pass_by_value: got 1.5, want a INT32"),
    (check_value_out_of_range, "got 2147483648, want a INT32, an integer from -2147483648 to 214"),
    (check_value_beyond_its_type, r"got 1e\+300, want a HALF, from -65504.0 to 65504.0"),
    (check_value_of_a_scale, "got -3.0, want a FP8_E8M0, from 5.87"),
    (check_value_beyond_64_bits, "bad pass_by_value: want an integer from -2"),
    (check_constant_without_value, "compile-time constant without a pass_by_value"),
    (check_no_dim, r"tensor 'x' \(uid 1\) has no dim"),
    (check_stride_count, r"tensor 'A' \(uid 1\): got 2 strides for 3 extents"),
    (check_output_overlap, r"is an output: got stride \[64, 0, 1\], want no stride 0"),
    (check_huge, r"want fewer than 2\*\*63 bytes"),
    (check_huge_symbol, r"want fewer than 2\*\*63 bytes"),
    (check_undeclared_symbol, r"symbol 'Q' is not declared \(declared: M\)"),
    (check_unused_symbol, "symbol 'M' is declared, but no tensor uses it"),
    (check_rank_9, "got rank 9, want 1 to 8"),
    (check_no_io_type, r"tensor 'A' \(uid 1\) has no data_type: set it, or .*io_data_type"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "message"), CASES, ids=[build.__name__.removeprefix("check_") for build, _ in CASES]
)
def test_refusals(build, message):
    with pytest.raises(InvalidGraphError, match=message) as caught:
        build().validate()
    assert "\n" not in str(caught.value)
    assert issubclass(InvalidGraphError, ValueError)


def test_zero_extents_and_broadcast_inputs_are_legal():
    graph = new_graph()
    y = gemm(graph, a=(1, 0, 8)).set_output(True)
    graph.validate()
    assert (y.dim, y.stride) == ((1, 0, 16), (0, 16, 1))
    graph = new_graph()
    y = gemm(graph, a=(1, 4, 0), b=(1, 0, 16)).set_output(True)
    graph.validate()
    assert y.dim == (1, 4, 16)
    graph = new_graph()
    gemm(graph, a=(2, 4, 8), a_stride=(0, 8, 1)).set_output(True)
    graph.validate()


def test_the_io_type_is_the_others_too_unless_they_are_given():
    graph = new_graph(intermediate=None, compute=None)
    graph.relu(gemm(graph)).set_output(True)
    graph.validate()
    assert graph.context.intermediate_data_type is data_type.HALF
    assert {tensor.data_type for tensor in graph.tensors.values()} == {data_type.HALF}
    assert [node.compute_data_type for node in graph.nodes] == [data_type.HALF] * 2


def test_virtual_tensors_and_arithmetic_are_float_where_nothing_names_a_type():
    graph = Graph()
    a, b = (graph.tensor(dim, data_type="HALF") for dim in ([1, 4, 8], [1, 8, 16]))
    product = graph.matmul(a, b)
    y = graph.relu(product).set_output(True).set_data_type("HALF")
    graph.validate()
    assert (product.data_type, y.data_type) == (data_type.FLOAT, data_type.HALF)
    assert {node.compute_data_type for node in graph.nodes} == {data_type.FLOAT}
    said = Graph("", None, "FLOAT", "FLOAT")
    a, b = (said.tensor(dim, data_type="HALF") for dim in ([1, 4, 8], [1, 8, 16]))
    said.relu(said.matmul(a, b)).set_output(True).set_data_type("HALF")
    assert graph.key() == said.key()


def test_types_set_on_a_tensor_win():
    graph = new_graph()
    y = gemm(graph).set_output(True).set_data_type(data_type.FLOAT)
    graph.validate()
    assert y.data_type is data_type.FLOAT


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ({"2M": Symbol()}, "bad symbol name: got '2M'"),
        ({"M": {"min": 2, "max": 1}}, "symbol 'M': got min 2 and max 1"),
        ({"M": {"least": 2}}, "symbol 'M': got .*, want min, max, hint, multiple_of"),
    ],
)
def test_symbol_declarations(symbols, message):
    with pytest.raises(InvalidGraphError, match=message):
        new_graph(symbols=symbols)


def test_scalars_keep_the_sign_of_a_zero_and_the_least_integer():
    def key(value):
        graph = new_graph()
        scale = graph.tensor_scalar(value)
        graph.div(graph.tensor([4]), scale).set_output(True)
        key = graph.key()
        again = graph_json.loads(graph_json.dumps(graph))
        assert str(again.tensors[scale.uid].pass_by_value) == str(value) and again.key() == key
        return key

    assert len({key(0.0), key(-0.0)}) == 2
    graph = new_graph()
    least = graph.tensor([1], data_type="INT64", is_pass_by_value=True, pass_by_value=-(2**63))
    graph.scale(graph.tensor([4]), least).set_output(True)
    graph.validate()
    assert least.pass_by_value == -(2**63)


def test_a_scalar_is_rounded_to_its_type_and_remembers_what_was_set():
    keys = []
    for value in (0.1, float(np.float32(0.1)), 0.25):
        graph = new_graph()
        scale = graph.tensor_scalar(value)
        graph.scale(graph.tensor([4]), scale).set_output(True)
        graph.validate()
        assert scale.pass_by_value == np.float32(value)
        scale.set_data_type("DOUBLE")
        graph.validate()
        assert scale.pass_by_value == value
        scale.set_data_type("FLOAT")
        keys.append(graph.key())
    assert keys[0] == keys[1] != keys[2]
    graph = new_graph()
    scale = graph.tensor_scalar(0.1)
    graph.scale(graph.tensor([4]), scale).set_output(True)
    graph.validate()
    scale.pass_by_value = 0.5
    graph.validate()
    assert scale.pass_by_value == 0.5
