"""A tuning file ranks what was measured first, and enters the plan keys that it decides."""

from __future__ import annotations

import json

import pytest
from standin import TUNED, StandInBackend, backend_plan, changed, installed, relu_graph

from cudnn_aot.cache import toolchain
from cudnn_aot.compiler.graph.enums import heur_mode
from cudnn_aot.compiler.planning.plan import plan_graph, plan_key
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.planning.tuning import Tuning, load_tuning
from cudnn_aot.compiler.target.target import load_target

CPU = load_target("cpu")
FAST = {"engine": "standin.tuned", "knobs": {"TILE_M": 256, "STAGES": 3}}
ENTRY = {
    "family": "standin",
    "target": "cpu",
    "layout_class": "relu",
    "extents": {},
    "plans": [FAST],
}


@pytest.fixture
def load(tmp_path):
    def write(*entries, **document) -> Tuning:
        path = tmp_path / "tuning.json"
        path.write_text(json.dumps({"format": 1, "entries": list(entries)} | document))
        return load_tuning(path)

    return write


def names(tuning, **options) -> list[str]:
    plans = PlanList(relu_graph(), CPU, tuning=tuning, **options)
    return [plans.name(index) for index in range(len(plans))]


RANKED = ["standin.one", "standin.two", "standin.tuned[STAGES=2, TILE_M=64]"]
MEASURED = "standin.tuned[STAGES=3, TILE_M=256]"


def test_measured_plans_come_first(standin, load):
    assert names(load()) == RANKED
    assert names(load(ENTRY)) == [MEASURED, *RANKED]
    both = load(ENTRY | {"plans": [FAST, {"engine": "standin.two", "knobs": {}}]})
    assert names(both) == [MEASURED, "standin.two", RANKED[0], RANKED[2]]
    backend = StandInBackend({heur_mode.A: [backend_plan(7)]})
    assert names(load(ENTRY), backend=backend)[0] == MEASURED
    assert names(load(ENTRY), modes=[heur_mode.FALLBACK]) == RANKED


@pytest.mark.parametrize(
    "field",
    [
        {"family": "gemm"},
        {"target": "h200"},
        {"layout_class": "other"},
        {"extents": {"M": 1}},
        {"plans": [{"engine": "standin.gone", "knobs": {}}]},
        {"plans": [{"engine": "standin.young", "knobs": {}}]},
        {"plans": [{"engine": "standin.tuned", "knobs": {"TILE_M": 512, "STAGES": 3}}]},
        {"plans": [{"engine": "standin.tuned", "knobs": {"TILE_M": 256}}]},
        {"plans": [{"engine": "standin.one", "knobs": {"TILE_M": 256}}]},
    ],
    ids=str,
)
def test_what_was_measured_for_something_else_or_is_gone_is_passed_over(standin, load, field):
    assert names(load(ENTRY | field)) == RANKED


def test_the_plan_key_has_what_the_file_says_of_the_graph(standin, load):
    graph = relu_graph()
    key = plan_key(graph, CPU)
    assert plan_key(graph, CPU, tuning=load()) == key
    assert plan_key(graph, CPU, tuning=load(ENTRY | {"target": "h200"})) == key
    tuned = plan_key(relu_graph(), CPU, tuning=load(ENTRY))  # a graph that was not frozen yet
    assert tuned != key
    assert plan_key(graph, CPU, tuning=load(ENTRY | {"plans": []})) != tuned
    assert plan_graph(graph, CPU, tuning=load(ENTRY)).engine_id == TUNED


def test_a_plan_key_needs_no_facts_of_a_graph_that_is_declined(standin, load):
    key = plan_key(relu_graph(), CPU)
    standin.SCRIPT.acts["family", "analyze"] = ImportError("nothing", name="library")
    assert plan_key(relu_graph(), CPU, tuning=load(ENTRY)) == key


def test_the_plan_key_has_modes_and_engines_and_not_the_dsl(standin, monkeypatch):
    graph = relu_graph()
    keys = {plan_key(graph, CPU), plan_key(graph, CPU, [heur_mode.FALLBACK])}
    monkeypatch.setenv("CUDNN_AOT_OPT_IN_ENGINES", "1")
    keys.add(plan_key(graph, CPU))
    monkeypatch.delenv("CUDNN_AOT_OPT_IN_ENGINES")
    assert len(keys) == 3
    # A host without the DSL finds what was built with it.
    monkeypatch.setattr(toolchain, "dsl_version", lambda: None)
    assert plan_key(graph, CPU) in keys


def test_the_plan_key_has_the_sources_of_every_hook(monkeypatch):
    installed(monkeypatch)
    own = plan_key(relu_graph(), CPU)
    installed(monkeypatch, changed(heuristics="gemm.heuristics:recommend"))
    assert plan_key(relu_graph(), CPU) != own
