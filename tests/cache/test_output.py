"""Files that commands write: links, devices and pipes at the path that was named."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from served_store import small_store

from cudnn_aot.cache.output import replaceable, write_output
from cudnn_aot.cache.pack_writer import write_pack
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.errors import UsageError


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A null device of our own."""
    path = tmp_path / "nul"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.write_bytes(b"")  # not where file systems are mounted without devices
    except PermissionError:
        pytest.skip("may not make devices")
    return path


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "page"
    write_output(path, b"old")
    with path.open("rb") as opened:
        write_output(path, b"new")
        assert (opened.read(), path.read_bytes()) == (b"old", b"new")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "not there yet"])
def test_a_link_stays_and_its_file_is_written(tmp_path: Path, is_there: bool) -> None:
    (tmp_path / "far").mkdir()
    if is_there:
        (tmp_path / "far" / "page").write_bytes(b"old")
    (tmp_path / "link").symlink_to("far/page")
    write_output(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert [path.read_bytes() for path in (tmp_path / "far").iterdir()] == [b"new"]


def test_a_device_is_written_into(device: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(device)
    for path in (device, tmp_path / "link"):
        write_output(path, b"page")
        assert stat.S_ISCHR(device.stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "nul"]


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=write_output, args=(tmp_path / "pipe", b"page"))
    writer.start()
    assert (tmp_path / "pipe").read_bytes() == b"page"
    writer.join()
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_output(tmp_path, b"page")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_pipe", [True, False], ids=["pipe", "file"])
def test_standard_output_by_its_path(tmp_path: Path, is_pipe: bool) -> None:
    """In a process of its own: what it printed before stays, and what it prints then follows."""
    program = """
import os; from pathlib import Path; from cudnn_aot.cache.output import write_output
os.write(1, b"one "); write_output(Path("/proc/self/fd/1"), b"two "); os.write(1, b"three")
"""
    with (tmp_path / "out").open("wb") as file:
        stdout = subprocess.PIPE if is_pipe else file
        done = subprocess.run([sys.executable, "-c", program], stdout=stdout, check=True)
    assert (done.stdout or (tmp_path / "out").read_bytes()) == b"one two three"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_a_pack_replaces_the_file_of_a_link_and_no_device(tmp_path: Path, device: Path) -> None:
    reader = StoreReader(small_store(tmp_path / "store"))
    (tmp_path / "link").symlink_to("pack")
    write_pack(reader, tmp_path / "link", 0)
    assert (tmp_path / "link").is_symlink()
    assert StoreReader(tmp_path / "pack").files() == reader.files()
    (tmp_path / "to-device").symlink_to(device)
    for path in (device, tmp_path / "to-device"):
        assert replaceable(path) is None
        with pytest.raises(UsageError, match="it is a stream or a device, want the path of a file"):
            write_pack(reader, path, 0)
    assert stat.S_ISCHR(device.stat().st_mode)
