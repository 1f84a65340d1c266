"""Opening a store and loading plans: what is found, and one clear error for what is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda_stand_in import run as run_with_stand_ins
from served_store import SCALE, graph_key, put_plan, small_store
from tables import kernel, operand, symbol, table

from cudnn_aot import errors, runtime
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("served") / "store")


@pytest.fixture
def writer(tmp_path: Path):
    with StoreWriter(tmp_path / "store") as writer:
        yield writer


def run(plan: runtime.Plan) -> None:
    x = np.arange(18, dtype=np.float32).reshape(3, 6)
    y = np.full_like(x, np.nan)
    plan.execute({1: x, 9: y})
    assert (y == 2 * x).all()


def test_a_plan_by_name_and_by_key(stored):
    store = runtime.open(stored)
    for asked in ("scale", graph_key("scale")):
        plan = store.plan(asked)
        assert (plan.name, plan.graph_key) == (asked, graph_key("scale"))
        assert (plan.target, plan.device, plan.engine, plan.engine_id) == (
            "cpu",
            "cpu",
            "by.hand",
            7,
        )
        assert plan.knobs == {"TILE_M": 128}
        assert plan.uids == {"X": 1, "alpha": 3, "Y": 9}
        assert plan.table["operands"][0]["name"] == "X"
        assert plan.workspace_bytes() == plan.workspace_bytes({"M": 4}) == 0
        plan.prepare()
        run(plan)
    assert repr(plan).endswith("for cpu: by.hand[TILE_M=128]>")
    assert store.names() == [("cpu", "both"), ("cpu", "scale"), ("h200", "both"), ("h200", "odd")]


def test_the_store_may_come_from_the_environment(stored, monkeypatch):
    monkeypatch.setenv("CUDNN_AOT_STORE", str(stored))
    run(runtime.open().plan("scale"))
    monkeypatch.delenv("CUDNN_AOT_STORE")
    with pytest.raises(errors.UsageError, match="set CUDNN_AOT_STORE"):
        runtime.open()


def test_a_name_of_several_targets_needs_a_choice(stored):
    with pytest.raises(errors.UsageError, match="'both' is stored for cpu, h200: choose"):
        runtime.open(stored).plan("both")
    run(runtime.open(stored, target="cpu").plan("both"))
    run(runtime.open(stored, target="h200").plan("both", target="cpu"))
    assert runtime.open(stored).plan("both", "h200").device == "cuda"


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("scael", None, "no graph named 'scael' in .*; the nearest are 'scale'"),
        ("zzzzzz", None, "no graph named 'zzzzzz' in .*; it holds 3 names"),
        ("scale", "h200", "no graph named 'scale' for h200 in .*; it is there for cpu"),
        ("scale", "h300", "holds nothing for target 'h300'; it has: cpu, h200"),
        (graph_key("scale"), "h200", f"plan of graph {graph_key('scale')} for target 'h200'"),
        ("0" * 64, None, "no graph named '0000"),
    ],
)
def test_what_is_not_there(stored, name, target, message):
    with pytest.raises(errors.NotInStoreError, match=message) as absent:
        runtime.open(stored).plan(name, target)
    assert "\n" not in str(absent.value)


def test_a_declined_graph_says_why(stored):
    with pytest.raises(
        errors.cudnnGraphNotSupportedError,
        match="^graph 'odd' is declined for h200: no engine takes INT4; rank 9 is too high$",
    ):
        runtime.open(stored).plan("odd")


def test_what_is_no_store(tmp_path, stored):
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(errors.NotAStoreError, match=str(path)):
            runtime.open(path)
    with pytest.raises(errors.NotInStoreError, match="'h300'"):
        runtime.open(stored, target="h300")


@pytest.mark.parametrize("name", [None, 7, b"scale", ("scale",)])
def test_a_name_is_a_string(stored, name):
    with pytest.raises(errors.UsageError, match="^bad name: got .*, want the name or the key of"):
        runtime.open(stored).plan(name)


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 9999, "../scale", "\ud800", "a\nb"])
def test_odd_names_are_not_there(stored, name):
    for target in (None, "cpu"):
        with pytest.raises(
            (errors.NotInStoreError, errors.UsageError), match="no graph named|bad graph name"
        ) as absent:
            runtime.open(stored).plan(name, target)
        assert "\n" not in str(absent.value)


def test_a_path_is_a_path(stored):
    for path, kind in (("a\0b", errors.NotAStoreError), (7, errors.UsageError)):
        with pytest.raises(kind, match="^bad path of a store: got "):
            runtime.open(path)
    run(runtime.open(os.fsencode(stored)).plan("scale"))


def test_an_extent_out_of_range_is_refused_before_anything_is_allocated(writer):
    """Not the workspace that it would take, and nothing is asked of the device but what it is."""
    wide = operand(1, ["M", 6], [6, 1])
    steps = (
        {"step": "fill", "slice": "s", "bytes": 4, "pattern": 0, "width": 4},
        kernel({"arg": "launch"}),
    )
    fields = {
        "symbols": {"M": symbol(1, 64, multiple_of=8)},
        "workspace": [{"name": "s", "bytes": ["mul", "M", "M"], "align": 128}],
    }
    put_plan(writer, "wide_cpu", "cpu", table([wide], *steps, **fields), symbol_name="count")
    gpu = table([wide], *steps, device="cuda", **fields)
    put_plan(writer, "wide_h200", "h200", gpu, symbol_name="count")
    log = run_with_stand_ins(
        """
import resource, tracemalloc
from cudnn_aot import runtime

store = runtime.open(sys.argv[1])
host, gpu = store.plan("wide_cpu"), store.plan("wide_h200")
x = np.zeros((72, 6), np.float32)
calls = [(host, {1: x}, None), (gpu, {1: OnDevice((72, 6))}, None)]
calls += [(plan, {1: 4096}, {"M": m}) for plan in (host, gpu) for m in (0, 12, 72, 1 << 40)]
tracemalloc.start()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for plan, bindings, symbols in calls:
    tracemalloc.reset_peak()
    held, _ = tracemalloc.get_traced_memory()
    try: plan.execute(bindings, None, symbols=symbols)
    except errors.RefusedError as refused: assert refused.rule == "symbol_range", refused
    else: raise AssertionError
    _, peak = tracemalloc.get_traced_memory()
    assert peak - held < 1 << 16, peak - held
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 12  # KiB
""",
        writer.path,
    )
    assert all(line.startswith("sm_count of ") for line in log), log


def test_a_flipped_byte_is_found(writer):
    blob = put_plan(writer, "scale")
    path = writer.path / "blobs" / "sha256" / blob[:2] / blob
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(errors.DamagedError, match=f"^plan 'scale' for cpu: .*{blob} is damaged"):
        runtime.open(writer.path).plan("scale")


@pytest.mark.parametrize(
    ("record", "error", "message"),
    [
        ({"format": 2}, errors.StoreError, "'scale' has format 2, .* reads format 1"),
        ({"target": "h200"}, errors.DamagedError, "belongs to another graph than 'scale'"),
        ({"engine": {"id": 7}}, errors.StoreError, "'scale': engine: field 'name' is missing"),
        ({"knobs": 7}, errors.StoreError, "'scale': knobs: got an integer, want an object"),
        (
            {"kernels": [{"symbol": "scale"}]},
            errors.StoreError,
            r"'scale': kernels\[0\]: field 'blob' is missing",
        ),
        (
            {"kernels": [{"blob": "0" * 64}]},
            errors.StoreError,
            r"'scale': kernels\[0\]: field 'symbol' is missing",
        ),
        ({"launch_table": SCALE | {"version": 9}}, errors.StoreError, "version: got 9, want 1"),
        ({"kernels": []}, errors.StoreError, "a step names kernel 0, got 0 kernels"),
        ({"symbol_name": "absent"}, errors.LaunchError, "lacks the symbol '__tvm_ffi_absent'"),
        (
            {"launch_table": table([], {"step": "backend", "blob": 0, "uids": []})},
            errors.StoreError,
            "a step names blob 0, got 0 blobs",
        ),
    ],
)
def test_a_record_that_cannot_be_served(writer, record, error, message):
    target = record.pop("target", None)
    put_plan(writer, "scale", **record)
    if target:
        pointer = writer.reader.pointer("cpu", graph_key("scale"))
        document = json.loads(writer.reader.blob(pointer["records"][0])) | {"target": target}
        moved = writer.put_blob(json.dumps(document).encode())
        writer.put_pointer("cpu", graph_key("scale"), pointer | {"records": [moved]})
    with pytest.raises(error, match=message) as refused:
        runtime.open(writer.path).plan("scale")
    assert "\n" not in str(refused.value)


SERVE = """
import array, sys
from cudnn_aot import runtime
plan = runtime.open(sys.argv[1]).plan("scale")
plan.prepare()
x, y = array.array("f", range(12)), array.array("f", bytes(48))
plan.execute({1: x, 3: 0.5, 9: y}, symbols={"M": 2})
assert list(y) == [v / 2 for v in x]
loaded = {name.partition(".")[0] for name in sys.modules}
print(*sorted(loaded & {"click", "filelock", "rich", "numpy", "torch", "cutlass", "tvm_ffi"}))
print(*sorted(name for name in sys.modules if name.startswith("cudnn_aot.")))
"""


def serve(store: Path, **options) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(store)], capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


def test_serving_imports_no_compiler_and_no_framework(stored):
    foreign, own, _ = serve(stored)
    assert foreign == ""
    assert not [
        name
        for name in own.split()
        if name.startswith(("cudnn_aot.compiler", "cudnn_aot.recipes", "cudnn_aot.cli"))
    ]


def test_serving_from_a_read_only_store_elsewhere(stored, tmp_path):
    import shutil

    moved = tmp_path / "moved"
    shutil.copytree(stored, moved)
    for path in [moved, *moved.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        serve(moved, cwd="/")
    finally:
        for path in [moved, *moved.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)


def test_a_plan_is_freed_with_its_last_user(stored):
    import gc
    import weakref

    class Watched(runtime.Plan):
        __slots__ = ("__weakref__",)

    store = runtime.open(stored)
    plan = store.plan("scale")
    plan.__class__  # noqa: B018
    gc.collect()
    gc.disable()
    try:
        reader = StoreReader(stored)
        record = json.loads(reader.blob(reader.pointer("cpu", plan.graph_key)["records"][0]))
        for make in (
            lambda: Watched("scale", {}, record, reader.blob),
            lambda: Watched.loaded(plan._record, plan._native),
        ):
            made = make()
            gone = weakref.ref(made)
            del made
            assert gone() is None  # no cycle through the device hook
    finally:
        gc.enable()


def test_forked_children_may_serve_host_plans(stored):
    plan = runtime.open(stored).plan("scale")
    child = os.fork()
    if child == 0:
        try:
            run(plan)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_unknown_attributes_of_the_package():
    with pytest.raises(AttributeError, match="no attribute 'serve'"):
        _ = runtime.serve
