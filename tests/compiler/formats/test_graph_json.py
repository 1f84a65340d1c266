"""Our graph file: round trips, what is left out, and the documented example."""

import json
import re
from pathlib import Path

from graph_strategies import graphs
from hypothesis import HealthCheck, given, settings

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.enums import data_type, scalar_type
from cudnn_aot.compiler.graph.graph import Graph

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "graph-format.md"

_TENSOR_FIELDS = (
    "uid",
    "name",
    "data_type",
    "dim",
    "stride",
    "is_virtual",
    "is_optional",
    "is_pass_by_value",
    "pass_by_value",
    "alignment_value",
)


def described(graph: Graph) -> dict[str, object]:
    """Everything a file carries, in plain data."""
    return {
        "name": graph.name,
        "context": (graph.io_data_type, graph.intermediate_data_type, graph.compute_data_type),
        "symbols": dict(graph.symbols),
        "tensors": [
            {field: getattr(tensor, field) for field in _TENSOR_FIELDS}
            for tensor in graph.tensors.values()
        ],
        "nodes": [
            (
                node.op,
                node.name,
                node.compute_data_type,
                {port: tensor.uid for port, tensor in node.inputs.items()},
                {port: tensor.uid for port, tensor in node.outputs.items()},
                dict(node.attrs),
            )
            for node in graph.nodes
        ],
    }


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs())
def test_round_trip_keeps_everything(graph: Graph) -> None:
    text = graph_json.dumps(graph)
    again = graph_json.loads(text)
    assert described(again) == described(graph)
    assert again.key() == graph.key()
    assert graph_json.dumps(again) == text


def test_defaults_are_left_out() -> None:
    graph = Graph("g", data_type.HALF, data_type.FLOAT, data_type.FLOAT)
    a = graph.tensor([1, 4, 8], [32, 8, 1], data_type.HALF, name="A", alignment_value=1)
    y = graph.matmul(a, graph.tensor([1, 8, 2], [16, 1, 8]), padding=0.0)
    y.set_output(True).set_dim([1, 4, 2]).set_data_type("FLOAT")
    assert json.loads(graph_json.dumps(graph)) == {
        "cudnn_aot_graph": 1,
        "name": "g",
        "io_data_type": "HALF",
        "intermediate_data_type": "FLOAT",
        "compute_data_type": "FLOAT",
        "tensors": [
            {"uid": 1, "name": "A", "dim": [1, 4, 8]},
            {"uid": 2, "dim": [1, 8, 2], "stride": [16, 1, 8]},
            {"uid": 3, "data_type": "FLOAT"},
        ],
        "nodes": [{"op": "matmul", "inputs": {"A": 1, "B": 2}, "outputs": {"C": 3}}],
    }


def test_a_graph_without_context_writes_every_type() -> None:
    graph = Graph()
    x = graph.tensor([2], data_type="HALF")
    y = graph.relu(x, compute_data_type="FLOAT").set_output(True).set_data_type("HALF")
    document = json.loads(graph_json.dumps(graph))
    assert [row["data_type"] for row in document["tensors"]] == ["HALF", "HALF"]
    assert document["nodes"][0]["compute_data_type"] == "FLOAT"
    assert graph_json.loads(json.dumps(document)).tensors[y.uid].data_type is data_type.HALF


def test_nodes_may_stand_in_any_order() -> None:
    graph = Graph("", "HALF", "FLOAT", "FLOAT")
    y = graph.tanh(graph.relu(graph.tensor([2]))).set_output(True)
    document = json.loads(graph_json.dumps(graph))
    document["nodes"].reverse()
    again = graph_json.loads(json.dumps(document))
    assert [node.op for node in again.nodes] == ["relu", "tanh"]
    assert again.key() == graph.key()
    assert again.outputs()[0].uid == y.uid


def test_the_documented_example_is_read_as_it_says() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.S)
    graph = graph_json.loads(example)
    assert graph.name == "ffn_gate"
    assert [node.op for node in graph.nodes] == ["matmul", "scale", "swish"]
    assert graph.symbols["M"].hint == 2048
    assert graph.tensors[1].alignment_value == 16
    assert graph.tensors[2].stride == (58720256, 1, 4096)
    assert graph.tensors[3].pass_by_value == 0.5
    assert graph.tensors[5].is_optional
    assert graph.nodes[2].attr("swish_beta") == 1.5
    assert [t.data_type for t in graph.outputs()] == [data_type.BFLOAT16, data_type.HALF]


def test_constants_are_kept() -> None:
    graph = Graph("", "HALF", "FLOAT", "FLOAT")
    two = graph.tensor_scalar(2.0, scalar_type.COMPILE_TIME_CONST)
    graph.scale(graph.tensor([2]), two).set_output(True)
    again = graph_json.loads(graph_json.dumps(graph))
    assert again.tensors[two.uid].scalar_type is scalar_type.COMPILE_TIME_CONST
