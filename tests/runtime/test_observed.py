"""What a store says of itself: counts, log lines, the folder of misses, NVTX ranges."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from class_graphs import LINEAR, Linear, execute_and_check
from served_store import put_plan, small_store

from cudnn_aot import errors, runtime
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build import driver
from cudnn_aot.compiler.build.summary import Status
from cudnn_aot.compiler.formats.load import load_graphs
from cudnn_aot.runtime import misses


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("observed") / "store")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("CUDNN_AOT_LOG", "CUDNN_AOT_MISS_DIR", "CUDNN_AOT_NVTX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(misses, "_written", set())


def test_counts(stored):
    store, other = runtime.open(stored), runtime.open(stored)
    assert store.stats() == other.stats() == type(store.stats())()
    plan = store.plan("scale")
    again = store.plan("scale")
    x, y = np.ones((3, 6), np.float32), np.empty((3, 6), np.float32)
    plan.execute({1: x, 9: y})
    for bindings in ({1: x}, {1: x.astype(np.float64), 9: y}, {1: x, 9: y.astype(np.float16)}):
        with pytest.raises(errors.RefusedError):
            plan.execute(bindings)
    with pytest.raises(errors.RefusedError):
        again.bind({"M": 3}).execute({1: x[:2], 9: y[:2]})
    with pytest.raises(errors.RefusedError):
        plan.resolve({1: x})  # asks, launches nothing and is no refused call
    for name, kind in (("scael", errors.NotInStoreError), ("odd", errors.Error)):
        with pytest.raises(kind):
            store.plan(name)
    with pytest.raises(errors.UsageError):
        store.plan("both")
    found = store.stats()
    assert (found.loads, found.misses) == (2, 1)
    assert found.failures == {"cudnnGraphNotSupportedError": 1, "UsageError": 1}
    assert found.refusals == {"presence": 1, "dtype": 2, "extents": 1}
    kernel, record = (plan.table and 1), found.bytes
    assert kernel and record > 2 * 8000  # two records, two libraries
    assert other.stats().loads == 0


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ("", []),
        ("off", []),
        ("error", ["error"]),
        ("warning", ["warning", "error"]),
        ("info", ["info", "warning", "error"]),
    ],
)
def test_log_lines(stored, monkeypatch, capfd, level, said):
    monkeypatch.setenv("CUDNN_AOT_LOG", level)
    store = runtime.open(stored)
    plan = store.plan("scale")
    for _ in range(3):
        plan.execute({1: np.ones((3, 6), np.float32), 9: np.empty((3, 6), np.float32)})
    for name in ("a\nb\x1b", "odd"):
        with pytest.raises(errors.Error):
            store.plan(name)
    lines = capfd.readouterr().err.splitlines()
    assert [line.split()[1].rstrip(":") for line in lines] == said
    if said:
        assert "cudnnGraphNotSupportedError: graph 'odd' is declined for h200" in lines[-1]
    if len(said) == 3:
        assert lines[0].startswith("cudnn-aot info: loaded 'scale' for cpu: by.hand, ")


def test_a_level_that_there_is_not(stored, monkeypatch):
    monkeypatch.setenv("CUDNN_AOT_LOG", "loud")
    with pytest.raises(errors.UsageError, match="CUDNN_AOT_LOG: got 'loud', want off, error, "):
        runtime.open(stored)


def test_missing_graphs_are_what_the_next_build_makes(tmp_path, monkeypatch):
    folder, path = tmp_path / "missing" / "here", tmp_path / "store"
    monkeypatch.setenv("CUDNN_AOT_MISS_DIR", str(folder))
    with StoreWriter(path, create=True) as writer:
        put_plan(writer, "scale")
    store = runtime.open(path, target="cpu")
    asked = [LINEAR.graph(), LINEAR.graph(), replace(LINEAR, name="other").graph()]
    for graph in asked:
        with pytest.raises(errors.NotInStoreError):
            store.plan(graph)
    for name in ("absent", 7):
        with pytest.raises(errors.Error):
            store.plan(name)
    (file,) = folder.iterdir()
    assert file.name == f"linear-{asked[0].key()[:12]}.json"
    (graph,) = load_graphs(file)
    assert graph.key() == asked[0].key() == asked[2].key()  # names do not count
    assert graph.find_tensor(1).dim == (1, 64, 48)
    (folder / ".staged").touch()
    (folder / "notes.txt").touch()
    summary = driver.build([folder], ["cpu"], path)
    assert summary.exit_code() == 0 and summary.count(Status.BUILT) == 1
    for graph in asked:
        execute_and_check(store.plan(graph), graph, 0)
    (tmp_path / "empty").mkdir()
    assert driver.build([tmp_path / "empty"], ["cpu"], path).exit_code() == 0  # nothing missed
    assert driver.build([tmp_path / "missing"], ["cpu"], path).exit_code() == 1  # no graph there


def test_misses_are_bounded_and_never_raise(stored, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(misses, "MOST_FILES", 3)
    monkeypatch.setenv("CUDNN_AOT_MISS_DIR", str(tmp_path / "folder"))
    monkeypatch.setenv("CUDNN_AOT_LOG", "warning")
    store = runtime.open(stored, target="cpu")

    def miss(graph) -> str:
        with pytest.raises(errors.NotInStoreError):
            store.plan(graph)
        return capfd.readouterr().err

    for m in range(8, 64, 8):
        assert "MISS_DIR" not in miss(replace(LINEAR, m=m).graph())
    assert len(list((tmp_path / "folder").iterdir())) == 3
    miss(replace(LINEAR, m=8).graph())
    misses._written.clear()
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUDNN_AOT_MISS_DIR", str(tmp_path / "file" / "folder"))
    assert "CUDNN_AOT_MISS_DIR: cannot write" in miss(LINEAR.graph())
    monkeypatch.setattr("cudnn_aot.compiler.formats.graph_json.dumps", lambda graph: 1 / 0)
    assert "ZeroDivisionError" in miss(replace(LINEAR, m=16).graph())


@pytest.mark.parametrize("name", ["a/b", "é" * 200, "..", "x" * 300])
def test_files_of_graphs_with_odd_names(stored, tmp_path, monkeypatch, name):
    monkeypatch.setenv("CUDNN_AOT_MISS_DIR", str(tmp_path / "folder"))
    graph = Linear(m=64, name=name).graph()
    with pytest.raises(errors.NotInStoreError):
        runtime.open(stored, target="cpu").plan(graph)
    (file,) = (tmp_path / "folder").iterdir()
    (read,) = load_graphs(file)
    assert read.key() == graph.key() and graph.key()[:12] in read.name


NVTX = """
#include <stdio.h>
int nvtxRangePushA(const char *text) { return printf("push %s\\n", text), fflush(stdout); }
int nvtxRangePop(void) { return printf("pop\\n"), fflush(stdout); }
"""


@pytest.mark.parametrize("where", ["system", "wheel", "nowhere", "unset"])
def test_nvtx_ranges(stored, tmp_path, where):
    folder = tmp_path / ("nvidia/nvtx/lib" if where == "wheel" else "lib")
    folder.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": str(folder)}
    if where != "unset":
        environment["CUDNN_AOT_NVTX"] = "1"
    (tmp_path / "nvtx.c").write_text("" if where == "nowhere" else NVTX)
    library = folder / "libnvtx3interop.so.1"
    cc = shutil.which("cc") or "cc"
    subprocess.run([cc, "-shared", "-fPIC", tmp_path / "nvtx.c", "-o", library], check=True)
    if where == "nowhere":  # whatever the system has
        shutil.copy(library, folder / "libnvToolsExt.so.1")
    code = """
import array, sys
from cudnn_aot import errors, runtime
plan = runtime.open(sys.argv[1]).plan("scale")
x, y = array.array("f", range(12)), array.array("f", bytes(48))
plan.execute({1: x, 9: y}, symbols={"M": 2})
bound = plan.bind({"M": 2}, name="bound\\0")
bound.execute({1: x, 9: y})
try: bound.execute({})
except errors.RefusedError: pass
else: raise AssertionError
plan.caller([1, 9])(x, y, symbols={"M": 2})
plan.launcher({1: x, 9: y}, symbols={"M": 2})(x.buffer_info()[0], y.buffer_info()[0])
assert list(y) == [2 * v for v in x]
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(stored)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    wanted = ("push scale pop push bound pop push bound pop" + 2 * " push scale pop").split()
    assert done.stdout.split() == (wanted if where in ("system", "wheel") else [])
    warned = "cudnn-aot warning: CUDNN_AOT_NVTX is set and there is no NVTX"
    assert done.stderr.count(warned) == done.stderr.count("\n") == (where == "nowhere")


def test_the_miss_file_is_a_graph_file(tmp_path):
    graph = LINEAR.graph()
    assert misses.write(graph, str(tmp_path)) is None
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["name"] == f"{graph.name}-{graph.key()[:12]}"


def test_a_store_that_any_user_may_change(stored, monkeypatch, capfd):
    monkeypatch.setenv("CUDNN_AOT_LOG", "warning")
    digest = runtime.open(stored).root_digests()
    assert capfd.readouterr().err == ""
    stored.chmod(0o777)
    runtime.open(stored)
    assert capfd.readouterr().err == (
        f"cudnn-aot warning: any user may change the store {stored}: open it by its root digest, "
        "or take that right away\n"
    )
    runtime.open(stored, digest=digest)
    monkeypatch.setenv("CUDNN_AOT_PIN", digest[0])
    runtime.open(stored)
    assert capfd.readouterr().err == ""
