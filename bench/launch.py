"""Host time that an execute adds to a raw launch of the same kernel, and where it goes.

    python bench/launch.py --store STORE [--rounds 60]

For the plans of two small matmuls, in one run and in turns: a raw ``cuLaunchKernelEx`` of the same
kernel, parameters and attributes; the same through the CUDA runtime; the kernel's compiled host
function called from C++; and every way to call the plan. Medians of bursts from a drained queue,
for several burst sizes (a number that climbs with the burst is the device's rate, not the host's).

Then the budget of a call, line by line, each the difference of two of the calls. The lines above
the kernel's host function are taken with a kernel that does nothing, so that the launch does not
drown them.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import itertools
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from timeit import Timer
from typing import Any

from program import positive, run_main
from replay import need_gpu, torch

from cudnn_aot import _native, runtime
from cudnn_aot.cache.reader import StoreReader

# Plans, and how much a checked execute of torch tensors may add to a raw launch.
TARGETS_US = {"bench_128x256x128": 0.9, "bench_128x256x128_bias_aux": 1.3}
BURSTS = (1, 10, 100, 1000)
TYPICAL = 100  # the burst that differences are taken of
HOST_CALLS = 2000  # in a burst that launches nothing
UNLIKE = 12  # calls that differ in a stride: more than a plan remembers

RAW = "raw cuLaunchKernelEx (C++)"
RUNTIME = "cudaLaunchKernelExC (C++)"
HOST_FUNCTION = "kernel's host function (C++)"
DICT = "execute, {uid: torch tensor}"
ROTATING = "the same, other tensors each time"
UNSEEN = "the same, another stride each time"

Call = Callable[[int], float]  # nanoseconds per call of a burst of so many; negative if it failed


class FfiAny(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("v", ctypes.c_int64))


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


BFLOAT16 = (ctypes.c_uint8 * 4)(4, 16, 1, 0)
CUDA_0 = (ctypes.c_int32 * 2)(2, 0)


def build_raw_launch(folder: str) -> ctypes.CDLL:
    library = Path(folder) / "libraw_launch.so"
    source = Path(__file__).parent / "raw_launch.cpp"
    include = "/usr/local/cuda/include"
    command = ["g++", "-O2", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)]
    subprocess.run([*command, "-ldl"], check=True)
    raw = ctypes.CDLL(str(library))
    raw.raw_launch_open.restype = ctypes.c_void_p
    raw.raw_launch_open.argtypes = [ctypes.c_void_p]
    launch = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    for function, more in (("raw_launch_ns", []), ("runtime_launch_ns", [ctypes.c_void_p])):
        getattr(raw, function).restype = ctypes.c_double
        getattr(raw, function).argtypes = launch + more
    raw.ffi_call_ns.restype = ctypes.c_double
    raw.ffi_call_ns.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    return raw


def idle_kernel(folder: str) -> Any:
    """A kernel that returns at once."""
    source, library = Path(folder) / "idle.c", Path(folder) / "idle.so"
    source.write_text(
        "int __tvm_ffi_kernel(void *s, const void *a, int n, void *r) { return 0; }\n"
    )
    command = [shutil.which("cc") or "cc", "-O2", "-shared", "-fPIC", str(source)]
    subprocess.run([*command, "-o", str(library)], check=True)
    return _native.load_kernel(library.read_bytes(), "kernel")


def capture(call: Callable[[], float], stream: torch.cuda.Stream) -> ctypes.c_void_p:
    """The CUDA graph of one call, which returns 0 or an error.

    It is never destroyed, since the raw launch reads its parameters.
    """
    cudart = ctypes.CDLL(runtime.cudart.find())
    graph = ctypes.c_void_p()
    handle = ctypes.c_void_p(stream.cuda_stream)
    for error in (
        cudart.cudaStreamBeginCapture(handle, 2),
        call(),
        cudart.cudaStreamEndCapture(handle, ctypes.byref(graph)),
    ):
        if error:
            raise SystemExit(f"capturing the launch failed: cudaError {error}")
    return graph


class HostFunction:
    """The plan's compiled host function, and the arguments that one execute passes to it."""

    def __init__(self, store: Path, name: str, plan: Any, bindings: dict[int, Any], folder: str):
        reader = StoreReader(store)
        pointer = reader.pointer("h200", reader.name("h200", name)["graph_key"])
        record = json.loads(reader.blob(pointer["records"][0]))
        (step,) = plan.resolve(bindings)["steps"]
        self.library = Path(folder) / f"{name}.so"
        self.library.write_bytes(reader.blob(record["kernels"][step["kernel"]]["blob"]))
        self.values: list[Any] = step["args"]
        self.alive: list[Any] = []
        self.args = (FfiAny * len(self.values))()
        for slot, value in zip(self.args, self.values, strict=True):
            if isinstance(value, int):
                slot.type_index, slot.v = 1, value
                continue
            rank = len(value["dim"])
            dim = (ctypes.c_int64 * rank)(*value["dim"])
            stride = (ctypes.c_int64 * rank)(*value["stride"])
            view = DLTensor(value["address"], CUDA_0, rank, BFLOAT16, dim, stride, 0)
            slot.type_index, slot.v = 7, ctypes.addressof(view)
            self.alive += [dim, stride, view]

    def from_cpp(self, raw: ctypes.CDLL, stream: int) -> Call:
        function = ctypes.CDLL(str(self.library))["__tvm_ffi_kernel"]
        set_stream = ctypes.CDLL(None)["TVMFFIEnvSetStream"]
        set_stream.argtypes = [ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p]

        def burst(count: int) -> float:
            before = ctypes.c_void_p()
            set_stream(2, 0, stream, ctypes.addressof(before))
            taken = raw.ffi_call_ns(function, self.args, len(self.args), count)
            set_stream(2, 0, before, None)
            return taken

        return burst

    def from_python(self, tensors: list[torch.Tensor]) -> Call:
        """Through tvm-ffi's own Python front end, with ready-made torch views."""
        import tvm_ffi

        function = tvm_ffi.load_module(str(self.library))["kernel"]
        by_address = {tensor.data_ptr(): tensor for tensor in tensors}
        arguments = [
            value
            if isinstance(value, int)
            else by_address[value["address"]].as_strided(value["dim"], value["stride"])
            for value in self.values
        ]
        return repeat(function, arguments)


def repeat(
    call: Callable[..., Any], arguments: list[Any], keywords: str = "", **names: Any
) -> Call:
    """A loop around a call that is spelled out, as in the code of a caller."""
    names |= {f"a{i}": argument for i, argument in enumerate(arguments)}
    spelled = [f"a{i}" for i in range(len(arguments))] + ([keywords] if keywords else [])
    timer = Timer(f"call({', '.join(spelled)})", globals=names | {"call": call})
    return lambda count: timer.timeit(count) / count * 1e9


def plan_calls(plan: Any, buffers: dict[int, torch.Tensor], stream: int) -> dict[str, Call]:
    """Every way to call a plan, cheapest first."""
    uids = sorted(buffers)
    tensors = [buffers[uid] for uid in uids]
    addresses = [tensor.data_ptr() for tensor in tensors]
    caller, launcher = plan.caller(uids), plan.launcher(buffers)
    by_uid = dict(zip(uids, addresses, strict=True))

    def of(call: Any, *arguments: Any) -> Call:
        return repeat(call, list(arguments), "stream=stream", stream=stream)

    return {
        "launcher, addresses": of(launcher, *addresses),
        "caller, addresses": of(caller, *addresses),
        "execute, [address]": of(plan.execute, addresses, None),
        "execute, {uid: address}": of(plan.execute, by_uid, None),
        "caller, torch tensors": of(caller, *tensors),
        "execute, [torch tensor]": of(plan.execute, tensors, None),
        DICT: of(plan.execute, buffers, None),
    }


def frontend_calls(plan: Any, buffers: dict[int, torch.Tensor], stream: int) -> dict[str, Call]:
    """The same matmul through the cuDNN frontend, where it is installed."""
    named = {entry["name"]: entry for entry in plan.table["operands"]}
    if len(named) != 3 or importlib.util.find_spec("cudnn") is None:
        return {}
    import cudnn

    bf16, fp32 = cudnn.data_type.BFLOAT16, cudnn.data_type.FLOAT
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=stream)
    graph = cudnn.pygraph(
        handle=handle,
        io_data_type=bf16,
        intermediate_data_type=fp32,
        compute_data_type=fp32,
    )
    a, b = (
        graph.tensor(name=name, dim=named[name]["dim"], stride=named[name]["stride"])
        for name in ("A", "B")
    )
    c = graph.matmul(a, b)
    c.set_output(True).set_data_type(bf16)
    graph.build([cudnn.heur_mode.A])
    (output,) = (entry for entry in named.values() if entry["kind"] == "output")
    of = [buffers[entry["uid"]] for entry in (named["A"], named["B"], output)]
    room = torch.empty(max(graph.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)
    tensors = dict(zip((a, b, c), of, strict=True))
    addresses = {tensor.get_uid(): buffer.data_ptr() for tensor, buffer in tensors.items()}

    def of_graph(pack: dict[Any, Any], workspace: Any) -> Call:
        names = {"pack": pack, "workspace": workspace, "handle": handle}
        timer = Timer(
            "execute(pack, workspace, handle)", globals=names | {"execute": graph.execute}
        )
        return lambda count: timer.timeit(count) / count * 1e9

    return {
        "cuDNN frontend, {tensor: torch tensor}": of_graph(tensors, room),
        "cuDNN frontend, {uid: address}": of_graph(addresses, room.data_ptr()),
    }


def rotating_calls(plan: Any, buffers: dict[int, torch.Tensor], stream: int) -> Call:
    """Calls that are alike with other buffers each time, in turns of a dozen sets."""
    sets = []
    for _ in range(UNLIKE):
        copies = {}
        for uid, buffer in buffers.items():
            copies[uid] = torch.empty_strided(
                buffer.shape, buffer.stride(), device="cuda", dtype=buffer.dtype
            ).copy_(buffer)
        sets.append(copies)
    following = itertools.cycle(sets).__next__
    names = {"execute": plan.execute, "following": following, "stream": stream}
    calls = Timer("execute(following(), None, stream=stream)", globals=names)
    alone = Timer("following()", globals=names)
    return lambda count: (calls.timeit(count) - alone.timeit(count)) / count * 1e9


def unlike_calls(plan: Any, buffers: dict[int, torch.Tensor], stream: int) -> Call:
    """Calls of which each differs from the last dozen: every one is checked from the start."""
    first = min(buffers)
    rows, columns = buffers[first].shape[-2:]
    each = []
    for pad in range(UNLIKE):
        wide = torch.empty(
            (1, rows, columns + 8 * (pad + 1)), device="cuda", dtype=buffers[first].dtype
        )
        each.append({**buffers, first: wide[..., :columns]})
    following = itertools.cycle(each).__next__
    names = {"execute": plan.execute, "following": following, "stream": stream}
    calls = Timer("execute(following(), None, stream=stream)", globals=names)
    alone = Timer("following()", globals=names)
    return lambda count: (calls.timeit(count) - alone.timeit(count)) / count * 1e9


def measure(
    calls: dict[str, Call], bursts: tuple[int, ...], rounds: int
) -> dict[tuple[str, int], float]:
    """Medians in microseconds, by call and burst."""
    samples: dict[tuple[str, int], list[float]] = {}
    for turn in range(rounds + 5):
        for name, call in calls.items():
            for count in bursts:
                torch.cuda.synchronize()
                value = call(count)
                torch.cuda.synchronize()
                if value < 0:
                    raise SystemExit(f"{name} failed with {-value:.0f}")
                if turn >= 5:
                    samples.setdefault((name, count), []).append(value / 1e3)
    return {key: statistics.median(values) for key, values in samples.items()}


def operands(plan: Any) -> dict[int, torch.Tensor]:
    """Random bf16 tensors as the plan declares them; outputs poisoned."""
    out = {}
    for entry in plan.table["operands"]:
        layout = {"device": "cuda", "dtype": torch.bfloat16}
        tensor = torch.empty_strided(entry["dim"], entry["stride"], **layout)
        out[entry["uid"]] = (
            tensor.fill_(float("nan")) if entry["kind"] == "output" else tensor.normal_()
        )
    return out


def check_result(plan: Any, buffers: dict[int, torch.Tensor]) -> None:
    named = {entry["name"]: buffers[entry["uid"]] for entry in plan.table["operands"]}
    outputs = [e["uid"] for e in plan.table["operands"] if e["kind"] == "output"]
    for uid in outputs:
        buffers[uid].fill_(float("nan"))
    plan.execute(buffers, None)
    torch.cuda.synchronize()
    want = named["A"].float() @ named["B"].float()
    if "bias" in named:
        want = (want + named["bias"].float()).relu() + named["residual"].float()
    error = (buffers[outputs[-1]].float() - want).abs().max().item()
    if not error < 1:  # NaN fails too
        raise SystemExit(f"wrong result of {plan.name}: off by {error}")


def print_calls(name: str, times: dict[tuple[str, int], float]) -> None:
    base = times[RAW, TYPICAL]
    print(f"\n{name}: host us per call; added to a raw launch at burst {TYPICAL}")
    print(f"{'':40}" + "".join(f"{f'burst {count}':>12}" for count in BURSTS) + f"{'added':>10}")
    for call in dict.fromkeys(call for call, _ in times):
        row = [times[call, count] for count in BURSTS]
        added = times[call, TYPICAL] - base
        print(f"{call:40}" + "".join(f"{value:12.2f}" for value in row) + f"{added:10.2f}")
    added = times[DICT, TYPICAL] - base
    met = "met" if added <= TARGETS_US[name] else "MISSED"
    print(f"target: {DICT} adds at most {TARGETS_US[name]} us: {added:.2f}, {met}")


def print_budget(times: dict[tuple[str, int], float], host: dict[tuple[str, int], float]) -> None:
    """Each line is what one call costs more than another."""
    ours = {call: value for (call, _), value in host.items()}
    lines = [
        ("launch", times[RAW, TYPICAL], RAW),
        (
            "Python's call, addresses, arguments, stream",
            ours["launcher, addresses"],
            "launcher, addresses, idle kernel",
        ),
        (
            "comparison with a proven call",
            ours["caller, addresses"] - ours["launcher, addresses"],
            "caller - launcher, addresses",
        ),
        (
            "reading tensors (DLPack)",
            ours["caller, torch tensors"] - ours["caller, addresses"],
            "caller, torch tensors - addresses",
        ),
        ("the dict", ours[DICT] - ours["caller, torch tensors"], "execute - caller"),
    ]
    print(f"\n{'budget of one execute of a dict of tensors':46}{'us':>8}")
    for line, value, how in lines:
        print(f"{line:46}{value:8.3f}   {how}")
    total = sum(value for _, value, _ in lines)
    print(f"{'sum':46}{total:8.3f}   measured: {times[DICT, TYPICAL]:.3f}")
    spared = times[HOST_FUNCTION, TYPICAL] - times[RAW, TYPICAL]
    runtime_part = times.get((RUNTIME, TYPICAL), float("nan")) - times[RAW, TYPICAL]
    print(
        f"{'a learnt launch spares the host function':46}{spared:8.3f}   "
        f"{HOST_FUNCTION} - {RAW}; of it {runtime_part:.3f} the CUDA runtime"
    )
    unlike = ours["unlike"] - ours[DICT]
    print(
        f"{'checking a call from the start adds':46}{unlike:8.3f}   pack, checks, dispatch, views"
    )
    unseen = times[UNSEEN, TYPICAL] - times[DICT, TYPICAL]
    print(f"{'a call unlike those remembered adds':46}{unseen:8.3f}   that, and the host function")


def bench(name: str, store: Path, raw: ctypes.CDLL, folder: str, rounds: int) -> None:
    plan = runtime.open(store, target="h200").plan(name)
    buffers = operands(plan)
    plan.prepare(0)
    check_result(plan, buffers)
    side = torch.cuda.Stream()
    stream = side.cuda_stream
    with torch.cuda.stream(side):
        function = HostFunction(store, name, plan, buffers, folder)
        host_function = function.from_cpp(raw, stream)
        host_function(1)  # loads the code, which cannot be captured
        launch = raw.raw_launch_open(capture(lambda: min(host_function(1), 0), side))
        if not launch:
            raise SystemExit(f"plan {name!r} does not launch exactly one kernel")
        cudart = ctypes.CDLL(runtime.cudart.find())
        through = ctypes.cast(cudart.cudaLaunchKernelExC, ctypes.c_void_p)
        calls: dict[str, Call] = {
            RAW: lambda count: raw.raw_launch_ns(launch, stream, count),
            RUNTIME: lambda count: raw.runtime_launch_ns(launch, stream, count, through),
            HOST_FUNCTION: host_function,
            "tvm-ffi call from Python": function.from_python(list(buffers.values())),
            **plan_calls(plan, buffers, stream),
            ROTATING: rotating_calls(plan, buffers, stream),
            UNSEEN: unlike_calls(plan, buffers, stream),
            **frontend_calls(plan, buffers, stream),
        }
        if raw.runtime_launch_ns(launch, stream, 1, through) == 0:
            del calls[RUNTIME]  # the captured node names no kernel that the runtime takes
        times = measure(calls, BURSTS, rounds)
        kernels = [idle_kernel(folder)] * len(plan.table["branches"])
        idle = _native.Plan(plan.table, kernels)
        host = plan_calls(idle, buffers, stream) | {"unlike": unlike_calls(idle, buffers, stream)}
        ours = measure(host, (HOST_CALLS,), rounds)
    print_calls(name, times)
    print_budget(times, ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True, type=Path)
    parser.add_argument("--rounds", type=positive, default=60)
    given = parser.parse_args()
    need_gpu()
    started = time.monotonic()
    print(f"{torch.cuda.get_device_name()}; medians of {given.rounds} bursts")
    with tempfile.TemporaryDirectory() as folder:
        raw = build_raw_launch(folder)
        for name in TARGETS_US:
            bench(name, given.store, raw, folder, given.rounds)
    print(f"\n{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    run_main(main)
