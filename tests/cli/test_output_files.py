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
        (("sign", "--new-key", tmp_path / "key"), 2),
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


@pytest.mark.parametrize(
    ("words", "stream", "code"),
    [
        (("ls",), "1", 1),
        (("ls", "--json"), "1", 1),
        (("ls", "--store", "nope", "--json"), "1", 2),
        (("report", "-o", "/dev/full"), "9", 1),
        (("ls",), "2", 0),
        (("ls", "--store", "nope"), "2", 2),
        (("prune", "--target", "h100,cpu", "--dry-run"), "2", 0),
    ],
)
def test_a_full_disk_is_one_line_and_a_full_log_is_nothing(
    words: tuple[str, ...], stream: str, code: int, built_store: Path
) -> None:
    done = run_cli(
        *words,
        prefix=("sh", "-c", f'exec "$@" {stream}> /dev/full', "sh"),
        env={"CUDNN_AOT_STORE": str(built_store)},
    )
    assert done.returncode == code, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == (0 if stream == "2" else 1)
    if code == 1:
        assert said[0].startswith("error: ") and said[0].endswith("no space left on device")
        assert {"1": "standard output", "9": "/dev/full"}[stream] in said[0]
