"""A build of every plan that is worth measuring, and what plain builds make of its store."""

from __future__ import annotations

from pathlib import Path

import gemm_graphs
import pytest
from cli_process import run_cli, write_graph

from cudnn_aot.cache.layout import providers_of
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.compiler.build import driver
from cudnn_aot.compiler.build.summary import BuildSummary, Status
from cudnn_aot.recipes.gemm.config import GemmConfig
from cudnn_aot.recipes.gemm.heuristics import rank_sm90

EXTENTS = {"batch": 1, "m": 72, "n": 128, "k": 4096}  # too many rows for the streaming engines


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    graph = gemm_graphs.plain("g", EXTENTS["m"], EXTENTS["n"], EXTENTS["k"])
    return write_graph(tmp_path, graph)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[GemmConfig]:
    """Of what would be measured only other splits of the best, which share its kernel."""
    best = rank_sm90(EXTENTS, 132)[0][0]
    assert best.splits > 1
    shape = best.tile_m, best.tile_n, best.tile_k, best.cluster_m, best.cluster_n
    found = [GemmConfig(*shape, splits) for splits in (2, 3, 6)]
    monkeypatch.setattr(GemmConfig, "measured", classmethod(lambda cls, *_: iter(found)))
    return found


def build(graph: Path, store: Path, **options) -> BuildSummary:
    return driver.build([graph], ["h200"], store, **options)


def records(store: Path) -> tuple[list[str], bool]:
    reader = StoreReader(store)
    ((target, key),) = reader.pointers()
    held = providers_of(reader.pointer(target, key))["native"]
    return held["records"], held.get("all_configs", False)


def test_all_configs_and_plain_builds_in_turn(graph: Path, few, tmp_path: Path) -> None:
    store = tmp_path / "store"
    plain = build(graph, store)
    assert [g.status for g in plain.graphs] == [Status.BUILT]
    (first,), is_all = records(store)
    assert not is_all
    every = build(graph, store, all_configs=True)
    assert [g.status for g in every.graphs] == [Status.BUILT]
    assert every.kernels.compiled == 0  # splits are an argument
    found, is_all = records(store)
    best = int(plain.graphs[0].knobs["SPLIT_K_SLC"])
    assert is_all and found[0] == first
    assert len(found) == len({best, *(config.splits for config in few)})
    assert StoreReader(store).verify() == []
    # Both kinds of build take it as it is.
    for options in ({}, {"all_configs": True}):
        again = build(graph, store, **options)
        assert [g.status for g in again.graphs] == [Status.CACHED]
        assert (again.files_written, records(store)) == (0, (found, True))


def test_the_flag_and_a_shard(graph: Path, few, tmp_path: Path) -> None:
    """In one process, which has the few configs: the command and a part of the build."""
    from cudnn_aot.cli.commands import run_command

    store = tmp_path / "store"
    command = ["build", str(graph), "-t", "h200", "--store", str(store), "--all-configs"]
    assert run_command(command) == 0
    found, is_all = records(store)
    assert is_all and len(found) > 1
    part = build(graph, tmp_path / "part", shard="1/1", all_configs=True)
    assert [g.status for g in part.graphs] == [Status.BUILT]
    assert records(tmp_path / "part") == (found, True)
    done = run_cli("ls", "--store", store)
    assert done.returncode == 0 and "g" in done.stdout
