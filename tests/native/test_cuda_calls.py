"""What a GPU plan asks of CUDA, seen by libraries that stand in for it. No kernel runs here."""

from __future__ import annotations

import re

from cuda_stand_in import run

PLAN = """
X = operand(1, ["M", 4], [4, 1])
OUT = operand(9, [4], kind="output", optional=True)
SLICE = {"name": "s", "bytes": ["mul", 4, ["attr", "sm_count"]], "align": 128}


def fill(pattern, width, **target):
    return {"step": "fill", "bytes": 64, "pattern": pattern, "width": width} | target


def make(*steps, kernels=(), hook=None, **fields):
    return _native.Plan(
        table([X, OUT], *steps, device="cuda", workspace=[SLICE], symbols={"M": symbol(1)},
              **fields), [load(name) for name in kernels], hook)
"""


def test_fills_run_in_the_devices_context_on_the_callers_stream():
    log = run(
        PLAN
        + """
plan = make(fill(0, 4, slice="s"), fill(0x1234, 2, operand=1), fill(7, 1, operand=1),
            fill(9, 4, operand=9))
room = OnDevice((4096,), 1, 0x8000, "|u1")
plan.execute({1: OnDevice((9, 4), 1)}, room, stream=0xABC)
""",
        stream_device=1,
    )
    fills = [line for line in log if line.startswith("fill")]
    where = "stream 0xabc context 0xc1"
    assert fills == [
        f"fill32 8000 value 0 count 16 {where}",
        f"fill16 1000 value 1234 count 32 {where}",
        f"fill8 1000 value 7 count 64 {where}",
    ]
    assert log.count("retain 1") == 1 and "retain 0" not in log


def test_the_stream_and_what_names_it():
    log = run(
        PLAN
        + """
plan = make(fill(1, 1, slice="s"))
class Torch: cuda_stream = 0x1
class Cupy: ptr = 0x2
class Core:
    def __cuda_stream__(self): return (0, 0x3)
for stream in (None, 0, Torch(), Cupy(), Core(), 0x4):
    plan.execute({1: OnDevice((9, 4))}, 0x8000, stream)
for bad in ("main", 1.5):
    try: plan.execute({1: OnDevice((9, 4))}, 0x8000, bad)
    except TypeError as error: assert "stream: got a" in str(error), error
    else: raise AssertionError
"""
    )
    streams = [re.search(r"stream (\S+)", line)[1] for line in log if line.startswith("fill")]
    assert streams == ["(nil)", "(nil)", "0x1", "0x2", "0x3", "0x4"]


def test_the_environment_stream_is_put_back():
    run(
        PLAN
        + """
ffi = ctypes.CDLL(None)
ffi.TVMFFIEnvGetStream.restype = ctypes.c_void_p
before = ctypes.c_void_p()
ffi.TVMFFIEnvSetStream(2, 0, ctypes.c_void_p(0x77), ctypes.byref(before))
make(kernel({"arg": "launch"}), kernels=["count"]).execute({1: 0x1000}, 0x8000, 5, {"M": 2})
assert ffi.TVMFFIEnvGetStream(2, 0) == 0x77
try: make(kernel(), kernels=["refuse"]).execute({1: 0x1000}, 0x8000, 5, {"M": 2})
except errors.LaunchError: pass
assert ffi.TVMFFIEnvGetStream(2, 0) == 0x77
"""
    )


def test_device_attributes_are_read_once():
    log = run(
        PLAN
        + """
plan = make(fill(1, 1, slice="s"))
assert plan.workspace_bytes() == 4096
for device in (0, 1, 0, 1):
    call = plan.resolve({1: OnDevice((9, 4), device)})
    assert call["workspace_bytes"] == 4 * (132 - device), call
assert plan.workspace_bytes() == 4 * 132
"""
    )
    assert [line for line in log if line.startswith("sm_count")] == [
        "sm_count of 0",
        "sm_count of 1",
    ]


def test_the_hook_runs_once_for_each_device():
    run(
        PLAN
        + """
asked = []
plan = make(fill(1, 1, slice="s"), hook=asked.append)
for _ in range(2):
    plan.execute({1: OnDevice((9, 4), 1)}, 0x8000)
    plan.execute({1: 0x1000}, 0x8000, symbols={"M": 3})
plan.prepare(1)
plan.prepare(None)
assert asked == [1, None, 0], asked
"""
    )


def test_bound_plans_share_what_was_prepared():
    """The hook, the device's attributes and the workspace's bound are those of the plan."""
    log = run(
        PLAN
        + """
seen = []
plan = make(fill(1, 4, slice="s"), hook=seen.append)
one, two = plan.bind({"M": 1}), plan.bind({"M": 2})
assert one.workspace_bytes() == plan.workspace_bytes()  # for any GPU there may be
one.prepare(1)
assert seen == [1], seen
assert two.workspace_bytes() == plan.workspace_bytes() < 4 * 1024 + 512
two.execute({1: OnDevice((2, 4), 1)}, OnDevice((4096,), 1, 0x8000, "|u1"), stream=0xABC)
plan.execute({1: OnDevice((5, 4), 1)}, OnDevice((4096,), 1, 0x8000, "|u1"), stream=0xABC)
assert seen == [1], seen
""",
        stream_device=1,
    )
    assert len([line for line in log if line.startswith("fill")]) == 2


def test_devices_must_agree():
    run(
        PLAN
        + """
plan = make(fill(1, 1, slice="s"))
for bindings, room in (
    ({1: OnDevice((9, 4), 0), 9: OnDevice((4,), 1)}, 0x8000),
    ({1: OnDevice((9, 4), 0)}, OnDevice((4096,), 1, typestr="|u1")),
    ({1: OnDevice((9, 4), 0)}, np.zeros(4096, np.uint8)),
    ({1: np.zeros((9, 4), np.float32)}, 0x8000),
):
    try: plan.execute(bindings, room)
    except errors.RefusedError as error: assert error.rule in ("device", "workspace"), error
    else: raise AssertionError
"""
    )


def test_requirements_of_a_device():
    code = (
        PLAN
        + """
import functools
from cudnn_aot.runtime.plan import _make_ready
from cudnn_aot.runtime.requirements import Requirements
needs = Requirements(gpu_arch="sm_90a", driver_min=12090, smem_optin_bytes=232448)
plan = make(fill(1, 1, slice="s"), hook=functools.partial(_make_ready, "plan 'x'", needs))
for use in (lambda: plan.prepare(0), lambda: plan.execute({1: OnDevice((9, 4))}, 0x8000)):
    try: use()
    except errors.RequirementError as error: assert sys.argv[1] in str(error), error
    else: assert not sys.argv[1]
"""
    )
    run(code, "")
    run(code, "found compute capability 10.0", major=10)
    run(code, "found one for CUDA 12.4", driver=12040)
    run(code, "requires 232448 bytes for one block, found 101376", smem=101376)
    run(code, "no CUDA device", devices=0)
    run(code, "no CUDA driver: got none, want one that runs device 0: install it", driver=0)


def test_a_failed_call_names_what_failed():
    run(
        PLAN
        + """
try: make(fill(1, 1, slice="s")).execute({1: 0x1000}, 0x8000, symbols={"M": 2})
except errors.LaunchError as error: assert str(error) == "cuMemsetAsync failed with stand-in error"
else: raise AssertionError
""",
        fill_error=1,
    )


def test_a_forked_child_is_told():
    run(
        PLAN
        + """
import os
plan = make(fill(1, 1, slice="s"))
plan.prepare(0)
child = os.fork()
if child == 0:
    caught = 0
    for use in (lambda: plan.prepare(0), lambda: plan.execute({1: OnDevice((9, 4))}, 0x8000),
                lambda: _native.device_attributes(0)):
        try: use()
        except errors.LaunchError as error: caught += "forked" in str(error)
    os._exit(0 if caught == 3 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
plan.execute({1: OnDevice((9, 4))}, 0x8000)
"""
    )


def test_prepare_calls_every_kernel_with_launch_zero():
    """Guards that a plain call fails are given one that they take; absent operands are none."""
    run(
        PLAN
        + """
counted = operand(1, [2], dtype="INT64")
report = _native.Plan(table([counted], kernel(whole(counted))), [load("counted")])
def calls():
    seen = np.zeros(2, np.int64)
    report.execute({1: seen})
    return list(seen)
launch = {"arg": "launch"}
guards = {
    "small": ["lt", "M", 3],
    "divides": ["and", ["divides", 96, "M"], ["divides", 128, ["stride", 1, 0]]],
    "turned": ["eq", ["stride", 1, 0], 1],
    "absent": ["not", ["present", 9]],
    "never": ["lt", "M", 0],
    "rest": True,
}
step = {"small": whole(X), "absent": {"arg": "none"}}
branches = {name: {"workspace": [SLICE], "steps": [
    fill(1, 1, slice="s"), kernel(launch, step.get(name, whole(OUT)), index=at)]}
    for at, name in enumerate(guards)}
plan = make(dispatch=[{"when": g, "branch": b} for b, g in guards.items()], branches=branches,
            kernels=["count"] * 6)
plan.prepare(0)
assert calls() == [6, 0], calls()
plan.prepare(0)
assert calls() == [12, 0], calls()
plan.execute({1: OnDevice((9, 4)), 9: OnDevice((4,))}, 0x8000)
assert calls() == [12, 1], calls()
"""
    )


def test_prepare_passes_on_what_a_kernel_refuses():
    run(
        PLAN
        + """
def prepare(guard):
    make(dispatch=[{"when": guard, "branch": "b"}], kernels=["refuse"], branches={"b": {
        "workspace": [], "steps": [kernel({"arg": "launch"})]}}).prepare(0)
try: prepare(True)
except errors.LaunchError as error: assert "failed to prepare: ValueError: first" in str(error)
else: raise AssertionError
prepare(["lt", "M", 0])  # no call takes the branch, so its wrapper may well object
"""
    )


def test_a_child_of_a_process_that_used_cuda_otherwise_is_told():
    """Another library of the parent did, which nothing here saw: CUDA itself refuses the child."""
    code = (
        PLAN
        + """
import os
plan = make(fill(1, 1, slice="s"))
def refused(kind):
    for use in (lambda: plan.prepare(0), lambda: plan.execute({1: OnDevice((9, 4))}, 0x8000)):
        try: use()
        except kind as error: assert ("forked" in str(error)) == (kind is errors.LaunchError), error
        else: raise AssertionError
if sys.argv[1] == "fork":
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        sys.exit(0)
    try: refused(errors.LaunchError)
    except BaseException as error:
        print(error, file=sys.stderr)
        os._exit(1)
    os._exit(0)
refused(errors.RequirementError)
"""
    )
    run(code, "fork", count_error=3)
    run(code, "no fork", count_error=3)


def test_addresses_alone_run_on_the_current_device_of_each_call():
    log = run(
        PLAN
        + """
set_device = ctypes.CDLL(cudart.find()).cudaSetDevice
plan = make(fill(1, 1, operand=1))
call = plan.caller([1])
launch = plan.launcher([OnDevice((9, 4)), None], 0x8000)
for device in (0, 1, 0, 1):
    set_device(device)
    plan.execute({1: 0x1000}, 0x8000, symbols={"M": 8})
    call(OnDevice((8, 4), 1, 0x2000), workspace=0x8000)
    call(OnDevice((8, 4), 0, 0x3000), workspace=0x8000, stream=5)
    launch(0x4000, workspace=0x8000, stream=6)
"""
    )
    fills = [line.replace(" value 1 count 64 stream", "") for line in log if "fill" in line]
    each = [
        [
            f"fill8 1000 (nil) context 0xc{device}",
            "fill8 2000 (nil) context 0xc1",
            "fill8 3000 0x5 context 0xc0",
            "fill8 4000 0x6 context 0xc0",
        ]
        for device in (0, 1, 0, 1)
    ]
    assert fills == sum(each, [])


def test_a_stream_of_another_device_is_refused_each_time():
    log = run(
        PLAN
        + """
plan = make(fill(1, 1, slice="s"))
for stream in (0xABC, 0xABC, 0xDEF):
    try: plan.execute({1: OnDevice((9, 4), 1)}, 0x8000, stream)
    except errors.RefusedError as error:
        assert error.rule == "device", error.rule
        assert str(error).startswith("stream: got one of cuda:0, want one of cuda:1"), error
    else: raise AssertionError
plan.execute({1: OnDevice((9, 4), 1)}, 0x8000)  # the default stream is that of the operands' device
"""
    )
    assert [line.split(" stream ")[1] for line in log if "fill" in line] == ["(nil) context 0xc1"]


def test_a_stream_that_cannot_be_asked_for_its_device():
    run(
        PLAN
        + """
plan = make(fill(1, 1, slice="s"))
try: plan.execute({1: OnDevice((9, 4), 1)}, 0x8000, 0xABC)
except errors.LaunchError as error: assert "cuStreamGetCtx failed" in str(error), error
else: raise AssertionError
""",
        stream_error=400,
    )
