"""Every graph of the store is right on the device: random data, poisoned outputs, fp32
reference.
"""

from __future__ import annotations

import pytest
import torch
from torch_reference import assert_close, execute, operands

# Below, at and above the tiles and the ranges of M that have plans of their own, as many k tiles as
# there are stages and one more or less, and others.
SYMBOL_VALUES = (
    *(1, 2, 16, 17, 63, 64, 65, 127, 128, 129, 192, 256, 257, 300, 320, 384, 448),
    *(1000, 1024, 1025, 2048),
)  # fmt: skip

CALLS = 4  # that are alike: from the third on the launch is one that was learnt


def test_the_store_holds_the_graphs_to_test(stored):
    built = [name for _, name in stored.reader.names() if not stored.is_declined(name)]
    assert len(built) >= 20


def test_graph(stored, graph_name):
    if stored.is_declined(graph_name):
        pytest.skip("declined at build time; there is no plan to run")
    graph = stored.graph(graph_name)
    values = SYMBOL_VALUES if graph.symbols else (0,)
    ran = 0
    for value in values:
        symbols = {name: value for name in graph.symbols}
        if any(graph.symbols[name].refuse(value) for name in symbols):
            continue
        plan = stored.plan(graph_name)
        for seed in range(CALLS):
            bound = operands(graph, symbols, seed=value + seed)
            execute(plan, bound, symbols)
            if seed in (0, CALLS - 1):
                assert_close(graph, bound)
        ran += 1
    assert ran


@pytest.mark.parametrize("b", [-128, 127])
def test_the_largest_sums_of_int8(stored, b):
    """Of the longest K that is taken, all products alike: no sum leaves INT32, nor saturates."""
    graph, plan = stored.graph("int8_deep"), stored.plan("int8_deep")
    bound = operands(graph, {})
    for tensor, value in zip(graph.inputs(), (-128, b), strict=True):
        bound[tensor.uid].fill_(value)
    execute(plan, bound, {})
    (y,) = (bound[tensor.uid] for tensor in graph.outputs())
    assert y.dtype is torch.int32 and (y == graph.inputs()[0].dim[-1] * -128 * b).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "name",
    [
        "split_k_in_cluster",
        "stream_k",
        "fp8_stream_k",
        "blocks_stream_k",
        "split_k_in_cluster_int8",
        "int8_stream_k",
    ],
)
def test_split_k_gives_the_same_bits_every_time(stored, name, seed):
    """The partial tiles are summed in a fixed order, whichever block arrives last."""
    graph = stored.graph(name)
    results = []
    for _ in range(4):
        bound = operands(graph, {}, seed)
        execute(stored.plan(name), bound, {})
        results.append(bound[graph.outputs()[0].uid])
    assert all(torch.equal(results[0], other) for other in results[1:])
