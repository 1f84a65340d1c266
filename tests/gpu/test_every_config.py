"""No knob changes a result: every schedule of the GEMM kernel against an fp32 reference.

The store comes from ``CUDNN_AOT_TEST_CONFIG_STORE`` (see ``tests/support/config_store.py``), which
is not built by default.
"""

from __future__ import annotations

import os
from pathlib import Path

import config_store
import pytest
import torch
from torch_reference import assert_close, execute, operands

from cudnn_aot import runtime
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.knobs import plan_name
from cudnn_aot.recipes.gemm.config import GemmConfig

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


@pytest.fixture(scope="module")
def graph(every_config):
    _, reader = every_config
    _, name = reader.names()[0]
    key = reader.name(config_store.TARGET, name)["graph_key"]
    pointer = reader.pointer(config_store.TARGET, key)
    return graph_json.loads(reader.blob(pointer["graph"]).decode()).freeze()


def name_of(engine_id: int, config) -> str:
    _, slot = manifest.engine_for_id(engine_id)
    public = manifest.resolve(slot.factory)().knobs_to_public(config)
    return plan_name(slot.name, tuple((knob.name, value) for knob, value in public.items()))


def branch_of(config) -> str:
    if not isinstance(config, GemmConfig):
        return "stream"
    return "split_k" if config.splits > 1 else "tma"


def test_the_store_has_every_config(every_config):
    _, reader = every_config
    assert {name for _, name in reader.names()} == {name_of(*each) for each in CONFIGS}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda each: name_of(*each)[10:-1])
def test_config(every_config, graph, config):
    store, _ = every_config
    plan = store.plan(name_of(*config))
    for rows in ROWS:
        symbols = {"M": rows}
        bound = operands(graph, symbols, seed=rows)
        branch = plan.resolve(bound, 256, symbols=symbols)["branch"]
        want = "empty" if rows == 0 else branch_of(config[1])
        assert branch == want
        execute(plan, bound, symbols)
        assert_close(graph, bound)
        assert all(buffer.isfinite().all() for buffer in bound.values())


@pytest.mark.parametrize("config", CONFIGS, ids=lambda each: name_of(*each)[10:-1])
def test_config_gives_the_same_bits_every_time(every_config, graph, config):
    store, _ = every_config
    plan = store.plan(name_of(*config))
    results = []
    for _ in range(3):
        bound = operands(graph, {"M": 300}, seed=1)
        execute(plan, bound, {"M": 300})
        results.append(bound[graph.outputs()[0].uid])
    assert all(torch.equal(results[0], other) for other in results[1:])
