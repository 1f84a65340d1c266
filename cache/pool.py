"""The local executor: compile workers on this machine, kept warm.

Workers are processes, since the DSL neither survives threads nor its own aborts. One serves one
(arch, flavour) and is started when a kernel needs it. At most ``jobs`` live at a time; an idle one
of another kind makes room. A worker that dies takes one kernel with it, and the next kernel gets a
new worker. A kernel whose worker was killed, as the system does for want of memory, is compiled
once more with no other worker alive.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from types import TracebackType

from cudnn_aot.cache.executor import Cause, Compiled, Failed, Notice, silent
from cudnn_aot.cache.jobs import available_memory_bytes
from cudnn_aot.cache.source import recipe_folders
from cudnn_aot.cache.spec import KernelSpec
from cudnn_aot.cache.worker_process import WorkerProcess

_CLOSED = Failed("the compiler pool was closed", cause=Cause.CLOSED)


class CompilerPool:
    """Compiles kernels in up to ``jobs`` worker processes; thread-safe; a context manager.

    A worker resolves templates where this process does: in ``cudnn_aot.recipes.__path__``.
    """

    def __init__(self, jobs: int, notice: Notice = silent) -> None:
        if jobs < 1:
            raise ValueError(f"jobs is {jobs}, want 1 or more")
        self.jobs = jobs
        self._notice = notice
        self._changed = threading.Condition()
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._starting = 0
        self._is_one_alone = False
        self._closed = False
        self._folder = tempfile.TemporaryDirectory(prefix="cudnn-aot-")

    def compile(self, spec: KernelSpec) -> Compiled | Failed:
        """Compile ``spec``; waits for a worker."""
        outcome = self._compile_once(spec)
        if not isinstance(outcome, Failed) or outcome.cause is not Cause.KILLED:
            return outcome
        with self._changed:
            if self._closed:
                return _CLOSED
        self._notice(
            f"{spec.template} {spec.key[:12]}: {outcome.reason}; it is compiled again alone"
        )
        self._begin_alone()
        try:
            available = available_memory_bytes()
            again = self._compile_once(spec, alone=True)
        finally:
            self._end_alone()
        if isinstance(again, Failed) and again.cause is Cause.KILLED:
            memory = f"{available / (1 << 30):.1f} GiB of memory available"
            return Failed(f"{again.reason}, the second time alone, with {memory}", again.log)
        return again

    def close(self) -> None:
        """End every worker, in the middle of a compile too."""
        with self._changed:
            self._closed = True
            workers = [*self._idle, *self._busy]
            self._idle.clear()
            self._changed.notify_all()
        for worker in workers:
            worker.end()
        self._folder.cleanup()

    def __enter__(self) -> CompilerPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _compile_once(self, spec: KernelSpec, alone: bool = False) -> Compiled | Failed:
        worker = self._take(spec.gpu_arch, spec.dsl_flavor, alone)
        if isinstance(worker, Failed):
            return worker
        try:
            outcome = worker.compile(spec)
        except BaseException:
            worker.is_alive = False  # who knows what it will answer next
            raise
        finally:
            self._give_back(worker)
        return _CLOSED if isinstance(outcome, Failed) and self._closed else outcome

    def _take(self, arch: str, flavor: str, alone: bool) -> WorkerProcess | Failed:
        spare: WorkerProcess | None = None
        with self._changed:
            while True:
                if self._closed:
                    return _CLOSED
                if self._is_one_alone and not alone:
                    self._changed.wait()
                    continue
                for worker in self._idle:
                    if worker.kind == (arch, flavor):
                        self._idle.remove(worker)
                        self._busy.add(worker)
                        return worker
                if len(self._idle) + len(self._busy) + self._starting < self.jobs:
                    break
                if self._idle:
                    spare = self._idle.pop(0)
                    break
                self._changed.wait()
            self._starting += 1
        if spare is not None:
            spare.end()
        made: WorkerProcess | Failed
        try:
            made = WorkerProcess(arch, flavor, Path(self._folder.name), recipe_folders())
        except OSError as error:
            made = Failed(f"no compile worker could start: {str(error.strerror).lower()}")
        with self._changed:
            self._starting -= 1
            closed = self._closed
            if isinstance(made, WorkerProcess) and not closed:
                self._busy.add(made)
            self._changed.notify_all()
        if isinstance(made, WorkerProcess) and closed:
            made.end()
            return _CLOSED
        return made

    def _give_back(self, worker: WorkerProcess) -> None:
        with self._changed:
            self._busy.discard(worker)
            keep = worker.is_alive and not self._closed
            if keep:
                self._idle.append(worker)
            self._changed.notify_all()
        if not keep:
            worker.end()

    def _begin_alone(self) -> None:
        """Wait until nothing compiles and end what idles: a warm worker holds memory too."""
        with self._changed:
            while self._is_one_alone and not self._closed:
                self._changed.wait()
            self._is_one_alone = True
            while (self._busy or self._starting) and not self._closed:
                self._changed.wait()
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()

    def _end_alone(self) -> None:
        with self._changed:
            self._is_one_alone = False
            self._changed.notify_all()
