"""The environment of a child process that imports this folder beside what its parent sees."""

from __future__ import annotations

import os
from pathlib import Path


def environment(**more: str) -> dict[str, str]:
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}
