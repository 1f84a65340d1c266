"""A launch that is learnt is the launch that the kernel's host function makes, at any address."""

from __future__ import annotations

import struct

import pytest
from cuda_stand_in import run

PLAN = """
from tables import launching_library

X = operand(1, ["M", 4], [4, 1])
Y = operand(2, ["M", 4], [4, 1], kind="output")
STREAM = 0xABC


def make(*steps, names, operands=(X, Y), **fields):
    kernels = [_native.load_kernel(launching_library(), name) for name in names]
    return _native.Plan(table([*operands], *steps, device="cuda", symbols={"M": symbol(1, 64)},
                              **fields), kernels)


def on_device(address, rows=8):
    return OnDevice((rows, 4), 0, address)


def call(plan, x, y, rows=8, room=None):
    plan.execute({1: on_device(x, rows), 2: on_device(y, rows)}, room, stream=STREAM)
"""
PAIRS = [(0x7F0000000000, 0x1000), (0x10, 0x7FFFFFFFFFF0), (0x123456789ABCD0, 0x1000), (0x40, 0x40)]
CALLS = (
    PLAN
    + f"""
plan = make(kernel(whole(X), whole(Y)), names=[sys.argv[1]])
for x, y in {PAIRS}:
    call(plan, x, y)
"""
)


def described(x: int, y: int, rows: int = 8) -> str:
    """The parameters of the kernel ``described``, as the driver logs them."""
    return struct.pack("<QIIIxxxxQ", x, rows, 9, rows, y + 48).hex().ljust(128, "0")


def launches(log: list[str]) -> list[str]:
    return [line for line in log if "launch" in line]


def launch(function: int, params: str) -> str:
    return f"driver launch {function:#x} grid 3 stream 0xabc params {params}"


BEFORE = 2  # calls that are alike, until the launch is learnt; on the host functions' own stream


def learnt(params: list[str]) -> list[str]:
    """The launches of calls that are alike."""
    first = [launch(1, each).replace("0xabc", "0x77") for each in params[:BEFORE]]
    return first + [launch(0xF1, each) for each in params[BEFORE:]]


def test_calls_that_are_alike_are_launched_without_the_host_function():
    assert launches(run(CALLS, "described")) == learnt([described(x, y) for x, y in PAIRS])


@pytest.mark.parametrize("name", ["twice", "shifted", "sum", "packed", "unknown_attribute"])
def test_a_host_function_that_cannot_be_learnt_is_called_each_time(name: str):
    packed = {
        "twice": described,
        "unknown_attribute": described,
        "shifted": lambda x, y: struct.pack("<QQ", x >> 4, y).hex().ljust(128, "0"),
        "sum": lambda x, y: struct.pack("<QQ", (x + y) % 2**64, y).hex().ljust(128, "0"),
        "packed": lambda x, y: struct.pack("<IQxxxxQ", 7, x, y).hex().ljust(128, "0"),
    }[name]
    kernel = {"shifted": 2, "sum": 2, "packed": 3}.get(name, 1)
    times = 2 if name == "twice" else 1
    got = launches(run(CALLS.replace("STREAM = 0xABC", "STREAM = 0x77"), name))
    # The host functions here launch on a stream of their own, 0x77.
    want = [
        launch(kernel, packed(x, y)).replace("abc", "77") for x, y in PAIRS for _ in range(times)
    ]
    assert got == want


@pytest.mark.parametrize(
    "settings", [{"param_info_error": 1}, {"param_info_error": 801}, {"function_error": 400}]
)
def test_a_driver_that_does_not_tell_enough(settings: dict[str, int]):
    got = launches(run(CALLS, "described", **settings))
    assert len(got) == len(PAIRS) and all("driver launch 0x1 " in line for line in got)


def test_what_the_driver_refuses_the_runtime_launches():
    got = launches(run(CALLS, "described", refuse=201))
    assert got == ["launch grid 3 1 1 stream 0x77 device 0"] * len(PAIRS)


def test_other_extents_are_learnt_anew():
    log = run(
        PLAN
        + """
plan = make(kernel(whole(X), whole(Y)), names=["described"])
for rows in (8, 8, 8, 3, 3, 3):
    call(plan, 0x1000 * rows, 0x2000, rows)
"""
    )
    each = [described(0x1000 * rows, 0x2000, rows) for rows in (8, 8, 8, 3, 3, 3)]
    assert launches(log) == learnt(each[:3]) + learnt(each[3:])


def test_fills_and_workspace_keep_their_place_among_learnt_launches():
    log = run(
        PLAN
        + """
room = {"arg": "tensor", "slice": "s", "offset": 16, "dtype": "FLOAT", "dim": [4], "stride": [1]}
plan = make(
    {"step": "fill", "slice": "s", "bytes": 64, "pattern": 1, "width": 4},
    kernel(whole(X), room),
    {"step": "fill", "operand": 2, "bytes": 64, "pattern": 2, "width": 4},
    kernel(room, whole(Y), index=1),
    names=["described", "described"],
    workspace=[{"name": "s", "bytes": 128, "align": 256}],
)
for address in 3 * (0x8000,) + 3 * (0x9001,):
    call(plan, 0x100, 0x200, room=OnDevice((1024,), 0, address, "|u1"))
"""
    )
    want = []
    for room in (0x8000, 0x9100):  # from its first aligned byte on
        want += [
            f"fill32 {room:x} value 1 count 16",
            launch(0xF1, described(0x100, room + 64)),
            "fill32 200 value 2 count 16",
            launch(0xF1, described(room + 64, 0x200, 4)),
        ]
    got = [
        line.split(" stream 0xabc context")[0] for line in log if "fill" in line or "launch" in line
    ]
    assert got[8:12] + got[20:24] == want
    # Of the first two calls of each kind the host function makes the launches.
    for start, room in ((0, want[:4]), (4, want[:4]), (12, want[4:]), (16, want[4:])):
        assert [line.split(" stream ")[0] for line in got[start : start + 4]] == [
            line.replace("0xf1", "0x1").split(" stream ")[0] for line in room
        ]


def test_a_number_of_the_call_is_passed_by_the_host_function():
    log = run(
        PLAN
        + """
number = scalar(3)
plan = make(kernel(whole(X), whole(Y), {"arg": "scalar", "operand": 3}), names=["described"],
            operands=(X, Y, number))
for value in (1.0, 2.0, 3.0, 4.0):
    plan.execute({1: on_device(0x10), 2: on_device(0x20), 3: value}, stream=STREAM)
"""
    )
    assert len(launches(log)) == 4 and all("driver launch 0x1 " in line for line in launches(log))


FLAGS = {
    "page": lambda x, y: x % 256 == 0,
    "same": lambda x, y: x == y,
    "small": lambda x, y: x < 2**32,
}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("turn", range(4))
def test_what_a_host_function_sees_in_addresses_beside_their_values(name: str, turn: int):
    """Whichever call comes first, and the launch is learnt from."""
    pairs = [(0x7F0000000010, 0x1000), (0x7F0000000100, 0x1000), (0x2000, 0x2000), (0x7F00, 0x7F10)]
    pairs = (BEFORE + 1) * [pairs[turn]] + pairs  # learnt at the third
    got = launches(run(CALLS.replace(str(PAIRS), str(pairs)), name))
    params = [line.split(" params ")[1] for line in got]
    assert params == [
        struct.pack("<QQ", FLAGS[name](x, y), y).hex().ljust(128, "0") for x, y in pairs
    ]


def test_a_launch_is_learnt_in_the_context_of_the_operands():
    log = run(
        PLAN
        + """
plan = make(kernel(whole(X), whole(Y)), names=["context"])
for x in (0x1000, 0x2000, 0x3000, 0x4000):
    plan.execute({1: OnDevice((8, 4), 1, x), 2: OnDevice((8, 4), 1, x + 64)}, stream=STREAM)
""",
        stream_device=1,
    )
    want = [
        struct.pack("<QQ", 0xC1, x + 64).hex().ljust(128, "0")
        for x in (0x1000, 0x2000, 0x3000, 0x4000)
    ]
    assert [line.split(" params ")[1] for line in launches(log)] == want


def test_a_host_function_that_refuses_an_address_that_was_made_up():
    """The calls themselves are fine."""
    pairs = 4 * PAIRS[:1]
    got = launches(run(CALLS.replace(str(PAIRS), str(pairs)), "picky"))
    assert [line.split(" params ")[1] for line in got] == [described(x, y) for x, y in pairs]


def test_a_stream_handle_that_is_used_again_for_another_device():
    log = run(
        PLAN
        + """
import os
plan = make(kernel(whole(X), whole(Y)), names=["described"])
for _ in range(4):
    call(plan, 0x10, 0x20)
# What the stand-in reads its settings from is the C library's environment.
ctypes.CDLL(None).setenv(b"STAND_IN_SET", b"stream_device=1", 1)
try: call(plan, 0x10, 0x20)
except errors.RefusedError as error: assert error.rule == "device", error
else: raise AssertionError
"""
    )
    assert len(launches(log)) == 4
