"""The cuDNN frontend's answers, asked for once, in a process that has its wheel."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from frontend_wheel import real_frontend  # noqa: F401  (a fixture)

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # perform.py also runs without this package, so it imports by name

from calls import calls, mismatches  # noqa: E402


@pytest.fixture(scope="session")
def asked() -> list[dict[str, Any]]:
    return calls()


@pytest.fixture(scope="session")
def theirs(real_frontend: Path, asked: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: F811
    """``surface``, ``answers`` and, to the mismatches, ``refusals`` of the frontend's."""
    wrong = mismatches()
    done = subprocess.run(
        [sys.executable, str(HERE / "perform.py")],
        input=json.dumps([*asked, *wrong]),
        env={**os.environ, "PYTHONPATH": str(real_frontend)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    found["refusals"] = found["answers"][len(asked) :]
    del found["answers"][len(asked) :]
    return found
