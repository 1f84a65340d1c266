"""File systems that refuse: every call that a build makes fails, and what is stored stays whole."""

import errno
import os
from pathlib import Path

import file_faults
import pytest
import toy_store
from cli_process import run_cli, tree_digest

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
