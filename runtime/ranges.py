"""NVTX ranges around executes, with ``CUDNN_AOT_NVTX=1``. Imported then and not otherwise.

NVTX is that of an ``nvidia-nvtx`` wheel, else one that the process or the system has by its usual
name. It does nothing until a profiler attaches.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "CUDNN_AOT_NVTX"
# Of NVTX 3, and of 2, which came with CUDA until 12; each exports the same C functions.
_SONAMES = ("libnvtx3interop.so.1", "libnvToolsExt.so.1")
_WHEEL_PATHS = (
    "cu13/lib/libnvtx3interop.so.1",
    "nvtx/lib/libnvtx3interop.so.1",
    "nvtx/lib/libnvToolsExt.so.1",
)


@functools.cache
def library() -> ctypes.CDLL | None:
    """NVTX, or None, which is said once on standard error."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    wheels = [str(Path(folder) / path) for folder in folders for path in _WHEEL_PATHS]
    for name in (*[path for path in wheels if os.path.isfile(path)], *_SONAMES):
        try:
            found = ctypes.CDLL(name)
            found.nvtxRangePushA.argtypes = [ctypes.c_char_p]
            found.nvtxRangePop.argtypes = []
        except (OSError, AttributeError):
            continue
        return found
    if sys.stderr is not None:
        print(
            f"cudnn-aot warning: {VARIABLE} is set and there is no NVTX: got none of "
            f"{', '.join(_SONAMES)}; install nvidia-nvtx",
            file=sys.stderr,
        )
    return None


def ranged(execute: Callable[..., None], name: str) -> Callable[..., None]:
    """``execute`` within a range named for its plan; itself if there is no NVTX."""
    nvtx = library()
    if nvtx is None:
        return execute
    label = name.encode("utf-8", "replace").replace(b"\0", b" ")
    push, pop = nvtx.nvtxRangePushA, nvtx.nvtxRangePop

    @functools.wraps(execute)
    def call(*args: Any, **kwargs: Any) -> None:
        push(label)
        try:
            execute(*args, **kwargs)
        finally:
            pop()

    return call


__all__ = ["VARIABLE", "ranged"]
