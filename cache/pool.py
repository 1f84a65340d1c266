"""A pool of compile workers: processes, since the DSL neither survives threads nor its own aborts.

A worker serves one (arch, flavour) and is started when a kernel needs it. At most ``jobs`` live at
a time; an idle one of another kind makes room. A worker that dies takes one kernel with it,
which is reported against that kernel, and the next kernel gets a new worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from cudnn_aot.cache.source import recipe_folders
from cudnn_aot.cache.spec import KernelSpec
from cudnn_aot.errors import CompileError

# A compile sees these and no other variable of the builder's.
_PASSED = (
    "PATH",
    "HOME",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "PYTHONNOUSERSITE",
)
_FIXED = {
    "LC_ALL": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """An object file, and what its template said about it."""

    path: Path
    smem_bytes: int
    seconds: float


class CompilerPool:
    """Compiles kernels in up to ``jobs`` worker processes; thread-safe; a context manager.

    A worker resolves templates where this process does: in ``cudnn_aot.recipes.__path__``.
    """

    def __init__(self, jobs: int) -> None:
        if jobs < 1:
            raise ValueError(f"jobs is {jobs}, want 1 or more")
        self.jobs = jobs
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._starting = 0
        self._closed = False
        self._folder = tempfile.TemporaryDirectory(prefix="cudnn-aot-")

    def compile(self, spec: KernelSpec, output: Path) -> Compiled:
        """Compile ``spec`` into the object file ``output``; waits for a worker.

        Raises:
            CompileError: one line with the reason and the path of the log.
        """
        try:
            worker = self._take(spec.gpu_arch, spec.dsl_flavor)
        except _WorkerFailed as failure:
            raise _failed(spec, failure) from None
        alive = False
        try:
            answer = worker.compile(spec, output)
            alive = True
        except _WorkerFailed as failure:
            raise _failed(spec, failure) from None
        finally:
            self._give_back(worker, alive)
        if not answer["ok"]:
            raise _failed(spec, _WorkerFailed(str(answer["error"]), worker.log_tail()))
        return Compiled(output, int(answer["smem_bytes"]), float(answer["seconds"]))

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

    def _take(self, arch: str, flavor: str) -> _Worker:
        spare: _Worker | None = None
        with self._changed:
            while True:
                if self._closed:
                    raise _WorkerFailed("the compiler pool was closed", "")
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
        try:
            if spare is not None:
                spare.end()
            worker = _Worker(arch, flavor, Path(self._folder.name))
        finally:
            with self._changed:
                self._starting -= 1
                self._changed.notify_all()
        with self._changed:
            if not self._closed:
                self._busy.add(worker)
                return worker
        worker.end()
        raise _WorkerFailed("the compiler pool was closed", "")

    def _give_back(self, worker: _Worker, alive: bool) -> None:
        with self._changed:
            self._busy.discard(worker)
            keep = alive and not self._closed
            if keep:
                self._idle.append(worker)
            self._changed.notify_all()
        if not keep:
            worker.end()


class _WorkerFailed(Exception):
    """The reason in one line, and what the worker printed."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(reason)
        self.log = log


class _Worker:
    """One worker process; used by one thread at a time."""

    def __init__(self, arch: str, flavor: str, folder: Path) -> None:
        self.kind = (arch, flavor)
        self._ready = False
        self._job_starts = 0
        try:
            self._log = tempfile.TemporaryFile(dir=folder)
            home = tempfile.mkdtemp(dir=folder)  # empty: nothing to import, dumps stay here
        except OSError as error:
            raise _WorkerFailed(f"no compile worker could start: {error.strerror}", "") from None
        command = [sys.executable, "-B", "-m", "cudnn_aot.cache.worker"]
        command += ["--arch", arch, "--flavor", flavor, "--home", home]
        for recipes in recipe_folders():
            command += ["--recipes", str(recipes)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                cwd=home,
                env=_environment(home),
                # Ctrl-C is for the builder, which then ends its workers.
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise _WorkerFailed(f"no compile worker could start: {error.strerror}", "") from None

    def compile(self, spec: KernelSpec, output: Path) -> dict[str, Any]:
        if not self._ready:
            hello = self._read("importing the DSL")
            if "fatal" in hello:
                raise _WorkerFailed(str(hello["fatal"]), self.log_tail())
            self._ready = True
        self._job_starts = os.fstat(self._log.fileno()).st_size
        job = spec.canonical()
        del job["version"], job["toolchain"]
        self._write({**job, "output": str(output.resolve())})
        return self._read("compiling")

    def log_tail(self) -> str:
        """What the worker printed during the last job."""
        try:
            size = os.fstat(self._log.fileno()).st_size - self._job_starts
            data = os.pread(self._log.fileno(), max(size, 0), self._job_starts)
        except ValueError:  # closed by end()
            return ""
        return data.decode("utf-8", "replace")

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._log.close()

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._died("waiting for work") from None

    def _read(self, doing: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            line = self._process.stdout.readline()
        except ValueError:  # closed by end()
            line = b""
        if not line.endswith(b"\n"):
            raise self._died(doing)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self, doing: str) -> _WorkerFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        code = self._process.returncode
        if code is None:
            how = "closed its output"
        elif code == -signal.SIGKILL or code == 137:
            how = "was killed (out of memory?)"
        elif code < 0:
            how = f"died of {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        return _WorkerFailed(f"the compile worker {how} while {doing}", self.log_tail())


def _environment(home: str) -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {**passed, **_FIXED, "TMPDIR": home}


def _failed(spec: KernelSpec, failure: _WorkerFailed) -> CompileError:
    arch = spec.gpu_arch or spec.host_level
    message = f"kernel {spec.template} ({spec.key[:12]}, {arch}) did not compile: {failure}"
    # The DSL's own error for this only says that a library "could not be resolved".
    missing = re.search(r"Symbols not found: \[ *(.+?) *\]", failure.log)
    if missing:
        message += f" (symbols not found: {missing.group(1)})"
    log = _keep_log(spec, failure.log)
    return CompileError(message + (f"; log: {log}" if log else ""))


def _keep_log(spec: KernelSpec, text: str) -> Path | None:
    """Keep what the worker printed where the user can read it after the build."""
    if not text.strip():
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    for base in (Path(cache), Path(tempfile.gettempdir())):
        path = base / "cudnn-aot" / "logs" / f"{spec.key[:16]}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError:
            continue
        return path
    return None
