"""Building on a real Ray cluster: lost workers, nodes of other tools, no cluster at all."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import toy_store
from cli_process import assert_one_line_error, run_cli, tree_digest
from ray_cluster import RayCluster, ray_cluster

from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.toolchain import toolchain

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'cudnn-aot[ray]'")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as running:
        yield running


@pytest.mark.slow
def test_a_worker_killed_in_mid_build(
    cluster: RayCluster, tmp_path: Path, graph_files: list[Path], built_store: Path
) -> None:
    """Its kernel is compiled elsewhere, and the store is that of a local build."""
    store = tmp_path / "store"
    command = [sys.executable, "-m", "cudnn_aot.cli.main", "build", *map(str, graph_files)]
    command += ["-t", "cpu", "-o", str(store), "--executor", "ray"]
    build = subprocess.Popen(
        [*command, "--ray-address", cluster.address, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while len(workers := cluster.workers()) < 2 and build.poll() is None:
        assert time.monotonic() < deadline, "no two workers started"
    os.kill(workers[0], signal.SIGKILL)
    out, err = build.communicate(timeout=120)
    assert build.returncode == 0, err
    summary = json.loads(out)
    assert (summary["executor"], summary["jobs"]) == ("ray", 2)
    assert summary["kernels"]["compiled"] == 2 and summary["failures"] == []
    assert tree_digest(store) == tree_digest(built_store)
    assert cluster.workers() == []


def other_tools(folder: Path, version: str) -> str:
    """A folder for PYTHONPATH in which another version of a tool is found first."""
    place = folder / version / f"apache_tvm_ffi-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: apache-tvm-ffi\nVersion: {version}\n"
    )
    return str(place.parent)


@pytest.mark.slow
def test_nodes_with_another_toolchain_are_refused(cluster: RayCluster, tmp_path: Path) -> None:
    """By name of both versions; the kernels go to the nodes that have what planned them."""
    here = toolchain("cu12")["apache-tvm-ffi"]
    other = other_tools(tmp_path, "9.9.9")
    node = cluster.add_node(2, PYTHONPATH=other)
    arguments = ("--jobs", "4", "--ray", cluster.address)
    kernels = [f"host={n}" for n in range(4)]

    done = toy_store.finish(toy_store.start(tmp_path / "here", *kernels, *arguments))
    assert [entry["compiled"] for entry in done] == [True] * 4
    assert done[-1]["notices"] == [
        f"Ray node {node[:12]} compiles nothing: the compile worker has another toolchain: "
        f"apache-tvm-ffi 9.9.9 (planned with {here}): install the same one"
    ]

    there = {**os.environ, "PYTHONPATH": other}
    process = toy_store.start(tmp_path / "there", "host=7", *arguments, env=there)
    (entry,) = toy_store.finish(process)
    tools = StoreReader(tmp_path / "there").kernel(entry["key"])["spec"]["toolchain"]
    assert entry["compiled"] and tools["apache-tvm-ffi"] == "9.9.9"

    nowhere = {**os.environ, "PYTHONPATH": other_tools(tmp_path, "8.8.8")}
    process = toy_store.start(tmp_path / "nowhere", "host=7", *arguments, env=nowhere)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    last = err.strip().splitlines()[-1]
    assert "(planned with 8.8.8): install the same one, on every node of the Ray cluster" in last


def test_no_cluster_is_one_line(tmp_path: Path, graph_files: list[Path]) -> None:
    build = ("build", *graph_files, "-t", "cpu", "-o", tmp_path / "store", "--executor", "ray")
    done = run_cli(*build, "--ray-address", "127.0.0.1:1")  # where nobody listens
    assert_one_line_error(done, 2, "no Ray cluster (address '127.0.0.1:1'): ", "ray start --head")


def test_without_ray_one_line_names_the_extra(tmp_path: Path, graph_files: list[Path]) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('no ray')\n")
    build = ("build", *graph_files, "-t", "cpu", "-o", tmp_path / "store", "--executor", "ray")
    done = run_cli(*build, env={"PYTHONPATH": str(tmp_path)})
    assert_one_line_error(done, 2, "ray is not installed: pip install 'cudnn-aot[ray]'")
