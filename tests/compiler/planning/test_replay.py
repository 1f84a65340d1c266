"""A plan is built again from ``(engine_id, knobs)``, in another process and by a later release."""

from __future__ import annotations

import json

import numpy as np
import pytest
from standin import ONE, TUNED, TWO, StandInBackend, backend_plan, relu_graph

from cudnn_aot.compiler.graph.enums import heur_mode
from cudnn_aot.compiler.planning.engine import PlanConfig
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.planning.ranges import Range, Ranges
from cudnn_aot.compiler.planning.replay import RangedKnobs, parse_bounds, typed_knobs
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import UsageError, cudnnGraphNotSupportedError

CPU = load_target("cpu")
SYMBOLS = {"M": {"min": 0, "max": 99}, "N": {"min": 1, "max": 9}}
HALVES = ((("M", 0, 49),), (("M", 50, 99),))


def halves(standin, low, high) -> Ranges:
    return Ranges(tuple(Range(b, plan) for b, plan in zip(HALVES, (low, high), strict=True)))


@pytest.fixture
def plans(standin):
    knobs = standin.Knobs
    standin.SCRIPT.proposals = {
        "A": [
            halves(standin, PlanConfig(TUNED, knobs(64, 1)), PlanConfig(TUNED, knobs(256, 3))),
            halves(standin, PlanConfig(ONE), PlanConfig(TUNED, knobs(256, 3))),
            PlanConfig(TUNED, knobs(128, 1)),
            PlanConfig(ONE),
        ],
        "FALLBACK": [PlanConfig(TUNED, knobs(64, 2)), PlanConfig(TWO)],
    }
    backend = StandInBackend({heur_mode.A: [backend_plan(7, STAGES=2), backend_plan(8)]})
    return PlanList(relu_graph("M", "N", SYMBOLS), CPU, backend=backend)


def test_every_listed_plan_replays_to_itself(plans):
    assert len(plans) == 8
    for index in range(len(plans)):
        engine_id, knobs = plans.engine_and_knobs(index)
        assert plans.append(engine_id, knobs) == index
    assert len(plans) == 8


def test_a_plan_replays_in_a_list_that_does_not_have_it(plans, standin):
    recorded = [plans.engine_and_knobs(index) for index in range(len(plans))]
    names = [plans.name(index) for index in range(len(plans))]
    built = [plans.lower(index) for index in range(len(plans))]
    standin.SCRIPT.proposals = {"A": [], "FALLBACK": []}
    graph = relu_graph("M", "N", SYMBOLS)
    other = PlanList(graph, CPU, backend=StandInBackend({}))
    assert len(other) == 0
    for index, (engine_id, knobs) in enumerate(recorded):
        assert other.append(engine_id, knobs) == index
        assert other.name(index) == names[index]
        assert other.lower(index) == built[index]


def test_names_are_stable(plans):
    assert [plans.name(index) for index in range(len(plans))] == [
        "M=0..49: standin.tuned[STAGES=1, TILE_M=64]; "
        "M=50..99: standin.tuned[STAGES=3, TILE_M=256]",
        "M=0..49: standin.one; M=50..99: standin.tuned[STAGES=3, TILE_M=256]",
        "standin.tuned[STAGES=1, TILE_M=128]",
        "standin.one",
        "cudnn.7[STAGES=2]",
        "cudnn.8",
        "standin.tuned[STAGES=2, TILE_M=64]",
        "standin.two",
    ]


def test_knobs_are_given_by_type_number_or_name(plans):
    assert plans.engine_and_knobs(2) == (TUNED, {knob_type.TILE_M: 128, knob_type.STAGES: 1})
    assert plans.engine_and_knobs(3) == (ONE, {})
    for spelled in (
        {knob_type.TILE_M: 128, knob_type.STAGES: 1},
        {26: 128, 7: 1},
        {"STAGES": 1, "TILE_M": 128},
        {26: 128, "STAGES": 1, knob_type.TILE_M: 128},
    ):
        assert plans.append(TUNED, spelled) == 2
    for engine_id, public in (
        (ONE, (ONE, {})),
        (TUNED, (TUNED, {26: 64, "STAGES": 1})),
    ):
        ranged = RangedKnobs({"M=0..49": public, "M=50..99": (TUNED, {26: 256, 7: 3})})
        assert plans.append(engine_id, ranged) == (1 if engine_id == ONE else 0)


@pytest.mark.parametrize("key", ["name", "value"])
def test_knobs_come_back_from_json(plans, key):
    def plain(knobs):
        return {getattr(knob, key): value for knob, value in knobs.items()}

    for index in range(len(plans)):
        engine_id, knobs = plans.engine_and_knobs(index)
        if isinstance(knobs, RangedKnobs):
            written = {bounds: (each, plain(public)) for bounds, (each, public) in knobs.items()}
        else:
            written = plain(knobs)
        assert plans.append(engine_id, json.loads(json.dumps(written))) == index


@pytest.mark.parametrize("integer", [np.int64, np.uint8])
def test_a_place_may_be_any_integer(plans, integer):
    assert plans.name(integer(2)) == plans.name(2)
    plans.select(integer(2))
    assert type(plans.selected) is int and plans.selected == 2


@pytest.mark.parametrize(
    ("engine_id", "knobs", "error", "message"),
    [
        (TUNED, [1], UsageError, r"knobs: got \[1\], want a mapping"),
        (TUNED, "TILE_M", UsageError, "knobs: got 'TILE_M', want a mapping"),
        (TUNED, 7, UsageError, "knobs: got 7, want a mapping"),
        (TUNED, {(1, 2): 3}, UsageError, "unknown knob"),
        (ONE, {"M=0..99": 5}, UsageError, r"range 'M=0..99': got 5, want \(engine id, knobs\)"),
        (ONE, {"M=0..99": [ONE]}, UsageError, r"want \(engine id, knobs\)"),
        (ONE, {"M=0..99": [ONE, None]}, UsageError, "knobs: got None, want a mapping"),
        (ONE, {"M=0..99": ["x", {}]}, UsageError, "engine id: got 'x'"),
        (ONE, {"M=0..9\u0663": [ONE, {}]}, UsageError, "want such as"),
        (ONE, {"M=0..49": [ONE, {}], 7: [ONE, {}]}, UsageError, "range: got 7"),
        (TUNED, {"TILE_M": 128}, cudnnGraphNotSupportedError, "no schedule TILE_M=128"),
        (TUNED, {"TILE_M": 128, "STAGES": 4}, cudnnGraphNotSupportedError, "no schedule"),
        (TUNED, {26: 128, 7: 1, 9: 1}, cudnnGraphNotSupportedError, "no schedule"),
        (ONE, {"TILE_M": 64}, cudnnGraphNotSupportedError, "has no knobs, got TILE_M"),
        (TUNED, {"TILE": 128}, UsageError, "unknown knob 'TILE' \\(did you mean"),
        (TUNED, {5000: 128}, UsageError, "unknown knob 5000"),
        (TUNED, {"TILE_M": 1.0}, UsageError, "knob TILE_M: got 1.0, want an integer"),
        (TUNED, {"TILE_M": True}, UsageError, "knob TILE_M: got True"),
        (TUNED, {"TILE_M": 64, 26: 128}, UsageError, "knob TILE_M: got both 64 and 128"),
        (29_999, {}, UsageError, "unknown engine id 29999"),
        (12_345, {}, UsageError, "unknown engine id 12345"),
        (-1, {}, UsageError, "unknown engine id -1"),
        ("standin.one", {}, UsageError, "engine id: got 'standin.one', want an integer"),
        ([], {}, UsageError, "engine id: got "),
        (20_001, {}, cudnnGraphNotSupportedError, "the graph is not of the family gemm"),
    ],
)
def test_what_does_not_name_a_plan_is_a_typed_error(plans, engine_id, knobs, error, message):
    with pytest.raises(error, match=message):
        plans.append(engine_id, knobs)
    assert len(plans) == 8


def test_a_backends_plan_needs_the_backend(standin):
    plans = PlanList(relu_graph(), CPU)
    with pytest.raises(cudnnGraphNotSupportedError, match="engine 7 is cuDNN's"):
        plans.append(7, {})


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (["M=0..49"], "0 ranges hold M=50"),
        (["M=0..49", "M=49..99"], "2 ranges hold M=49"),
        (["M=0..49", "M=50..100"], "is not within"),
        (["M=0..99", "K=1..1"], "is not within"),
        (["M=0-99"], "want such as"),
        (["M=0.."], "want such as"),
        (["M=..99"], "want such as"),
        (["M="], "want such as"),
        (["=0..99"], "want such as"),
        ([""], "want such as"),
        (["M=0..49, M=0..49", "M=50..99"], "once each"),
        ([], "0 ranges hold nothing"),
    ],
)
def test_ranges_that_do_not_partition_the_domain_are_refused(plans, bounds, message):
    with pytest.raises(UsageError, match=message):
        plans.append(ONE, RangedKnobs({text: (ONE, {}) for text in bounds}))


def test_the_engines_of_every_range_are_asked(plans):
    with pytest.raises(UsageError, match="unknown engine id 29999"):
        plans.append(ONE, RangedKnobs({"M=0..49": (ONE, {}), "M=50..99": (29_999, {})}))


def test_a_plan_of_ranges_falls_under_an_exclusion_of_any_of_its_engines(plans):
    plans.deselect_engines(["standin.one"])
    assert plans.why_excluded(0) is None
    assert plans.why_excluded(1) == "engine standin.one is deselected"


def test_a_plan_of_ranges_declines_where_one_of_them_does(plans, standin):
    standin.SCRIPT.acts["standin.one", "lower"] = NotImplementedError("not written")
    with pytest.raises(
        cudnnGraphNotSupportedError, match=r"range M=0\.\.49: standin\.one declines: not wr"
    ):
        plans.lower(1)


def test_words_for_ranges_are_read_back():
    bounds = (("M", 0, 49), ("B", 1, 1), ("seq_len", 7, 2**31 - 1))
    assert str(Range(bounds, PlanConfig(ONE))) == "M=0..49, B=1, seq_len=7..2147483647"
    assert parse_bounds(str(Range(bounds, PlanConfig(ONE)))) == bounds
    assert parse_bounds("B=1..1") == parse_bounds("B=1") == (("B", 1, 1),)
    assert typed_knobs({}) == {}
