"""The op table against what a program written for the cuDNN frontend calls."""

import inspect

import pytest

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.errors import InvalidGraphError

# As the cuDNN frontend's methods take them.
SIGNATURES = {
    "matmul": "(self, A, B, compute_data_type=None, padding=0.0, name='')",
    "add": "(self, a, b, *, name='', compute_data_type=None)",
    "max": "(self, input0, input1, *, name='', compute_data_type=None)",
    "cmp_eq": "(self, input, comparison, *, name='', compute_data_type=None)",
    "binary_select": "(self, input0, input1, mask, *, name='', compute_data_type=None)",
    "bias": "(self, input, bias, *, name='', compute_data_type=None)",
    "relu": "(self, input, negative_slope=None, lower_clip=None, upper_clip=None, name='', "
    "compute_data_type=None)",
    "relu_backward": "(self, loss, input, negative_slope=None, lower_clip=None, upper_clip=None, "
    "name='', compute_data_type=None)",
    "leaky_relu": "(self, input, negative_slope, name='', compute_data_type=None)",
    "swish": "(self, input, swish_beta=None, name='', compute_data_type=None)",
    "gen_index": "(self, input, axis, name='', compute_data_type=None)",
}


def new_graph():
    return Graph("", data_type.HALF, data_type.FLOAT, data_type.FLOAT)


def test_signatures():
    got = {name: str(inspect.signature(getattr(Graph, name))) for name in SIGNATURES}
    assert got == SIGNATURES


@pytest.mark.parametrize("name", [row.name for row in OPS.values() if row.is_pointwise])
def test_positional_and_keyword_calls_build_the_same_node(name):
    row = OPS[name]
    keys = []
    for by_keyword in (False, True):
        graph = new_graph()
        tensors = [graph.tensor([4, 4]) for _ in row.inputs]
        method = getattr(graph, name)
        attrs = {attr.name: 1 for attr in row.attrs if attr.required}
        out = (
            method(**dict(zip(row.inputs, tensors, strict=True)), **attrs)
            if by_keyword
            else method(*tensors, *attrs.values())
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
        (lambda g, x: g.add_node("sim", {"input": x}), r"did you mean 'sin'\?\); \d+ are known"),
        (lambda g, x: g.add_node("relu", {"x": x}), r"no input port 'x'; it has: input"),
        (lambda g, x: g.add_node("relu", {"input": x}, {"slope": 1}), "has no attribute 'slope'"),
        (lambda g, x: g.add_node("tanh", {"input": x}, {"a": 1}), r"'a'; it has: none"),
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
    with pytest.raises(TypeError, match=r"add\(\) missing 1 required positional argument: 'b'"):
        graph.add(x)
    with pytest.raises(TypeError, match=r"tanh\(\) got an unexpected keyword argument 'beta'"):
        graph.tanh(x, beta=1)


def test_the_usual_ports_are_every_choice_of_those_that_may_be_left_open():
    assert OPS["matmul"].usual_inputs == {("A", "B")}
    assert OPS["rmsnorm"].usual_inputs == {
        ("input", *scale, *bias, "epsilon")
        for scale in ((), ("scale",))
        for bias in ((), ("bias",))
    }
    assert OPS["concatenate"].usual_inputs == OPS["sdpa"].usual_inputs == frozenset()
