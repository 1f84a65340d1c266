"""Backend steps: what a plug-in is called with, its errors, many threads, its absence."""

from __future__ import annotations

import ctypes
import struct
import threading

import numpy as np
import pytest
from cuda_stand_in import run
from tables import kernel, operand, scalar, symbol, table, whole

from cudnn_aot import _native, errors
from cudnn_aot.errors import LaunchError, RefusedError, RequirementError

X = operand(1, ["M", 6], [6, 1])
ALPHA = scalar(3, value=2.0)
Y = operand(9, ["M", 6], [6, 1], kind="output")
STEP = {"step": "backend", "blob": 0, "uids": [1, 9, 3]}
ROOM = {"name": "room", "bytes": ["mul", 4, "M"], "align": 64}
PLAIN = table([X, ALPHA, Y], STEP, symbols={"M": symbol()})


def arrays(m=5):
    x = np.arange(m * 6, dtype=np.float32).reshape(m, 6)
    return x, np.full_like(x, np.nan)


def pointers(addresses: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(addresses))


def plan_of(backend, *tables, **fields):
    return _native.Plan(fields.get("table", PLAIN), fields.get("kernels", []), None, [backend])


def scaling(m):
    """A plug-in that does what a kernel would: y = alpha * x, m rows of 6."""

    def backend(device, addresses, count, workspace, stream):
        x, y, alpha = pointers(addresses, count)
        view = [np.ctypeslib.as_array((ctypes.c_float * (6 * m)).from_address(a)) for a in (x, y)]
        view[1][:] = view[0] * ctypes.c_float.from_address(alpha).value

    return backend


def test_addresses_come_in_the_order_of_the_uids_and_scalars_lie_in_memory():
    x, y = arrays()
    plan = plan_of(scaling(5))
    plan.execute({1: x, 9: y})
    assert (y == 2 * x).all()
    plan.execute({1: x, 9: y, 3: 0.5})
    assert (y == 0.5 * x).all()


@pytest.mark.parametrize(
    ("dtype", "value", "bits"),
    [
        ("FLOAT", 1.5, struct.pack("<f", 1.5)),
        ("DOUBLE", 0.1, struct.pack("<d", 0.1)),
        ("HALF", 1.0, struct.pack("<e", 1.0)),
        ("HALF", -65504.0, struct.pack("<e", -65504.0)),
        ("HALF", 0.1, struct.pack("<e", 0.1)),
        ("HALF", 3e-7, struct.pack("<e", 3e-7)),  # subnormal
        ("HALF", float("-inf"), struct.pack("<e", float("-inf"))),
        ("BFLOAT16", -2.5, struct.pack("<f", -2.5)[2:]),
        ("INT32", -7, struct.pack("<i", -7)),
        ("INT64", 1 << 40, struct.pack("<q", 1 << 40)),
        ("UINT8", 200, b"\xc8"),
    ],
)
def test_a_scalar_lies_in_memory_as_its_type(dtype, value, bits):
    seen = []

    def backend(device, addresses, count, workspace, stream):
        seen.append(ctypes.string_at(pointers(addresses, count)[0], len(bits)))

    step = {"step": "backend", "blob": 0, "uids": [3]}
    plan_of(backend, table=table([scalar(3, dtype=dtype)], step)).execute({3: value})
    assert seen == [bits]


def test_the_slice_is_its_workspace_and_none_is_null():
    calls = []
    with_room = table([X, Y], STEP | {"uids": [1, 9], "slice": "room"}, workspace=[ROOM],
                      symbols={"M": symbol()})  # fmt: skip
    for entry, want in ((with_room, 0x8000), (PLAIN, 0)):
        plan = plan_of(lambda *args: calls.append(args), table=entry)
        plan.execute({1: 0x1000, 9: 0x2000}, 0x8000, symbols={"M": 5})
        device, _, _, workspace, stream = calls.pop()
        assert (device, workspace, stream) == (-1, want, 0)
    plan = plan_of(lambda *args: calls.append(args), table=with_room)
    assert plan.workspace_bytes({"M": 16}) == 64
    with pytest.raises(RefusedError, match="workspace: got 10 bytes"):
        plan.execute({1: 0x1000, 9: 0x2000}, np.zeros(10, np.uint8), symbols={"M": 64})
    assert not calls


def test_the_pack_rules_hold_before_it_is_called():
    calls = []
    plan = plan_of(lambda *args: calls.append(args))
    x, y = arrays()
    for pack, rule in [
        ({1: x}, "presence"),
        ({1: x.astype(np.float64), 9: y}, "dtype"),
        ({1: x, 9: np.zeros((5, 5), np.float32)}, "extents"),
    ]:
        with pytest.raises(RefusedError) as refused:
            plan.execute(pack)
        assert refused.value.rule == rule
    optional = operand(9, ["M", 6], [6, 1], kind="output", optional=True)
    fills = {"step": "fill", "operand": 1, "bytes": 4, "pattern": 0, "width": 4}
    entry = table([X, ALPHA, optional], fills, STEP, symbols={"M": symbol()})
    with pytest.raises(RefusedError, match="operand 9 't9': got nothing, want a buffer"):
        plan_of(lambda *args: calls.append(args), table=entry).execute({1: x})
    assert not calls and x[0, 1] == 1


def test_it_runs_between_kernels_in_order(load):
    entry = table(
        [X, ALPHA, Y],
        kernel(whole(Y), whole(X), {"arg": "scalar", "operand": 3}),
        {"step": "backend", "blob": 0, "uids": [9]},
        symbols={"M": symbol()},
    )

    def add_one(device, addresses, count, workspace, stream):
        (y,) = pointers(addresses, count)
        np.ctypeslib.as_array((ctypes.c_float * 30).from_address(y))[:] += 1

    x, y = arrays()
    plan_of(add_one, table=entry, kernels=[load("scale")]).execute({1: x, 9: y})
    assert (y == 2 * x + 1).all()


def raising(error):
    def backend(*args):
        raise error

    return backend


def test_its_errors():
    x, y = arrays()
    plan = plan_of(raising(RuntimeError("CUDNN_STATUS_EXECUTION_FAILED\nat node 3")))
    message = "^blob 0 of branch 'only' failed to launch: RuntimeError: CUDNN_STATUS_EXECUTION"
    with pytest.raises(LaunchError, match=message) as failed:
        plan.execute({1: x, 9: y})
    assert "\n" not in str(failed.value)
    for error in (RequirementError("no cuDNN"), errors.DamagedError("blob"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as kept:
            plan_of(raising(error)).execute({1: x, 9: y})
        assert kept.value is error


def test_many_threads_share_a_plan():
    plan = plan_of(scaling(5))
    wrong = []

    def work(number):
        x, y = arrays()
        for _ in range(200):
            y[:] = np.nan
            plan.execute({1: x, 9: y, 3: float(number)})
            if not (y == number * x).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


def test_without_a_plug_in():
    assert _native.Plan(PLAIN).resolve({1: 4096, 9: 8192}, symbols={"M": 2})["steps"] == [
        {"step": "backend", "blob": 0, "uids": [1, 9, 3]}
    ]
    with pytest.raises(RequirementError, match=r"no plug-in for it, want 'cudnn-aot\[cudnn\]'"):
        _native.Plan(PLAIN, [])
    with pytest.raises(ValueError, match="names blob 0, got 0 blobs"):
        _native.Plan(PLAIN, [], None, [])
    with pytest.raises(TypeError, match="backends: want callables"):
        _native.Plan(PLAIN, [], None, [3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blob": -1}, r"steps\[0\].blob: got -1, want 0 to"),
        ({"uids": [1, 5]}, r"steps\[0\].uids\[1\]: no operand has uid 5"),
        ({"uids": [1, 1]}, r"steps\[0\].uids\[1\]: uid stated twice"),
        ({"slice": "room"}, r"steps\[0\].slice: no slice is named 'room'"),
        ({"kernel": 1}, "unknown field 'kernel'"),
    ],
)
def test_a_step_that_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        _native.Plan(table([X, ALPHA, Y], STEP | change, symbols={"M": symbol()}))


def test_a_scalar_of_a_type_without_a_place_in_memory():
    step = {"step": "backend", "blob": 0, "uids": [3]}
    with pytest.raises(ValueError, match=r"uids\[0\]: a scalar of FP8_E4M3 cannot be passed"):
        _native.Plan(table([scalar(3, dtype="FP8_E4M3")], step))


def test_a_device_is_prepared_once_and_its_context_is_current():
    """The context is asked of the driver by a plug-in; the process asserts what it saw."""
    run(
        """
X = operand(1, [4])
calls = []
step = {"step": "backend", "blob": 0, "uids": [1]}
driver = ctypes.CDLL("libcuda.so.1")

def backend(device, addresses, count, workspace, stream):
    popped = ctypes.c_void_p()
    driver.cuCtxPopCurrent_v2(ctypes.byref(popped))
    driver.cuCtxPushCurrent_v2(popped)
    calls.append((device, bool(addresses), count, stream, popped.value))

plan = _native.Plan(table([X], step, device="cuda"), [], None, [backend])
plan.prepare(1)
plan.execute({1: OnDevice((4,), 1)}, None, 0xABC)
assert calls == [(1, False, 0, 0, 0xC1), (1, True, 1, 0xABC, 0xC1)], calls
""",
        stream_device=1,
    )
