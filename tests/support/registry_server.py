"""Debian's docker-registry in a process of its own, storing in a folder."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

# `secret` as bcrypt has it, the one form that docker-registry takes.
_PASSWORD = "$2b$05$DoZYFGX7PJ6HaK4SgXuiSuRhGsml6txUc4dEMbnWOkeyu/XNJitP2"


@dataclass(frozen=True, slots=True)
class RunningRegistry:
    host: str
    folder: Path

    def blob_file(self, digest: str) -> Path:
        """Where it stores a blob, which it gives out without looking at it again."""
        name = digest.removeprefix("sha256:")
        return self.folder / "docker/registry/v2/blobs/sha256" / name[:2] / name / "data"

    def requests(self) -> list[str]:
        """Method and path of every request, in the order of their answers."""
        log = self.folder.with_name("access.log").read_text(encoding="utf-8")
        return [line.split('"')[1].rpartition(" ")[0] for line in log.splitlines() if '" ' in line]


def need(*commands: str) -> None:
    """Skip the test where a program is missing."""
    for command in commands:
        if shutil.which(command) is None:
            pytest.skip(f"{command} is not installed: scripts/test_services.sh does that")


@contextmanager
def run_registry(folder: Path, with_login: bool = False) -> Iterator[RunningRegistry]:
    """A registry on a free port; with a login it is that of ``user`` with ``secret``."""
    need("docker-registry")
    folder.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    config = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": host},
    }
    if with_login:
        (folder / "htpasswd").write_text(f"user:{_PASSWORD}\n")
        config["auth"] = {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(json.dumps(config))  # which is YAML too
    with (folder / "access.log").open("wb") as log, (folder / "errors.log").open("wb") as errors:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(folder / "config.yml")], stdout=log, stderr=errors
        )
        try:
            _wait(process, host, folder / "errors.log")
            yield RunningRegistry(host, folder / "data")
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait(process: subprocess.Popen[bytes], host: str, errors: Path) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        assert process.poll() is None, errors.read_text()
        try:
            with urllib.request.urlopen(f"http://{host}/v2/", timeout=5):
                return
        except urllib.error.HTTPError:
            return  # it wants a login
        except OSError:
            time.sleep(0.02)  # until it listens
    raise AssertionError(errors.read_text())
