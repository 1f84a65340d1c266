"""Templates that do what a template must not; each gives its own one-line error."""

import contextlib
import ctypes
import importlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
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


def imports_what_is_loaded(params):
    importlib.import_module("cudnn_aot.cache.toolchain")
    return good(params)


def takes_what_is_loaded(params):
    return good({"scale": len(sys.modules["cudnn_aot.errors"].__doc__)})


def takes_the_worker(params):
    return good({"scale": len(sys.modules["__main__"].toolchain("cu12"))})


def imports_another_project(params):
    import numpy

    return good({"scale": numpy.pi})


def imports_another_project_by_name(params):
    return good({"scale": importlib.import_module("numpy").pi})


def loads_another_project(params):
    spec = importlib.util.find_spec("click")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return good(params)


def lists_a_folder(params):
    return good({"scale": len(os.listdir(_TABLE.parent))})  # noqa: PTH208  (it is the event)


def scans_a_folder(params):
    return good({"scale": len(list(_TABLE.parent.glob("*.txt")))})


def opens_beside_a_folder(params):
    folder = os.open(_TABLE.parent, os.O_RDONLY)
    os.open(_TABLE.name, os.O_RDONLY, dir_fd=folder)
    return good(params)


def reads_from_its_folder(params):
    os.chdir(_TABLE.parent)
    return good({"scale": float(Path(_TABLE.name).read_text())})


def reads_through_a_link(params):
    Path("link").symlink_to(_TABLE)
    return good({"scale": float(Path("link").read_text())})


def links_a_file(params):
    Path("own").hardlink_to(_TABLE)
    return good({"scale": float(Path("own").read_text())})


def reads_outside(params):
    return good({"scale": float(Path(params["file"]).read_text())})


def loads_a_library(params):
    ctypes.CDLL(params["file"])
    return good(params)


def reads_the_machine(params):
    return good({"scale": len(Path("/proc/cpuinfo").read_text())})


def asks_the_network(params):
    return good({"scale": len(socket.gethostname())})


def uses_what_it_may(params):
    """The standard library, the DSL, tvm-ffi, its own source and its own folder."""
    own = Path("scratch")
    own.mkdir()
    (own / "note").write_text(Path(__file__).read_text())
    json_tool = importlib.import_module("json.tool")
    import cutlass.pipeline
    import tvm_ffi

    assert "uses_what_it_may" in (own / "note").read_text()
    assert [path.name for path in own.iterdir()] == ["note"]
    assert json_tool and tvm_ffi and cutlass.pipeline
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
    """Says that it runs with a FIFO beside ``marker``, and lives if it is not the first to do so.

    A FIFO, since a kernel may neither look for another file nor open one.
    """
    try:
        os.mkfifo(params["marker"])
    except FileExistsError:
        os.mkfifo(params["marker"] + "-again")
        time.sleep(0.5)  # to be seen
        return good(params)
    time.sleep(1.5)  # until its neighbour is at work
    return dies(params)


def aborts(params):
    return KernelTemplate(_device_op_on_host, (_vector(),), 0)


def needs_a_missing_symbol(params):
    return KernelTemplate(_narrow, (_vector(), _vector(BFloat16)), 0)
