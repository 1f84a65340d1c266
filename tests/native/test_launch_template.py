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


def test_calls_that_are_alike_are_launched_without_the_host_function():
    assert launches(run(CALLS, "described")) == [launch(0xF1, described(x, y)) for x, y in PAIRS]


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
for rows in (8, 3, 8, 3):
    call(plan, 0x1000 * rows, 0x2000, rows)
"""
    )
    assert launches(log) == [
        launch(0xF1, described(0x1000 * rows, 0x2000, rows)) for rows in (8, 3, 8, 3)
    ]


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
for address in (0x8000, 0x9001):
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
    assert got == want


def test_a_number_of_the_call_is_passed_by_the_host_function():
    log = run(
        PLAN
        + """
number = scalar(3)
plan = make(kernel(whole(X), whole(Y), {"arg": "scalar", "operand": 3}), names=["described"],
            operands=(X, Y, number))
for value in (1.0, 2.0):
    plan.execute({1: on_device(0x10), 2: on_device(0x20), 3: value}, stream=STREAM)
"""
    )
    assert len(launches(log)) == 2 and all("driver launch 0x1 " in line for line in launches(log))
