"""Start and end of a process that serves: many loads, unloading, exit, reload. Child processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cuda_stand_in import run as run_with_stand_ins
from served_store import put_plan, small_store
from tables import kernel, operand, table, whole

from cudnn_aot.cache.writer import StoreWriter

PRELUDE = """
import array, gc, os, sys, threading, time
from cudnn_aot import runtime

def run(execute):
    x, y = array.array("f", range(12)), array.array("f", bytes(48))
    execute({1: x, 3: 0.5, 9: y}, symbols={"M": 2})
    assert list(y) == [v / 2 for v in x]
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = small_store(tmp_path_factory.mktemp("ends") / "store")
    flag = operand(1, [1], dtype="INT64")
    other = operand(2, [1], dtype="INT64")
    with StoreWriter(store) as writer:
        meet = table([flag, other], kernel(whole(flag), whole(other)))
        put_plan(writer, "meet", launch_table=meet, symbol_name="meet")
        room = [{"name": "s", "bytes": 64, "align": 64}]
        fill = {"step": "fill", "slice": "s", "bytes": 64, "pattern": 0, "width": 4}
        fills = table([], fill, device="cuda", workspace=room)
        put_plan(writer, "fills", "h200", fills, {"gpu_arch": "sm_90a"}, kernels=[])
    return store


def child(code: str, *arguments: object, seconds: float = 60) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_functions_outlive_their_plan_and_store(stored):
    child(
        """
store = runtime.open(sys.argv[1], target="cpu")
plan = store.plan("scale")
execute, bound = plan.execute, plan.bind({"M": 2}).execute
del store, plan
gc.collect()
run(execute)
run(bound)
""",
        stored,
    )


def test_the_same_library_after_everything_was_dropped(stored):
    child(
        """
for _ in range(3):
    run(runtime.open(sys.argv[1], target="cpu").plan("scale").execute)
    gc.collect()
libraries = {line.split()[4] for line in open("/proc/self/maps") if "cudnn_aot_kernel" in line}
assert len(libraries) == 1, libraries
""",
        stored,
    )


def test_exit_with_everything_alive(stored):
    child(
        """
import atexit
plan = runtime.open(sys.argv[1], target="cpu").plan("scale")
class Late:
    def __del__(self): run(self.execute)
late = Late()
late.execute = plan.execute
sys.late = late  # among the last things to go
atexit.register(run, plan.execute)
run(plan.execute)
""",
        stored,
    )


def test_exit_while_a_daemon_thread_executes(stored):
    """The kernel ends after the interpreter: its thread may not come back, nor end the process."""
    child(
        """
import ctypes
plan = runtime.open(sys.argv[1], target="cpu").plan("meet")
mine, other = (ctypes.c_int64 * 1)(0), (ctypes.c_int64 * 1)(0)
thread = threading.Thread(
    target=plan.execute,
    args=({1: ctypes.addressof(mine), 2: ctypes.addressof(other)},), daemon=True)
thread.start()
while not mine[0]: time.sleep(0.001)
class Last:  # goes when no other thread may run Python any more
    def __init__(self): self.sleep, self.other = time.sleep, other
    def __del__(self):
        self.other[0] = 1
        self.sleep(0.2)
sys.last_one = Last()
""",
        stored,
    )


def test_exit_while_a_daemon_thread_loads(stored):
    child(
        """
store = runtime.open(sys.argv[1], target="cpu")
def load():
    while True: store.plan("scale")
for _ in range(3): threading.Thread(target=load, daemon=True).start()
time.sleep(0.2)
""",
        stored,
    )


def test_reload(stored):
    child(
        """
import importlib
old = runtime.open(sys.argv[1], target="cpu").plan("scale")
for name in ("store", "plan"):
    importlib.reload(sys.modules["cudnn_aot.runtime." + name])
run(importlib.reload(runtime).open(sys.argv[1], target="cpu").plan("scale").execute)
run(old.execute)
run(old.bind({"M": 2}).execute)
""",
        stored,
    )


def test_a_second_import_of_everything(stored):
    child(
        """
old = runtime.open(sys.argv[1], target="cpu").plan("scale")
for name in [name for name in sys.modules if name.startswith("cudnn_aot")]:
    del sys.modules[name]
from cudnn_aot import runtime as again
assert again is not runtime
new = again.open(sys.argv[1], target="cpu").plan("scale")
for plan in (old, new):
    run(plan.execute)
    run(plan.bind({"M": 2}).execute)
try: new.execute({1: 0, 9: 0})
except sys.modules["cudnn_aot.errors"].RefusedError: pass
else: raise AssertionError
""",
        stored,
    )


def test_loading_from_many_threads(stored):
    child(
        """
from concurrent.futures import ThreadPoolExecutor
store = runtime.open(sys.argv[1], target="cpu")
with ThreadPoolExecutor(8) as pool:
    plans = list(pool.map(lambda _: store.plan("scale"), range(64)))
for plan in plans: run(plan.execute)
libraries = {line.split()[4] for line in open("/proc/self/maps") if "cudnn_aot_kernel" in line}
assert len(libraries) == 1, libraries
""",
        stored,
    )


def test_fork_while_others_load(tmp_path, stored):
    """A child neither waits for a load of its parent nor finds one half done."""
    child(
        """
store = runtime.open(sys.argv[1], target="cpu")
stop = False
def load():
    while not stop: store.plan("scale")
for _ in range(3): threading.Thread(target=load, daemon=True).start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        try:
            run(store.plan("both").execute)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop = True
""",
        stored,
    )


def test_the_import_is_small(stored):
    """By what is imported: how long it takes is measured by bench/startup.py."""
    out = child("runtime.open(sys.argv[1]); print(*sys.modules)", stored)
    heavy = {"difflib", "platform", "logging", "concurrent.futures", "subprocess", "numpy"}
    assert not heavy & set(out.split())


def test_what_comes_before_a_fork_touches_no_cuda(stored):
    """Stand-ins log every call; a child that uses the GPU plan of its parent first is no child of
    a process that used CUDA.
    """
    log = run_with_stand_ins(
        """
import os, sys
from pathlib import Path
from cudnn_aot import errors, runtime
store = runtime.open(sys.argv[1], target="h200")
plan = store.plan("fills")
plan.workspace_bytes()
plan.bind({}).workspace_bytes()
loaded = {line.split()[-1] for line in open("/proc/self/maps")}
assert not [name for name in loaded if "libcuda" in name], loaded

def child(work):
    child = os.fork()
    if child == 0:
        try: os._exit(work())
        except BaseException as error: print(repr(error), file=sys.stderr)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def use():
    plan.prepare(0)
    plan.execute({}, 0x8000, stream=1)
    return 0

def use_is_refused():
    for call in (lambda: plan.prepare(0), lambda: plan.execute({}, 0x8000),
                 lambda: store.plan("fills").execute({}, 0x8000)):
        try: call()
        except errors.LaunchError as error: assert "forked" in str(error), error
        else: return 2
    return 0

assert child(use) == 0 and child(use) == 0
plan.prepare(0)
assert child(use_is_refused) == 0
assert child(lambda: child(use_is_refused)) == 0  # and so on
use()
""",
        stored,
        prelude="",
    )
    assert len([line for line in log if line.startswith("fill")]) == 3
