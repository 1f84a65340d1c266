"""Every pointwise op behind a matmul, on the device, on special values, against the float64
reference.
"""

from __future__ import annotations

import pointwise_graphs
import pytest
import torch
import torch_reference

NAMES = [graph.name for graph in pointwise_graphs.graphs()]


@pytest.mark.parametrize("name", NAMES)
def test_values(stored, name):
    graph = stored.graph(name)
    values = pointwise_graphs.operands(graph)
    bound = torch_reference.operands(graph, {})
    for uid, array in values.items():
        bound[uid].copy_(torch.from_numpy(array))
    torch_reference.execute(stored.plan(name), bound, {})
    got = {tensor.uid: bound[tensor.uid].cpu().numpy() for tensor in graph.outputs()}
    pointwise_graphs.assert_right(graph, values, got)
