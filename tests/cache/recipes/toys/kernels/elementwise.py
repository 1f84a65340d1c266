"""y = exp(x * scale), for the host and for a GPU: the smallest real kernels there are."""

import os
import time

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.base_dsl.enums import AddressSpace
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from cudnn_aot.recipes.toys.kernels.scaling import scaled
from cudnn_aot.recipes.trace.template import KernelTemplate


@cute.jit
def _on_host(x: cute.Tensor, y: cute.Tensor, scale: cutlass.Constexpr):
    for i in range(x.shape[0]):
        y[i] = cute.math.exp(scaled(x[i], scale))


@cute.kernel
def _on_device(x: cute.Tensor, y: cute.Tensor, n: Int32, scale: cutlass.Constexpr):
    i = cute.arch.block_idx()[0] * 128 + cute.arch.thread_idx()[0]
    if i < n:
        y[i] = cute.math.exp(scaled(x[i], scale))


@cute.jit
def _launch(x: cute.Tensor, y: cute.Tensor, stream, scale: cutlass.Constexpr):
    n = cute.size(x)
    if n > 0:
        _on_device(x, y, n, scale).launch(
            grid=[cute.ceil_div(n, 128), 1, 1], block=[128, 1, 1], stream=stream
        )


def wait_at(gate):
    """Tell by a FIFO, which no audit event sees, that a kernel waits here; until the gate is."""
    turn = 0
    while os.path.exists(f"{gate}-{turn}"):  # noqa: PTH110 (a file that is opened is refused)
        turn += 1
    os.mkfifo(f"{gate}-{turn}")
    while not os.path.exists(gate):  # noqa: PTH110
        time.sleep(0.02)


def host(params):
    time.sleep(params.get("sleep", 0))
    if "gate" in params:
        wait_at(params["gate"])
    vector = make_fake_compact_tensor(Float32, (cute.sym_int(),), memspace=AddressSpace.generic)
    return KernelTemplate(_on_host, (vector, vector, float(params["scale"])), 0)


def device(params):
    vector = make_fake_compact_tensor(Float32, (cute.sym_int(),))
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return KernelTemplate(_launch, (vector, vector, stream, float(params["scale"])), 1024)
