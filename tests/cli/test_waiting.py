"""A build that waits for another builder: it says for whom, and for how long if it is limited."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import assert_one_line_error, run_cli

from cudnn_aot.cache import held
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter


@pytest.fixture
def busy(tmp_path: Path, built_store: Path) -> Iterator[StoreWriter]:
    """An empty store of which this process holds the locks of all kernels that a build needs."""
    with StoreWriter(tmp_path / "store") as writer:
        first, second = StoreReader(built_store).kernels()
        with writer.lock(f"kernel-{first}"), writer.lock(f"kernel-{second}"):
            yield writer


def test_a_waiter_says_for_whom_while_it_waits_and_then_builds(
    busy: StoreWriter, graph_files: list[Path], built_store: Path
) -> None:
    """However long the other takes: here until the waiter has said so."""
    command = [Path(sys.executable).with_name("cudnn-aot"), "build", *graph_files]
    waiter = subprocess.Popen(
        [*command, "-t", "cpu", "-o", busy.path], stderr=subprocess.PIPE, text=True
    )
    assert waiter.stderr is not None
    lines: list[str] = []
    while not lines or "waiting for" not in lines[-1]:
        lines.append(waiter.stderr.readline())
        assert lines[-1], lines
    assert f"which pid {os.getpid()} on {socket.gethostname()} compiles (2 s)" in lines[-1]
    assert waiter.poll() is None
    waiter.kill()
    waiter.communicate()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_limited_wait_is_an_error_and_no_second_build(
    busy: StoreWriter, graph_files: list[Path], jobs: int
) -> None:
    build = ("build", *graph_files, "-t", "cpu", "-o", busy.path, "-j", jobs, "--json")
    done = run_cli(*build, "--lock-timeout", "0.2")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and all(line.startswith("error: ") for line in lines)
    holder = f"pid {os.getpid()} on {socket.gethostname()}"
    assert all("waited 0.2 s for lock 'kernel-" in line for line in lines)
    assert all(f"which {holder} holds: build again later" in line for line in lines)
    assert all("--lock-timeout" in line for line in lines)
    document = json.loads(done.stdout)
    assert [graph["status"] for graph in document["graphs"]] == ["failed", "failed"]
    assert document["kernels"]["compiled"] == 0 and document["kernels"]["failed"] == 2
    assert busy.reader.kernels() == []


def test_what_nobody_holds_is_built_beside_it(
    tmp_path: Path, graph_files: list[Path], built_store: Path
) -> None:
    first, second = StoreReader(built_store).kernels()
    with StoreWriter(tmp_path / "store") as writer, writer.lock(f"kernel-{first}"):
        done = run_cli(
            *("build", *graph_files, "-t", "cpu", "-o", writer.path, "--lock-timeout", "0.1")
        )
        assert done.returncode == 1, done.stderr
        assert writer.reader.kernels() == [second]


def test_a_prune_is_waited_for_no_longer_either(store_copy: Path, graph_files: list[Path]) -> None:
    marks = held.join_as_pruner(store_copy, 0)
    assert marks is not None
    try:
        build = ("build", *graph_files, "-t", "cpu", "-o", store_copy)
        done = run_cli(*build, "--lock-timeout", "0.1")
        assert_one_line_error(done, 1, "waited 0.1 s for a prune of ", "--lock-timeout")
    finally:
        marks.close()
    assert run_cli(*build, "--lock-timeout", "0.1").returncode == 0


@pytest.mark.parametrize("text", ["", "-1", "soon", "nan", "inf"])
def test_a_limit_that_is_none(graph_files: list[Path], tmp_path: Path, text: str) -> None:
    done = run_cli(
        "build", *graph_files, "-t", "cpu", "-o", tmp_path / "s", f"--lock-timeout={text}"
    )
    assert_one_line_error(done, 2, "--lock-timeout", "want seconds")
    assert not (tmp_path / "s").exists()
