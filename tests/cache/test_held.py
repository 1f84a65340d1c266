"""Who uses a store: what processes hold, who waits for whom, and that nothing of it is written."""

import errno
import fcntl
import gc
import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_process import tree_digest

from cudnn_aot import _native, runtime
from cudnn_aot.cache import held, layout
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter

UP, DOWN = ("cpu", "up"), ("cpu", "down")


def is_held(store: Path, target: str, name: str) -> bool:
    marks = held.Marks(store)
    try:
        key = StoreReader(store).name(target, name)["graph_key"]
        return marks.others(held.GRAPH + held.graph_byte(target, key))
    finally:
        marks.close()


def test_a_plan_holds_its_graph_and_no_other(built_store: Path) -> None:
    before = tree_digest(built_store), {p: p.stat().st_ctime_ns for p in built_store.rglob("*")}
    store = runtime.open(built_store)
    assert not is_held(built_store, *UP)  # to open a store is to hold nothing
    plan = store.plan("up")
    assert is_held(built_store, *UP) and not is_held(built_store, *DOWN)
    del store
    gc.collect()
    assert plan.workspace_bytes() >= 0 and is_held(built_store, *UP)
    del plan
    gc.collect()
    assert not is_held(built_store, *UP)
    after = tree_digest(built_store), {p: p.stat().st_ctime_ns for p in built_store.rglob("*")}
    assert after == before


@pytest.mark.parametrize("how", ["plans", "key", "closure", "record"])
def test_every_way_to_ask_for_a_plan_holds_it(built_store: Path, how: str) -> None:
    store = runtime.open(built_store)
    kept = {
        "plans": lambda: store.plans(["up"]),
        "key": lambda: store.plan(StoreReader(built_store).name(*UP)["graph_key"], target="cpu"),
        "closure": lambda: store.closure_digest(["up"]),
        "record": lambda: store.max_workspace(["up"]),
    }[how]()
    assert is_held(built_store, *UP) and not is_held(built_store, *DOWN)
    del kept


def test_a_process_holds_until_it_dies(built_store: Path) -> None:
    program = (
        "import sys; from cudnn_aot import runtime; plan = runtime.open(sys.argv[1]).plan('up'); "
        "print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(built_store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    assert is_held(built_store, *UP)
    process.kill()
    process.wait()
    assert not is_held(built_store, *UP)


def test_a_forked_child_holds_what_its_parent_held(built_store: Path) -> None:
    plan = runtime.open(built_store).plan("up")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    del plan
    gc.collect()
    assert is_held(built_store, *UP)
    os.close(writing)
    os.waitpid(child, 0)
    os.close(reading)
    assert not is_held(built_store, *UP)


def test_whoever_may_read_a_store_may_hold_it(built_store: Path) -> None:
    """A byte can be locked through a descriptor that cannot write."""
    assert (built_store / layout.STORE_FILE).stat().st_mode & 0o222 == 0
    graphs = _native.HeldGraphs(os.fsencode(built_store))
    graphs.take("cpu", StoreReader(built_store).name(*UP)["graph_key"])
    assert is_held(built_store, *UP)


def test_many_graphs_of_a_target_are_held_as_the_target(built_store: Path) -> None:
    keys = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(40)]
    other = hashlib.sha256(b"another").hexdigest()
    graphs, marks = _native.HeldGraphs(os.fsencode(built_store)), held.Marks(built_store)

    def holds(target: str, key: str) -> bool:
        return marks.others(held.GRAPH + held.graph_byte(target, key))

    for number, key in enumerate(keys):
        assert holds("cpu", other) == (number > 32), number
        graphs.take("cpu", key)
        assert holds("cpu", key)
    assert all(holds("cpu", key) for key in [*keys, other])
    assert not holds("h200", keys[0])
    marks.close()


def test_a_reader_waits_until_its_graph_is_gone_or_left(store_copy: Path) -> None:
    key = StoreReader(store_copy).name(*UP)["graph_key"]
    marks = held.Marks(store_copy)
    marks.announce(held.PRUNED + held.graph_byte("cpu", key))
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(runtime.open(store_copy).plan("up")))
    reader.start()
    reader.join(0.2)
    assert reader.is_alive() and is_held(store_copy, *UP)
    assert runtime.open(store_copy).plan("down").name == "down"  # others go on
    marks.close()
    reader.join(30)
    assert len(found) == 1


def test_builders_and_prune_keep_out_of_each_other_s_way(store_copy: Path) -> None:
    with StoreWriter(store_copy), StoreWriter(store_copy):
        assert held.join_as_pruner(store_copy, wait_s=0.05) is None
    pruner = held.join_as_pruner(store_copy, wait_s=0.05)
    assert pruner is not None
    assert held.join_as_pruner(store_copy, wait_s=0.05) is None
    notices: list[float] = []
    built: list[str] = []

    def build() -> None:
        with StoreWriter(store_copy, notice=notices.append) as writer:
            built.append(writer.put_blob(b"after prune"))

    builder = threading.Thread(target=build)
    builder.start()
    builder.join(0.2)
    assert builder.is_alive() and not built
    pruner.close()
    builder.join(30)
    assert built and not notices  # nobody is told of a short wait


def test_a_builder_that_waits_long_is_told(
    store_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "_NOTICE_AFTER_S", 0.0)
    pruner = held.join_as_pruner(store_copy, wait_s=0)
    assert pruner is not None

    def notice(seconds: float) -> None:
        assert seconds > 0
        pruner.close()

    with StoreWriter(store_copy, notice=notice) as writer:
        assert writer.put_blob(b"told")


def test_a_file_system_without_locks(store_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, operation: int, argument: bytes = b"") -> bytes:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "fcntl", no_locks)
    assert not held.Marks(store_copy).works
    with StoreWriter(store_copy) as writer:
        assert writer.put_blob(b"built all the same")


def test_a_store_without_its_file_holds_nothing(tmp_path: Path) -> None:
    assert not held.Marks(tmp_path).works
    _native.HeldGraphs(os.fsencode(tmp_path)).take("cpu", "0" * 64)
