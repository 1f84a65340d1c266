"""Every pointwise op behind a matmul, built for the CPU, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pointwise_graphs
import pytest
from cli_process import run_cli, write_graph

from cudnn_aot import runtime

GRAPHS = {graph.name: graph for graph in pointwise_graphs.graphs()}
NUMPY = {"FLOAT": np.float32, "HALF": np.float16, "BFLOAT16": ml_dtypes.bfloat16}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pointwise")
    files = [write_graph(folder, graph) for graph in GRAPHS.values()]
    done = run_cli("build", *files, "--target", "cpu", "--store", folder / "store")
    assert done.returncode == 0, done.stderr
    return runtime.open(folder / "store", target="cpu")


@pytest.mark.parametrize("name", GRAPHS)
def test_values(store, name):
    graph = GRAPHS[name]
    values = pointwise_graphs.operands(graph)
    bound = {t.uid: values[t.uid].astype(NUMPY[t.data_type.name]) for t in graph.inputs()}
    outputs = {t.uid: np.full(t.dim, np.nan, np.float32) for t in graph.outputs()}
    matmul = next(node for node in graph.nodes if node.op == "matmul")
    b = matmul.inputs["B"].uid  # declared with contiguous columns
    bound[b] = np.swapaxes(np.ascontiguousarray(np.swapaxes(bound[b], 1, 2)), 1, 2)
    store.plan(name).execute({**bound, **outputs})
    pointwise_graphs.assert_right(graph, values, outputs)
