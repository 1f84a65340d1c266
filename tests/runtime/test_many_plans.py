"""`store.plans`: many plans at once are those that `store.plan` gives one by one."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from many_plans import copy_plan, name_of
from served_store import SCALE, UIDS, graph_key, put_decline, put_plan, small_store
from tables import kernel, operand, symbol, table, whole

from cudnn_aot import errors, runtime
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter

COUNT = 40  # enough for several threads


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("many") / "source")


@pytest.fixture(scope="module")
def many(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans with libraries of their own, which nobody has loaded yet in the first test."""
    return copy_plan(source, "scale", "cpu", tmp_path_factory.mktemp("many") / "store", COUNT)


@pytest.fixture
def own(source: Path, tmp_path: Path) -> Path:
    """The same for one test, to be damaged."""
    return copy_plan(source, "scale", "cpu", tmp_path / "store", COUNT)


def run(plan: runtime.Plan, factor: float) -> None:
    x = np.arange(18, dtype=np.float32).reshape(3, 6)
    y = np.full_like(x, np.nan)
    plan.execute({1: x, 3: factor, 9: y})
    assert (y == np.float32(factor) * x).all()


def libraries() -> set[str]:
    """The kernel libraries of this process, by their inodes."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in maps if "cudnn_aot_kernel" in line}


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def blob_of(store: Path, name: str) -> Path:
    """The file of a plan's kernel library."""
    reader = StoreReader(store)
    pointer = reader.pointer("cpu", reader.name("cpu", name)["graph_key"])
    digest = json.loads(reader.blob(pointer["records"][0]))["kernels"][0]["blob"]
    return store / "blobs" / "sha256" / digest[:2] / digest


def test_they_are_those_that_one_by_one_gives(many):
    store = runtime.open(many)
    plans = store.plans()
    assert list(plans) == [name for _, name in store.names()] == [name_of(i) for i in range(COUNT)]
    bulk = store.stats()
    for place, (name, plan) in enumerate(plans.items()):
        run(plan, place)
        one = store.plan(name)
        run(one, place)
        for field in (
            "name", "graph_key", "target", "engine", "engine_id", "knobs", "uids", "device",
            "requirements", "table", "symbols",
        ):  # fmt: skip
            assert getattr(plan, field) == getattr(one, field), field
        assert repr(plan) == repr(one)
        assert plan.workspace_bytes() == one.workspace_bytes() == 0
        assert plan.table is plan.table  # parsed once
        run(plan.bind({"M": 3}), place)
    assert (bulk.loads, bulk.misses, bulk.failures) == (COUNT, 0, {})
    assert bulk.bytes * 2 == store.stats().bytes
    assert len(libraries()) >= COUNT


def test_which_plans_are_meant(many, source):
    store = runtime.open(many)
    assert store.plans([]) == {}
    key = store.plan(name_of(3)).graph_key
    asked = [name_of(7), key, name_of(1), name_of(7)]
    plans = store.plans(iter(asked), "cpu")
    assert list(plans) == asked[:3]  # in their order, each once
    assert [plan.name for plan in plans.values()] == asked[:3]
    assert plans[key].uids == UIDS
    several = runtime.open(source, target="cpu").plans()
    assert {name: plan.target for name, plan in several.items()} == {"both": "cpu", "scale": "cpu"}
    assert runtime.open(source).plans(target="h200").keys() == {"both"}  # 'odd' is declined
    with pytest.raises(errors.UsageError, match="'both' is stored for cpu, h200: choose"):
        runtime.open(source).plans()


@pytest.mark.parametrize(
    ("names", "target", "error", "message"),
    [
        (["plan_0001", "plan_9999"], None, errors.NotInStoreError, "no graph named 'plan_9999'"),
        (["plan_0001"], "h300", errors.NotInStoreError, "holds nothing for target 'h300'"),
        (None, "h300", errors.NotInStoreError, "holds nothing for target 'h300'"),
        ("plan_0001", None, errors.UsageError, "bad names: got the string 'plan_0001', want a"),
        (["plan_0001", 7], None, errors.UsageError, "bad name: got 7, want the name or the key"),
        (["\ud800"], None, errors.NotInStoreError, "no graph named"),
    ],
)
def test_what_is_not_there(many, names, target, error, message):
    with pytest.raises(error, match=message) as raised:
        runtime.open(many).plans(names, target)
    assert "\n" not in str(raised.value)


def test_the_first_fault_is_raised_and_all_are_told(own, monkeypatch, capfd):
    """What can be loaded is loaded all the same."""
    with StoreWriter(own) as writer:
        put_decline(writer, "no", "cpu", "rank 9 is too high")
    for place in (31, 12):
        damage(blob_of(own, name_of(place)))
    monkeypatch.setenv("CUDNN_AOT_LOG", "error")
    store = runtime.open(own)
    want = rf"^plan 'plan_0012' for cpu: .*{blob_of(own, name_of(12)).name} is damaged: its bytes"
    with pytest.raises(errors.DamagedError, match=want):
        store.plans()
    assert store.stats().loads == COUNT - 2
    assert store.stats().failures == {"DamagedError": 2}  # 'no' was not asked for
    lines = capfd.readouterr().err.splitlines()
    assert [line.split("'")[1] for line in lines] == ["plan_0012", "plan_0031"]
    whole_ones = [name_of(i) for i in range(COUNT) if i not in (12, 31)]
    assert len(store.plans(whole_ones)) == COUNT - 2
    with pytest.raises(errors.cudnnGraphNotSupportedError, match="'no' is declined for cpu: rank"):
        store.plans([name_of(0), "no", name_of(12)])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"requirements": {"glibc_min": "9.1"}}, errors.RequirementError, "'bad' for cpu cannot"),
        ({"symbol_name": "absent"}, errors.LaunchError, "^plan 'bad' for cpu: kernel library lac"),
        ({"launch_table": SCALE | {"version": 9}}, errors.StoreError, "table of plan 'bad'"),
        ({"kernels": [{"symbol": "s"}]}, errors.StoreError, r"'bad': kernels\[0\]: field 'blob'"),
        ({"format": 2}, errors.StoreError, "'bad' has format 2"),
    ],
)
def test_every_fault_names_its_plan(tmp_path, change, error, message):
    with StoreWriter(tmp_path / "store") as writer:
        put_plan(writer, "good")
        put_plan(writer, "bad", **change)
    store = runtime.open(tmp_path / "store")
    with pytest.raises(error, match=message) as bulk:
        store.plans()
    with pytest.raises(error) as one:
        store.plan("bad")
    assert str(bulk.value) == str(one.value)
    assert store.stats().loads == 1


def test_a_process_without_libtvm_ffi(source, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    from cudnn_aot.runtime.plan import find_ffi

    find_ffi.cache_clear()
    store = runtime.open(source, target="cpu")
    with pytest.raises(errors.RequirementError, match="apache-tvm-ffi is not installed"):
        store.plans()
    assert store.stats().failures == {"RequirementError": 2}
    with pytest.raises(errors.NotInStoreError):
        store.plans(["absent"])


def test_four_threads_at_once(own):
    """Of one store object and of one each; each library is loaded once."""
    shared = runtime.open(own)
    start = threading.Barrier(4)
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            start.wait()
            store = shared if number % 2 else runtime.open(own)
            for turn in range(3):
                for place, plan in enumerate(store.plans().values()):
                    run(plan, place + turn)
        except BaseException as fault:
            faults.append(fault)

    before = libraries()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]
    assert len(libraries() - before) <= COUNT  # none, where another test loaded equal ones


def test_children_use_what_was_loaded_and_load_more(own):
    store = runtime.open(own)
    plans = store.plans([name_of(i) for i in range(20)])
    child = os.fork()
    if child == 0:
        try:
            for place, plan in enumerate({**plans, **store.plans()}.values()):
                run(plan, place)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_equal_kernels_are_loaded_once(tmp_path):
    """Plans of one library, each with a table of its own."""
    x = operand(1, ["M", 6], [6, 1])
    y = operand(9, ["M", 6], [6, 1], kind="output")
    with StoreWriter(tmp_path / "store") as writer:
        for factor in range(24):
            step = kernel(whole(y), whole(x), {"arg": "float", "value": float(factor)})
            put_plan(
                writer, f"{factor:02}", launch_table=table([x, y], step, symbols={"M": symbol()})
            )
    before = libraries()
    plans = runtime.open(tmp_path / "store").plans()
    assert len(libraries() - before) <= 1  # none, if another test had loaded it
    ones = np.ones((2, 6), np.float32)
    for name, plan in plans.items():
        out = np.empty_like(ones)
        plan.execute({1: ones, 9: out})
        assert (out == float(name)).all()


def test_a_graph_key_is_a_name_too(source):
    store = runtime.open(source, target="cpu")
    (plan,) = store.plans([graph_key("both")]).values()
    assert (plan.name, plan.graph_key) == (graph_key("both"), graph_key("both"))
