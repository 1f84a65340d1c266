"""Ranges: what is a partition, and a merged table that takes the branches of its parts' tables."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from standin import ONE, TUNED, TWO, relu_graph
from table_model import declared

from cudnn_aot import _native
from cudnn_aot.cache.spec import KernelSpec
from cudnn_aot.compiler.graph.extents import Symbol
from cudnn_aot.compiler.planning.engine import Lowering, PlanConfig, Refusal
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.planning.ranges import (
    Range,
    Ranges,
    check_partition,
    merge,
    narrow,
)
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import RefusedError, cudnnGraphNotSupportedError

PLAN = PlanConfig(ONE)
A, B = Symbol(min=0, max=11), Symbol(min=2, max=7)
DOMAINS = st.sampled_from([{"A": A}, {"A": A, "B": B}])
Box = tuple[tuple[str, int, int], ...]


def ranges(*boxes: Box) -> Ranges:
    return Ranges(tuple(Range(box, PLAN) for box in boxes))


@st.composite
def partitions(draw: Any, symbols: dict[str, Symbol]) -> list[Box]:
    """The domain cut in two, and each half again, a few times; ends of the domain may be left out
    of a box that has other bounds.
    """
    boxes = [{name: (symbol.min, symbol.max) for name, symbol in symbols.items()}]
    for _ in range(draw(st.integers(0, 5))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        name = draw(st.sampled_from(sorted(box)))
        low, high = box[name]
        if low == high:
            boxes.append(box)
            continue
        cut = draw(st.integers(low, high - 1))
        boxes += [box | {name: (low, cut)}, box | {name: (cut + 1, high)}]
    written = []
    for box in boxes:
        named = {
            name: ends
            for name, ends in box.items()
            if ends != (symbols[name].min, symbols[name].max) or draw(st.booleans())
        }
        written.append(tuple((name, *ends) for name, ends in (named or box).items()))
    return written


def points(symbols: dict[str, Symbol]) -> list[dict[str, int]]:
    axes = [range(symbol.min, symbol.max + 1) for symbol in symbols.values()]
    return [dict(zip(symbols, values, strict=True)) for values in itertools.product(*axes)]


def holders(boxes: list[Box], point: dict[str, int]) -> list[int]:
    return [
        index
        for index, box in enumerate(boxes)
        if all(low <= point[name] <= high for name, low, high in box)
    ]


# --- partitions ----------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_partition_is_accepted(data):
    symbols = data.draw(DOMAINS)
    boxes = data.draw(partitions(symbols))
    check_partition(ranges(*boxes), symbols)
    assert all(len(holders(boxes, point)) == 1 for point in points(symbols))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_is_accepted_holds_every_point_once_within_the_domain(data):
    """Changed partitions: a bound moved, a box left out, twice, or of a symbol that is none."""
    symbols = data.draw(DOMAINS)
    boxes = data.draw(partitions(symbols))
    index = data.draw(st.integers(0, len(boxes) - 1))
    change = data.draw(st.sampled_from(["move", "drop", "repeat", "rename"]))
    if change == "move":
        bounds = [list(bound) for bound in boxes[index]]
        bound = data.draw(st.sampled_from(bounds))
        bound[data.draw(st.sampled_from([1, 2]))] += data.draw(st.sampled_from([-1, 1]))
        boxes[index] = tuple((name, low, high) for name, low, high in bounds)
    elif change == "drop":
        del boxes[index]
    elif change == "repeat":
        boxes.append(boxes[index])
    else:
        boxes[index] = (("C", 1, 1), *boxes[index][1:])
    inside = all(
        name in symbols and symbols[name].min <= low <= high <= symbols[name].max
        for box in boxes
        for name, low, high in box
    )
    exact = inside and all(len(holders(boxes, point)) == 1 for point in points(symbols))
    assert not exact
    with pytest.raises(ValueError, match="within the symbol's domain|ranges hold"):
        check_partition(ranges(*boxes), symbols)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_boxes_drawn_at_random_are_judged_by_every_point(data):
    symbols = {"A": Symbol(min=0, max=3), "B": Symbol(min=1, max=2)}
    ends = {"A": st.integers(0, 3), "B": st.integers(1, 2)}
    boxes = []
    for _ in range(data.draw(st.integers(1, 4))):
        names = data.draw(st.sampled_from([["A"], ["B"], ["A", "B"]]))
        drawn = {name: sorted(data.draw(st.tuples(ends[name], ends[name]))) for name in names}
        boxes.append(tuple((name, low, high) for name, (low, high) in drawn.items()))
    if all(len(holders(boxes, point)) == 1 for point in points(symbols)):
        check_partition(ranges(*boxes), symbols)
    else:
        with pytest.raises(ValueError, match=r"[02-4] ranges hold "):
            check_partition(ranges(*boxes), symbols)


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ([(("A", 0, 4),), (("A", 6, 11),)], "0 ranges hold A=5, want one"),
        ([(("A", 0, 5),), (("A", 5, 11),)], "2 ranges hold A=5, want one"),
        ([(("A", 0, 12),)], r"range A=0\.\.12 is not within the symbol's domain"),
        ([(("A", 5, 4),), (("A", 0, 11),)], r"range A=5\.\.4 is not within"),
        ([(("A", 0, 4),), (("A", 5, 11), ("B", 2, 6))], "0 ranges hold A=5, B=7"),
        ([()], "want bounds of one symbol or more"),
        ([(("A", 0, 4), ("A", 0, 4)), (("A", 5, 11),)], "once each"),
        ([], "0 ranges hold nothing, want one"),
    ],
)
def test_the_fault_is_named(boxes, message):
    with pytest.raises(ValueError, match=message):
        check_partition(ranges(*boxes), {"A": A, "B": B})


@pytest.mark.parametrize(
    ("hint", "expected"), [(None, None), (3, None), (4, 4), (8, 8), (9, None)], ids=str
)
def test_narrowing_keeps_a_hint_that_lies_inside(hint, expected):
    symbols = {"A": Symbol(min=0, max=12, hint=hint, multiple_of=1), "B": B}
    narrowed = narrow(symbols, Range((("A", 4, 8),), PLAN))
    assert narrowed == {"A": Symbol(min=4, max=8, hint=expected), "B": B}
    even = {"A": Symbol(min=0, max=12, multiple_of=2)}
    assert narrow(even, Range((("A", 4, 9),), PLAN))["A"].planned == 8


# --- merged tables -------------------------------------------------------------------------------

OPERANDS = [
    {
        "uid": uid,
        "name": f"t{uid}",
        "kind": "output" if uid == 2 else "input",
        "dtype": "FLOAT",
        "dim": ["A", 4],
        "stride": [4, 1],
        "optional": uid == 3,
    }
    for uid in (1, 2, 3)
]
PREDICATES = [
    True,
    ["aligned", 1, 64],
    ["eq", ["stride", 1, 0], 4],
    ["not", ["aligned", 2, 64]],
    ["present", 3],
    ["and", ["le", "A", 5], ["aligned", 1, 64]],
    ["or", ["lt", 7, "A"], ["not", ["present", 3]]],
    ["divides", 2, "A"],
]
SIZES = [0, 256, ["mul", 8, "A"]]
# Two of them are equal in Python but for their keys.
KERNELS = [
    KernelSpec("toys.kernels.toy:host", "0" * 64, {"n": n}, "", "triple", "level", {})
    for n in ("k", 1, True)
]
contents = st.tuples(st.sampled_from([*KERNELS, None]), st.sampled_from(SIZES))
entries = st.tuples(st.sampled_from(PREDICATES), contents)


def lowering(
    named: list[tuple[str, Any]], symbols: dict[str, Symbol], last_twice: bool
) -> Lowering:
    """A table of these entries; kernels in the order of their use."""
    kernels: dict[str, KernelSpec] = {}
    dispatch, branches = [], {}
    for name, (predicate, (kernel, size)) in named:
        steps = []
        if kernel is not None:
            kernels.setdefault(kernel.key, kernel)
            place = list(kernels).index(kernel.key)
            steps = [{"step": "kernel", "kernel": place, "args": []}]
        workspace = [{"name": "room", "bytes": size, "align": 256}] if size else []
        branches[name] = {"workspace": workspace, "steps": steps}
        dispatch.append({"when": predicate, "branch": name})
    if named and last_twice:  # two guards may lead to one branch
        dispatch.append({"when": ["aligned", 2, 128], "branch": named[-1][0]})
    return Lowering(
        tuple(kernels.values()),
        {
            "version": 1,
            "device": "cpu",
            "symbols": {n: {"min": s.min, "max": s.max} for n, s in symbols.items()},
            "operands": OPERANDS,
            "checks": [],
            "dispatch": dispatch,
            "branches": branches,
        },
    )


@st.composite
def merged_tables(draw: Any) -> tuple[dict[str, Symbol], list[Box], list[Lowering]]:
    """A table per box: what all begin and end with, and entries of their own between."""
    symbols = draw(DOMAINS)
    boxes = draw(partitions(symbols))
    head = [(f"head{i}", e) for i, e in enumerate(draw(st.lists(entries, max_size=2)))]
    tail = [(f"tail{i}", e) for i, e in enumerate(draw(st.lists(entries, max_size=2)))]
    twice = draw(st.booleans())
    tables = []
    for box in boxes:
        own = [(f"own{i}", e) for i, e in enumerate(draw(st.lists(entries, max_size=3)))]
        narrowed = narrow(symbols, Range(box, PLAN))
        tables.append(lowering([*head, *own, *tail], narrowed, twice))
    assume(any(table.table["dispatch"] for table in tables))
    return symbols, boxes, tables


def taken(lowered: Lowering, symbols: dict[str, int], changes: dict[str, Any]) -> Any:
    """What a call runs: its kernels and the workspace that it asks for; None if nothing takes it.

    Each part's table is evaluated where it is valid, so equal results mean equal behaviour.
    """
    call = declared(lowered.table, symbols, **changes)
    name = call.branch(lowered.table)
    if name is None:
        return None
    branch = lowered.table["branches"][name]
    kernels = [lowered.kernels[step["kernel"]].key for step in branch["steps"]]
    return kernels, call.workspace_bytes(branch)


LAYOUTS = [
    {"u1": one, "u2": two, **({"u3": None} if absent else {})}
    for one in ({}, {"address": (1 << 20) + 4}, {"stride": (8, 1)})
    for two in ({}, {"address": (1 << 20) + 64}, {"address": (1 << 20) + 4})
    for absent in (False, True)
]


@settings(max_examples=100, deadline=None)
@given(merged_tables(), st.lists(st.sampled_from(LAYOUTS), min_size=2, max_size=3))
def test_a_merged_table_runs_what_the_parts_tables_run(tables, layouts):
    symbols, boxes, lowered = tables
    parts = [Range(box, PLAN) for box in boxes]
    merged = merge(list(zip(parts, lowered, strict=True)), symbols)
    assert len({kernel.key for kernel in merged.kernels}) == len(merged.kernels)
    for point in points(symbols):  # all of them: every boundary is there
        (index,) = holders(boxes, point)
        for changes in layouts:
            assert taken(merged, point, changes) == taken(lowered[index], point, changes)


@settings(max_examples=60, deadline=None)
@given(merged_tables(), st.data())
def test_the_executor_takes_the_branch_that_the_model_takes(tables, data):
    symbols, boxes, lowered = tables
    parts = [Range(box, PLAN) for box in boxes]
    table = merge(list(zip(parts, lowered, strict=True)), symbols).table
    for branch in table["branches"].values():
        branch["steps"] = []
    plan = _native.Plan(table)
    for point in data.draw(st.lists(st.sampled_from(points(symbols)), min_size=3, max_size=6)):
        absent = data.draw(st.booleans())
        base = {1: 1 << 20, 2: (1 << 20) + data.draw(st.sampled_from([0, 4])), 3: 1 << 20}
        changes: dict[str, Any] = {f"u{uid}": {"address": at} for uid, at in base.items()}
        if absent:
            del base[3]
            changes["u3"] = None
        want = declared(table, point, **changes).branch(table)
        if want is None:
            with pytest.raises(RefusedError, match="no branch takes this call"):
                plan.resolve(base, symbols=point)
        else:
            assert plan.resolve(base, symbols=point)["branch"] == want


def two_parts(first: dict[str, Any], second: dict[str, Any]) -> Any:
    symbols = {"A": A}
    low, high = Range((("A", 0, 5),), PLAN), Range((("A", 6, 11),), PLAN)
    base = lowering([("only", (True, (KERNELS[0], 0)))], symbols, False)
    parts = [
        (part, Lowering(base.kernels, base.table | changes))
        for part, changes in ((low, first), (high, second))
    ]
    return merge(parts, symbols).table


def test_what_all_parts_share_is_there_once():
    table = two_parts({}, {})
    assert table["dispatch"] == [{"when": True, "branch": "only"}]
    check = {"rule": "alignment", "operand": 1, "bytes": 16}
    other = check | {"operand": 2}
    assert two_parts({"checks": [check]}, {"checks": [check, other]})["checks"] == [check, other]
    lets = two_parts({"let": {"x": 1}}, {"let": {"x": 1, "y": ["mul", 2, "A"]}})["let"]
    assert lets == {"x": 1, "y": ["mul", 2, "A"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operands": OPERANDS[:2]}, "different operands"),
        ({"device": "cuda"}, "different operands"),
        ({"let": {"x": 2}}, "mean different things by 'x'"),
    ],
    ids=["operands", "device", "let"],
)
def test_tables_that_do_not_go_together_are_a_fault(changes, message):
    with pytest.raises(ValueError, match=message):
        two_parts({"let": {"x": 1}}, changes)


def test_a_bound_of_the_domain_is_not_tested_again():
    """Two comparisons at most per range, none at the ends: dispatch is on every call's path."""
    symbols = {"A": A}
    boxes = [(("A", 0, 3),), (("A", 4, 7),), (("A", 8, 11),)]
    parts = [
        (Range(box, PLAN), lowering([("own", (True, (KERNELS[i], 0)))], symbols, False))
        for i, box in enumerate(boxes)
    ]
    assert [entry["when"] for entry in merge(parts, symbols).table["dispatch"]] == [
        ["le", "A", 3],
        ["and", ["le", "A", 7], ["le", 4, "A"]],
        ["le", 8, "A"],
    ]


# --- in a plan list ------------------------------------------------------------------------------


@pytest.fixture
def quarters(standin):
    """A plan of four boxes of two symbols, on the executor."""
    knobs = [standin.Knobs(tile, stages) for tile in (64, 128) for stages in (1, 2)]
    boxes = [(("M", *m), ("N", *n)) for m in ((0, 49), (50, 99)) for n in ((1, 4), (5, 9))]
    whole = Ranges(
        tuple(Range(box, PlanConfig(TUNED, k)) for box, k in zip(boxes, knobs, strict=True))
    )
    standin.SCRIPT.proposals = {"A": [whole], "FALLBACK": []}
    standin.SCRIPT.workspace_bytes["standin.tuned"] = ["mul", "M", "N"]
    symbols = {"M": {"min": 0, "max": 99}, "N": {"min": 1, "max": 9}}
    return PlanList(relu_graph("M", "N", symbols), load_target("cpu"))


@pytest.mark.parametrize(
    ("m", "n", "knobs"),
    [(0, 1, "64x1"), (49, 4, "64x1"), (0, 9, "64x2"), (49, 5, "64x2"), (50, 4, "128x1"),
     (99, 1, "128x1"), (50, 5, "128x2"), (99, 9, "128x2")],
)  # fmt: skip
def test_two_symbols_choose_together(quarters, m, n, knobs):
    plan = _native.Plan(quarters.lower(0).table)
    call = plan.resolve({1: 1 << 20, 2: 1 << 20}, symbols={"M": m, "N": n}, workspace=1 << 20)
    box = f"M={'0..49' if m < 50 else '50..99'}, N={'1..4' if n < 5 else '5..9'}"
    assert call["branch"] == f"fast {knobs} {box}"
    aside = plan.resolve({1: (1 << 20) + 4, 2: 1 << 20}, symbols={"M": m, "N": n})
    assert aside["branch"] == "slow"


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ({"M": 100, "N": 1}, r"symbol 'M': got 100, want 0 to 99"),
        ({"M": 2**40, "N": 1}, r"symbol 'M': got 1099511627776, want 0 to 99"),
        ({"M": -1, "N": 1}, r"symbol 'M': got -1, want 0 to 99"),
        ({"M": 50, "N": 0}, r"symbol 'N': got 0, want 1 to 9"),
        ({"M": 50, "N": 10}, r"symbol 'N': got 10, want 1 to 9"),
    ],
)
def test_extents_outside_the_domain_are_refused_by_name_and_range(quarters, symbols, message):
    plan = _native.Plan(quarters.lower(0).table, [])
    for act in (plan.resolve, plan.execute):
        with pytest.raises(RefusedError, match=message) as refused:
            act({1: 1 << 20, 2: 1 << 20}, symbols=symbols)
        assert refused.value.rule == "symbol_range"


def test_workspace_of_ranges_is_bounded_within_each(quarters):
    """The bound of all calls is the largest of the boxes' own bounds, not that of mixed ends."""
    assert quarters.workspace_bytes(0) == 99 * 9
    plan = _native.Plan(quarters.lower(0).table)
    assert plan.workspace_bytes({"M": 49, "N": 4}) == 49 * 4


def test_workspace_bound_follows_the_guards(standin):
    sizes = {1: 4096, 2: ["mul", 8, "M"]}

    class Sized(standin.Tuned):
        def table(self, facts, knobs):
            standin.SCRIPT.workspace_bytes[self.name] = sizes[knobs.stages]
            return super().table(facts, knobs)

    low = Range((("M", 0, 9),), PlanConfig(TUNED, standin.Knobs(64, 2)))
    high = Range((("M", 10, 10_000),), PlanConfig(TUNED, standin.Knobs(64, 1)))
    standin.SCRIPT.proposals = {"A": [Ranges((low, high))], "FALLBACK": []}
    plans = PlanList(relu_graph("M", symbols={"M": {"min": 0, "max": 10_000}}), load_target("cpu"))
    plans._engines[TUNED] = Sized()
    assert plans.workspace_bytes(0) == 4096  # and not 80,000: the other branch ends at M = 9


# --- several plans for a range -------------------------------------------------------------------


def choosy(standin, *declining):
    """A plan of two ranges, the second of which has two plans more; then a plan for all."""

    class Tuned(standin.Tuned):
        def lower(self, facts, knobs, target):
            if knobs in declining:
                return Refusal(f"no {knobs}")
            return super().lower(facts, knobs, target)

    first, second, third = (PlanConfig(TUNED, standin.Knobs(64, n), f"no. {n}") for n in (1, 2, 3))
    low = Range((("M", 0, 9),), first)
    high = Range((("M", 10, 99),), second, (third, PlanConfig(ONE, None, "always works")))
    standin.SCRIPT.proposals = {"A": [Ranges((low, high)), PlanConfig(TWO)], "FALLBACK": []}
    plans = PlanList(relu_graph("M", symbols={"M": {"min": 0, "max": 99}}), load_target("cpu"))
    plans._engines[TUNED] = Tuned()
    return plans


@pytest.mark.parametrize(
    ("declining", "taken", "why"),
    [
        ((), "standin.tuned[STAGES=2, TILE_M=64]", "no. 2"),
        (
            (2,),
            "standin.tuned[STAGES=3, TILE_M=64]",
            "standin.tuned[STAGES=2, TILE_M=64] declines: no 64x2; no. 3",
        ),
        (
            (2, 3),
            "standin.one",
            "standin.tuned[STAGES=2, TILE_M=64] declines: no 64x2; "
            "standin.tuned[STAGES=3, TILE_M=64] declines: no 64x3; always works",
        ),
    ],
    ids=["first", "second", "third"],
)
def test_a_range_whose_plan_declines_takes_its_next(standin, declining, taken, why):
    plans = choosy(standin, *(standin.Knobs(64, n) for n in declining))
    index, planned = plans.walk(lambda planned: planned)
    assert index == 0 and [part.bounds for part in planned.ranges] == [
        {"M": (0, 9)},
        {"M": (10, 99)},
    ]
    low, high = plans.ranges(0)
    assert low == ("M=0..9", "standin.tuned[STAGES=1, TILE_M=64]", "no. 1")
    assert high == ("M=10..99", taken, why)
    assert plans.name(0) == f"M=0..9: {low[1]}; M=10..99: {taken}"
    assert planned.ranges[1].engine_name == taken.partition("[")[0]
    call = _native.Plan(planned.table).resolve({1: 1 << 20, 2: 1 << 20}, symbols={"M": 50})
    assert (
        call["branch"] == f"fast {None if taken == 'standin.one' else '64x' + taken[21]} M=10..99"
    )
    again = choosy(standin)  # what was taken is recorded and built again, whatever came before it
    assert again.lower(again.append_planned(planned)).table == planned.table


def test_a_range_without_a_plan_left_hands_on_to_the_next_of_the_list(standin):
    plans = choosy(standin, *(standin.Knobs(64, n) for n in (2, 3)))
    standin.SCRIPT.acts["standin.one", "lower"] = NotImplementedError("nor this")
    index, planned = plans.walk(lambda planned: planned)
    assert (index, planned.engine_name, planned.ranges) == (1, "standin.two", ())
    standin.SCRIPT.acts["standin.two", "lower"] = ImportError("no such module", name="absent")
    with pytest.raises(cudnnGraphNotSupportedError) as error:
        choosy(standin, *(standin.Knobs(64, n) for n in (2, 3))).walk(lambda planned: planned)
    said = [reason.partition(": range ")[2] for reason in error.value.reasons[-4:-1]]
    assert said == [
        "M=10..99: standin.tuned[STAGES=2, TILE_M=64] declines: no 64x2",
        "M=10..99: standin.tuned[STAGES=3, TILE_M=64] declines: no 64x3",
        "M=10..99: standin.one declines: nor this",
    ]
    assert error.value.reasons[-1].startswith("standin.two: module 'absent' is not installed")
    assert not error.value.is_lasting


WAYS = {
    "walk": lambda plans, build: plans.walk(build)[1],
    "pin and walk": lambda plans, build: plans.select(0) or plans.walk(build)[1],
    "build_at": lambda plans, build: plans.build_at(0, build),
    "lower": lambda plans, build: build(plans.lower(0)),
    "workspace, walk": lambda plans, build: plans.workspace_bytes(0) * 0 or plans.walk(build)[1],
}


def test_an_index_builds_one_plan_on_every_path(standin):
    def build(way):
        plans = choosy(standin, standin.Knobs(64, 2))
        planned = WAYS[way](plans, lambda planned: planned)
        assert all(again(plans, lambda planned: planned) is planned for again in WAYS.values())
        assert plans.place_of(planned) == 0
        return planned.ranges, planned.table, plans.name(0), plans.ranges(0), plans.entry(0).why

    ranges, _, name, _, why = build("walk")
    assert ranges[1].knobs["STAGES"] == 3 and name.endswith("standin.tuned[STAGES=3, TILE_M=64]")
    assert why == "where that declines the next of the range: M=10..99"
    assert all(build(way) == build("walk") for way in WAYS)


def test_what_declined_in_a_range_is_told_each_time_that_the_plan_declines(standin):
    plans = choosy(standin, standin.Knobs(64, 2))
    first = "range M=10..99: standin.tuned[STAGES=2, TILE_M=64] declines: no 64x2"

    def fail(planned):
        raise NotImplementedError("does not compile")

    told = []
    for _ in range(2):
        with pytest.raises(cudnnGraphNotSupportedError) as error:
            plans.walk(fail)
        told.append([reason.partition(f"{plans.name(0)}: ")[2] for reason in error.value.reasons])
        assert told[-1][-3:-1] == [first, "does not compile"]
    assert told[0] == told[1]
    with pytest.raises(cudnnGraphNotSupportedError, match="no 64x2; does not compile") as error:
        plans.build_at(0, fail)
    assert error.value.reasons == [first, "does not compile"]


def test_a_replayed_plan_of_ranges_is_that_plan_or_none(standin):
    plans = choosy(standin, standin.Knobs(64, 2))
    listed = plans.engine_and_knobs(0)
    plans.walk(lambda planned: planned)
    place = plans.append(*listed)
    assert place == 2 and "STAGES=2" in plans.name(place)
    with pytest.raises(cudnnGraphNotSupportedError, match=r"range M=10\.\.99: .* no 64x2"):
        plans.build_at(place, lambda planned: planned)
    assert plans.append(*plans.engine_and_knobs(0)) == 0


def test_what_a_range_takes_instead_may_be_excluded(standin):
    plans = choosy(standin, *(standin.Knobs(64, n) for n in (2, 3)))
    plans.deselect_engines(["standin.one"])
    index, planned = plans.walk(lambda planned: planned)
    assert (index, planned.engine_name) == (1, "standin.two")


def test_a_range_may_only_take_what_was_offered(standin):
    gone = PlanConfig(20_999)
    whole = Range((("M", 0, 99),), PlanConfig(ONE), (gone,))
    standin.SCRIPT.proposals = {"A": [Ranges((whole,))]}
    with pytest.raises(ValueError, match="engine 20999, not offered"):
        PlanList(relu_graph("M", symbols={"M": {"min": 0, "max": 99}}), load_target("cpu"))
