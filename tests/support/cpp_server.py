"""The example server: built by CMake against the installed package, and what it should answer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from cudnn_aot.cli.operands import compare, make_operands
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.reference.storage import from_storage, to_storage

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cpp-server"


def run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(folder: Path, python: str | Path = sys.executable) -> Path:
    """The program, built in ``folder`` without a warning against the install of ``python``."""
    beside = Path(sys.executable).with_name("cmake")
    cmake = beside if beside.exists() else shutil.which("cmake")
    place = run(python, "-m", "cudnn_aot", "--cmakedir").strip()
    settings = (f"-Dcudnn_aot_DIR={place}", "-DCMAKE_CXX_FLAGS=-Werror")
    run(cmake, "-S", EXAMPLE, "-B", folder, *settings)
    run(cmake, "--build", folder)
    return folder / "server"


def serve(
    server: Path, requests: str, *options: object, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """In an environment that has nothing of Python's, but for what ``env`` adds."""
    return subprocess.run(
        [server, *map(str, options)],
        input=requests,
        capture_output=True,
        text=True,
        env={"PATH": "/nonexistent", **(env or {})},
        cwd="/",
        timeout=120,
    )


def elements(uid: int, count: int) -> np.ndarray:
    """The floating-point elements that the server makes of an operand."""
    mixed = ((np.arange(count, dtype=np.uint64) + uid * 977) * 2654435761) & 0xFFFFFFFF
    sizes = 1 + (mixed >> 29).astype(np.int64)
    return np.where(mixed >> 28 & 1, -sizes, sizes) / 8


def check_outputs(graph: Graph, symbols: Mapping[str, int], place: str) -> dict[int, float]:
    """Compares what the server left at ``place`` with the reference; the sum of each output."""
    operands = make_operands(graph, symbols, seed=0)
    values = dict(operands.values)
    for buffer in operands.inputs:
        assert buffer.tensor.data_type is not None
        buffer.flat[...] = to_storage(
            elements(buffer.uid, buffer.flat.size), buffer.tensor.data_type
        )
        values[buffer.uid] = from_storage(buffer.view, buffer.tensor.data_type)
    sums = {}
    for buffer in operands.outputs:
        assert buffer.tensor.data_type is not None
        buffer.flat[...] = np.fromfile(f"{place}.{buffer.uid}", buffer.flat.dtype)
        stored = from_storage(buffer.flat, buffer.tensor.data_type)
        sums[buffer.uid] = float(stored.astype(np.float64).sum())
        assert abs(stored).max() > 1
    worst, is_right = compare(graph, replace(operands, values=values), symbols)
    assert is_right, worst
    return sums
