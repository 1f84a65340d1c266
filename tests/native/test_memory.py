"""Kernels get no view that leaves the caller's buffers, whatever a call asks for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tables import kernel, operand, symbol, table, whole

from cudnn_aot import _native
from cudnn_aot.errors import RefusedError

ARENA = 600  # elements, the buffers in the middle
CANARY, PAINT = 0x11, 0xEE
Y = operand(9, [1, "M", "N"], [["mul", "M", "N"], "N", 1], kind="output")
SYMBOLS = {"M": symbol(), "N": symbol()}


@pytest.fixture(scope="module")
def paint(load):
    """Writes to every element of the view that it is given."""
    return load("paint")


def arena():
    return np.full(ARENA, CANARY * 0x01010101, np.uint32).view(np.float32)


def painted(memory):
    words = memory.view(np.uint32)
    changed = words != CANARY * 0x01010101
    assert (words[changed] == PAINT * 0x01010101).all()
    return changed


def override(shape, stride):
    return {"override_uids": [9], "override_shapes": [shape], "override_strides": [stride]}


def outcome(plan, buffer, **call):
    try:
        plan.execute({9: buffer}, **call)
    except RefusedError as refused:
        assert "\n" not in str(refused)
        return refused.rule
    return None


@pytest.mark.parametrize(
    ("view", "shape", "stride", "rule"),
    [
        (lambda a: a[200:235], [1, 5, 7], [35, 7, 1], None),
        (lambda a: a[200:235], [1, 5, 7], [35, 1, 5], None),
        (lambda a: a[200:235], [1, 3, 7], [99, 14, 1], None),  # every other row
        (lambda a: a[200:235], [1, 5, 7], [35, -7, 1], "override"),
        (lambda a: a[200:235], [1, 5, 7], [35, 8, 1], "capacity"),
        (lambda a: a[165:200][::-1], [1, 5, 7], [35, 7, 1], "capacity"),
        (lambda a: a[200:300].reshape(10, 10)[:5, :7], [1, 5, 7], [50, 10, 1], None),
        (lambda a: a[200:300].reshape(10, 10)[:5, :7], [1, 4, 3], [50, 10, 1], None),
        (lambda a: a[200:300].reshape(10, 10)[:5, :7], [1, 5, 7], [35, 7, 1], "capacity"),
        (lambda a: a[200:300].reshape(10, 10)[:5, :7], [1, 5, 8], [50, 10, 1], "capacity"),
        (lambda a: a[200:235], [1, 5, 7], [35, 0, 1], "overlap"),
        (lambda a: a[200:235], [1, 5, 7], [35, 6, 1], "overlap"),
        (lambda a: a[200:235], [1, 1, 7], [0, 0, 1], None),  # unit axes move nothing
        (lambda a: a[200:235], [1, 0, 7], [0, 0, 0], None),
    ],
)
def test_an_override_of_an_output(paint, view, shape, stride, rule):
    plan = _native.Plan(table([Y], kernel(whole(Y)), symbols=SYMBOLS), [paint])
    memory = arena()
    buffer = view(memory)
    assert outcome(plan, buffer, **override(shape, stride)) == rule
    changed = painted(memory)
    assert changed.sum() == (0 if rule else np.prod(shape))
    own = arena()
    view(own)[...] = 0
    assert not (changed & (own.view(np.uint32) == CANARY * 0x01010101)).any()


axes = st.integers(0, 6)
steps = st.integers(-4, 40)


@st.composite
def buffers(draw):
    """A view of an arena: sliced, stepped over, turned around, transposed, repeated."""
    memory = arena()
    start = draw(st.integers(150, 250))
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    view = memory[start : start + int(np.prod(shape))].reshape(shape)
    for axis in range(view.ndim):
        cut = draw(st.sampled_from([slice(None), slice(None, None, -1), slice(None, None, 2),
                                    slice(1, None), slice(-2, None, -1)]))  # fmt: skip
        view = view[(slice(None),) * axis + (cut,)]
    if draw(st.booleans()):
        view = view.T
    if draw(st.integers(0, 5)) == 0:
        view = np.lib.stride_tricks.as_strided(view, (2, *view.shape), (0, *view.strides))
    assume(view.size)
    return memory, view


def owned(memory, view):
    mine = np.zeros(ARENA, bool)
    start = (view.ctypes.data - memory.ctypes.data) // 4
    for index in np.ndindex(view.shape):
        mine[start + sum(i * s // 4 for i, s in zip(index, view.strides, strict=True))] = True
    return mine


@settings(max_examples=300, deadline=None)
@given(drawn=buffers(), m=axes, n=axes, stride=st.tuples(steps, steps, steps))
def test_no_override_writes_outside_the_buffer(paint, drawn, m, n, stride):
    plan = _native.Plan(table([Y], kernel(whole(Y)), symbols=SYMBOLS), [paint])
    memory, view = drawn
    rule = outcome(plan, view, **override([1, m, n], list(stride)))
    changed = painted(memory)
    assert not (changed & ~owned(memory, view)).any()
    assert changed.sum() == (0 if rule else m * n)
    assert rule in (None, "override", "capacity", "overlap")


@settings(max_examples=150, deadline=None)
@given(drawn=buffers(), m=axes, n=axes, stride=st.tuples(steps, steps, steps))
def test_no_override_reads_beyond_the_ends_of_the_buffer(drawn, m, n, stride):
    x = Y | {"kind": "input"}
    plan = _native.Plan(table([x], kernel(whole(x)), symbols=SYMBOLS))
    memory, view = drawn
    try:
        seen = plan.resolve({9: view}, **override([1, m, n], list(stride)))
    except RefusedError:
        return
    arg = seen["steps"][0]["args"][0]
    mine = np.flatnonzero(owned(memory, view))
    start = (arg["address"] - memory.ctypes.data) // 4
    for index in np.ndindex(*arg["dim"]):
        at = start + sum(i * s for i, s in zip(index, arg["stride"], strict=True))
        assert mine[0] <= at <= mine[-1]


@settings(max_examples=150, deadline=None)
@given(drawn=buffers(), m=st.integers(1, 6), n=st.integers(1, 6))
def test_no_buffer_is_written_outside_of_it(paint, drawn, m, n):
    plan = _native.Plan(table([Y], kernel(whole(Y)), symbols=SYMBOLS), [paint])
    memory, view = drawn
    outcome(plan, view, symbols={"M": m, "N": n})
    outcome(plan, view)
    assert not (painted(memory) & ~owned(memory, view)).any()


@settings(max_examples=150, deadline=None)
@given(
    turned=st.booleans(),
    dim=st.tuples(st.integers(-1, 5), st.integers(-1, 5)),
    stride=st.tuples(st.integers(-12, 12), st.integers(-12, 12)),
    offset=st.integers(-40, 40),
)
def test_no_view_of_a_table_leaves_the_buffer(paint, turned, dim, stride, offset):
    y = operand(9, [24], kind="output")
    arg = {"arg": "tensor", "operand": 9, "dim": dim, "stride": stride, "offset": offset}
    plan = _native.Plan(table([y], kernel(arg)), [paint])
    memory = arena()
    view = memory[200:224][::-1] if turned else memory[200:224]
    rule = outcome(plan, view)
    at = [(23 if turned else 0) + offset + i * stride[0] + j * stride[1] + 200
          for i in range(dim[0]) for j in range(dim[1])]  # fmt: skip
    fits = min(dim) >= 0 and all(200 <= i < 224 for i in at)
    assert (rule is None) == fits, rule
    assert sorted(set(at)) == list(np.flatnonzero(painted(memory))) if fits else rule


@pytest.mark.parametrize(
    ("shape", "strides", "accepted"),
    [
        ((5, 7), (7, 1), True),
        ((5, 7), (1, 5), True),
        ((5, 7), (-7, 1), True),
        ((5, 7), (7, -1), True),
        ((5, 7), (0, 1), False),
        ((5, 7), (7, 0), False),
        ((5, 7), (6, 1), False),
        ((5, 7), (-6, 1), False),
        ((5, 7), (1, 1), False),
        ((2, 3), (3, 2), False),  # interleaved: no collision, and refused all the same
        ((1, 7), (0, 1), True),
        ((0, 7), (0, 0), True),
    ],
)
def test_elements_of_an_output_lie_apart(paint, shape, strides, accepted):
    plan = _native.Plan(table([Y], kernel(whole(Y)), symbols=SYMBOLS), [paint])
    view = np.lib.stride_tricks.as_strided(
        arena()[200:], (1, *shape), (0, *(4 * s for s in strides))
    )
    assert outcome(plan, view) == (None if accepted else "overlap")
    assert outcome(plan, view[0]) == (None if accepted else "overlap")
    reader = _native.Plan(table([Y | {"kind": "input"}], symbols=SYMBOLS))
    reader.resolve({9: view})  # what is read may be repeated


def test_a_declared_output_may_not_overlap_either():
    y = operand(9, [4, 3], [0, 1], kind="output")
    plan = _native.Plan(table([y], kernel(whole(y))))
    for buffer in (4096, np.zeros(12, np.float32)):
        with pytest.raises(RefusedError, match=r"\[4, 3\] with strides \[0, 1\]") as refused:
            plan.resolve({9: buffer})
        assert (refused.value.rule, refused.value.operand) == ("overlap", 9)


def test_a_fill_keeps_to_the_elements():
    y = operand(9, [4, 3], kind="output")
    fill = {"step": "fill", "operand": 9, "bytes": 48, "pattern": 0xEE, "width": 1}
    plan = _native.Plan(table([y], fill), [])
    for view, rule in (
        (lambda a: a[200:212].reshape(4, 3), None),
        (lambda a: a[200:212].reshape(3, 4).T, None),
        (lambda a: a[200:240].reshape(4, 10)[:, :3], "capacity"),  # its gaps are not the caller's
        (lambda a: a[200:212].reshape(4, 3)[::-1], "capacity"),
    ):
        memory = arena()
        assert outcome(plan, view(memory)) == rule
        changed = painted(memory)
        assert list(np.flatnonzero(changed)) == ([] if rule else list(range(200, 212)))
