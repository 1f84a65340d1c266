"""Kernels for the recipe tests: compiled once per session, in one process per architecture."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for kernel_ffi: these tests are no package


def compile_jobs(jobs: list[dict], out: Path) -> dict:
    """Compile the jobs in a fresh interpreter and return its report."""
    (out / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, str(HERE / "compile_kernels.py"), str(out / "jobs.json"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out)
    if done.returncode:
        logs = sorted(out.glob("*.log"), key=lambda log: log.stat().st_mtime)
        raise AssertionError(done.stderr + (logs[-1].read_text() if logs else ""))
    return json.loads((out / "report.json").read_text())


@pytest.fixture(scope="session")
def compile_kernels():
    return compile_jobs


@pytest.fixture(scope="module", autouse=True)
def only_recipes(nothing_shipped):
    """What is tested of plans here follows from recipes, not from what was measured of some."""
