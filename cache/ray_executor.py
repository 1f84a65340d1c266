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
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
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
# What Ray is asked for a worker, in its words.
_ROOM = {"CPU": 1, "memory": WORKER_BUDGET_BYTES}
# A cold worker starts in seconds; whoever waits longer is told, each time after twice as long.
_QUIET_S = 8.0
# RFC 9113, 3.4: with this a client begins and with a SETTINGS frame any server answers, and gRPC,
# which Ray speaks, is HTTP/2.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_BYTES, _SETTINGS = 9, 4
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
        jobs: kernels at once; None for as many as the cluster has room for.
        start_timeout_s: a kernel fails for which the cluster starts no worker in this time.

    Raises:
        UsageError: Ray is not installed, there is no such cluster, or none of its nodes has room
            for a worker.
    """

    def __init__(
        self,
        address: str | None = None,
        jobs: int | None = None,
        notice: Notice = silent,
        start_timeout_s: float = 600,
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
        self._start_timeout_s = start_timeout_s
        self._quiet_s = _QUIET_S
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            self._connect(address)
        nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
        room = sum(map(_room, nodes))
        if not room:
            if self._is_ours:
                ray.shutdown()
            raise UsageError(
                f"--executor ray: no node has room for a worker: got {_best(nodes)}, want "
                f"{_described(_ROOM)}: start nodes with `ray start --num-cpus N --memory BYTES`"
            )
        self.jobs = room if jobs is None else min(jobs, room)

    def compile(self, spec: KernelSpec) -> Compiled | Failed:
        """Compile ``spec``; waits for a worker, and for the cluster to have room for one."""
        lost = 0
        while True:
            worker = self._take()
            if isinstance(worker, Failed):
                return worker
            try:
                if not worker.node:
                    started = self._await_start(worker)
                    if isinstance(started, Failed):
                        self._drop(worker)
                        return started
                    worker = started
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
            _knock(_running() if address == "auto" else address)
            with _without_stderr():
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

    def _await_start(self, worker: _Worker) -> _Worker | Failed:
        """The worker once it runs, another that is idle before, or why there is none.

        That it ended is raised as Ray has it.
        """
        answer = worker.actor.node.remote()
        began = time.monotonic()
        while not self._ray.wait([answer], timeout=1)[0]:
            waited = time.monotonic() - began
            free = _described(self._ray.available_resources())
            lacks = f"the Ray cluster has {free} free, want {_described(_ROOM)} on one node"
            if waited >= self._start_timeout_s:
                return Failed(f"no Ray worker started in {waited:.0f} s: {lacks}")
            with self._changed:
                spare = self._idle.pop() if self._idle else None
            if spare is not None:  # where others use the cluster, there may never be room
                self._drop(worker)
                return spare
            with self._changed:
                is_news = waited >= self._quiet_s
                if is_news:
                    self._quiet_s *= 2
            if is_news:
                self._notice(f"waiting for a Ray worker ({waited:.0f} s): {lacks}")
        worker.node = self._ray.get(answer)
        return worker

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
            options: dict[str, Any] = {"num_cpus": _ROOM["CPU"], "memory": _ROOM["memory"]}
            if refused:
                options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(refused))})"}
            remote = self._ray.remote(CompileWorker).options(**options)
            worker = _Worker(remote.remote([str(folder) for folder in recipe_folders()]))
            self._workers.append(worker)
            return worker

    def _nodes(self) -> set[str]:
        """The nodes that a worker could run on."""
        nodes = self._ray.nodes()
        return {str(n["NodeID"]) for n in nodes if n["Alive"] and _room(n["Resources"])}

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


def _room(resources: Mapping[str, float]) -> int:
    """The workers that a node with these resources runs at once."""
    return min(int(resources.get(name, 0) // each) for name, each in _ROOM.items())


def _described(resources: Mapping[str, float]) -> str:
    """Processors and memory in the words of `ray start`."""
    processors, memory_bytes = (resources.get(name, 0) for name in _ROOM)
    return f"{processors:g} CPU and {memory_bytes / (1 << 30):.2f} GiB of Ray memory"


def _best(nodes: Sequence[Mapping[str, float]]) -> str:
    if not nodes:
        return "no node"
    nearest = max(nodes, key=lambda node: [min(1, node.get(n, 0) / _ROOM[n]) for n in _ROOM])
    return f"at best {_described(nearest)}"


def _running() -> str:
    """The address of the cluster that Ray would find here; raises ConnectionError if none runs."""
    from ray._private import services  # where Ray leaves that address is its own affair

    return str(services.canonicalize_bootstrap_address("auto"))


def _knock(address: str) -> None:
    """Raises OSError where nobody listens, or another service does: Ray itself would go on trying
    for up to twenty minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdecimal()):
        return
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S) as connection:
        deadline = time.monotonic() + _KNOCK_S
        answer = b""
        try:
            connection.sendall(_PREFACE)
            while len(answer) < _FRAME_BYTES and time.monotonic() < deadline:
                part = connection.recv(_FRAME_BYTES - len(answer))
                if not part:
                    break
                answer += part
        except OSError:
            pass  # it hung up, or says nothing
    if len(answer) < _FRAME_BYTES or answer[3] != _SETTINGS:
        raise OSError("another service listens there, or a Ray that does not answer")


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """The descriptor is what Ray's C++ writes to; no option stops it."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as null:
            os.dup2(null.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".:") if lines else type(error).__name__


__all__ = ["CompileWorker", "RayExecutor"]
