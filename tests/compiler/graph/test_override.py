"""Graphs with override shapes become symbolic in their rows."""

import pytest

from cudnn_aot.compiler.graph.extents import Symbol
from cudnn_aot.compiler.graph.graph import Graph


def new_graph(**kwargs):
    return Graph("", "BFLOAT16", "FLOAT", "FLOAT", is_override_shape_enabled=True, **kwargs)


def shown(extents):
    return [str(extent) for extent in extents]


def test_rows_of_a_and_of_what_follows_become_one_symbol():
    graph = new_graph()
    a = graph.tensor([1, 8192, 64])
    b = graph.tensor([1, 64, 32], [2048, 1, 64])
    bias, residual = graph.tensor([1, 1, 32]), graph.tensor([1, 8192, 32])
    y = graph.add(graph.bias(graph.matmul(a, b), bias), residual).set_output(True)
    y.set_dim([1, 8192, 32]).set_stride([8192 * 32, 32, 1])
    graph.validate()
    assert dict(graph.symbols) == {"M": Symbol(0, 1 << 20, 8192)}
    assert shown(a.dim) == ["1", "M", "64"] and shown(a.stride) == ["64*M", "64", "1"]
    assert shown(residual.dim) == shown(y.dim) == ["1", "M", "32"]
    assert shown(residual.stride) == shown(y.stride) == ["32*M", "32", "1"]
    assert (b.dim, b.stride) == ((1, 64, 32), (2048, 1, 64))
    assert (bias.dim, bias.stride) == ((1, 1, 32), (32, 32, 1))
    graph.validate()
    assert shown(y.dim) == ["1", "M", "32"]


@pytest.mark.parametrize(
    ("dim", "stride", "wanted"),
    [
        ([2, 8, 64], None, ["64*M", "64", "1"]),
        ([2, 8, 64], [512, 1, 8], ["64*M", "1", "M"]),  # column-major
        ([2, 8, 64], [64, 128, 1], ["64", "128", "1"]),  # rows outermost
        ([2, 8, 64], [1000, 100, 1], ["1000", "100", "1"]),  # padded: stays as declared
        ([1, 8, 64], [512, 64, 1], ["64*M", "64", "1"]),
    ],
)
def test_dense_strides_stay_dense(dim, stride, wanted):
    graph = new_graph()
    a = graph.tensor(dim, stride)
    graph.matmul(a, graph.tensor([1, 64, 32])).set_output(True)
    graph.validate()
    assert shown(a.stride) == wanted


def test_an_operand_with_as_many_columns_as_a_has_rows_keeps_them():
    graph = new_graph()
    a, b = graph.tensor([1, 64, 64]), graph.tensor([1, 64, 64])
    bias = graph.tensor([1, 1, 64])
    y = graph.bias(graph.matmul(a, b), bias).set_output(True)
    graph.validate()
    assert shown(y.dim) == ["1", "M", "64"]
    assert (b.dim, bias.dim) == ((1, 64, 64), (1, 1, 64))


def test_a_single_declared_row_still_broadcasts():
    graph = new_graph()
    a, row = graph.tensor([1, 1, 64]), graph.tensor([1, 1, 32])
    y = graph.add(graph.matmul(a, graph.tensor([1, 64, 32])), row).set_output(True)
    graph.validate()
    assert shown(y.dim) == ["1", "M", "32"] and row.dim == (1, 1, 32)


def test_chained_matmuls_share_the_rows_and_two_inputs_of_other_rows_do_not():
    graph = new_graph()
    first = graph.matmul(graph.tensor([1, 16, 64]), graph.tensor([1, 64, 32]))
    chained = graph.matmul(first, graph.tensor([1, 32, 8])).set_output(True)
    other = graph.matmul(graph.tensor([1, 24, 64]), graph.tensor([1, 64, 32])).set_output(True)
    graph.validate()
    assert (shown(chained.dim), shown(other.dim)) == (["1", "M", "8"], ["1", "M2", "32"])
    assert {name: symbol.hint for name, symbol in graph.symbols.items()} == {"M": 16, "M2": 24}


def test_a_graph_with_symbols_of_its_own_keeps_its_declaration():
    graph = new_graph(symbols={"N": Symbol(1, 64)})
    y = graph.matmul(graph.tensor([1, 8, 64]), graph.tensor([1, 64, "N"])).set_output(True)
    graph.validate()
    assert shown(y.dim) == ["1", "8", "N"]


def test_more_rows_than_the_usual_bound_raise_it():
    graph = new_graph()
    graph.matmul(graph.tensor([1, 1 << 21, 8]), graph.tensor([1, 8, 8])).set_output(True)
    graph.validate()
    assert graph.symbols["M"].max == 1 << 21
