"""The Ray executor: compile workers on the machines of a Ray cluster.

Each Ray worker is an actor that holds a local pool of one: the compile runs in the same worker
process as in a local build, with the same guarantees. The cluster needs this package with its
``compile`` extra on every node and nothing else; a node whose worker refuses a kernel, since its
sources or its toolchain are others, gets no more of them. A worker that is lost, with its node or
alone, costs its kernel a repetition on another one.

Ray is imported when an executor is made, never before.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudnn_aot.cache.executor import Cause, Compiled, Failed, Notice, silent
from cudnn_aot.cache.jobs import WORKER_BUDGET_BYTES
from cudnn_aot.cache.pool import CompilerPool
from cudnn_aot.cache.source import add_recipe_folders, recipe_folders
from cudnn_aot.cache.spec import KernelSpec
from cudnn_aot.errors import UsageError

# Workers that a kernel may lose before it is held to be what ends them.
_TRIES = 3
_KNOCK_S = 10
_CLOSED = Failed("the Ray executor was closed", cause=Cause.CLOSED)


class CompileWorker:
    """What runs as an actor; of this class, a cluster shows its workers."""

    def __init__(self, recipes: Sequence[str]) -> None:
        add_recipe_folders(folder for folder in recipes if Path(folder).is_dir())
        self._pool = CompilerPool(1)

    def node(self) -> str:
        """The id of the node that it runs on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def compile(self, spec: KernelSpec) -> Compiled | Failed:
        return self._pool.compile(spec)


@dataclass(slots=True)
class _Worker:
    actor: Any
    node: str = ""


class RayExecutor:
    """Compiles kernels on a Ray cluster; thread-safe.

    Args:
        address: of the cluster; None for ``RAY_ADDRESS`` or the one that runs on this machine,
            ``"local"`` to start one for as long as the executor lives.
        jobs: kernels at once; None for as many as the cluster has processors.

    Raises:
        UsageError: Ray is not installed, or there is no such cluster.
    """

    def __init__(
        self, address: str | None = None, jobs: int | None = None, notice: Notice = silent
    ) -> None:
        try:
            import ray
        except ImportError:
            raise UsageError(
                "--executor ray: ray is not installed: pip install 'cudnn-aot[ray]'"
            ) from None
        self._ray = ray
        self._notice = notice
        self._changed = threading.Condition()
        self._workers: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._refused: dict[str, Failed] = {}
        self._closed = False
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            self._connect(address)
        processors = int(ray.cluster_resources().get("CPU", 0))
        self.jobs = max(1, processors if jobs is None else min(jobs, processors))

    def compile(self, spec: KernelSpec) -> Compiled | Failed:
        """Compile ``spec``; waits for a worker, and for the cluster to have room for one."""
        lost = 0
        while True:
            worker = self._take()
            if isinstance(worker, Failed):
                return worker
            try:
                if not worker.node:
                    worker.node = self._ray.get(worker.actor.node.remote())
                outcome: Compiled | Failed = self._ray.get(worker.actor.compile.remote(spec))
            except self._ray.exceptions.RayError as error:
                self._drop(worker)
                if self._closed:
                    return _CLOSED
                lost += 1
                reason = f"its Ray worker was lost: {_one_line(error)}"
                if lost == _TRIES:
                    return Failed(f"{reason}, {_TRIES} times", cause=Cause.KILLED)
                self._notice(
                    f"{spec.template} {spec.key[:12]}: {reason}; it is compiled again elsewhere"
                )
                continue
            if isinstance(outcome, Failed) and outcome.cause is Cause.REFUSED:
                self._refuse(worker, outcome)
                continue
            self._give_back(worker)
            return outcome

    def close(self) -> None:
        """End every worker, in the middle of a compile too; leave the cluster."""
        with self._changed:
            self._closed = True
            workers, self._workers, self._idle = self._workers, [], []
            self._changed.notify_all()
        for worker in workers:
            self._kill(worker)
        if self._is_ours:
            self._ray.shutdown()

    def _connect(self, address: str | None) -> None:
        address = address or os.environ.get("RAY_ADDRESS") or "auto"
        options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
        try:
            _knock(address)
            self._ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                **options,
            )
        except Exception as error:
            named = "none is running here" if address == "auto" else f"address {address!r}"
            raise UsageError(
                f"--executor ray: no Ray cluster ({named}): {_one_line(error)}; start one with "
                "`ray start --head`, or name one with --ray-address"
            ) from None

    def _take(self) -> _Worker | Failed:
        """An idle worker, or a new one that Ray starts where there is room."""
        with self._changed:
            while True:
                if self._closed:
                    return _CLOSED
                if self._idle:
                    return self._idle.pop()
                if len(self._workers) < self.jobs:
                    break
                self._changed.wait()
            refused = dict(self._refused)
            if refused and not self._nodes() - set(refused):
                failed = next(iter(refused.values()))
                return Failed(f"{failed.reason}, on every node of the Ray cluster", failed.log)
            options: dict[str, Any] = {"num_cpus": 1, "memory": WORKER_BUDGET_BYTES}
            if refused:
                options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(refused))})"}
            remote = self._ray.remote(CompileWorker).options(**options)
            worker = _Worker(remote.remote([str(folder) for folder in recipe_folders()]))
            self._workers.append(worker)
            return worker

    def _nodes(self) -> set[str]:
        """The nodes that a worker could run on."""
        nodes = self._ray.nodes()
        return {str(n["NodeID"]) for n in nodes if n["Alive"] and n["Resources"].get("CPU", 0) >= 1}

    def _give_back(self, worker: _Worker) -> None:
        with self._changed:
            if worker in self._workers:
                self._idle.append(worker)
            self._changed.notify_all()

    def _drop(self, worker: _Worker) -> None:
        with self._changed:
            if worker in self._workers:
                self._workers.remove(worker)
            self._changed.notify_all()
        self._kill(worker)

    def _refuse(self, worker: _Worker, failed: Failed) -> None:
        """No kernel goes to the worker's node again."""
        with self._changed:
            is_news = worker.node not in self._refused
            self._refused.setdefault(worker.node, failed)
            dropped = [w for w in self._idle if w.node == worker.node]
            self._idle = [w for w in self._idle if w.node != worker.node]
        for each in [worker, *dropped]:
            self._drop(each)
        if is_news:
            self._notice(f"Ray node {worker.node[:12]} compiles nothing: {failed.reason}")

    def _kill(self, worker: _Worker) -> None:
        with contextlib.suppress(Exception):  # it is gone, or the cluster is
            self._ray.kill(worker.actor)


def _knock(address: str) -> None:
    """Raises OSError where nobody listens: Ray itself would go on trying for twenty minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".:") if lines else type(error).__name__


__all__ = ["CompileWorker", "RayExecutor"]
