"""Host time of one execute beside a raw launch of the same kernel and a plain tvm-ffi call.

    python bench/launch.py --store STORE

Everything is timed in one run, in turns: medians of bursts from a drained queue, for several burst
sizes (a number that climbs with the burst is the device's rate, not the host's).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cudnn_aot import runtime
from cudnn_aot.cache.reader import StoreReader

NAME = "bench_128x256x128"
BURSTS = (16, 64, 256)
ROUNDS = 60


def build_raw_launch(folder: str) -> ctypes.CDLL:
    library = Path(folder) / "libraw_launch.so"
    source = Path(__file__).parent / "raw_launch.cpp"
    include = "/usr/local/cuda/include"
    command = ["g++", "-O2", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)]
    subprocess.run([*command, "-ldl"], check=True)
    raw = ctypes.CDLL(str(library))
    raw.raw_launch_open.restype = ctypes.c_void_p
    raw.raw_launch_open.argtypes = [ctypes.c_void_p]
    raw.raw_launch_ns.restype = ctypes.c_double
    raw.raw_launch_ns.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    return raw


def capture(call: Callable[[], None], stream: torch.cuda.Stream) -> ctypes.c_void_p:
    """The CUDA graph of one call; never destroyed, since the raw launch reads its parameters."""
    cudart = ctypes.CDLL(runtime.cudart.find())
    graph = ctypes.c_void_p()
    handle = ctypes.c_void_p(stream.cuda_stream)
    for error in (
        cudart.cudaStreamBeginCapture(handle, 2),
        call() or 0,
        cudart.cudaStreamEndCapture(handle, ctypes.byref(graph)),
    ):
        if error:
            raise SystemExit(f"capturing the launch failed: cudaError {error}")
    return graph


def tvm_ffi_call(reader: StoreReader, folder: str, buffers: dict[int, Any]) -> Callable[[], None]:
    """The plan's kernel called through tvm-ffi's own Python front end, arguments ready-made."""
    import tvm_ffi

    pointer = reader.pointer("h200", reader.name("h200", NAME)["graph_key"])
    record = json.loads(reader.blob(pointer["records"][0]))
    kernel = record["table"]["branches"]["tma"]["steps"][0]["kernel"]
    library = Path(folder) / "kernel.so"
    library.write_bytes(reader.blob(record["kernels"][kernel]["blob"]))
    function = tvm_ffi.load_module(str(library))["kernel"]
    a, b, y = (buffers[uid] for uid in sorted(buffers))
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    arguments = (1, sms, a[0].unsqueeze(2), b[0].t().unsqueeze(2), y[0].unsqueeze(2))
    return lambda: function(*arguments)


def burst_us(call: Callable[[], None], count: int) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(count):
        call()
    elapsed = time.perf_counter() - started
    torch.cuda.synchronize()
    return elapsed * 1e6 / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    store = parser.parse_args().store
    m, n, k = 128, 256, 128
    a = torch.randn(1, m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(1, n, k, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    y = torch.full((1, m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    plan = runtime.open(store, target="h200").plan(NAME)
    uids = plan.uids
    output = next(o["uid"] for o in plan.table["operands"] if o["kind"] == "output")
    buffers = {uids["A"]: a, uids["B"]: b, output: y}
    sequence = [buffers[uid] for uid in sorted(buffers)]
    addresses = {uid: buffer.data_ptr() for uid, buffer in buffers.items()}
    side = torch.cuda.Stream()
    stream = side.cuda_stream
    plan.prepare(0)

    with tempfile.TemporaryDirectory() as folder, torch.cuda.stream(side):
        raw = build_raw_launch(folder)
        graph = capture(lambda: plan.execute(buffers, None, stream=stream), side)
        launch = raw.raw_launch_open(graph)
        if not launch:
            raise SystemExit("the plan does not launch exactly one kernel")
        ffi = tvm_ffi_call(StoreReader(Path(store)), folder, buffers)
        calls: dict[str, Callable[[int], float]] = {
            "raw cuLaunchKernelEx (C++)": lambda c: raw.raw_launch_ns(launch, stream, c) / 1e3,
            "tvm-ffi call from Python": lambda c: burst_us(ffi, c),
            "execute, {uid: torch tensor}": lambda c: burst_us(
                lambda: plan.execute(buffers, None, stream=stream), c
            ),
            "execute, sequence of tensors": lambda c: burst_us(
                lambda: plan.execute(sequence, None, stream=stream), c
            ),
            "execute, {uid: address}": lambda c: burst_us(
                lambda: plan.execute(addresses, None, stream=stream), c
            ),
            "torch.matmul": lambda c: burst_us(lambda: torch.matmul(a, b, out=y), c),
        }
        times = measure(calls)
    y.fill_(float("nan"))
    plan.execute(buffers, None)
    torch.cuda.synchronize()
    error = (y.float() - a.float() @ b.float()).abs().max().item()
    if not error < 1:  # NaN fails too
        raise SystemExit(f"wrong result: off by {error}")
    print(f"{torch.cuda.get_device_name()}, {NAME}: host us per call, median of {ROUNDS} bursts")
    print(f"{'':32}" + "".join(f"{f'burst {count}':>12}" for count in BURSTS) + f"{'x raw':>8}")
    floor = times["raw cuLaunchKernelEx (C++)", BURSTS[1]]
    for name in calls:
        row = [times[name, count] for count in BURSTS]
        ratio = times[name, BURSTS[1]] / floor
        print(f"{name:32}" + "".join(f"{value:12.2f}" for value in row) + f"{ratio:8.2f}")


def measure(calls: dict[str, Callable[[int], float]]) -> dict[tuple[str, int], float]:
    samples: dict[tuple[str, int], list[float]] = {}
    for round_index in range(ROUNDS + 5):
        for name, call in calls.items():
            for count in BURSTS:
                torch.cuda.synchronize()
                value = call(count)
                torch.cuda.synchronize()
                if value < 0:
                    raise SystemExit(f"{name} failed: CUresult {-value * 1e3:.0f}")
                if round_index >= 5:
                    samples.setdefault((name, count), []).append(value)
    return {key: statistics.median(values) for key, values in samples.items()}


if __name__ == "__main__":
    main()
