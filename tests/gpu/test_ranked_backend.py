"""One list of our GEMM plans and cuDNN's for one graph, built and run in the process that asks.

Needs the cuDNN frontend and a cuDNN beside torch. Without the compiler our plan is the one of the
store under test, and our other plans are skipped. ``-s`` shows what was found.
"""

from __future__ import annotations

import os
from typing import Any

import gemm_graphs
import pytest
import torch  # before the frontend: it brings cuDNN with it
from torch_reference import TOLERANCE, assert_close, reference

import cudnn_aot as cudnn
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.toolchain import why_no_dsl
from cudnn_aot.compiler.build.sources import Source
from cudnn_aot.compiler.build.why import explain
from cudnn_aot.compiler.program.targets import choose_target
from cudnn_aot.errors import cudnnGraphNotSupportedError

pytest.importorskip("cudnn", reason="the cuDNN frontend's wheel is not installed on this host")

HAS_COMPILER = why_no_dsl("4.8.1") is None
BOTH = ("native", "cudnn")
OURS = "gemm.sm90.persistent"
A, B, FALLBACK = cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK
CUDNN_IDS = range(10_000)


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cache of its own for each test; the base is the store under test."""
    for name in ("CUDNN_AOT_TARGET", "CUDNN_AOT_ENGINES", "CUDNN_AOT_FORBID_COMPILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("CUDNN_AOT_STORE", raising=False)
    if store := os.environ.get("CUDNN_AOT_TEST_STORE"):
        monkeypatch.setenv("CUDNN_AOT_STORE", store)
    elif not HAS_COMPILER:
        pytest.fail("needs the compiler, or CUDNN_AOT_TEST_STORE naming a store")
    overlay = str(tmp_path_factory.mktemp("ranked") / "store")
    monkeypatch.setenv("CUDNN_AOT_CACHE", overlay)
    return overlay


class Linear:
    """Y = relu(A @ B + bias) in bfloat16, with its buffers; every call writes over NaN."""

    def __init__(self, engines: Any = BOTH) -> None:
        types = cudnn.data_type
        self.graph = cudnn.pygraph(
            "in_process",
            io_data_type=types.BFLOAT16,
            intermediate_data_type=types.FLOAT,
            compute_data_type=types.FLOAT,
            engines=engines,
        )
        self.a, self.b, self.bias, self.y = gemm_graphs.linear(self.graph)
        torch.manual_seed(3)
        inputs = [torch.randn(t.dim, device="cuda") for t in (self.a, self.b, self.bias)]
        inputs[1] *= self.a.dim[-1] ** -0.5
        buffers = [each.bfloat16() for each in inputs]
        rows, columns = self.a.dim[-2], self.b.dim[-1]
        self.result = torch.empty(1, rows, columns, device="cuda", dtype=torch.bfloat16)
        keys = (self.a, self.b, self.bias, self.y)
        self.pack = {t.uid: each for t, each in zip(keys, [*buffers, self.result], strict=True)}

    def run(self, place: int | None = None, graph: Any = None) -> torch.Tensor:
        """One call of the plan in use, or of one of the list, held to the fp32 reference.

        cuDNN's kernels may round in places of their own: twice the tolerance of ours.
        """
        graph = self.graph if graph is None else graph
        self.result.fill_(torch.nan)
        if place is None:
            room = torch.full((graph.get_workspace_size(),), 0xFF, dtype=torch.uint8, device="cuda")
            graph.execute(self.pack, room)
        else:
            size = graph.get_workspace_size_plan_at_index(place)
            room = torch.full((size,), 0xFF, dtype=torch.uint8, device="cuda")
            graph.execute_plan_at_index(self.pack, room, place)
        torch.cuda.synchronize()
        name = graph.get_plan_name() if place is None else graph.get_plan_name_at_index(place)
        if name.startswith(OURS):
            assert_close(graph, self.pack)
        else:
            assert name.startswith("cudnn.eng"), name
            (rtol, _), (output,) = TOLERANCE["BFLOAT16"], graph.outputs()
            want = reference(graph, self.pack)[output.uid].float()
            torch.testing.assert_close(self.result.float(), want, rtol=2 * rtol, atol=2e-3)
        return self.result.clone()


def names(graph: Any) -> list[str]:
    return [graph.get_plan_name_at_index(i) for i in range(graph.get_execution_plan_count())]


def backend_places(graph: Any) -> list[int]:
    return [i for i in range(graph.get_execution_plan_count())
            if graph.get_engine_and_knobs_at_index(i)[0] in CUDNN_IDS]  # fmt: skip


def first_that_builds(graph: Any) -> int:
    """The place of cuDNN's first plan that builds."""
    for place in backend_places(graph):
        try:
            graph.get_workspace_size_plan_at_index(place)
            return place
        except cudnnGraphNotSupportedError as declined:
            print("declined:", declined.reasons)
    pytest.fail("none of cuDNN's plans builds")


@pytest.fixture
def planned() -> Linear:
    it = Linear()
    it.graph.create_execution_plans([A, FALLBACK])
    return it


# --- the list ------------------------------------------------------------------------------------


def test_both_sides_stand_in_one_list(planned: Linear) -> None:
    graph, listed = planned.graph, names(planned.graph)
    for place, name in enumerate(listed):
        print(place, name, graph.get_behavior_notes_for_plan_at_index(place))
    print("reasons:", graph._program.plans.reasons)
    places = backend_places(graph)
    assert places and listed[0].startswith(f"{OURS}[")  # no marker: ours first
    assert all(listed[i].startswith("cudnn.eng") for i in places)
    assert len(set(listed)) == len(listed)
    entries = graph.backend_plan_entries()
    assert entries == [graph.plans[place] for place in places]


def test_the_default_list_is_ours_alone() -> None:
    it = Linear(engines=None)
    it.graph.create_execution_plans()
    assert backend_places(it.graph) == [] and it.graph.backend_plan_entries() == []


def test_the_variable_adds_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_AOT_ENGINES", "native,cudnn")
    it = Linear(engines=None)
    it.graph.create_execution_plans()
    assert backend_places(it.graph)


def test_modes_are_asked_apart() -> None:
    counts = {}
    for modes in ([A], [B], [FALLBACK], [A, B, FALLBACK], [A, A]):
        it = Linear(engines=["cudnn"])
        try:
            it.graph.create_execution_plans(modes)
            counts[tuple(mode.name for mode in modes)] = names(it.graph)
        except cudnnGraphNotSupportedError as declined:
            print(modes, declined.reasons)
    print({modes: len(listed) for modes, listed in counts.items()})
    assert counts["A", "A"] == counts["A",]
    assert counts["A", "B", "FALLBACK"][: len(counts["A",])] == counts["A",]


# --- building and running ------------------------------------------------------------------------


def test_unpinned_ours_runs_and_pinned_cudnn_s_runs_equal(planned: Linear) -> None:
    graph = planned.graph
    graph.build_plans()
    assert graph.get_plan_name().startswith(f"{OURS}[")
    ours = planned.run()
    place = first_that_builds(graph)
    graph.select_plan(place)
    graph.build_plans()
    assert graph.get_plan_name() == names(graph)[place] and graph.selected_engine is None
    theirs = planned.run()
    rtol, _ = TOLERANCE["BFLOAT16"]
    torch.testing.assert_close(theirs.float(), ours.float(), rtol=2 * rtol, atol=2e-3)
    want = reference(graph, planned.pack)[planned.y.uid]
    for name, got in (("ours", ours), ("cudnn", theirs)):
        print(name, "worst error", (got.float() - want.float()).abs().max().item())


def test_plans_at_an_index_run_beside_the_one_in_use(planned: Linear) -> None:
    """Every one of cuDNN's plans that builds is right."""
    graph = planned.graph
    graph.build_plans()
    used = graph.get_plan_name()
    ran = 0
    for place in backend_places(graph)[:8]:
        try:
            planned.run(place)
            ran += 1
        except cudnnGraphNotSupportedError as declined:
            print("declined:", declined.reasons)
    print("ran", ran)
    assert ran and graph.get_plan_name() == used
    planned.run()


def test_cudnn_alone_unpinned_is_stored_and_loaded(settings: str) -> None:
    it = Linear(engines=["cudnn"])
    it.graph.build()
    name = it.graph.get_plan_name()
    it.run()
    reader = StoreReader(settings)
    assert reader.verify() == []
    held = reader.pointer(choose_target().target.name, it.graph.key())["providers"]
    assert list(held) == ["cudnn"] and len(held["cudnn"]["records"]) == 1
    again = Linear(engines=["cudnn"])
    again.graph.build()
    assert again.graph._program._plans is None, "it was planned again"
    again.run()
    assert again.graph.get_plan_name() == name


def test_excluding_our_engine_takes_cudnn_s(planned: Linear) -> None:
    graph = planned.graph
    graph.deselect_engines([OURS])
    graph.build_plans()
    assert graph.get_plan_name().startswith("cudnn.eng")
    print(graph.get_plan_name(), graph.get_behavior_notes())
    planned.run()
    graph.deselect_engines([name.partition("[")[0] for name in names(graph)])
    with pytest.raises(cudnnGraphNotSupportedError, match="is deselected"):
        graph.build_plans()


def test_exclusions_before_planning() -> None:
    it = Linear()
    it.graph.deselect_engines([OURS])
    it.graph.build()
    assert it.graph.get_plan_name().startswith("cudnn.eng")
    it.run()


# --- notes and workspace -------------------------------------------------------------------------


def test_notes_are_of_each_plan(planned: Linear) -> None:
    graph = planned.graph
    by_note: dict[Any, list[int]] = {}
    for place in backend_places(graph):
        for note in graph.get_behavior_notes_for_plan_at_index(place):
            by_note.setdefault(note, []).append(place)
    print(by_note)
    if not by_note:
        pytest.skip("no plan of cuDNN's has a behavior note here")
    note, places = next(iter(by_note.items()))
    graph.deselect_behavior_notes([note])
    for place in backend_places(graph):
        said = graph._program.plans.why_excluded(place)
        assert (said is not None) == (place in places), (place, said)
    with pytest.raises(cudnnGraphNotSupportedError, match=f"{note.name} is deselected"):
        graph.build_plan_at_index(places[0])


def test_selected_notes_leave_cudnn_s(planned: Linear) -> None:
    graph = planned.graph
    place = first_that_builds(graph)
    notes = graph.get_behavior_notes_for_plan_at_index(place)
    if not notes:
        pytest.skip("cuDNN's first plan has no behavior note")
    graph.select_behavior_notes(notes)  # ours has none
    graph.build_plans()
    assert graph.get_plan_name().startswith("cudnn.eng")
    assert set(notes) <= set(graph.get_behavior_notes())
    planned.run()


def test_a_rule_about_numerical_notes_leaves_ours(planned: Linear) -> None:
    graph = planned.graph
    graph.deselect_numeric_notes([cudnn.numerical_note.WINOGRAD])
    said = graph._program.plans.why_excluded(backend_places(graph)[0])
    assert said is not None and "tells none" in said
    graph.build_plans()
    assert graph.get_plan_name().startswith(f"{OURS}[")
    planned.run()


def test_a_workspace_limit(planned: Linear) -> None:
    graph = planned.graph
    sizes = {}
    for place in backend_places(graph):
        try:
            sizes[place] = graph.get_workspace_size_plan_at_index(place)
        except cudnnGraphNotSupportedError as declined:
            print("declined:", declined.reasons)
    print("workspace by place:", sizes)
    graph.deselect_engines([OURS])
    limit = min(sizes.values())
    graph.deselect_workspace_greater_than(limit)
    for place, size in sizes.items():
        assert (graph._program.plans.why_excluded(place) is None) == (size <= limit)
    graph.build_plans()
    assert graph.get_workspace_size() <= limit
    planned.run()


# --- replay and bytes ----------------------------------------------------------------------------


def test_a_recorded_plan_is_replayed(planned: Linear) -> None:
    place = first_that_builds(planned.graph)
    recorded = planned.graph.get_engine_and_knobs_at_index(place)
    notes = planned.graph.get_behavior_notes_for_plan_at_index(place)
    print(recorded)
    again = Linear()
    again.graph.create_execution_plan(*recorded)
    again.graph.build_plans()
    assert names(again.graph) == [names(planned.graph)[place]]
    assert again.graph.get_behavior_notes() == notes
    again.run()
    with pytest.raises(cudnnGraphNotSupportedError, match="not among the engines asked for"):
        Linear(engines=None).graph.create_execution_plan(*recorded)


@pytest.mark.parametrize("include_kernels", [True, False])
def test_cudnn_s_plan_as_bytes(planned: Linear, include_kernels: bool) -> None:
    graph = planned.graph
    graph.select_plan(first_that_builds(graph))
    graph.build_plans()
    data = graph.serialize(as_bytes=True, include_kernels=include_kernels)
    again = cudnn.pygraph()
    again.deserialize(cudnn.create_handle(), data)
    assert again.get_plan_name() == graph.get_plan_name()
    planned.run(graph=again)


def test_a_captured_call_of_cudnn_s_plan(planned: Linear) -> None:
    graph, handle = planned.graph, cudnn.create_handle()
    graph.select_plan(first_that_builds(graph))
    graph.build_plans()
    planned.run()
    room = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device="cuda")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        cudnn.set_stream(handle, torch.cuda.current_stream().cuda_stream)
        graph.execute(planned.pack, room, handle=handle)
    planned.result.fill_(torch.nan)
    captured.replay()
    torch.cuda.synchronize()
    replayed = planned.result.clone()
    torch.testing.assert_close(replayed, planned.run(), rtol=0, atol=0)


# --- explaining ----------------------------------------------------------------------------------


def test_why_shows_cudnn_s_plans() -> None:
    graph = Linear().graph
    graph.validate()
    graph.freeze()
    source = Source("f", graph.name, graph.key(), graph)
    told = explain(source, choose_target().target, providers=BOTH)
    print(told.backend, [(plan.mode, plan.name) for plan in told.plans][:6], told.reasons)
    assert told.backend is not None and told.backend.plans and told.backend.reason is None
    theirs = [plan for plan in told.plans if plan.name.startswith("cudnn.eng")]
    assert theirs and {plan.mode for plan in theirs} <= {"A", "FALLBACK"}
    assert told.chosen is not None
