"""Launch tables for tests, and hand-written kernels compiled with ``cc``."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from cudnn_aot.cache import launch_hook

Json = dict[str, Any]


@functools.cache
def library(version: int = 1) -> bytes:
    """The shared library of ``c_kernels.c``; another version has other bytes, the same symbols."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "kernels.so"
        source = Path(__file__).with_name("c_kernels.c")
        flags = ["-shared", "-fPIC", "-O1", f"-DVERSION={version}"]
        subprocess.run([shutil.which("cc") or "cc", *flags, source, "-o", output], check=True)
        return output.read_bytes()


@functools.cache
def launching_library() -> bytes:
    """The shared library of ``launching_kernels.c``, linked with the launch hook of GPU kernels."""
    with tempfile.TemporaryDirectory() as folder:
        output, hook = Path(folder) / "kernels.so", Path(folder) / "hook.c"
        hook.write_text(launch_hook.SOURCE)
        source = Path(__file__).with_name("launching_kernels.c")
        command = [shutil.which("cc") or "cc", "-shared", *launch_hook.FLAGS, source, hook]
        subprocess.run([*command, "-o", output], check=True)
        return output.read_bytes()


def operand(uid: int, dim: list[Any], stride: list[Any] | None = None, **fields: Any) -> Json:
    """An operand entry; strides default to a packed row-major layout of constant extents."""
    if stride is None:
        stride, step = [], 1
        for extent in reversed(dim):
            stride.insert(0, step)
            step *= extent
    entry = {"uid": uid, "name": f"t{uid}", "kind": "input", "dtype": "FLOAT"}
    return entry | {"dim": dim, "stride": stride} | fields


def scalar(uid: int, value: Any = None, dtype: str = "FLOAT") -> Json:
    return {"uid": uid, "name": f"t{uid}", "kind": "scalar", "dtype": dtype, "value": value}


def whole(entry: Json) -> Json:
    """The argument that passes an operand as the call bound it."""
    uid, rank = entry["uid"], len(entry["dim"])
    dim = [["dim", uid, axis] for axis in range(rank)]
    stride = [["stride", uid, axis] for axis in range(rank)]
    return {"arg": "tensor", "operand": uid, "dim": dim, "stride": stride}


def kernel(*args: Json, index: int = 0) -> Json:
    return {"step": "kernel", "kernel": index, "args": list(args)}


def table(operands: list[Json], *steps: Json, device: str = "cpu", **fields: Any) -> Json:
    """One branch that is always taken; ``fields`` replace parts of the table or its workspace."""
    workspace = fields.pop("workspace", [])
    return {
        "version": 1,
        "device": device,
        "symbols": {},
        "operands": sorted(operands, key=lambda entry: entry["uid"]),
        "checks": [],
        "dispatch": [{"when": True, "branch": "only"}],
        "branches": {"only": {"workspace": workspace, "steps": list(steps)}},
    } | fields


def symbol(low: int = 0, high: int = 1 << 20, multiple_of: int = 1) -> Json:
    return {"min": low, "max": high, "multiple_of": multiple_of}
