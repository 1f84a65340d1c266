"""Building on a real Ray cluster: lost workers, nodes of other tools, no cluster at all."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
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
    """Its kernel is compiled elsewhere, and the store is that of a local build.

    The compile worker is stopped as soon as it is there, importing the DSL, so it compiles nothing.
    """
    store = tmp_path / "store"
    command = [sys.executable, "-m", "cudnn_aot.cli.main", "build", *map(str, graph_files)]
    command += ["-t", "cpu", "-o", str(store), "--executor", "ray"]
    build = subprocess.Popen(
        [*command, "--ray-address", cluster.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (workers := cluster.workers()):
        assert time.monotonic() < deadline and build.poll() is None, "no worker started"
    actor, (compiler,) = next(iter(workers.items()))
    os.kill(compiler, signal.SIGSTOP)
    os.kill(actor, signal.SIGKILL)
    os.kill(compiler, signal.SIGKILL)
    out, err = build.communicate(timeout=120)
    assert build.returncode == 0, err
    assert err.count("its Ray worker was lost: ") == 1, err
    assert err.count("; it is compiled again elsewhere\n") == 1, err
    assert "kernels: 2 compiled, 0 already there" in out and "with -j 2" in out, out
    assert tree_digest(store) == tree_digest(built_store)
    assert cluster.workers() == {}


def wait_for(sign: Path, process: "subprocess.Popen[str]") -> None:
    while not sign.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.slow
def test_a_worker_killed_while_it_traces(cluster: RayCluster, tmp_path: Path) -> None:
    """Who waits at the gate is the kernel's template: killed there, it comes a second time."""
    gate = tmp_path / "gate"
    arguments = ("host=11", "--gate", str(gate), "--ray", cluster.address)
    process = toy_store.start(tmp_path / "store", *arguments)
    wait_for(tmp_path / "gate-0", process)
    ((actor, _),) = cluster.workers().items()
    os.kill(actor, signal.SIGKILL)
    wait_for(tmp_path / "gate-1", process)
    assert list(cluster.workers()) != [actor]
    gate.touch()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    (entry,) = (
        json.loads(line) for line in out.splitlines() if line.startswith("{")
    )  # Ray prints too
    (notice,) = entry["notices"]
    assert entry["compiled"]
    assert notice.startswith(f"toys.kernels.elementwise:host {entry['key'][:12]}: its Ray worker ")
    assert notice.endswith("; it is compiled again elsewhere")


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


@pytest.mark.slow
def test_no_node_has_room(tmp_path: Path, graph_files: list[Path]) -> None:
    """What two nodes have together is no room on one; said at once."""
    with ray_cluster(memory_bytes=600_000_000) as small:
        small.add_node(0)
        build = ("build", *graph_files, "-t", "cpu", "-o", tmp_path / "store", "--executor", "ray")
        done = run_cli(*build, "--ray-address", small.address)
    got = "got at best 2 CPU and 0.56 GiB of Ray memory, want 1 CPU and 1.00 GiB of Ray memory: "
    assert_one_line_error(done, 2, "no node has room for a worker: ", got, "ray start --num-cpus")


_BESIDE_ANOTHER = """
import sys
import ray, toy_store
from cudnn_aot.cache.ray_executor import RayExecutor

@ray.remote(num_cpus=2)
class Other:
    def there(self): pass

ray.init(address=sys.argv[1], log_to_driver=False)
other = Other.remote()
ray.get(other.there.remote())
toy_store.use_toys()
executor = RayExecutor(notice=print, start_timeout_s=9.5)
print(executor.compile(toy_store.toy_spec(scale=21.0)).reason)
"""


@pytest.mark.slow
def test_a_cluster_that_others_fill(tmp_path: Path) -> None:
    with ray_cluster() as full:
        done = subprocess.run(
            [sys.executable, "-c", _BESIDE_ANOTHER, full.address],
            env={**os.environ, "PYTHONPATH": str(Path(toy_store.__file__).parent)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    waiting, failed = done.stdout.splitlines()
    lacks = ": the Ray cluster has 0 CPU and 4.00 GiB of Ray memory free, want 1 CPU and 1.00 GiB"
    assert waiting.startswith("waiting for a Ray worker (") and lacks in waiting
    assert failed.startswith("no Ray worker started in ") and lacks in failed


def test_another_service_at_the_address(tmp_path: Path, graph_files: list[Path]) -> None:
    """Said once, and nothing of what Ray says meanwhile."""
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        build = ("build", *graph_files, "-t", "cpu", "-o", tmp_path / "store", "--executor", "ray")
        address = f"127.0.0.1:{other.server_port}"
        done = run_cli(*build, "--ray-address", address)
        other.shutdown()
    assert_one_line_error(done, 2, f"no Ray cluster (address '{address}'): another service listens")
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("address", [(), ("--ray-address", "local")])
def test_a_cluster_needs_a_network(
    address: tuple[str, ...], tmp_path: Path, graph_files: list[Path]
) -> None:
    build = ("build", *graph_files, "-t", "cpu", "-o", tmp_path / "store", "--executor", "ray")
    for done in (
        run_cli(*build, *address, env={"CUDNN_AOT_OFFLINE": "1"}),
        run_cli(*build, *address, "--offline"),
    ):
        assert_one_line_error(done, 2, "--executor ray needs a network and this is offline: ")
    assert not (tmp_path / "store").exists()


def test_no_cluster_is_one_line(tmp_path: Path, graph_files: list[Path]) -> None:
    build = ("build", *graph_files, "-t", "cpu", "-o", tmp_path / "store", "--executor", "ray")
    done = run_cli(*build, "--ray-address", "127.0.0.1:1")  # where nobody listens
    assert_one_line_error(done, 2, "no Ray cluster (address '127.0.0.1:1'): ", "ray start --head")


def test_without_ray_one_line_names_the_extra(tmp_path: Path, graph_files: list[Path]) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('no ray')\n")
    build = ("build", *graph_files, "-t", "cpu", "-o", tmp_path / "store", "--executor", "ray")
    done = run_cli(*build, env={"PYTHONPATH": str(tmp_path)})
    assert_one_line_error(done, 2, "ray is not installed: pip install 'cudnn-aot[ray]'")
