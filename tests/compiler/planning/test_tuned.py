"""Ranges out of measurements: each value has the plan of the point that speaks for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cudnn_aot.compiler.graph.extents import Symbol
from cudnn_aot.compiler.planning.engine import PlanConfig
from cudnn_aot.compiler.planning.ranges import Range, Ranges, check_partition
from cudnn_aot.compiler.planning.tuned import REACH, Point, tuned_ranges

MODEL, MEASURED = 20_000, 20_001


def plan(engine: int, knobs: int) -> PlanConfig:
    return PlanConfig(engine, knobs, f"{engine} {knobs}")


@st.composite
def bases(draw) -> tuple[Symbol, Ranges | PlanConfig]:
    low = draw(st.integers(0, 20))
    high = draw(st.integers(low, 400))
    cuts = sorted(draw(st.sets(st.integers(low, high), max_size=4)) - {low, 1})  # none for no rows
    step = draw(st.sampled_from([1, 1, 8]).filter(lambda step: high // step * step >= low))
    symbol = Symbol(min=low, max=high, hint=None, multiple_of=step)
    if step > 1 or not cuts:
        return symbol, plan(MODEL, 0)
    starts, ends = [low, *cuts], [*(cut - 1 for cut in cuts), high]
    parts = [
        Range((("M", first, last),), plan(MODEL, number), (plan(MODEL, 99),))
        for number, (first, last) in enumerate(zip(starts, ends, strict=True))
    ]
    return symbol, Ranges(tuple(parts), "model")


def served(found: Ranges | PlanConfig, value: int) -> PlanConfig:
    if isinstance(found, PlanConfig):
        return found
    (part,) = (p for p in found.parts if p.bounds[0][1] <= value <= p.bounds[0][2])
    return part.plan


def values_of(symbol: Symbol, low: int, high: int) -> range:
    """Those that it may have within some."""
    first = -(-low // symbol.multiple_of) * symbol.multiple_of
    return range(first, high + 1, symbol.multiple_of)


@given(bases(), st.sets(st.integers(1, 400), min_size=1, max_size=5), st.data())
def test_each_value_has_the_plan_of_what_speaks_for_it(base, values, data) -> None:
    symbol, whole = base
    points = [
        Point(value, (plan(MEASURED, data.draw(st.integers(0, 2))), plan(MEASURED, 7)))
        for value in sorted(values)
    ]
    found = tuned_ranges("M", symbol, points, whole)
    if isinstance(found, Ranges):
        check_partition(found, {"M": symbol})
        for part, after in zip(found.parts, found.parts[1:], strict=False):
            assert part.plan != after.plan  # else they would be one
        for part in found.parts:
            ((_, low, high),) = part.bounds
            assert values_of(symbol, max(low, 1), high)
    for value in values_of(symbol, max(symbol.min, 1), symbol.max):
        # The next one from there on, else the one before.
        above = [p for p in points if value <= p.value <= REACH * value][:1]
        below = [p for p in points if p.value < value <= REACH * p.value][-1:]
        near = [*above, *below][:1]
        want = near[0].plans[0] if near else served(whole, value)
        assert served(found, value) == want, (value, points)


def test_what_declines_leaves_the_next_and_then_the_model() -> None:
    symbol = Symbol(min=1, max=100, hint=None, multiple_of=1)
    base = Ranges(
        (
            Range((("M", 1, 50),), plan(MODEL, 0), (plan(MODEL, 9),)),
            Range((("M", 51, 100),), plan(MODEL, 1), ()),
        ),
        "model",
    )
    points = [Point(16, (plan(MEASURED, 0), plan(MEASURED, 1)))]
    found = tuned_ranges("M", symbol, points, base)
    assert isinstance(found, Ranges) and found.why == "measured at M=16"
    assert [str(part) for part in found.parts] == ["M=1..3", "M=4..64", "M=65..100"]
    assert found.parts[1].others == (
        plan(MEASURED, 1), plan(MODEL, 0), plan(MODEL, 9), plan(MODEL, 1),
    )  # fmt: skip


def test_a_value_outside_of_the_domain_speaks_for_those_inside() -> None:
    points = [Point(value, (plan(MEASURED, value),)) for value in (64, 128, 512)]
    found = tuned_ranges("M", Symbol(min=1, max=100), points, plan(MODEL, 0))
    assert isinstance(found, Ranges) and found.why == "measured at M=64, 128"
    assert [str(part) for part in found.parts] == ["M=1..15", "M=16..64", "M=65..100"]
    assert served(found, 65) == plan(MEASURED, 128)
    # No multiple of 96 lies below 128 but 96.
    found = tuned_ranges("M", Symbol(min=96, max=960, multiple_of=96), points, plan(MODEL, 0))
    assert isinstance(found, Ranges)
    assert [str(part) for part in found.parts] == ["M=96..128", "M=129..960"]
    base = plan(MODEL, 0)
    assert tuned_ranges("M", Symbol(min=4096, max=8192), points, base) is base


def test_no_rows_have_no_plan_of_their_own() -> None:
    points = [Point(1, (plan(MEASURED, 0),)), Point(8, (plan(MEASURED, 1),))]
    found = tuned_ranges("M", Symbol(min=0, max=8), points, plan(MODEL, 0))
    assert isinstance(found, Ranges)
    assert [str(part) for part in found.parts] == ["M=0..1", "M=2..8"]
