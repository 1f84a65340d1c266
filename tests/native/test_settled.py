"""A plan that has seen calls answers each further one as a plan that has seen none."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import kernel, library, operand, scalar, symbol, table, whole

from cudnn_aot import _native
from cudnn_aot.errors import RefusedError

OUT = operand(1, [64], dtype="INT64", kind="output")
X = operand(2, ["M", 8], [8, 1], dtype="BFLOAT16")
Z = operand(3, ["M"], [1], optional=True)
LET_IN = {"rule": "alignment", "operand": 3, "bytes": 8}


def echo_table(**fields: Any) -> dict:
    """Three branches that tell what they were called with: by alignment, by presence."""
    room = {"arg": "tensor", "slice": "room", "dtype": "INT32", "dim": [4], "stride": [1]}
    number = {"arg": "scalar", "operand": 4}

    def branch(name: int, *rest: dict) -> dict:
        step = kernel(whole(OUT), {"arg": "int", "value": name}, whole(X), number, room, *rest)
        fill = {"step": "fill", "slice": "room", "bytes": 16, "pattern": 7, "width": 4}
        slices = [{"name": "room", "bytes": ["mul", 16, "M"], "align": 32 * name}]
        return {"workspace": slices, "steps": [fill, step]}

    return (
        table(
            [OUT, X, Z, scalar(4, value=0.5), scalar(5, value=1, dtype="INT8")],
            symbols={"M": symbol(0, 64)},
            checks=[LET_IN],
            dispatch=[
                {"when": ["and", ["aligned", 2, 16], ["present", 3]], "branch": "both"},
                {"when": ["aligned", 2, 16], "branch": "aligned"},
                {"when": True, "branch": "any"},
            ],
            branches={"both": branch(1, whole(Z)), "aligned": branch(2), "any": branch(4)},
        )
        | fields
    )


def aligned(count: int, dtype: Any, skip: int = 0, room: int = 2048) -> np.ndarray:
    """An array whose address is `skip` bytes after a multiple of 256 and of 12."""
    raw = np.zeros(room + 1024, np.uint8)
    start = -raw.ctypes.data % 768 + skip
    return raw[start : start + count * np.dtype(dtype).itemsize].view(dtype)


def x_of(rows: int, skip: int, layout: str) -> Any:
    if layout == "padded":
        return aligned(rows * 16, np.uint16, skip).reshape(rows, 16)[:, :8]
    if layout == "columns":
        return aligned(rows * 8, np.uint16, skip).reshape(8, rows).T
    dtype = {"wide": np.uint32, "signed": np.int16}.get(layout, np.uint16)
    x = aligned(rows * 8, dtype, skip).reshape(rows, 8)
    if layout == "address":
        return (x, x.ctypes.data)
    if layout == "unit axis":
        return x[None]
    return x


CHOICES: dict[str, list[Any]] = {
    "rows": [2, 1, 3],
    "skip": [0, 2, 8, 16, 1],
    "layout": ["rows", "padded", "columns", "wide", "signed", "address", "unit axis"],
    "z": [0, None, 4, 8, "readonly", "null", "address"],
    "number": [0.25, None, 3, "text"],
    "small": [5, None, 1000],
    "room": ["array", "none", "odd", "short", "readonly", "address", "odd address"],
    "symbols": [None, {"M": 1}, {"M": 2}, {"M": 65}],
    "out": ["array", "address", "readonly"],
    "as": ["dict", "reversed", "list", "names"],
}
CALLS = st.fixed_dictionaries({name: st.sampled_from(each) for name, each in CHOICES.items()})
FIRST = {name: each[0] for name, each in CHOICES.items()}
# Calls that are taken: buffers, addresses alone, the other branches.
BASES = [
    FIRST,
    FIRST | {"layout": "address", "z": "address", "out": "address", "symbols": {"M": 2}},
    FIRST | {"layout": "padded", "z": None, "number": None, "room": "address"},
    FIRST | {"rows": 1, "skip": 2, "layout": "unit axis", "room": "odd", "as": "list"},
]


def answer(plan: Any, call: dict[str, Any]) -> Any:
    """What the kernel was given, or the refusal, with addresses as places in the call's buffers."""
    rows = call["rows"]
    x, x_bound = x_of(rows, call["skip"], call["layout"]), None
    if isinstance(x, tuple):
        x, x_bound = x
    z: Any = None
    if call["z"] is not None:
        z = aligned(rows, np.float32, call["z"] if isinstance(call["z"], int) else 0)
        z.flags.writeable = call["z"] != "readonly"
    out = aligned(64, np.int64)
    out_bound: Any = out.ctypes.data if call["out"] == "address" else out
    if call["out"] == "readonly":
        out_bound = out.view()
        out_bound.flags.writeable = False
    room = aligned(16 if call["room"] == "short" else 512, np.uint8, 3 * (call["room"] == "odd"))
    bound_room: Any = {"none": None, "address": room.ctypes.data}.get(call["room"], room)
    if call["room"] == "odd address":
        bound_room = room.ctypes.data + 4
    room.flags.writeable = call["room"] != "readonly"
    bindings: Any = {
        1: out_bound,
        2: x if x_bound is None else x_bound,
        3: 0 if call["z"] == "null" else z.ctypes.data if call["z"] == "address" else z,
        4: call["number"],
        5: call["small"],
    }
    if call["as"] == "reversed":
        bindings = dict(reversed(bindings.items()))
    elif call["as"] == "list":
        bindings = list(bindings.values())
    elif call["as"] == "names":
        bindings = {f"t{uid}": value for uid, value in bindings.items()}
    starts = {
        name: array.ctypes.data
        for name, array in (("out", out), ("x", x), ("z", z), ("room", room))
        if array is not None
    }

    def place(value: int) -> Any:
        for name, start in starts.items():
            if -8 <= value - start < 600:
                return name, value - start
        return value

    try:
        plan.execute(bindings, bound_room, symbols=call["symbols"])
    except (RefusedError, TypeError) as error:
        words = str(error).replace(",", " ").split()
        shown = [str(place(int(w, 16))) if w.startswith("0x") else w for w in words]
        return type(error), " ".join(shown)
    told = out.tolist()
    return [place(value) for value in told[: told.index(-1)]], room[:16].tolist()


@pytest.mark.parametrize("fields", [{}, {"checks": [LET_IN | {"bytes": 12}]}], ids=["2^n", "12"])
def test_calls_do_not_depend_on_those_before(load, fields):
    echo = [load("echo")]

    @settings(max_examples=60, deadline=None)
    @given(st.lists(CALLS, min_size=1, max_size=6), st.randoms(use_true_random=False))
    def check(calls, random):
        seen = _native.Plan(echo_table(**fields), echo)
        order = [random.choice(calls) for _ in range(4 * len(calls))]
        for call in order:
            fresh = _native.Plan(echo_table(**fields), echo)
            assert answer(seen, call) == answer(fresh, call)

    check()


@pytest.mark.parametrize("base", BASES, ids=["buffers", "addresses", "padded", "any"])
def test_a_call_that_differs_in_one_thing_is_checked_again(load, base):
    echo = [load("echo")]
    answer_of_base = answer(_native.Plan(echo_table(), echo), base)
    assert isinstance(answer_of_base[0], list), answer_of_base  # not refused
    for name, choices in CHOICES.items():
        for choice in choices:
            call = base | {name: choice}
            seen = _native.Plan(echo_table(), echo)
            expected = answer(_native.Plan(echo_table(), echo), call)
            for _ in range(2):
                assert answer(seen, base) == answer_of_base
                assert answer(seen, call) == expected, (name, choice)


def test_a_plan_keeps_its_answers_past_those_it_remembers(load):
    plan = _native.Plan(echo_table(), [load("echo")])
    for _ in range(3):
        for rows in range(1, 14):
            told, filled = answer(plan, FIRST | {"rows": rows})
            assert told[:2] == [1, 1] and told[9:11] == [rows, 8]
            assert filled == [7, 0, 0, 0] * 4


def test_nothing_of_the_caller_is_kept(load):
    plan = _native.Plan(
        table([X | {"dim": [2, 8]}], kernel(whole(X | {"dim": [2, 8]}))), [load("nothing")]
    )
    x = aligned(16, np.uint16).reshape(2, 8)
    bindings = {2: x}
    before = sys.getrefcount(x), sys.getrefcount(bindings)
    for _ in range(20):
        plan.execute(bindings)
        plan.execute([x])
    assert (sys.getrefcount(x), sys.getrefcount(bindings)) == before


def test_large_uids_and_many_threads(load):
    """Keys that are equal and not identical; calls of several shapes at once on one plan."""
    uids = 10**12, 10**12 + 7
    x, y = operand(uids[0], ["M", 4], [4, 1]), operand(uids[1], ["M", 4], [4, 1], kind="output")
    step = kernel(whole(y), whole(x), {"arg": "scalar", "operand": 1})
    plan = _native.Plan(
        table([scalar(1), x, y], step, symbols={"M": symbol(1, 64)}), [load("scale")]
    )
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for turn in range(300):
            rows = 1 + (seed * 7 + turn) % 23
            source = np.full((rows, 4), turn, np.float32)
            result = np.full_like(source, np.nan)
            plan.execute({int(str(uids[1])): result, 1: seed, int(str(uids[0])): source})
            if not (result == seed * turn).all():
                wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_library_has_the_kernel_that_does_nothing():
    assert b"__tvm_ffi_nothing" in library()
