"""One compile worker process, as whoever started it sees it: ``python -m cudnn_aot.cache.worker``.

It serves one (arch, flavour) and one thread at a time. What it prints is kept, and it dies with the
process that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cudnn_aot.cache.executor import Cause, Compiled, Failed
from cudnn_aot.cache.spec import KernelSpec

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


class WorkerProcess:
    """A worker and its folder below ``folder``; after a compile that broke it only `end` is left.

    Attributes:
        kind: the arch and the flavour that it serves.
        is_alive: whether it can take another kernel.
    """

    def __init__(self, arch: str, flavor: str, folder: Path, recipes: Iterable[Path]) -> None:
        self.kind = (arch, flavor)
        self.is_alive = True
        self._ready = False
        self._job_starts = 0
        self._log = tempfile.TemporaryFile(dir=folder)
        try:
            # Empty: nothing to import, and dumps stay here.
            self._home = tempfile.mkdtemp(dir=folder)
            command = [sys.executable, "-B", "-m", "cudnn_aot.cache.worker"]
            command += ["--arch", arch, "--flavor", flavor, "--home", self._home]
            for place in recipes:
                command += ["--recipes", str(place)]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                cwd=self._home,
                env=_environment(self._home),
                # Ctrl-C is for the builder, which then ends its workers.
                start_new_session=True,
            )
        except OSError:
            self._log.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def compile(self, spec: KernelSpec) -> Compiled | Failed:
        """Compile one kernel; a worker that dies meanwhile is a failure of that kernel."""
        answer: dict[str, Any] | Failed
        if not self._ready:
            answer = self._read("importing the DSL")
            if isinstance(answer, Failed):
                return answer
            if "fatal" in answer:
                return self._broken(Failed(str(answer["fatal"]), self._printed(), Cause.REFUSED))
            self._ready = True
        try:
            self._job_starts = os.fstat(self._log.fileno()).st_size
        except ValueError:  # closed by end()
            return self._died("waiting for work")
        output = Path(self._home) / "kernel.o"
        job = spec.canonical()
        del job["version"]
        answer = self._ask({**job, "output": str(output)})
        if isinstance(answer, Failed):
            return answer
        if not answer["ok"]:
            cause = Cause.REFUSED if answer.get("refused") else Cause.KERNEL
            return Failed(str(answer["error"]), self._printed(), cause)
        try:
            data = output.read_bytes()
            output.unlink()
        except OSError as error:
            reason = f"the object cannot be read: {str(error.strerror).lower()}"
            return self._broken(Failed(reason, self._printed()))
        return Compiled(data, int(answer["smem_bytes"]), float(answer["seconds"]))

    def end(self) -> None:
        self.is_alive = False
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._log.close()

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any] | Failed:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            return self._died("waiting for work")
        return self._read("compiling")

    def _read(self, doing: str) -> dict[str, Any] | Failed:
        assert self._process.stdout is not None
        try:
            line = self._process.stdout.readline()
        except ValueError:  # closed by end()
            line = b""
        if not line.endswith(b"\n"):
            return self._died(doing)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _printed(self) -> str:
        """What the worker printed during the last job."""
        try:
            size = os.fstat(self._log.fileno()).st_size - self._job_starts
            data = os.pread(self._log.fileno(), max(size, 0), self._job_starts)
        except ValueError:  # closed by end()
            return ""
        return data.decode("utf-8", "replace")

    def _broken(self, failed: Failed) -> Failed:
        self.is_alive = False
        return failed

    def _died(self, doing: str) -> Failed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        code, cause = self._process.returncode, Cause.KERNEL
        if code is None:
            how = "closed its output"
        elif code in (-signal.SIGKILL, 128 + signal.SIGKILL):
            how, cause = "was killed (out of memory?)", Cause.KILLED
        elif code < 0:
            how = f"died of {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        return self._broken(
            Failed(f"the compile worker {how} while {doing}", self._printed(), cause)
        )


def _environment(home: str) -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {**passed, **_FIXED, "TMPDIR": home}
