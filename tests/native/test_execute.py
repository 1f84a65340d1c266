"""Execution on the host: what kernels receive, fills, workspace, errors, threads, loading."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import child
import numpy as np
import pytest
from tables import kernel, library, operand, scalar, symbol, table, whole

from cudnn_aot import _native
from cudnn_aot.errors import LaunchError, RefusedError

X = operand(1, ["M", 6], [6, 1])
Y = operand(9, ["M", 6], [6, 1], kind="output")
ALPHA = scalar(3, value=2.0)
SCALE = table(
    [X, ALPHA, Y],
    kernel(whole(Y), whole(X), {"arg": "scalar", "operand": 3}),
    symbols={"M": symbol()},
)


@pytest.fixture
def scale(load):
    return _native.Plan(SCALE, [load("scale")])


def arrays(m=5):
    x = np.arange(m * 6, dtype=np.float32).reshape(m, 6)
    return x, np.full_like(x, np.nan)


def test_a_plan_computes(scale):
    x, y = arrays()
    assert scale.execute({1: x, 3: 0.5, 9: y}) is None
    assert (y == 0.5 * x).all()
    scale.execute([x, None, y])
    assert (y == 2 * x).all()


def test_strided_buffers_are_read_and_written_in_place(scale):
    x, _ = arrays()
    wide = np.full((5, 10), np.nan, np.float32)
    scale.execute({1: np.asfortranarray(x), 9: wide[:, 2:8]})
    assert (wide[:, 2:8] == 2 * x).all()
    assert np.isnan(wide[:, :2]).all() and np.isnan(wide[:, 8:]).all()


def test_addresses(scale):
    x, y = arrays()
    scale.execute({1: x.ctypes.data, 9: y.ctypes.data}, symbols={"M": 3})
    assert (y[:3] == 2 * x[:3]).all() and np.isnan(y[3:]).all()


def test_a_refusal_runs_nothing(scale):
    x, y = arrays()
    with pytest.raises(RefusedError):
        scale.execute({1: x, 9: y[:2]})
    assert np.isnan(y).all()


def test_keyword_arguments(scale):
    x, y = arrays()
    scale.execute(bindings={1: x, 9: y}, stream=None, workspace=None, symbols=None)
    for wrong, message in (
        ({"streams": 0}, "unknown argument 'streams'"),
        ({"bindings": {}}, "repeated argument 'bindings'"),
    ):
        with pytest.raises(TypeError, match=message):
            scale.execute({1: x, 9: y}, **wrong)
    with pytest.raises(TypeError, match="'bindings' is missing"):
        scale.execute()


def decode(words, args):
    """What the echo kernel wrote, one entry for each argument."""
    words, out = list(words), []
    for _ in range(args):
        kind = words.pop(0)
        if kind == 7:
            address, *device_and_dtype, rank = (words.pop(0) for _ in range(6))
            dim = [words.pop(0) for _ in range(rank)]
            out.append((address, device_and_dtype, dim, [words.pop(0) for _ in range(rank)]))
        elif kind == 3:
            out.append(float(np.int64(words.pop(0)).view(np.float64)))
        else:
            out.append((kind, words.pop(0)))
    assert words[0] == -1
    return out


def test_every_kind_of_argument(load):
    x = operand(1, ["M", 4, 6], [24, 6, 1], dtype="BFLOAT16")
    out = operand(9, [100], kind="output", dtype="INT64")
    gone = operand(10, [4], optional=True)
    args = [
        {"arg": "launch"},
        {"arg": "int", "value": ["mul", "M", -3]},
        {"arg": "float", "value": 0.25},
        {"arg": "scalar", "operand": 3},
        {"arg": "scalar", "operand": 4},
        {"arg": "none"},
        # merged and transposed, with a unit and a zero-stride axis, from the second row on
        {
            "arg": "tensor",
            "operand": 1,
            "dim": [6, ["mul", ["sub", "M", 1], 4], 1, 7],
            "stride": [["stride", 1, 2], ["stride", 1, 1], 0, 0],
            "offset": ["stride", 1, 0],
        },
        {"arg": "tensor", "operand": 1, "dtype": "UINT8", "dim": [48], "stride": [1]},
        {"arg": "tensor", "slice": "b", "dtype": "INT32", "dim": [["mul", "M", 2]], "stride": [1]},
        {"arg": "tensor", "operand": 1, "dim": [], "stride": []},
    ]  # fmt: skip
    echo = table(
        [x, scalar(3, 0.5), scalar(4, -9, dtype="INT32"), out, gone],
        kernel(whole(out), *args),
        symbols={"M": symbol()},
        workspace=[
            {"name": "a", "bytes": 5, "align": 1},
            {"name": "b", "bytes": ["mul", "M", 8], "align": 64},
        ],
    )
    plan = _native.Plan(echo, [load("echo")])
    buffer = np.zeros((3, 4, 6), np.uint16)
    seen = np.zeros(100, np.int64)
    room = np.zeros(plan.workspace_bytes({"M": 3}) + 64, np.uint8)
    plan.execute({1: buffer, 9: seen}, room)
    start = room.ctypes.data + -room.ctypes.data % 64
    host = [1, 0]
    assert decode(seen, len(args)) == [
        (1, 1),
        (1, -9),
        0.25,
        0.5,
        (1, -9),
        (0, 0),
        (buffer.ctypes.data + 48, [*host, 4, 16], [6, 8, 1, 7], [1, 6, 0, 0]),
        (buffer.ctypes.data, [*host, 1, 8], [48], [1]),
        (start + 64, [*host, 0, 32], [6], [1]),
        (buffer.ctypes.data, [*host, 4, 16], [], []),
    ]


@pytest.mark.parametrize(
    ("width", "pattern", "byte"),
    [(1, 0xAB, b"\xab"), (2, 0x1234, b"\x34\x12"), (4, 0x7FC00001, b"\x01\x00\xc0\x7f")],
)
def test_fills(width, pattern, byte):
    y = operand(9, [8], kind="output")
    step = {"step": "fill", "operand": 9, "bytes": 16, "pattern": pattern, "width": width}
    plan = _native.Plan(table([y], step), [])
    buffer = np.zeros(8, np.float32)
    plan.execute({9: buffer})
    assert buffer.tobytes() == byte * (16 // width) + bytes(16)


@pytest.mark.parametrize("size", [-4, 36, 6])
def test_a_fill_stays_within_its_buffer(size):
    y = operand(9, [8], kind="output")
    step = {"step": "fill", "operand": 9, "bytes": size, "pattern": 7, "width": 4}
    buffer = np.zeros(8, np.float32)
    with pytest.raises(RefusedError) as refused:
        _native.Plan(table([y], step), []).execute({9: buffer})
    assert (refused.value.rule, refused.value.operand) == ("capacity", 9)
    assert not buffer.any()


def test_a_later_step_that_does_not_fit_keeps_the_first_from_running():
    y = operand(9, [8], kind="output")
    steps = [
        {"step": "fill", "operand": 9, "bytes": size, "pattern": 7, "width": 4} for size in (32, 36)
    ]
    buffer = np.zeros(8, np.float32)
    with pytest.raises(RefusedError, match="rule capacity"):
        _native.Plan(table([y], *steps), []).execute({9: buffer})
    assert not buffer.any()


def test_a_fill_of_an_absent_operand_does_nothing():
    y = operand(9, [8], kind="output", optional=True)
    step = {"step": "fill", "operand": 9, "bytes": 32, "pattern": 0, "width": 4}
    _native.Plan(table([y], step), []).execute({})


def test_an_error_of_a_kernel_is_one_line(load):
    plan = _native.Plan(table([], kernel()), [load("refuse")])
    with pytest.raises(LaunchError, match="ValueError: first line second line$"):
        plan.execute({})


def test_an_error_of_a_kernel_reads_no_file_that_took_its_number(tmp_path):
    """The backtrace of an error opens libraries by their names: a bus error on an empty file."""
    code = """
import os, sys
from tables import kernel, library, table
from cudnn_aot import _native, errors
from cudnn_aot.runtime.plan import initialise_ffi
initialise_ffi()
plan = _native.Plan(table([], kernel()), [_native.load_kernel(library(), "refuse")])
held = [os.open(sys.argv[1], os.O_RDWR | os.O_CREAT) for _ in range(40)]
try: plan.execute({})
except errors.LaunchError as error: print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "empty")],
        capture_output=True,
        text=True,
        env=child.environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "first line second line" in done.stdout


def test_a_plan_without_kernels_does_not_run():
    plan = _native.Plan(table([], kernel()))
    assert plan.resolve({})["branch"] == "only"
    with pytest.raises(LaunchError, match="without kernels"):
        plan.execute({})


def test_host_kernels_run_without_the_interpreter_lock(load):
    """Two calls that wait for each other: they must overlap."""
    mine, other = operand(1, [1], dtype="INT64"), operand(2, [1], dtype="INT64")
    plan = _native.Plan(table([mine, other], kernel(whole(mine), whole(other))), [load("meet")])
    a, b = np.zeros(1, np.int64), np.zeros(1, np.int64)
    threads = [
        threading.Thread(target=plan.execute, args=({1: x, 2: y},)) for x, y in ((a, b), (b, a))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert a[0] == b[0] == 1


def test_threads_do_not_see_each_others_buffers(scale):
    faults = []

    def work(index):
        try:
            x, y = arrays(7 + index)
            for turn in range(200):
                scale.execute({1: x, 3: turn, 9: y})
                assert (y == np.float32(turn) * x).all()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]


def test_prepare_of_a_host_plan_calls_nothing(load):
    counted = operand(1, [2], dtype="INT64")
    before, after = np.zeros(2, np.int64), np.zeros(2, np.int64)
    report = _native.Plan(table([counted], kernel(whole(counted))), [load("counted")])
    report.execute({1: before})
    _native.Plan(table([], kernel({"arg": "launch"})), [load("count")]).prepare(None)
    report.execute({1: after})
    assert (before == after).all()


def open_descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_libraries_with_equal_symbols_are_told_apart(load):
    """Each load has a path of its own, though descriptors repeat."""
    x, y = arrays()
    for version in (1, 2, 3, 2, 1):
        _native.Plan(SCALE, [load("scale", version)]).execute({1: x, 9: y})
        assert (y == 2 * x + (version - 1)).all()
    descriptors = open_descriptors()
    for version in (4, 5):
        load("scale", version)
    assert open_descriptors() == descriptors


def test_a_kernel_that_does_not_load(load):
    with pytest.raises(LaunchError, match="lacks the symbol '__tvm_ffi_absent'"):
        load("absent")
    with pytest.raises(LaunchError, match="did not load: "):
        _native.load_kernel(b"no library", "scale")
    with pytest.raises(LaunchError, match="did not load: "):
        _native.load_kernel(library()[:2000], "scale")


def test_loading_where_memory_files_are_forbidden(tmp_path):
    """A private file takes their place, and is gone afterwards."""
    (tmp_path / "kernels.so").write_bytes(library())
    (tmp_path / "scratch").mkdir()
    code = f"""
import ctypes, pathlib
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER, MEMFD_CREATE = 38, 22, 2, 319
class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8),
                ("k", ctypes.c_uint32)]
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Instruction))]
code = (Instruction * 4)((0x20, 0, 0, 0), (0x15, 0, 1, MEMFD_CREATE),
                         (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000))
program = Program(4, code)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(program)) == 0
from cudnn_aot import _native
from cudnn_aot.runtime.plan import initialise_ffi
initialise_ffi()
data = pathlib.Path({str(tmp_path / "kernels.so")!r}).read_bytes()
print(_native.load_kernel(data, "scale").symbol)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "scratch")},
    )
    if "AssertionError" in done.stderr:
        pytest.skip("this system does not let a process filter its own system calls")
    assert done.stdout.split() == ["scale"], done.stderr
    assert not list((tmp_path / "scratch").iterdir())


def test_a_symbol_whose_conversion_changes_the_dict():
    """Freed memory is overwritten in this process, so that a use of it is seen."""
    code = """
from tables import *
from cudnn_aot import _native
X = operand(1, ["M", 6], [6, 1])
plan = _native.Plan(table([X], kernel(whole(X)), symbols={"M": symbol()}))

class Value:
    def __index__(self):
        symbols.clear()
        raise TypeError

for _ in range(50):
    symbols = {"M": Value()}
    try: plan.resolve({1: 0x1000}, symbols=symbols)
    except Exception as error: assert "symbol 'M': got" in str(error), error
    else: raise AssertionError
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=child.environment(PYTHONMALLOC="debug"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
