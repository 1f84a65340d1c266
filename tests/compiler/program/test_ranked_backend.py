"""cuDNN's plans in the list of a program, with a stand-in that answers for cuDNN.

Its plans are loaded and never executed here; tests/gpu/test_ranked_backend.py runs real ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cudnn_stand_in import ABSENT, CudnnStandIn

import cudnn_aot as cudnn
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.compiler.planning.rank import BACKEND
from cudnn_aot.errors import UsageError, cudnnGraphNotSupportedError
from cudnn_aot.recipes.gemm import heuristics
from cudnn_aot.runtime import cudnn_backend

BOTH = ("native", "cudnn")
OURS, THREE, FOUR = "gemm.host.blocked", "cudnn.eng3", "cudnn.eng4[KERNEL_CFG=3]"


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> CudnnStandIn:
    """Plans of the stand-in load as if its cuDNN were here."""

    def plugins(what, version, table, count):
        assert version == "9.19.0"
        return lambda blobs: [lambda *call: None for _ in blobs]

    monkeypatch.setattr(cudnn_backend, "plugins", plugins)
    monkeypatch.delenv("CUDNN_AOT_ENGINES", raising=False)
    return CudnnStandIn(monkeypatch)


def names(graph) -> list[str]:
    return [graph.get_plan_name_at_index(i) for i in range(graph.get_execution_plan_count())]


def providers(store: Path, graph) -> dict:
    assert StoreReader(store).verify() == []
    return StoreReader(store).pointer("cpu", graph.key())["providers"]


def test_the_list_is_ours_unless_it_is_asked_for_more(linear, monkeypatch, library):
    g = linear().graph
    g.create_execution_plans()
    assert names(g) == [OURS] and g.backend_plan_entries() == [] and library.asked == []
    monkeypatch.setenv("CUDNN_AOT_ENGINES", "native,cudnn")
    for graph in (linear().graph, linear(engines=BOTH).graph):
        graph.create_execution_plans()
        assert names(graph) == [OURS, THREE, FOUR]
        assert [entry.engine_id for entry in graph.backend_plan_entries()] == [3, 4]
    g = linear(engines=["native"]).graph  # the program's word counts
    g.create_execution_plans()
    assert names(g) == [OURS]


@pytest.mark.parametrize(
    ("engines", "message"),
    [(("native", "x"), "got 'x'"), ((), "got none"), ("cudnn", "got 'cudnn', want a list")],
)
def test_engines_that_are_none(linear, engines, message):
    with pytest.raises(UsageError, match=f"engines: {message}"):
        linear(engines=engines).graph.create_execution_plans()


def test_a_machine_that_cannot_ask_says_why(linear, library):
    library.found = ABSENT
    g = linear(engines=BOTH).graph
    g.create_execution_plans()
    assert names(g) == [OURS] and g.backend_plan_entries() == []
    assert f"cudnn: {ABSENT.reason}" in g._program.plans.reasons
    g.deselect_engines([OURS])
    with pytest.raises(cudnnGraphNotSupportedError) as raised:
        g.build_plans()
    assert f"cudnn: {ABSENT.reason}" in raised.value.reasons
    with pytest.raises(cudnnGraphNotSupportedError, match="no libcuda.so.1"):
        linear(engines=["cudnn"]).graph.create_execution_plans()


def test_excluding_ours_takes_cudnn_s(linear, library):
    it = linear(engines=BOTH)
    it.graph.build()
    assert it.graph.get_plan_name() == OURS
    it.graph.execute(it.pack())
    it.check()
    it.graph.deselect_engines([OURS])
    it.graph.build_plans()
    assert it.graph.get_plan_name() == FOUR and library.made == [4]  # 3 declines
    assert it.graph.selected_engine is None
    assert it.graph.get_behavior_notes() == [cudnn.behavior_note.RUNTIME_COMPILATION]
    it.graph.deselect_behavior_notes([cudnn.behavior_note.RUNTIME_COMPILATION])
    with pytest.raises(cudnnGraphNotSupportedError, match="RUNTIME_COMPILATION is deselected"):
        it.graph.build_plans()


def test_cudnn_s_plan_is_pinned_and_replayed(linear, library):
    library.workspace_bytes = 512
    g = linear(engines=BOTH).graph
    g.create_execution_plans()
    g.select_plan(2).build_plans()
    assert g.get_plan_name() == FOUR and g.get_workspace_size() >= 512
    assert g.get_workspace_size_plan_at_index(0) == 0
    recorded = g.get_engine_and_knobs_at_index(2)
    again = linear(engines=BOTH).graph
    again.create_execution_plan(*recorded)
    again.build_plans()
    assert names(again) == [FOUR]
    with pytest.raises(cudnnGraphNotSupportedError, match="not among the engines asked for"):
        linear().graph.create_execution_plan(*recorded)
    g.select_plan(1)
    with pytest.raises(cudnnGraphNotSupportedError, match=f"plan {THREE}: not for this graph"):
        g.build_plans()


def test_what_is_built_is_stored_and_found(linear, library, empty_overlay):
    g = linear(engines=["cudnn"]).graph
    g.build()
    held = providers(empty_overlay, g)
    assert list(held) == ["cudnn"] and len(held["cudnn"]["records"]) == 1
    library.asked.clear()
    library.made.clear()
    again = linear(engines=["cudnn"]).graph
    again.build([cudnn.heur_mode.A])
    assert again._program._plans is None and (library.asked, library.made) == ([], [])
    assert again.get_plan_name() == FOUR and library.made == []
    other = linear(engines=["cudnn"]).graph
    library.entries = library.entries[1:]
    with pytest.raises(cudnnGraphNotSupportedError, match="it finds no plan"):
        other.build([cudnn.heur_mode.B])  # which has plans of its own


def test_a_stored_plan_of_cudnn_s_does_not_go_before_ours(linear, library, empty_overlay):
    linear(engines=["cudnn"]).graph.build()
    library.made.clear()
    g = linear(engines=BOTH).graph
    g.create_execution_plans()
    assert names(g) == [OURS, THREE, FOUR]
    g.deselect_engines([OURS])
    g.build_plans()
    assert g.get_plan_name() == FOUR and library.made == []  # it was at hand


def test_a_marker_lets_cudnn_lead(linear, library, empty_overlay, monkeypatch, overlay):
    monkeypatch.setenv("CUDNN_AOT_STORE", str(overlay))  # for its kernel
    ours = heuristics.recommend
    monkeypatch.setattr(heuristics, "recommend", lambda *asked: [BACKEND, *ours(*asked)])
    linear().graph.build()
    for _ in range(2):
        g = linear(engines=BOTH).graph
        g.build()
        assert g.get_plan_name() == FOUR and names(g) == [THREE, FOUR, OURS]
        assert library.made == [4]
    pointer = StoreReader(empty_overlay).pointer("cpu", g.key())
    assert pointer["records"][0] == pointer["providers"]["cudnn"]["records"][0]


@pytest.mark.parametrize("include_kernels", [True, False])
def test_cudnn_s_plan_as_bytes(linear, library, include_kernels):
    g = linear(engines=["cudnn"]).graph
    g.build()
    data = g.serialize(as_bytes=True, include_kernels=include_kernels)
    library.found = ABSENT  # what loads a plan needs no planning
    library.made.clear()
    again = cudnn.pygraph()
    again.deserialize(cudnn.create_handle(), data, enforce_precompiled=True)
    assert names(again) == [FOUR] and again.get_plan_name() == FOUR and library.made == []
    assert again.get_behavior_notes() == [cudnn.behavior_note.RUNTIME_COMPILATION]
    assert again.serialize(as_bytes=True) == data
