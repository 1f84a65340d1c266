"""The C interface beside the Python runtime: the same plans, results, errors and messages."""

from __future__ import annotations

import ctypes
import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import c_interface
import child
import numpy as np
import pytest
from c_interface import tensor_of
from cuda_stand_in import run as run_with_stand_ins
from served_store import ALPHA, SCALE, X, Y, graph_key, put_decline, put_plan, small_store
from tables import Json, kernel, operand, scalar, symbol, table, whole

from cudnn_aot import __version__, errors, runtime
from cudnn_aot.cache.layout import document_bytes, name_path, pointer_path
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter


def fill(count: Any, width: int, **target: Any) -> Json:
    return {"step": "fill", "bytes": count, "pattern": 0, "width": width} | target


SLICED = table(
    [X, Y],
    fill(["mul", 8, "M"], 1, slice="s"),
    kernel(whole(Y), whole(X), {"arg": "float", "value": 3.0}),
    symbols={"M": symbol(1, 4096)},
    workspace=[{"name": "s", "bytes": ["mul", 8, "M"], "align": 256}],
)
SCALARS = table(
    [X, scalar(3) | {"name": "alpha"}, scalar(4, dtype="INT32"), Y],
    kernel(whole(Y), whole(X), {"arg": "scalar", "operand": 3}),
    symbols={"M": symbol(1, 64)},
)
CUDNN = {
    "blobs": [{"blob": "0" * 64, "bytes": 3}],
    "requirements": {"cudnn": "9.1.0"},
}


def fill_store(path: Path) -> Path:
    small_store(path)
    with StoreWriter(path) as writer:
        put_plan(writer, "sliced", launch_table=SLICED)
        put_plan(writer, "scalars", launch_table=SCALARS)
        put_plan(writer, "it's", symbol_name="scale")
        put_plan(writer, "undemanding", requirements={"gpu_arch": None, "sm_count": None})
        put_plan(writer, "modèle/ü 1")
        put_plan(writer, "later", format=2)
        put_plan(writer, "worded", format="two")
        put_plan(writer, "broken table", launch_table=SCALE | {"version": 99})
        put_plan(writer, "huge", launch_table=SCALE | {"symbols": {"M": symbol() | {"max": 2**70}}})
        put_plan(writer, "short", launch_table=SCALE | {"operands": []})
        put_plan(writer, "no symbol", symbol_name="nowhere")
        put_plan(writer, "stray", graph_key=graph_key("scale"))
        for name, needed in {
            "arm": {"host_triple": "aarch64-linux-gnu"},
            "glibc": {"glibc_min": "9.1"},
            "level": {"host_level": "x86-64-v9"},
            "moon": {"moon_phase": 1, "tide": 2},
        }.items():
            put_plan(writer, name, requirements=needed)
        put_decline(writer, "no reason", "cpu")
    return path


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_store(tmp_path_factory.mktemp("c interface") / "store")


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    """What a call gives, or the error it raises."""
    try:
        return ("gave", call())
    except errors.RefusedError as error:
        return ("RefusedError", str(error), error.rule, error.operand)
    except errors.Error as error:
        return (type(error).__name__, str(error))


def assert_same(call: Callable[[Any], Any], path: Any, target: str | None = None) -> str:
    """Both halves raise the same error; returns its class."""
    in_python = outcome(lambda: call(runtime.open(path, target)))
    in_c = outcome(lambda: call(c_interface.Store(path, target)))
    assert in_c == in_python
    assert in_c[0] != "gave" and "\n" not in in_c[1]
    return str(in_c[0])


def test_a_plan_by_name_and_by_key(stored):
    store = c_interface.Store(stored)
    assert store.names() == runtime.open(stored).names()
    for asked in ("scale", graph_key("scale"), "modèle/ü 1", "undemanding"):
        plan = store.plan(asked)
        info = plan.info
        assert (info.name.decode(), info.target, info.engine) == (asked, b"cpu", b"by.hand")
        assert info.graph_key.decode() == (asked if len(asked) == 64 else graph_key(asked))
        assert (plan.uid("X"), plan.uid("alpha"), plan.uid("Y")) == (1, 3, 9)
        assert [(o.uid, o.name, o.kind, o.code, o.bits, o.rank) for o in plan.operands] == [
            (1, b"X", 0, 2, 32, 2),
            (3, b"alpha", 2, 2, 32, 0),
            (9, b"Y", 1, 2, 32, 2),
        ]
        assert [o.is_optional for o in plan.operands] == [0, 1, 0]
        declared = SCALE["symbols"]["M"]
        (m,) = plan.symbols
        assert (m.name, m.min, m.max, m.multiple_of) == (b"M", *declared.values())
        assert plan.layout(9, 2, {"M": 5}) == ([5, 6], [6, 1])
        plan.prepare()
        x = np.arange(18, dtype=np.float32).reshape(3, 6)
        y = np.full_like(x, np.nan)
        plan.execute({1: x, 9: y, 77: x, 3: None})
        assert (y == 2 * x).all()
        plan.execute({1: x, 9: y, 3: np.array([0.5], np.float32)}, symbols={"M": 3})
        assert (y == 0.5 * x).all()
    assert c_interface.C.cudnn_aot_version().decode() == __version__


def test_without_strides_and_with_an_offset(stored):
    plan = c_interface.Store(stored).plan("scale")
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    y = np.zeros_like(x)
    rows = (ctypes.c_int64 * 2)(3, 6)
    shape = {"shape": ctypes.addressof(rows), "strides": 0, "byte_offset": 24}
    plan.execute({1: tensor_of(x, **shape), 9: tensor_of(y, **shape)})
    assert (y[1:] == 2 * x[1:]).all() and not y[0].any()


def test_workspace(stored):
    plan = c_interface.Store(stored).plan("sliced")
    reference = runtime.open(stored).plan("sliced")
    for symbols in (None, {"M": 3}):
        assert plan.workspace_bytes(symbols) == reference.workspace_bytes(symbols) > 0
    x = np.ones((3, 6), np.float32)
    y = np.zeros_like(x)
    plan.execute({1: x, 9: y}, np.zeros(24 + 256, np.uint8))
    assert (y == 3).all()


def rows(count: int, dtype: Any = np.float32, columns: int = 6) -> np.ndarray:
    return np.zeros((count, columns), dtype)


OVERLAPPING = np.lib.stride_tricks.as_strided(rows(3), (3, 6), (0, 4))
ONE = np.ones(1, np.float32)
# The rule, the plan, the bindings and workspace, and the symbols.
REFUSED: list[tuple[str, str, tuple[Any, ...], dict[str, int] | None]] = [
    ("presence", "scale", ({1: rows(3)},), None),
    ("dtype", "scale", ({1: rows(3, np.int32), 9: rows(3)},), None),
    ("extents", "scale", ({1: rows(3), 9: rows(4)},), None),
    ("capacity", "scale", ({1: rows(3), 9: rows(1).reshape(6)},), None),
    ("overlap", "scale", ({1: rows(3), 9: OVERLAPPING},), None),
    ("alignment", "scale", ({1: rows(3), 9: np.zeros(74, np.uint8)[2:]},), {"M": 3}),
    ("symbol_unbound", "scale", ({1: rows(2).reshape(12), 9: rows(2).reshape(12)},), None),
    ("symbol_range", "scale", ({1: rows(3), 9: rows(3)},), {"M": -3}),
    ("symbol_unknown", "scale", ({1: rows(3), 9: rows(3)},), {"N'": 3}),
    ("workspace", "sliced", ({1: rows(3), 9: rows(3)},), None),
    ("workspace", "sliced", ({1: rows(3), 9: rows(3)}, np.zeros(1, np.uint8)), None),
    ("presence", "scalars", ({1: rows(3), 9: rows(3)},), None),
    ("extents", "scalars", ({1: rows(3), 3: rows(1), 9: rows(3)},), None),
    ("dtype", "scalars", ({1: rows(3), 3: np.ones(1, np.complex64), 9: rows(3)},), None),
    ("dtype", "scalars", ({1: rows(3), 3: ONE, 4: np.array([2**40]), 9: rows(3)},), None),
]


@pytest.mark.parametrize(("rule", "name", "arguments", "symbols"), REFUSED)
def test_a_call_that_does_not_fit_is_refused_in_the_same_words(
    stored, rule, name, arguments, symbols
):
    def call(store: Any) -> None:
        store.plan(name).execute(*arguments, symbols=symbols)

    assert assert_same(call, stored) == "RefusedError"
    assert outcome(lambda: call(c_interface.Store(stored)))[2] == rule


def test_other_arguments_that_are_wrong(stored):
    def unbound(store: Any) -> None:
        store.plan("sliced").workspace_bytes({"M": 70_000})

    assert assert_same(unbound, stored) == "RefusedError"
    plan = c_interface.Store(stored).plan("scale")
    x = rows(3)
    twice = (ctypes.c_int64 * 2)(1, 1)
    pointers = (ctypes.c_void_p * 2)(*[ctypes.addressof(tensor := tensor_of(x))] * 2)
    call = c_interface.C.cudnn_aot_plan_execute
    assert outcome(
        lambda: c_interface.raise_error(
            call(plan.handle, 2, twice, pointers, None, ctypes.c_int64(0), None, None)
        )
    ) == ("RefusedError", "got uid 1 twice, want each once (rule name)", "name", 1)
    assert tensor.ndim == 2
    with pytest.raises(errors.RefusedError, match="symbol 'M': got no value, want one"):
        plan.layout(9, 2, {})
    with pytest.raises(errors.RefusedError, match="got uid 8, want that of operand 1 'X', operand"):
        plan.layout(8, 2, {"M": 3})
    with pytest.raises(errors.RefusedError, match="got the name 'Q', want 'X', 'alpha' or 'Y'"):
        plan.uid("Q")
    with pytest.raises(errors.UsageError, match="bad device: got -2 for a cpu plan"):
        plan.prepare(-2)
    assert plan.symbols and c_interface.C.cudnn_aot_plan_operand(plan.handle, 3).name is None


@pytest.mark.parametrize(
    ("name", "target", "kind"),
    [
        ("scael", None, "NotInStoreError"),
        ("zzzzzz", None, "NotInStoreError"),
        ("its", "cpu", "NotInStoreError"),
        ("a\nb'\"\\", None, "NotInStoreError"),
        ("", None, "NotInStoreError"),
        ("", "cpu", "UsageError"),
        ("x" * 300, None, "NotInStoreError"),
        ("x" * 300, "cpu", "UsageError"),
        ("scale", "h200", "NotInStoreError"),
        ("scale", "h300", "NotInStoreError"),
        ("scale", "..", "NotInStoreError"),
        (graph_key("scale"), "h200", "NotInStoreError"),
        ("0" * 64, None, "NotInStoreError"),
        ("both", None, "UsageError"),
        ("odd", None, "cudnnGraphNotSupportedError"),
        ("no reason", "cpu", "cudnnGraphNotSupportedError"),
        ("later", None, "StoreError"),
        ("worded", None, "StoreError"),
        ("broken table", None, "StoreError"),
        ("huge", None, "StoreError"),
        ("short", None, "StoreError"),
        ("no symbol", None, "LaunchError"),
        ("stray", None, "DamagedError"),
        ("arm", None, "RequirementError"),
        ("glibc", None, "RequirementError"),
        ("level", None, "RequirementError"),
        ("moon", None, "StoreError"),
    ],
)
def test_what_is_not_loaded(stored, name, target, kind):
    assert assert_same(lambda store: store.plan(name, target), stored) == kind
    if target is not None and target != "h300" and "/" not in target:
        assert assert_same(lambda store: store.plan(name), stored, target) == kind


def test_what_is_not_opened(stored, tmp_path, monkeypatch):
    def opened(path: Any, target: str | None = None) -> str:
        return assert_same(lambda store: store, path, target)

    assert opened(tmp_path / "absent") == "NotAStoreError"
    assert opened(tmp_path) == "NotAStoreError"
    assert opened(f"{tmp_path}//./absent/") == "NotAStoreError"
    assert opened(stored / "store.json") == "NotAStoreError"
    assert opened(stored, "h300") == "NotInStoreError"
    for text in ("{", "[]", '{"format": 0}', '{"format": 2}', '{"format": true}', "\xff"):
        (tmp_path / "store.json").write_text(text, "latin-1")
        assert opened(tmp_path) == "NotAStoreError"
    (tmp_path / "store.json").unlink()
    (tmp_path / "store.json").mkdir()
    assert opened(tmp_path) == "NotAStoreError"
    monkeypatch.delenv("CUDNN_AOT_STORE", raising=False)
    assert opened(None) == "UsageError"
    monkeypatch.setenv("CUDNN_AOT_STORE", str(stored))
    assert c_interface.Store(None).plan("scale")


def test_providers(tmp_path):
    with StoreWriter(tmp_path / "store") as writer:
        put_plan(writer, "scale")
        put_plan(writer, "cudnn's", **CUDNN)
    path = tmp_path / "store"
    assert c_interface.Store(path).plan("scale", provider="native").info.engine == b"by.hand"
    kind = assert_same(lambda store: store.plan("scale", provider="cudnn"), path)
    assert kind == "NotInStoreError"
    with pytest.raises(errors.RequirementError, match="it is a plan of cuDNN 9.1.0, which Python"):
        c_interface.Store(path).plan("cudnn's")


def damage(path: Path, change: Callable[[bytearray], Any]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.chmod(0o644)
    path.write_bytes(data)


def flip(at: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[at] ^= 1

    return change


def reseal(**fields: Any) -> Callable[[bytearray], None]:
    """A document with other fields and a digest that is right."""

    def change(data: bytearray) -> None:
        data[:] = document_bytes(json.loads(data) | fields)

    return change


POINTER = pointer_path("cpu", graph_key("scale"))
NAME = name_path("cpu", "scale")
DAMAGES: dict[str, tuple[str, Callable[[bytearray], Any]]] = {
    "pointer byte": (POINTER, flip(20)),
    "pointer cut": (POINTER, lambda data: data.pop()),
    "pointer spaced": (POINTER, lambda data: data.insert(1, 32)),
    "pointer empty": (POINTER, lambda data: data.clear()),
    "pointer list": (POINTER, lambda data: data.__setitem__(slice(None), b"[1]\n")),
    "pointer of another": (POINTER, reseal(target="h200")),
    "pointer newer": (POINTER, reseal(format=2)),
    "pointer of no format": (POINTER, reseal(format="1")),
    "name byte": (NAME, flip(20)),
    "name of another": (NAME, reseal(name="both")),
    "name without a key": (NAME, reseal(graph_key=None, name="scale")),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_document_is_refused(tmp_path, case):
    path = small_store(tmp_path / "store")
    relative, change = DAMAGES[case]
    damage(path / relative, change)
    if case == "name without a key":
        document = json.loads((path / relative).read_bytes())
        del document["graph_key"]
        (path / relative).write_bytes(document_bytes(document))
    assert assert_same(lambda store: store.plan("scale", "cpu"), path) == "DamagedError"
    if case == "name without a key":
        return  # a whole document, of which only who follows it knows what it lacks

    def build_reader() -> None:
        """What builds and the command line read with, which says the same."""
        reader = StoreReader(path)
        reader.pointer("cpu", reader.name("cpu", "scale")["graph_key"])

    with pytest.raises(errors.DamagedError) as served:
        runtime.open(path).plan("scale", "cpu")
    with pytest.raises(errors.DamagedError) as built:
        build_reader()
    assert str(served.value) == str(built.value)


@pytest.mark.parametrize("at", [0, 1000, -1])
def test_a_blob_with_a_flipped_byte_is_refused(tmp_path, at):
    path = small_store(tmp_path / "store")
    for blob in (path / "blobs").rglob("*"):
        if blob.is_file() and blob.stat().st_size > 1000:
            damage(blob, flip(at))
    assert assert_same(lambda store: store.plan("scale"), path) == "DamagedError"


def test_files_that_are_none(tmp_path):
    def plan(store: Any) -> Any:
        return store.plan("scale", "cpu")

    path = small_store(tmp_path / "store")
    (path / POINTER).rename(path / "aside")
    assert assert_same(plan, path) == "NotInStoreError"
    (path / POINTER).symlink_to(path / "aside")
    assert assert_same(plan, path) == "DamagedError"
    (path / POINTER).unlink()
    (path / POINTER).mkdir()
    assert assert_same(plan, path) == "DamagedError"
    shutil.rmtree(path / "names" / "cpu")
    (path / "names" / "cpu").write_bytes(b"")
    assert assert_same(plan, path) == "DamagedError"


@pytest.mark.parametrize("place", ["plans", "plans/cpu", "names", "names/cpu", "blobs/sha256"])
def test_a_link_for_a_folder(tmp_path, place):
    """What is behind it is not served, under a name or a key, as `verify` does not see it."""
    path = small_store(tmp_path / "store")
    (path / place).rename(tmp_path / "outside")
    (path / place).symlink_to(tmp_path / "outside")
    for asked in ("scale", graph_key("scale")):
        if place.startswith("names") and asked != "scale":
            continue
        assert assert_same(lambda store, asked=asked: store.plan(asked, "cpu"), path) == (
            "DamagedError"
        )


# Has the kernel refuse `openat2`, as Linux before 5.6 and old filters of containers do.
_WITHOUT_OPENAT2 = """
import ctypes, struct, sys
from pathlib import Path
from cudnn_aot import errors, runtime
load, skip, give = 0x20, 0x15, 0x06
program = b"".join(struct.pack("HBBI", *each) for each in (
    (load, 0, 0, 0), (skip, 0, 1, 437), (give, 0, 0, 0x50000 | int(sys.argv[2])),
    (give, 0, 0, 0x7FFF0000),
))
filters = ctypes.create_string_buffer(program)
given = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(filters)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, given, 0, 0) == 0
assert libc.syscall(437, -1, b"x", None, 0) == -1
assert ctypes.get_errno() == int(sys.argv[2])
store = runtime.open(sys.argv[1], "cpu")
print(store.names(), store.plan("scale").engine)
plans = Path(sys.argv[1]) / "plans"
outside = plans.rename(plans.parent.with_name("outside"))
plans.symlink_to(outside)
try:
    runtime.open(sys.argv[1]).plan("scale", "cpu")
except errors.DamagedError as error:
    print(error)
"""


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_systems_without_openat2(tmp_path, number):
    path = small_store(tmp_path / "store")
    command = [sys.executable, "-c", _WITHOUT_OPENAT2, path, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    served, refused = done.stdout.splitlines()
    assert "scale" in served and "by.hand" in served
    assert refused.endswith("what should be its folder is none, or a link to one")


def test_both_copies_load_libraries_of_their_own(stored):
    """The first of each in one process, from a descriptor of the same number."""
    code = """
import sys
import c_interface
import numpy as np
from tables import launching_library
from cudnn_aot import _native
from cudnn_aot.runtime.plan import initialise_ffi
initialise_ffi()
store = c_interface.Store(sys.argv[1])
other = _native.load_kernel(launching_library(), "described")
x, y = np.ones((2, 6), np.float32), np.zeros((2, 6), np.float32)
store.plan("scale").execute({1: x, 9: y})
assert (y == 2).all()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(stored)],
        capture_output=True,
        text=True,
        env=child.environment(),
    )
    assert done.returncode == 0, done.stderr


def test_eight_threads(stored):
    store = c_interface.Store(stored)
    shared = store.plan("sliced")

    def work(number: int) -> bool:
        """Calls of the thread's own, some of which repeat; every other thread loads its plan."""
        plan = store.plan("sliced") if number % 2 else shared
        right = True
        for turn in range(300):
            m = 1 + (turn * number) % 7
            x = np.full((m, 6), number + turn, np.float32)
            y = np.zeros_like(x)
            plan.execute({1: x, 9: y}, np.zeros(8 * m + 256, np.uint8), symbols={"M": m})
            right &= bool((y == 3 * x).all())
        return right

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


FORKS = """
import os, sys, threading, time
import numpy as np
import c_interface

plan = c_interface.Store(sys.argv[1]).plan("sliced")

def once(m):
    y = np.zeros((m, 6), np.float32)
    plan.execute({1: np.ones((m, 6), np.float32), 9: y}, np.zeros(8 * m + 256, np.uint8),
                 symbols={"M": m})
    return bool((y == 3).all())

def work(number):
    while not stop:
        once(1 + number % 7)

stop = False
assert once(3)
threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(40)]
for thread in threads:
    thread.start()
for _ in range(60):
    child = os.fork()
    if child == 0:
        os._exit(0 if all(once(m) for m in (3, 5, 9)) else 1)
    for _ in range(1000):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        raise SystemExit("a child hangs")
    assert status == 0, status
stop = True
"""


def test_a_forked_child_executes_whatever_other_threads_were_doing(stored):
    """More threads than the plan's memory of calls has locks."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(stored)],
        env=child.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, ""),
        ({"major": 8}, "found compute capability 8."),
        ({"driver": 12040}, "CUDA driver: requires one for CUDA 12.9 or newer, found"),
        ({"smem": 1024}, "requires 232448 bytes for one block, found 1024"),
        ({"sm_count": 9}, "device cuda:1: requires 131 SMs exactly, found 8"),
        ({"devices": 0}, "no CUDA device"),
    ],
    ids=["runs", "arch", "driver", "smem", "sms", "none"],
)
def test_a_device_is_checked_before_its_first_use(tmp_path, settings, message):
    needed = {
        "gpu_arch": "sm_90a",
        "smem_optin_bytes": 232448,
        "driver_min": 12090,
        "sm_count": 131,  # what the stand-in says of device 1
    }
    with StoreWriter(tmp_path / "store") as writer:
        filled = table([operand(1, [4], kind="output")], fill(16, 4, operand=1), device="cuda")
        put_plan(writer, "fill", "h200", filled, needed)
    code = """
import c_interface
from cudnn_aot import runtime
from c_interface import tensor_of
path, message = sys.argv[1:]
here = tensor_of(np.zeros(4, np.float32), device_type=2, device_id=1)
there = OnDevice((4,), 1, here.data)
found = []
for store, bound in ((c_interface.Store(path), here), (runtime.open(path), there)):
    for use in (lambda plan: plan.execute({1: bound}), lambda plan: plan.prepare(1)):
        try:
            use(store.plan("fill"))
            found.append("")
        except errors.RequirementError as error:
            found.append(str(error))
assert len(set(found)) == 1 and message in found[0] and bool(message) == bool(found[0]), found
"""
    log = run_with_stand_ins(code, tmp_path / "store", message, **settings)
    assert any(line.startswith("fill32") for line in log) == (not message), log


def test_without_libtvm_ffi(stored, tmp_path):
    """The variable comes first: what it names is loaded, or the error says that it is not."""
    missing = str(tmp_path / "libtvm_ffi.so")
    code = (
        "import sys, c_interface\n"
        "from cudnn_aot import errors\n"
        "try: c_interface.Store(sys.argv[1]).plan('scale')\n"
        "except errors.LaunchError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(stored)],
        capture_output=True,
        text=True,
        check=True,
        env=child.environment(CUDNN_AOT_TVM_FFI=missing),
    )
    assert done.stdout.startswith("libtvm_ffi did not load: ") and missing in done.stdout


def test_alpha_of_the_table_is_what_a_call_leaves_out():
    assert ALPHA["value"] == 2.0  # else the results above say nothing
