"""Finding a CUDA runtime library. Only GPU plans need one, and only from their first use on."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from cudnn_aot import _native
from cudnn_aot.errors import RequirementError

VARIABLE = "CUDNN_AOT_CUDART"

# Where the wheels nvidia-cuda-runtime and nvidia-cuda-runtime-cu12 put it, below `nvidia`.
_WHEEL_PATHS = ("cu13/lib/libcudart.so.13", "cuda_runtime/lib/libcudart.so.12")
_SONAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
_SYSTEM_FOLDERS = ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")


def find() -> str:
    """Path of the libcudart that kernels use; loads it and makes it visible to them.

    In order: ``CUDNN_AOT_CUDART``, one that this process has loaded already (torch's, for one),
    the ``nvidia-cuda-runtime`` wheels, the system's search path. The first answer stays.

    Raises:
        RequirementError: there is none, or the one named by the variable does not load.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return str(_native.load_cudart(named))
    if loaded := _native.loaded_cudart():
        return str(_native.load_cudart(loaded))
    for path in _wheel_libraries():
        return str(_native.load_cudart(str(path)))
    found = _native.load_cudart()
    if found is None:
        raise RequirementError(
            "no libcudart: got none in this process, in an nvidia-cuda-runtime wheel or on the "
            f"system, want libcudart.so.12 or .13; install nvidia-cuda-runtime or set {VARIABLE}"
        )
    return found


def locate() -> str | None:
    """The path that `find` would take, if it can be told without loading anything."""
    named = os.environ.get(VARIABLE)
    if named:
        return named if "/" not in named or os.path.isfile(named) else None
    if loaded := _native.loaded_cudart():
        return str(loaded)
    for path in _wheel_libraries():
        return str(path)
    folders = [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    for folder in (*folders, *_SYSTEM_FOLDERS):
        for name in _SONAMES:
            if os.path.isfile(path := Path(folder) / name):
                return str(path)
    return None


def _wheel_libraries() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")  # a namespace: nothing is imported
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for relative in _WHEEL_PATHS:
            path = Path(folder) / relative
            if os.path.isfile(path):
                yield path
