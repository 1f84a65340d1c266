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


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    graph = gemm_graphs.plain("g", 72, 128, 4096)  # too many rows for a GEMV
    return write_graph(tmp_path, graph)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[GemmConfig]:
    """Of what would be measured only some splits of a tile."""
    found = [GemmConfig(64, 64, 64, 1, 1, *split) for split in ((1, 0), (2, 0), (1, 1))]
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
    assert every.kernels.compiled <= len(few)  # the best may be one of these
    found, is_all = records(store)
    assert is_all and found[0] == first
    spelled = [{knob.name: value for knob, value in each.to_public().items()} for each in few]
    assert len(found) == len(few) + (dict(plain.graphs[0].knobs) not in spelled)
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
