"""Workspace: carving, and the bound that holds for every call of the declared ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import operand, symbol, table

from cudnn_aot import _native
from cudnn_aot.errors import RefusedError

BRANCH = {"workspace": [], "steps": []}


def sized(bytes_: Any, align: int = 1, **fields: Any) -> Any:
    slices = [{"name": "s", "bytes": bytes_, "align": align}]
    return _native.Plan(table([], workspace=slices, symbols={"M": symbol(1, 1000)}, **fields), [])


def test_slices_start_at_multiples_of_their_alignment():
    slices = [
        {"name": "a", "bytes": 10, "align": 1},
        {"name": "b", "bytes": ["mul", "M", 3], "align": 64},
        {"name": "c", "bytes": 1, "align": 16},
    ]
    plan = _native.Plan(table([], workspace=slices, symbols={"M": symbol(1, 1000)}), [])
    assert plan.workspace_bytes({"M": 5}) == 64 + 16 + 1
    assert plan.workspace_bytes({"M": 6}) == 64 + 32 + 1
    assert plan.workspace_bytes() == 64 + 3008 + 1


@pytest.mark.parametrize("value", [65, -5, 0, 6])
def test_the_workspace_of_extents_outside_the_domain_is_refused(value):
    """As a call with them is: such a number would be of no call."""
    domain = {"M": symbol(4, 64, 4)}
    slices = [{"name": "s", "bytes": ["mul", "M", 8], "align": 1}]
    plan = _native.Plan(table([operand(1, ["M"], [1])], workspace=slices, symbols=domain), [])
    message = f"^symbol 'M': got {value}, want 4 to 64, a multiple of 4 "
    for call in (
        lambda: plan.workspace_bytes({"M": value}),
        lambda: plan.bind({}).workspace_bytes({"M": value}),
        lambda: plan.resolve({1: 4096}, symbols={"M": value}),
    ):
        with pytest.raises(RefusedError, match=message) as refused:
            call()
        assert (refused.value.rule, refused.value.operand) == ("symbol_range", None)
    assert plan.workspace_bytes({"M": 64}) == 512


def aligned(size: int, shift: int = 0) -> np.ndarray:
    memory = np.zeros(size + 512, np.uint8)
    start = -memory.ctypes.data % 256 + shift
    return memory[start : start + size]


@pytest.mark.parametrize(
    ("workspace", "fits"),
    [
        (None, False),
        (aligned(99), False),
        (aligned(100), True),
        (aligned(100, shift=1), False),
        (aligned(100 + 127, shift=1), True),
        (aligned(100).ctypes.data, True),
        (aligned(100, shift=1).ctypes.data, False),
        (aligned(400).view(np.float32)[::2], False),
        (aligned(104).view(np.float64), True),
        (bytes(1000), False),  # read-only
    ],
    ids=lambda value: type(value).__name__,  # an address has no name of its own
)
def test_what_is_taken_as_workspace(workspace, fits):
    plan = sized(100, align=128)
    if fits:
        plan.execute({}, workspace, symbols={"M": 1})
    else:
        with pytest.raises(RefusedError, match="^workspace: got ") as refused:
            plan.execute({}, workspace, symbols={"M": 1})
        assert (refused.value.rule, refused.value.operand) == ("workspace", None)


def test_no_workspace_is_needed_for_no_bytes():
    sized(0, align=128).execute({}, symbols={"M": 1})
    sized(0, align=128).execute({}, np.zeros(0, np.uint8), symbols={"M": 1})


def test_a_negative_size_is_refused():
    with pytest.raises(RefusedError, match="'s': got -1 bytes"):
        sized(["sub", "M", 2]).execute({}, symbols={"M": 1})


def test_guards_narrow_the_ranges_of_their_branch():
    """Split-K scratch for small M must not be sized for the largest M."""

    def most(*guards: Any, bytes_: Any = "M") -> int:
        branch = {"workspace": [{"name": "s", "bytes": bytes_, "align": 1}], "steps": []}
        branches = {"scratch": branch, "none": BRANCH}
        dispatch = [{"when": guard, "branch": name} for guard, name in guards]
        return _native.Plan(
            table([], dispatch=dispatch, branches=branches, symbols={"M": symbol(1, 1000)})
        ).workspace_bytes()

    rest = (True, "none")
    assert most((["le", "M", 64], "scratch"), rest) == 64
    assert most((["lt", "M", 64], "scratch"), rest) == 63
    assert most((["eq", "M", 64], "scratch"), rest) == 64
    assert most((["not", ["lt", 64, "M"]], "scratch"), rest) == 64
    assert most((["and", ["le", "M", 500], ["le", "M", 64]], "scratch"), rest) == 64
    tiles = ["mul", ["ceil_div", "M", 16], 3]
    assert most((["le", tiles, 10], "scratch"), rest, bytes_=tiles) == 9
    assert most((["le", tiles, 10], "scratch"), rest) == 48
    assert most((["lt", 64, "M"], "none"), (True, "scratch")) == 64
    assert most((True, "none"), (True, "scratch")) == 0
    assert most((["lt", "M", 1], "scratch"), rest) == 0


def test_a_device_attribute_is_bounded_before_a_device_is_known():
    plan = sized(["mul", 4, ["attr", "sm_count"]], device="cuda")
    assert 4 * 132 <= plan.workspace_bytes() <= 1 << 16


def test_capacity_in_a_size():
    """For a packed buffer the declaration is the bound."""
    x = operand(1, ["M", 8], [8, 1], ragged=True)
    slices = [{"name": "s", "bytes": ["floor_div", ["nbytes", 1], 4], "align": 1}]
    plan = _native.Plan(table([x], workspace=slices, symbols={"M": symbol(1, 100)}), [])
    assert plan.workspace_bytes() == 800
    assert plan.workspace_bytes({"M": 3}) == 24
    assert plan.resolve({1: np.zeros(5, np.float32)}, symbols={"M": 3})["workspace_bytes"] == 5


leaves = st.one_of(st.integers(-5, 200), st.sampled_from(["a", "b"]))
positive = st.integers(1, 40)


def larger(e: Any) -> Any:
    return st.one_of(
        st.tuples(st.sampled_from(["add", "sub", "mul", "min", "max"]), e, e).map(list),
        st.tuples(
            st.sampled_from(["floor_div", "ceil_div", "mod", "round_up"]),
            e,
            st.one_of(positive, e),
        ).map(list),
        st.tuples(
            st.just("select"),
            st.tuples(st.sampled_from(["eq", "lt", "le", "divides"]), e, e).map(list),
            e,
            e,
        ).map(list),
    )


sizes = st.recursive(leaves, larger, max_leaves=6)
comparisons = st.tuples(st.sampled_from(["eq", "lt", "le"]), sizes, sizes).map(list)
guards = st.recursive(
    comparisons,
    lambda p: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), p, p).map(list),
        st.tuples(st.just("not"), p).map(list),
    ),
    max_leaves=3,
)


@settings(max_examples=250, deadline=None)
@given(sizes, sizes, guards, st.data())
def test_no_call_needs_more_than_the_bound(first, second, guard, data):
    ranges = {name: sorted(data.draw(st.tuples(*[st.integers(0, 90)] * 2))) for name in "ab"}
    branches = {
        name: {"workspace": [{"name": "s", "bytes": size, "align": align}], "steps": []}
        for name, size, align in (("first", first, 8), ("second", second, 1))
    }
    plan = _native.Plan(
        table(
            [],
            symbols={name: symbol(*low_high) for name, low_high in ranges.items()},
            dispatch=[{"when": guard, "branch": "first"}, {"when": True, "branch": "second"}],
            branches=branches,
        )
    )
    bound = plan.workspace_bytes()
    for _ in range(4):
        values = {name: data.draw(st.integers(*low_high)) for name, low_high in ranges.items()}
        try:
            needed = plan.resolve({}, symbols=values)["workspace_bytes"]
        except RefusedError:
            continue
        exact = plan.workspace_bytes(values)
        assert needed <= exact <= bound
