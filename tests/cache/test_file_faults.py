"""File systems that refuse: every call that a build makes fails, and what is stored stays whole."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import file_faults
import pytest
import toy_store
from cli_process import run_cli, tree_digest
from served_store import small_store

from cudnn_aot.cache.reader import StoreReader


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return file_faults.library(tmp_path_factory.mktemp("layer"))


@pytest.mark.parametrize(
    ("name", "step", "fix"),
    [
        ("ENOSPC", 2, "no space left on device: free some space and build again; what is stored"),
        ("EDQUOT", 5, "disk quota exceeded: free some space and build again; what is stored stays"),
        ("ESTALE", 3, "stale file handle: the file server has lost the folder: mount it again"),
        ("EROFS", 5, "read-only file system: choose a writable folder with --store"),
        ("EIO", 5, "input/output error: the disk or its server fails: check it and build again"),
    ],
)
def test_a_disk_that_fails_from_any_call_on(
    layer: Path, tmp_path: Path, name: str, step: int, fix: str
) -> None:
    """A one-line error with what to do; the store is whole then, and whole and done when repeated.

    Opening fails too where the file server is gone, else all that changes something.
    """
    found = file_faults.every_call(layer, tmp_path, getattr(errno, name), step)
    assert found["unexpected"] == []
    assert found["calls"] > 80
    assert any(fix in message for message in found["messages"]), found["messages"]
    assert all("\n" not in message for message in found["messages"])
    written = [m.split("'")[1].split("/")[2] for m in found["messages"] if "'/store/" in m]
    places = {"blobs", "kernels", "plans", "classes", "names", "builds"}
    assert name != "ENOSPC" or places <= set(written), written


def test_a_build_on_a_full_disk_is_one_line_per_graph(
    layer: Path, tmp_path: Path, graph_files: list[Path], built_store: Path
) -> None:
    """Full from the start, but for what the repetition needs."""
    store = tmp_path / "store"
    build = ("build", *graph_files, "-t", "cpu", "--store", store)
    env = file_faults.environment(layer, file_faults.WRITE, errno.ENOSPC, tmp_path)
    done = run_cli(*build, env=dict(env))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: cannot write ") and "free some space and build again" in line
    assert run_cli(*build).returncode == 0
    assert tree_digest(store) == tree_digest(built_store)


FILL = """
import sys, toy_store
from cudnn_aot.cache.writer import StoreWriter
with StoreWriter(sys.argv[1]) as writer:
    toy_store.fill(writer, 1)
"""
READ = """
import sys
from cudnn_aot import runtime
from cudnn_aot.cache.reader import StoreReader
if sys.argv[2] == "python":
    StoreReader(sys.argv[1]).pointer(*StoreReader(sys.argv[1]).pointers()[0])
else:
    runtime.open(sys.argv[1], "cpu").plan("scale")
"""


def said(script: str, *args: object, **faults: Any) -> str:
    """What a process says on a file system with these faults; empty when all is well."""
    environment = file_faults.environment(**faults)
    path = os.pathsep.join([str(Path(__file__).parents[1] / "support"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    return "".join(done.stderr.splitlines()[-1:])


@pytest.mark.parametrize("name", ["EBUSY", "ESTALE"])
def test_a_name_that_is_busy_for_the_moment(layer: Path, tmp_path: Path, name: str) -> None:
    """A rename that is refused twice is done the third time; one that stays so is an error."""
    error = getattr(errno, name)
    faults = {"layer": layer, "calls": file_faults.RENAME, "error": error, "below": tmp_path}
    for start in (2, 6):
        store = tmp_path / str(start)
        assert os.strerror(error).lower() in said(FILL, store, **faults, start=start, most=3)
        assert said(FILL, store, **faults, start=start, most=2) == ""
        assert toy_store.snapshot(store) == toy_store.snapshot(tmp_path / "2")
        assert StoreReader(store).verify() == []


@pytest.mark.parametrize("reader", ["python", "native"])
def test_a_stale_file_is_looked_up_again(layer: Path, tmp_path: Path, reader: str) -> None:
    """Both readers do; what stays stale is an error of the system, and no damage."""
    store = small_store(tmp_path / "store")
    below = store / "plans"
    faults = {"layer": layer, "calls": file_faults.OPEN, "error": errno.ESTALE, "below": below}
    assert said(READ, store, reader, **faults, most=2) == ""
    failure = said(READ, store, reader, **faults, most=3)
    assert failure.startswith("cudnn_aot.errors.StoreError: cannot read "), failure
    assert failure.endswith("stale file handle"), failure


def test_builders_on_a_file_system_without_locks(layer: Path, tmp_path: Path) -> None:
    """They do not see each other: the kernel may be compiled twice, and the store is right."""
    store = tmp_path / "store"
    store.mkdir()
    env = file_faults.environment(layer, file_faults.LOCK, errno.ENOLCK, tmp_path)
    both = [toy_store.start(store, "host=3", "host=4", env=env) for _ in range(2)]
    entries = [entry for process in both for entry in toy_store.finish(process)]
    assert len({entry["object_digest"] for entry in entries}) == 2
    reader = StoreReader(store)
    assert reader.verify() == [] and len(reader.kernels()) == 2
    (again,) = toy_store.finish(toy_store.start(store, "host=3", env=env))
    assert not again["compiled"]
    with_locks = tmp_path / "with locks"
    toy_store.finish(toy_store.start(with_locks, "host=3", "host=4", env=dict(os.environ)))
    assert {f: data for f, (_, _, data) in toy_store.snapshot(store).items() if data} == {
        f: data for f, (_, _, data) in toy_store.snapshot(with_locks).items() if data
    }
