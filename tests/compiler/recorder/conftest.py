"""A stand-in for the cuDNN frontend, and the real wheel where a registry has it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded import environment, run_program, write_fake_frontend

FRONTEND = "nvidia-cudnn-frontend==1.32.0"


@pytest.fixture(scope="session")
def fake_frontend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_frontend(tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="session")
def real_frontend(pytestconfig: pytest.Config) -> Path:
    """A folder that holds the wheel alone; kept with pytest's cache. It imports without a GPU."""
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


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


@pytest.fixture
def run(tmp_path: Path, spool: Path, fake_frontend: Path) -> Run:
    """Run a program that finds the stand-in, recorded into `spool`."""

    def run(
        script: str, *flags: str, recording: bool = True, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        paths = [Path(part) for part in extra.pop("first", "").split(os.pathsep) if part]
        env = environment(spool, *paths, fake_frontend, recording=recording, **extra)
        return run_program(script, tmp_path, env, *flags)

    return run
