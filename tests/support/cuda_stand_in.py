"""Runs Python code in a process whose CUDA libraries are stand-ins that only keep a log."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SUPPORT = Path(__file__).parent

_PRELUDE = """
import ctypes
import sys

import numpy as np
from tables import *

from cudnn_aot import _native, errors
from cudnn_aot.runtime import cudart
from cudnn_aot.runtime.plan import initialise_ffi

initialise_ffi()
cudart.find()


class OnDevice:
    def __init__(self, shape, device=0, address=0x1000, typestr="<f4"):
        self.device = type("Device", (), {"id": device})
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": typestr, "data": (address, False), "version": 3}


def load(symbol):
    return _native.load_kernel(library(), symbol)
"""


@functools.cache
def _libraries() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="cuda_stand_in_"))
    for name, flags in (("libcudart.so.13", ()), ("libcuda.so.1", ("-DDRIVER",))):
        subprocess.run(
            [
                shutil.which("cc") or "cc",
                "-shared",
                "-fPIC",
                *flags,
                SUPPORT / "cuda_stand_in.c",
                "-o",
                folder / name,
            ],
            check=True,
        )
    return folder


def environment(**settings: int) -> dict[str, str]:
    """Variables under which a process has the stand-ins for CUDA; ``settings`` as of `run`."""
    folder = _libraries()
    return {
        "LD_LIBRARY_PATH": str(folder),
        "CUDNN_AOT_CUDART": str(folder / "libcudart.so.13"),
        "STAND_IN_LOG": os.devnull,
        "STAND_IN_SET": " ".join(f"{name}={value}" for name, value in settings.items()),
    }


def run(code: str, *arguments: object, prelude: str = _PRELUDE, **settings: int) -> list[str]:
    """The log of ``code``; raises with its standard error if it fails.

    ``settings`` change what the devices report: ``major=8``, ``driver=12000``, ``devices=1``.
    """
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        log.touch()
        done = subprocess.run(
            [sys.executable, "-c", prelude + code, *map(str, arguments)],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                **environment(**settings),
                "STAND_IN_LOG": str(log),
                "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
            },
        )
        if done.returncode:
            raise AssertionError(done.stderr)
        return log.read_text().splitlines()
