"""Calls by position: buffers in an order chosen once, and addresses alone of a checked call."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest
from tables import kernel, operand, scalar, symbol, table, whole

from cudnn_aot import _native
from cudnn_aot.errors import RefusedError

X = operand(3, ["M", 6], [6, 1])
Y = operand(9, ["M", 6], [6, 1], kind="output")


@pytest.fixture
def scale(load):
    step = kernel(whole(Y), whole(X), {"arg": "scalar", "operand": 5})
    operands = [X, scalar(5, value=2.0), Y]
    return _native.Plan(table(operands, step, symbols={"M": symbol(1, 64)}), [load("scale")])


def arrays(m: int = 4) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(m * 6, dtype=np.float32).reshape(m, 6)
    return x, np.full_like(x, np.nan)


def test_a_caller_takes_buffers_in_its_order(scale):
    (x, y), call = arrays(), scale.caller([9, 3])
    assert call(y, x) is None
    assert (y == 2 * x).all()
    three = scale.caller((5, 9, 3))
    three(3.0, y, x)
    assert (y == 3 * x).all()
    three(None, y, x)  # the default
    assert (y == 2 * x).all()
    y[:] = np.nan
    call(y.ctypes.data, x.ctypes.data, symbols={"M": 2}, workspace=None, stream=None)
    assert (y[:2] == 2 * x[:2]).all() and np.isnan(y[2:]).all()


def test_a_caller_of_a_bound_plan_has_its_values(scale):
    (x, y), call = arrays(), scale.bind({"M": 4}, {5: 7}).caller([3, 9])
    gc.collect()  # the bound plan lives on in its caller
    call(x.ctypes.data, y.ctypes.data)
    assert (y == 7 * x).all()


@pytest.mark.parametrize(
    ("uids", "error", "words"),
    [
        ([3, 4], RefusedError, "got 4, want uids of operand 3 't3'"),
        ([3, 9, 3], RefusedError, "got 3 twice"),
        (["t3"], RefusedError, "got 't3'"),
        (7, TypeError, "int"),
    ],
)
def test_uids_of_a_caller_are_checked(scale, uids, error, words):
    with pytest.raises(error, match=words):
        scale.caller(uids)


def test_a_caller_refuses_what_execute_refuses(scale):
    (x, y), call = arrays(), scale.caller([3, 9])
    for arguments, rule in (
        ((x,), "presence"),
        ((x, y, y), "presence"),
        ((x, None), "presence"),
        ((x.astype(np.float16), y), "dtype"),
        ((x, y[:2]), "extents"),
        ((x.ctypes.data, y.ctypes.data), "symbol_unbound"),
    ):
        with pytest.raises(RefusedError) as refused:
            call(*arguments)
        assert refused.value.rule == rule
    for keywords in ({"bindings": {}}, {"uid": 1}):
        with pytest.raises(TypeError):
            call(x, y, **keywords)
    assert np.isnan(y).all()


def test_a_launcher_repeats_a_call_with_other_addresses(scale):
    x, y = arrays()
    launch = scale.launcher({3: x, 5: 4.0, 9: y})
    assert np.isnan(y).all()  # nothing ran yet
    other, result = arrays()
    other += 1
    assert launch(other.ctypes.data, result.ctypes.data) is None
    assert (result == 4 * other).all() and np.isnan(y).all()


def test_a_launcher_keeps_the_strides_of_its_call(scale):
    wide = np.arange(4 * 10, dtype=np.float32).reshape(4, 10)
    y = np.full((4, 6), np.nan, np.float32)
    launch = scale.launcher({3: wide[:, :6], 9: y})
    other = wide + 100
    launch(other.ctypes.data, y.ctypes.data)
    assert (y == 2 * other[:, :6]).all()
    launch = scale.launcher({3: other, 9: y}, None, None, None, [3], [[4, 6]], [[10, 1]])
    launch(wide.ctypes.data, y.ctypes.data)
    assert (y == 2 * wide[:, :6]).all()


def test_a_refused_call_makes_no_launcher(scale):
    x, y = arrays()
    with pytest.raises(RefusedError) as refused:
        scale.launcher({3: x, 9: y[:2]})
    assert refused.value.rule == "extents"
    with pytest.raises(TypeError, match="stream"):
        scale.launcher({3: x, 9: y}, stream=7)


def test_addresses_of_a_launcher_are_checked(scale):
    x, y = arrays()
    launch = scale.launcher({3: x, 9: y})
    good = x.ctypes.data, y.ctypes.data
    for arguments, rule in (
        ((good[0] + 2, good[1]), "alignment"),
        ((good[0], 0), "presence"),
        ((good[0], -8), "address"),
        (good[:1], "presence"),
    ):
        with pytest.raises(RefusedError) as refused:
            launch(*arguments)
        assert refused.value.rule == rule
    for wrong in (x, True, None, "0"):
        with pytest.raises(TypeError, match="want an address"):
            launch(good[0], wrong)
    with pytest.raises(TypeError, match="workspace and stream"):
        launch(*good, symbols={"M": 4})
    assert np.isnan(y).all()
    launch(*good)
    assert (y == 2 * x).all()


def branches(load: Any) -> Any:
    """Tells the branch, by the alignment of operand 2, and its slice."""
    out, x = operand(1, [16], dtype="INT64", kind="output"), operand(2, [8], dtype="HALF")
    room = {"arg": "tensor", "slice": "room", "dtype": "INT32", "dim": [4], "stride": [1]}
    fill = {"step": "fill", "slice": "room", "bytes": 16, "pattern": 9, "width": 4}

    def branch(name: int) -> dict:
        step = kernel(whole(out), {"arg": "int", "value": name}, room)
        slices = [{"name": "room", "bytes": 16, "align": 64}]
        return {"workspace": slices, "steps": [fill, step]}

    guards = [{"when": ["aligned", 2, 16], "branch": "a"}, {"when": True, "branch": "b"}]
    return _native.Plan(
        table([out, x], dispatch=guards, branches={"a": branch(1), "b": branch(2)}), [load("echo")]
    )


def test_another_alignment_takes_another_branch(load):
    plan = branches(load)
    out = np.zeros(16, np.int64)
    room = np.zeros(256, np.uint8)
    start = -room.ctypes.data % 64
    launch = plan.launcher({1: out, 2: 1 << 20}, room)
    for address, branch in ((1 << 20, 1), (2 << 20, 1), ((1 << 20) + 2, 2), (3 << 20, 1)):
        launch(out.ctypes.data, address)
        assert out[:4].tolist() == [1, branch, 7, room.ctypes.data + start]
    other = np.zeros(256, np.uint8)
    aligned = other.ctypes.data + -other.ctypes.data % 64
    launch(out.ctypes.data, 1 << 20, workspace=aligned)
    assert out[3] == aligned and other.any()
    launch(out.ctypes.data, 1 << 20, workspace=other)
    assert out[3] == aligned
    for wrong in (None, aligned + 4, other[:8]):
        with pytest.raises(RefusedError) as refused:
            launch(out.ctypes.data, 1 << 20, workspace=wrong)
        assert refused.value.rule == "workspace"


def test_a_launcher_keeps_its_workspace_alive_and_nothing_else(load):
    out, room = np.zeros(16, np.int64), np.zeros(256, np.uint8)
    plan = branches(load)
    before = [sys.getrefcount(item) for item in (out, room, plan)]
    launch = plan.launcher({1: out, 2: 1 << 20}, room)
    launch(out.ctypes.data, 1 << 20)
    counts = [sys.getrefcount(item) for item in (out, room, plan)]
    assert counts == [before[0], before[1] + 1, before[2] + 1]
    del launch
    assert [sys.getrefcount(item) for item in (out, room, plan)] == before
