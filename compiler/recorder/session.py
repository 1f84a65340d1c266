"""``cudnn_aot.record()``: records the graphs that the current process builds while a block runs."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from cudnn_aot.compiler.recorder import hook
from cudnn_aot.compiler.recorder.collection import (
    Recording,
    collect,
    prepare_folder,
    write_recording,
)
from cudnn_aot.compiler.recorder.spool import read_spool

INJECTED = "_cudnn_aot_recorder_hook"  # the hook's name in a program run by `cudnn-aot record`

_F = TypeVar("_F", bound=Callable[..., Any])


@contextmanager
def _unrecorded() -> Iterator[None]:
    """Graphs that this thread makes meanwhile are the recorder's own, for every recorder."""
    hooks = [module for module in (hook, sys.modules.get(INJECTED)) if module is not None]
    for module in hooks:
        module._busy.now = True
    try:
        yield
    finally:
        for module in hooks:
            module._busy.now = False


def _remove(spool: Path, owner: int) -> None:
    """Remove the spool; a forked process that ends earlier must leave it alone."""
    if os.getpid() == owner:
        shutil.rmtree(spool, ignore_errors=True)


class record:  # noqa: N801  (used like a function)
    """Record graphs into a folder, as a context manager or a decorator.

    ``with cudnn_aot.record("graphs/") as recording:`` writes the files when the block ends, however
    it ends; `recording.result` then tells what was found. As a decorator it writes after each
    call, everything recorded so far included. Blocks of one object may nest and may run in several
    threads: the outermost end writes. Processes forked inside the block are recorded too.

    Args:
        folder: where graph files go; made if absent.
        symbolize: write extents that vary within a class as symbols.

    Raises:
        UsageError: on entry, if the folder cannot be written. Later trouble is a warning.
    """

    def __init__(self, folder: str | os.PathLike[str], *, symbolize: bool = True) -> None:
        self.folder = Path(folder)
        self.symbolize = symbolize
        self.result: Recording | None = None
        self._lock = threading.Lock()
        self._depth = 0
        self._process = 0
        self._spool: Path | None = None
        self._recorder: hook.Recorder | None = None

    def __enter__(self) -> record:
        with self._lock:
            if self._depth == 0:
                prepare_folder(self.folder)
                if self._spool is None:
                    self._spool = Path(tempfile.mkdtemp(prefix="cudnn-aot-record-"))
                    self._recorder = hook.Recorder(str(self._spool))
                    weakref.finalize(self, _remove, self._spool, os.getpid())
                self._process = os.getpid()
                assert self._recorder is not None
                hook.install(self._recorder)
            self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth or os.getpid() != self._process:  # a fork's records are its parent's
                return
            assert self._recorder is not None and self._spool is not None
            hook.uninstall(self._recorder)
            try:
                with _unrecorded():
                    spool = read_spool(self._spool)
                    self.result = collect(spool, symbolize=self.symbolize)
                    write_recording(self.result, self.folder)
            except Exception as failure:  # the program goes on without its recording
                warnings.warn(f"no graphs written to {self.folder}: {failure}", stacklevel=2)

    def __call__(self, function: _F) -> _F:
        @wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return recorded  # type: ignore[return-value]
