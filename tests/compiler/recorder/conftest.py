"""A stand-in for the cuDNN frontend, and the real wheel where a registry has it."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from frontend_wheel import real_frontend  # noqa: F401  (a fixture)
from recorded import environment, run_program, write_fake_frontend


@pytest.fixture(scope="session")
def fake_frontend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_frontend(tmp_path_factory.mktemp("fake"))


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
