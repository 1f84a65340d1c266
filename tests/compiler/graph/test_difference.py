"""What is different between two graphs, named so that a person finds it."""

import pytest

import cudnn_aot as cudnn
from cudnn_aot.compiler.graph.bucket import graph_class
from cudnn_aot.compiler.graph.difference import Difference, class_difference, differences

BF16, HALF, FLOAT = cudnn.data_type.BFLOAT16, cudnn.data_type.HALF, cudnn.data_type.FLOAT


def scaled(m=64, n=32, *, factor=2.0, pitch=16, io=BF16, op="relu", symbols=None, uid=3):
    g = cudnn.pygraph(
        io_data_type=io, intermediate_data_type=FLOAT, compute_data_type=FLOAT, symbols=symbols
    )
    a = g.tensor(name="A", uid=1, dim=[1, m, 16], stride=[65536, pitch, 1])
    b = g.tensor(name="B", uid=2, dim=[1, 16, n], stride=[65536, 1, 16])
    scalar = g.tensor_scalar(factor, name="factor").set_uid(4)
    y = getattr(g, op)(g.scale(g.matmul(a, b), scalar))
    y.set_uid(uid).set_name("Y").set_output(True)
    return g.validate() or g


def test_a_graph_does_not_differ_from_itself():
    assert differences(scaled(), scaled()) == []


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ({"n": 48}, Difference("dim[2] of 'B'", "32", "48")),
        ({"pitch": 24}, Difference("stride[1] of 'A'", "16", "24")),
        ({"factor": 3.0}, Difference("value of 'factor'", "2.0", "3.0")),
        ({"m": "M", "symbols": {"M": {}}}, Difference("dim[1] of 'A'", "64", "M")),
    ],
    ids=["extent", "stride", "scalar", "symbol"],
)
def test_within_a_class_the_first_difference_is_the_cause(change, first):
    """Strides and the result's extents follow from an operand's extents, so those come first."""
    graph, other = scaled(), scaled(**change)
    assert graph_class(graph).bucket == graph_class(other).bucket
    assert differences(graph, other)[0] == first


def test_the_sign_of_a_zero_is_a_difference():
    found = differences(scaled(factor=0.0), scaled(factor=-0.0))
    assert [(each.here, each.there) for each in found] == [("0.0", "-0.0")]


def test_ranges_of_symbols_are_compared():
    graph, other = (scaled("M", symbols={"M": {"max": top}}) for top in (128, 256))
    assert differences(graph, other) == [Difference("max of symbol M", "128", "256")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"op": "tanh"}, "ops: got matmul relu scale, want matmul scale tanh"),
        ({"io": HALF}, "tensor 'A' (uid 1): data_type: got BFLOAT16, want HALF"),
        ({"uid": 9}, "uids of the outputs: got [3], want [9]"),
    ],
    ids=["op", "type", "uid"],
)
def test_between_classes_one_difference_is_named(change, words):
    assert class_difference(scaled(), scaled(**change)).in_words() == words
