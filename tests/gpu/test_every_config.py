"""No knob changes a result: every schedule of every kernel against an fp32 reference.

The store comes from ``CUDNN_AOT_TEST_CONFIG_STORE`` (see ``tests/support/config_store.py``), which
is not built by default.
"""

from __future__ import annotations

import os
from pathlib import Path

import config_store
import pytest
import torch
from torch_reference import addresses, assert_close, execute, operands

from cudnn_aot import runtime
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.recipes.gemm.config import GemmConfig, GemvConfig
from cudnn_aot.recipes.gemm.sm90 import FEW_ROWS

VARIABLE = "CUDNN_AOT_TEST_CONFIG_STORE"
CONFIGS = config_store.every()
# No row, one, within, at and above one tile of rows, an odd number of tiles of 64 (a cluster of two
# then has an empty half), and several waves with a partial last tile.
ROWS = (0, 1, 63, 64, 65, 128, 129, 192, 300, 4096)


@pytest.fixture(scope="module")
def every_config():
    path = os.environ.get(VARIABLE)
    if not path:
        pytest.skip(f"{VARIABLE} names no store: see docs/gpu-host.md")
    return runtime.open(path, target=config_store.TARGET), StoreReader(Path(path))


def graph_of(reader, name):
    key = reader.name(config_store.TARGET, name)["graph_key"]
    pointer = reader.pointer(config_store.TARGET, key)
    return graph_json.loads(reader.blob(pointer["graph"]).decode()).freeze()


def branch_of(config) -> str:
    """But for ``_few``, where few rows have a kernel of their own."""
    if isinstance(config, GemvConfig):
        return "gemv"
    return "stream_k" if isinstance(config, GemmConfig) and config.stream_k else "tma"


def test_the_store_has_every_config(every_config):
    _, reader = every_config
    assert {name for _, name in reader.names()} == {config_store.name_of(*each) for each in CONFIGS}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda each: config_store.name_of(*each))
def test_config(every_config, config):
    store, reader = every_config
    name = config_store.name_of(*config)
    plan, graph = store.plan(name), graph_of(reader, name)
    for rows in (rows for rows in ROWS if rows <= graph.symbols["M"].max):
        symbols = {"M": rows}
        bound = operands(graph, symbols, seed=rows)
        branch = plan.resolve(addresses(bound), 256, symbols=symbols)["branch"]
        # No row has a sum.
        is_empty = rows == 0 and not any(node.op == "reduction" for node in graph.nodes)
        want = "empty" if is_empty else branch_of(config[2])
        assert branch.removesuffix("_few" if rows <= FEW_ROWS else "") == want
        execute(plan, bound, symbols)
        assert_close(graph, bound)
        assert all(buffer.float().isfinite().all() for buffer in bound.values())


@pytest.mark.parametrize("config", CONFIGS, ids=lambda each: config_store.name_of(*each))
def test_config_gives_the_same_bits_every_time(every_config, config):
    store, reader = every_config
    name = config_store.name_of(*config)
    plan, graph = store.plan(name), graph_of(reader, name)
    results = []
    for _ in range(3):
        bound = operands(graph, {"M": 200}, seed=1)
        execute(plan, bound, {"M": 200})
        results.append([bound[out.uid].view(torch.uint8) for out in graph.outputs()])
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))
