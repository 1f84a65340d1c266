"""The cuDNN frontend's own wheel, where a registry has it. It imports without a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

FRONTEND = "nvidia-cudnn-frontend==1.32.0"


@pytest.fixture(scope="session")
def real_frontend(pytestconfig: pytest.Config) -> Path:
    """A folder that holds the wheel alone; kept with pytest's cache."""
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    folder = pytestconfig.cache.mkdir(f"{FRONTEND.replace('==', '-')}-py{version}")
    if not (folder / "cudnn" / "__init__.py").exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade"]
        done = subprocess.run(
            [*command, "--target", str(folder), FRONTEND], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no registry has {FRONTEND} for this Python: {done.stderr[-200:]}")
    return folder
