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


def _wheel_libraries() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")  # a namespace: nothing is imported
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for relative in _WHEEL_PATHS:
            path = Path(folder) / relative
            if path.is_file():
                yield path
