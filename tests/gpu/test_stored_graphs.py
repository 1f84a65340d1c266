"""Every graph of the store is right on the device: random data, poisoned outputs, fp32 reference."""

from __future__ import annotations

import pytest

from cudnn_aot.compiler.formats import graph_json

from .torch_reference import assert_close, operands

TARGET = "h200"

# Below, at and above the 64- and 128-row tiles, and not multiples of them.
SYMBOL_VALUES = (1, 2, 16, 63, 64, 65, 127, 128, 129, 300, 1000)


def stored_graph(reader, name):
    pointer = reader.pointer(TARGET, reader.name(TARGET, name)["graph_key"])
    return graph_json.loads(reader.blob(pointer["graph"]).decode()), pointer["status"]


def run(torch, store, graph, name, symbols, seed=0):
    """Execute the stored plan on random operands and return them."""
    bound = operands(graph, symbols, seed)
    plan = store.plan(name)
    workspace = torch.full(
        (plan.workspace_bytes(symbols),), 0xFF, dtype=torch.uint8, device="cuda"
    )
    plan.execute(
        bound, workspace, stream=torch.cuda.current_stream().cuda_stream, symbols=symbols
    )
    torch.cuda.synchronize()
    return bound


def test_every_stored_graph(torch, store, reader, subtests):
    names = [name for target, name in reader.names() if target == TARGET]
    assert len(names) >= 8
    for name in names:
        graph, status = stored_graph(reader, name)
        if status != "built":
            continue
        values = SYMBOL_VALUES if graph.symbols else (None,)
        for value in values:
            symbols = {s: value for s in graph.symbols} if value is not None else {}
            if any(spec.refuse(symbols[s]) for s, spec in graph.symbols.items()):
                continue
            with subtests.test(name=name, symbols=str(symbols)):
                assert_close(graph, run(torch, store, graph, name, symbols))


@pytest.mark.parametrize("seed", range(3))
def test_repeated_calls_agree_bit_for_bit(torch, store, reader, seed):
    """Split-K sums its partial tiles in a fixed order, so a plan gives the same bits every time."""
    name = "llama8b_down_decode_m16"
    graph, _ = stored_graph(reader, name)
    first = run(torch, store, graph, name, {}, seed)
    second = run(torch, store, graph, name, {}, seed)
    for tensor in graph.outputs():
        assert torch.equal(first[tensor.uid], second[tensor.uid])
