"""The ranking, position for position: modes, the backend's marker, and plans that come twice."""

from __future__ import annotations

import pytest

from cudnn_aot.compiler.graph.enums import heur_mode
from cudnn_aot.compiler.planning.engine import PlanConfig
from cudnn_aot.compiler.planning.ranges import Range, Ranges
from cudnn_aot.compiler.planning.rank import BACKEND, DEFAULT_MODES, rank

A, B, FALLBACK, OPENSOURCE = heur_mode.A, heur_mode.B, heur_mode.FALLBACK, heur_mode.OPENSOURCE
OURS, OTHER, LAST = PlanConfig(20_000, 1), PlanConfig(20_000, 2), PlanConfig(20_001)
FOUND = {
    A: [PlanConfig(1, "a"), PlanConfig(2, "a")],
    B: [PlanConfig(3, "b")],
    FALLBACK: [PlanConfig(4, "f")],
    OPENSOURCE: [PlanConfig(9, "delegates")],
}
A1, A2, B3, F4, O9 = (entry for entries in FOUND.values() for entry in entries)


def ranked(modes, by_kind, backend=FOUND):
    return rank(modes, lambda kind: by_kind.get(kind, []), backend)


def test_the_modes_that_are_asked_when_none_is_named():
    assert DEFAULT_MODES == (A, FALLBACK)


@pytest.mark.parametrize(
    ("proposals", "expected"),
    [
        ([BACKEND, OURS, OTHER], [A1, A2, OURS, OTHER]),
        ([OURS, BACKEND, OTHER], [OURS, A1, A2, OTHER]),
        ([OURS, OTHER, BACKEND], [OURS, OTHER, A1, A2]),
        ([OURS, OTHER], [OURS, OTHER, A1, A2]),
        ([BACKEND], [A1, A2]),
        ([], [A1, A2]),
    ],
    ids=["first", "middle", "last", "none", "alone", "nothing"],
)
def test_the_marker_says_where_the_backends_block_goes(proposals, expected):
    assert ranked([A], {"A": proposals}) == expected


@pytest.mark.parametrize("mode", list(heur_mode))
def test_two_markers_are_the_familys_fault(mode):
    twice = [BACKEND, OURS, BACKEND]
    with pytest.raises(ValueError, match="place the backend 2 times, want once"):
        ranked([mode], {"A": twice, "FALLBACK": twice})


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (A, [OURS, A1, A2, OTHER]),
        (B, [OURS, B3, OTHER]),
        (FALLBACK, [LAST, F4]),
        (OPENSOURCE, [OURS, OTHER, O9]),
    ],
)
def test_every_mode_asks_its_kind_and_takes_its_own_block(mode, expected):
    kinds = []

    def recommend(kind):
        kinds.append(kind)
        return {"A": [OURS, BACKEND, OTHER], "FALLBACK": [LAST]}[kind]

    assert rank([mode], recommend, FOUND) == expected
    assert kinds == ["FALLBACK" if mode is FALLBACK else "A"]


def test_opensource_has_no_backend_but_the_entry_that_delegates():
    without = {mode: FOUND[mode] for mode in (A, B, FALLBACK)}
    assert ranked([OPENSOURCE], {"A": [BACKEND, OURS]}, without) == [OURS]
    assert ranked([OPENSOURCE], {"A": [BACKEND, OURS]}) == [OURS, O9]
    assert ranked([OPENSOURCE], {"A": [OURS]}) == [OURS, O9]


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ([OPENSOURCE, A, FALLBACK], [OURS, O9, A1, A2, LAST, F4]),
        ([A, OPENSOURCE], [O9, A1, A2, OURS]),
        ([FALLBACK, OPENSOURCE], [LAST, O9, F4, OURS]),
        ([A, FALLBACK], [A1, A2, OURS, LAST, F4]),
    ],
    ids=["coverage", "after A", "after FALLBACK", "not asked"],
)
def test_the_entry_that_delegates_is_of_no_mode_and_leads_the_backends(modes, expected):
    """It comes before ours where the backend's plans do: it runs one of them in the end."""
    assert ranked(modes, {"A": [BACKEND, OURS], "FALLBACK": [LAST]}) == expected


def test_several_modes_follow_each_other():
    by_kind = {"A": [OURS, BACKEND], "FALLBACK": [BACKEND, LAST]}
    assert ranked([FALLBACK, B, A], by_kind) == [F4, LAST, OURS, B3, A1, A2]


def test_of_a_plan_that_comes_twice_the_first_place_counts():
    again = PlanConfig(20_000, 1, why="found otherwise")
    ranking = ranked([A, FALLBACK], {"A": [OURS, OTHER, again], "FALLBACK": [LAST, OURS]})
    assert ranking == [OURS, OTHER, A1, A2, LAST, F4]
    assert ranking[0].why == OURS.why
    twice = {A: [A1, A1, A2], FALLBACK: [A2, F4]}
    assert ranked([A, FALLBACK], {}, twice) == [A1, A2, F4]


def test_a_plan_is_its_engine_and_its_knobs_not_its_query():
    assert ranked([A], {"A": [OURS, PlanConfig(20_001, 1), PlanConfig(20_000, 2)]}, {}) == [
        OURS,
        PlanConfig(20_001, 1),
        OTHER,
    ]


def test_plans_of_ranges_are_told_apart_by_ranges_and_plans():
    def halves(first, second, why=""):
        return Ranges((Range((("M", 0, 7),), first), Range((("M", 8, 9),), second)), why)

    plans = [halves(OURS, LAST), OURS, halves(OURS, OTHER), halves(OURS, LAST, "again")]
    assert ranked([A], {"A": plans}, {}) == [halves(OURS, LAST), OURS, halves(OURS, OTHER)]


def test_knobs_that_do_not_hash_are_refused():
    with pytest.raises(TypeError, match="unhashable"):
        ranked([A], {"A": [PlanConfig(20_000, {"tile": 1})]}, {})
