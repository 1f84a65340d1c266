"""A real Ray cluster on this machine, in a process of its own, that ends with its standard input.

Run as a script with the memory of its first node it prints the cluster's address, then for each
line of stdin ``{"cpus": n, "env": {...}}`` adds a node whose workers have these variables, and
prints the node's id.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class RayCluster:
    """A running cluster; the first node has two processors and, unless asked for less, 4 GiB."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._line()

    def add_node(self, cpus: int, **env: str) -> str:
        """Another node; returns its id."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"cpus": cpus, "env": env}) + "\n")
        self._process.stdin.flush()
        return self._line()

    def workers(self) -> dict[int, list[int]]:
        """Processes of actors that have started a compile worker, and of those."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                title = (process / "cmdline").read_bytes().split(b"\0")[0]
                children = [p.read_text() for p in process.glob("task/*/children")]
                environment = (process / "environ").read_bytes()
            except OSError:
                continue
            is_ours = f"CUDNN_AOT_TEST_CLUSTER={self._process.pid}".encode() in environment
            if title.startswith(b"ray::CompileWorker") and is_ours and any(children):
                found[int(process.name)] = [int(child) for child in " ".join(children).split()]
        return found

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.endswith("\n"), "the cluster ended"
        return line.strip()


@contextmanager
def ray_cluster(memory_bytes: int = 4 << 30) -> Iterator[RayCluster]:
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        [sys.executable, __file__, str(memory_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
    )
    try:
        yield RayCluster(process)
    finally:
        process.communicate(timeout=60)


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints
    from ray.cluster_utils import Cluster

    mark: dict[str, Any] = {"env_vars": {"CUDNN_AOT_TEST_CLUSTER": str(os.getpid())}}
    memory = {"memory": 4 << 30, "object_store_memory": 80 << 20}
    head = {"num_cpus": 2, **mark, **memory, "memory": int(sys.argv[1])}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    print(cluster.address, file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        variables = {**mark["env_vars"], **asked["env"]}
        node = cluster.add_node(num_cpus=asked["cpus"], env_vars=variables, **memory)
        print(node.node_id, file=answers, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    _serve()
