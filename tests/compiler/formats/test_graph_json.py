"""Our graph file: round trips, what is left out, and the documented example."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import op_graphs
import pytest
from graph_strategies import graphs
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.formats.load import load_graphs
from cudnn_aot.compiler.graph.enums import data_type, scalar_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.errors import InvalidGraphError

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


@pytest.mark.parametrize("op", ["matmul", "add", "batchnorm", "sdpa", "concatenate", "gdn_bwd"])
def test_ports_of_a_node_may_stand_in_any_order(op: str) -> None:
    graph = op_graphs.example(OPS[op])
    document = json.loads(graph_json.dumps(graph))
    (row,) = document["nodes"]
    for ports in ("inputs", "outputs"):
        row[ports] = dict(reversed(row[ports].items()))
    again = graph_json.loads(json.dumps(document))
    (node,), (other,) = graph.nodes, again.nodes
    assert [*other.inputs] == [*node.inputs] and [*other.outputs] == [*node.outputs]
    assert graph_json.dumps(again) == graph_json.dumps(graph)


def test_the_documented_example_is_read_as_it_says() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.S)
    graph = graph_json.loads(text)
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


BAD_NAMES: list[Any] = ["x" * 1001, "half \ud800", 123, None, b"bytes"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=range(len(BAD_NAMES)))
def test_names_that_no_file_can_hold_are_refused_when_they_are_set(name: Any) -> None:
    graph = Graph("", "HALF", "FLOAT", "FLOAT")
    x = graph.tensor([2])
    y = graph.relu(x).set_output(True)
    setters: list[Callable[[], object]] = [
        lambda: Graph(name),
        lambda: setattr(graph, "name", name),
        lambda: graph.tensor([2], name=name),
        lambda: graph.tensor_scalar(1.0, name=name),
        lambda: x.set_name(name),
        lambda: setattr(x, "name", name),
        lambda: setattr(graph.nodes[0], "name", name),
    ]
    if name:
        setters.append(lambda: graph.relu(x, name=name))
    for set_name in setters:
        with pytest.raises(InvalidGraphError, match="bad name: "):
            set_name()
    again = graph_json.loads(graph_json.dumps(graph))
    assert again.key() == graph.key() and again.tensors[y.uid].name == y.name


@settings(max_examples=100, deadline=None)
@given(names=st.lists(st.text(st.characters(), min_size=1, max_size=1100), min_size=4, max_size=4))
@example(names=["n" * 1000] * 4)
def test_what_can_be_set_can_be_written_and_read(names: list[str]) -> None:
    """With the longest names too, from which those of results are made."""
    try:
        graph = Graph(names[0], "HALF", "FLOAT", "FLOAT")
        y = graph.relu(graph.tensor([2], name=names[1]), name=names[2])
        graph.tanh(y).set_output(True).set_name(names[3])
    except InvalidGraphError:
        return
    again = graph_json.loads(graph_json.dumps(graph))
    assert described(again) == described(graph)


def test_a_symbol_that_no_file_can_hold_is_refused_when_it_is_declared() -> None:
    with pytest.raises(InvalidGraphError, match=r"multiple_of: got 10+, want .* below 2\*\*63"):
        Graph(symbols={"M": {"min": 0, "multiple_of": 10**30}})


def test_a_graph_larger_than_a_file_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("", "HALF", "FLOAT", "FLOAT")
    graph.add(graph.tensor([2]), graph.tensor([2])).set_output(True)
    text = graph_json.dumps(graph)
    monkeypatch.setattr(graph_json, "MAX_BYTES", len(text) - 1)
    with pytest.raises(InvalidGraphError, match=f"got a file of {len(text)} bytes"):
        graph_json.dumps(graph)
    monkeypatch.setattr(graph_json, "MAX_ITEMS", 2)
    with pytest.raises(InvalidGraphError, match="got 3 tensors, want at most 2 in a file"):
        graph_json.dumps(graph)


def test_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    graph = Graph("", "HALF", "FLOAT", "FLOAT")
    graph.relu(graph.tensor([2])).set_output(True)
    path = tmp_path / os.fsdecode(b"\xff.json")
    path.write_text(graph_json.dumps(graph))
    (read,) = load_graphs(path)
    assert read.name == "\ufffd" and graph_json.loads(graph_json.dumps(read)).name == read.name
