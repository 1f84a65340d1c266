"""Verbs that write a file, given a device or their own standard output."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cli_process import run_cli


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A null device of our own."""
    path = tmp_path / "nul"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.write_bytes(b"")
    except PermissionError:
        pytest.skip("may not make devices")
    return path


def test_no_verb_replaces_a_device(
    built_store: Path, graph_files: list[Path], tmp_path: Path, device: Path
) -> None:
    (tmp_path / "key.pub").symlink_to(device)
    for words, code in (
        (("report", "--store", built_store, "-o", device), 0),
        (("show", graph_files[0], "--svg", device), 0),
        (("sign", "--new-key", tmp_path / "key"), 0),
        (("pack", "--store", built_store, "-o", device), 2),
    ):
        done = run_cli(*words)
        assert done.returncode == code, done.stderr
        assert stat.S_ISCHR(device.stat().st_mode), words


def test_a_page_on_standard_output_is_the_page_alone(built_store: Path) -> None:
    done = run_cli("report", "--store", built_store, "-o", "/proc/self/fd/1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<!doctype html>") and done.stdout.endswith("</html>\n")
    assert "plans" in done.stderr
