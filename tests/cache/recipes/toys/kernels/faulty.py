"""Templates that do what a template must not; each gives its own one-line error."""

import contextlib
import importlib
import os
import signal
import subprocess
import time
from pathlib import Path

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32
from cutlass.base_dsl.enums import AddressSpace
from cutlass.cute.runtime import make_fake_compact_tensor

from cudnn_aot.recipes.trace.template import KernelTemplate

_TABLE = Path(__file__).with_name("table.txt")


def _vector(dtype=Float32):
    return make_fake_compact_tensor(dtype, (cute.sym_int(),), memspace=AddressSpace.generic)


@cute.jit
def _scale(x: cute.Tensor, y: cute.Tensor, scale: cutlass.Constexpr):
    for i in range(x.shape[0]):
        y[i] = x[i] * scale


@cute.jit
def _narrow(x: cute.Tensor, y: cute.Tensor):
    for i in range(x.shape[0]):
        y[i] = x[i].to(BFloat16)


@cute.jit
def _unstable(x: cute.Tensor):
    total = 0
    for i in range(x.shape[0]):
        total = total + x[i]
    x[0] = total


@cute.jit
def _device_op_on_host(x: cute.Tensor):
    cute.arch.sync_threads()
    x[0] = Float32(1)


def good(params):
    print("a template may print what it likes")
    os.write(1, b'{"ok": false, "error": "and write to stdout"}\n')
    return KernelTemplate(_scale, (_vector(), _vector(), 2.0), 0)


def reads_a_file(params):
    return KernelTemplate(_scale, (_vector(), _vector(), float(_TABLE.read_text())), 0)


def reads_a_file_and_hides_it(params):
    with contextlib.suppress(Exception):
        _TABLE.read_text()
    return good(params)


def imports_by_name(params):
    importlib.import_module("cudnn_aot.recipes.toys.kernels.scaling")
    return good(params)


def starts_a_process(params):
    subprocess.run(["true"], check=True)
    return good(params)


def raises(params):
    raise ValueError("tile 96 is not in the menu")


def does_not_compile(params):
    return KernelTemplate(_unstable, (_vector(),), 0)


def dies(params):
    os.kill(os.getpid(), signal.SIGKILL)


def dies_once(params):
    """Notes how many workers its pool has, and lives if it is not the first to do so."""
    marker = Path(params["marker"])
    if not marker.exists():
        time.sleep(1.5)  # until its neighbour is at work
    with marker.open("a") as stream:
        stream.write(f"{_workers_beside()}\n")
    if marker.read_text().count("\n") == 1:
        dies(params)
    return good(params)


def _workers_beside():
    """Workers of one pool have their folders beside each other."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            count += (process / "cwd").readlink().parent == Path.cwd().parent
    return count


def aborts(params):
    return KernelTemplate(_device_op_on_host, (_vector(),), 0)


def needs_a_missing_symbol(params):
    return KernelTemplate(_narrow, (_vector(), _vector(BFloat16)), 0)
