"""The op table against what a program written for the cuDNN frontend calls."""

import inspect

import pytest

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.ops import OPS
from cudnn_aot.compiler.reference.ops import REFERENCES
from cudnn_aot.errors import InvalidGraphError

SIGNATURES = {
    "matmul": "(self, A, B, compute_data_type=None, padding=0.0, name='')",
    "add": "(self, a, b, compute_data_type=None, name='')",
    "mul": "(self, a, b, compute_data_type=None, name='')",
    "bias": "(self, input, bias, compute_data_type=None, name='')",
    "scale": "(self, input, scale, compute_data_type=None, name='')",
    "identity": "(self, input, compute_data_type=None, name='')",
    "relu": "(self, input, negative_slope=0.0, lower_clip=0.0, upper_clip=None, "
    "compute_data_type=None, name='')",
    "gelu": "(self, input, compute_data_type=None, name='')",
    "gelu_approx_tanh": "(self, input, compute_data_type=None, name='')",
    "swish": "(self, input, swish_beta=1.0, compute_data_type=None, name='')",
    "sigmoid": "(self, input, compute_data_type=None, name='')",
    "tanh": "(self, input, compute_data_type=None, name='')",
}


def new_graph():
    return Graph("", data_type.HALF, data_type.FLOAT, data_type.FLOAT)


def test_signatures():
    assert {name: str(inspect.signature(getattr(Graph, name))) for name in OPS} == SIGNATURES


def test_every_op_has_a_reference_of_its_attributes():
    assert set(REFERENCES) == set(OPS)


@pytest.mark.parametrize("name", OPS)
def test_positional_and_keyword_calls_build_the_same_node(name):
    row = OPS[name]
    keys = []
    for by_keyword in (False, True):
        graph = new_graph()
        tensors = [graph.tensor([4, 4]) for _ in row.inputs]
        method = getattr(graph, name)
        out = (
            method(**dict(zip(row.inputs, tensors, strict=True)))
            if by_keyword
            else method(*tensors)
        )
        out.set_output(True)
        (node,) = graph.nodes
        assert (node.op, node.name, tuple(node.inputs)) == (name, f"{name}.0", row.inputs)
        assert out.name == f"{name}.0::{row.outputs[0].name}"
        keys.append(graph.key())
    assert keys[0] == keys[1]


def test_attributes_at_their_default_are_not_stored():
    graph = new_graph()
    x = graph.tensor([4, 4])
    graph.swish(x, 1)
    graph.swish(x, 1.5)
    graph.relu(x, lower_clip=0.0, upper_clip=6)
    assert [dict(node.attrs) for node in graph.nodes] == [
        {},
        {"swish_beta": 1.5},
        {"upper_clip": 6.0},
    ]
    assert graph.nodes[0].attr("swish_beta") == 1.0
    assert graph.nodes[2].attr("upper_clip") == 6.0
    assert graph.nodes[2].attr("negative_slope") == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, x: g.swish(x, "much"), "attribute swish_beta: got 'much', want a number"),
        (lambda g, x: g.swish(x, float("nan")), "attribute swish_beta: got nan, want a finite"),
        (lambda g, x: g.swish(x, True), "attribute swish_beta: got True, want a number"),
        (lambda g, x: g.relu(2.0), r"node 'relu.0' \(relu\): port input: got float, want a tensor"),
        (lambda g, x: g.add(x, None), "input port b is not wired"),
        (lambda g, x: g.add(x, new_graph().tensor([4])), "port b: .* belongs to another graph"),
        (lambda g, x: g.add_node("sin", {"input": x}), r"unknown op 'sin' \(known: add, bias"),
        (lambda g, x: g.add_node("relu", {"x": x}), r"no input port 'x' \(it has: input\)"),
        (lambda g, x: g.add_node("relu", {"input": x}, {"slope": 1}), "has no attribute 'slope'"),
        (lambda g, x: g.add_node("tanh", {"input": x}, {"a": 1}), r"'a' \(it has: none\)"),
        (lambda g, x: g.add_node("relu", {"input": x}, outputs={"OUT_0": x}), "is already read"),
    ],
)  # fmt: skip
def test_wrong_calls_name_node_and_port(call, message):
    graph = new_graph()
    with pytest.raises(InvalidGraphError, match=message):
        call(graph, graph.tensor([4, 4]))


def test_a_missing_or_unknown_argument_is_a_type_error_naming_the_op():
    graph = new_graph()
    x = graph.tensor([4, 4])
    with pytest.raises(TypeError, match=r"add\(\): missing a required argument: 'b'"):
        graph.add(x)
    with pytest.raises(TypeError, match=r"tanh\(\): got an unexpected keyword argument 'beta'"):
        graph.tanh(x, beta=1)
