"""The calls of a program that plans in process, in the orders in which programs make them."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

import cudnn_aot as cudnn
from cudnn_aot.errors import (
    FrozenGraphError,
    PlanIndexError,
    SequenceError,
    UsageError,
    cudnnGraphNotSupportedError,
)
from cudnn_aot.recipes.gemm import host

modes = cudnn.heur_mode
HOST = 20_001


def test_the_calls_of_a_program_one_by_one(linear):
    it = linear()
    g = it.graph
    g.validate()
    g.build_operation_graph()
    assert g.get_execution_plan_count() == 0 and g.plans == []
    g.create_execution_plans([modes.A, modes.FALLBACK])
    g.check_support()
    g.build_plans()
    assert g.get_execution_plan_count() == 1 and len(g.plans) == 1
    assert g.get_plan_name_at_index(0) == g.get_plan_name() == "gemm.host.blocked"
    assert g.selected_engine.name == "gemm.host.blocked"
    assert g.get_engine_and_knobs_at_index(0) == (HOST, {})
    assert g.backend_plan_entries() == []
    workspace = np.empty(g.get_workspace_size(), np.uint8)
    assert g.get_workspace_size_plan_at_index(0) == workspace.nbytes
    g.execute(it.pack(), workspace)
    it.check()


def test_build_is_all_of_them_and_a_second_one_nothing(linear):
    it = linear()
    it.graph.build([modes.A])
    built = it.graph._program.current
    it.graph.build()
    it.graph.build_plans()
    assert it.graph._program.current is built


def test_execute_builds_what_is_not_built(linear):
    it = linear()
    it.graph.execute(it.pack())
    it.check()


def test_planning_is_one_shot_and_seals_the_graph(linear):
    g = linear().graph
    g.create_execution_plans()
    with pytest.raises(RuntimeError, match="planning is one-shot"):
        g.create_execution_plans()
    with pytest.raises(FrozenGraphError):
        g.tensor([1])


def test_what_needs_plans_says_so(linear):
    g = linear().graph
    for call in (
        lambda: g.select_plan(0),
        lambda: g.build_plan_at_index(0),
        lambda: g.get_plan_name_at_index(0),
        lambda: g.check_support(),
        lambda: g.execute_plan_at_index({}, None, 0),
        lambda: g.get_workspace_size(),
        lambda: g.serialize(),
    ):
        with pytest.raises(SequenceError, match="call (create_execution_plans|build)"):
            call()
    assert issubclass(SequenceError, RuntimeError)


def test_modes_rank_one_list(linear):
    def names(*asked):
        g = linear(target="h200", io="HALF").graph
        g.create_execution_plans(list(asked))
        return [g.get_plan_name_at_index(i) for i in range(g.get_execution_plan_count())]

    a, fallback = names(modes.A), names(modes.FALLBACK)
    assert len(a) > 3 and a == names(modes.B) == names(modes.OPENSOURCE)
    assert names(modes.A, modes.FALLBACK) == list(dict.fromkeys(a + fallback)) == names()
    assert names(modes.FALLBACK, modes.A)[0] == fallback[0]
    assert a[0].startswith("gemm.sm90.persistent[") and "TILE_M=" in a[0]


def test_a_recorded_plan_is_replayed(linear):
    g = linear(target="h200", io="HALF").graph
    g.create_execution_plans()
    record = g.get_engine_and_knobs_at_index(3)
    assert all(isinstance(knob, cudnn.knob_type) for knob in record[1])
    again = linear(target="h200", io="HALF").graph
    assert again.create_execution_plan(*record) is again
    assert again.get_execution_plan_count() == 1 and again.is_frozen
    assert again.get_plan_name_at_index(0) == g.get_plan_name_at_index(3)
    by_number = linear(target="h200", io="HALF").graph
    by_number.create_execution_plan(record[0], {knob.value: v for knob, v in record[1].items()})
    assert by_number.get_engine_and_knobs_at_index(0) == record


def test_a_replayed_plan_runs(linear):
    it = linear()
    it.graph.create_execution_plan(HOST, {})
    it.graph.build_plans()
    it.graph.execute(it.pack())
    it.check()


def test_a_replay_of_what_is_not_there_is_refused(linear):
    with pytest.raises(UsageError, match="unknown engine id 29999"):
        linear().graph.create_execution_plan(29_999)
    with pytest.raises(cudnnGraphNotSupportedError, match="has no knobs, got TILE_M"):
        linear().graph.create_execution_plan(HOST, {cudnn.knob_type.TILE_M: 64})


@pytest.mark.parametrize("recorded", [(20_000, {}), (29_999, {}), (HOST, {"NO_KNOB": 1})])
def test_a_refused_replay_leaves_the_graph_unplanned(linear, recorded):
    it = linear()
    with pytest.raises((UsageError, cudnnGraphNotSupportedError)):
        it.graph.create_execution_plan(*recorded)
    assert it.graph.get_execution_plan_count() == 0
    it.graph.create_execution_plans()
    it.graph.execute(it.pack())
    it.check()


def test_a_list_that_asked_for_no_ranking_says_nothing_of_it(linear, three_engines):
    g = linear().graph.create_execution_plan(20_097, {})
    with pytest.raises(cudnnGraphNotSupportedError, match="it has a bad day") as caught:
        g.build()
    assert "the heuristics propose no plan" not in str(caught.value)


def test_an_empty_list_names_every_side(linear, empty_overlay, monkeypatch):
    monkeypatch.setattr(host.GemmHostBlocked, "caps", ())
    with pytest.raises(cudnnGraphNotSupportedError) as caught:
        linear("unserved").graph.create_execution_plans()
    assert any(reason.startswith("gemm.sm90.persistent: ") for reason in caught.value.reasons)
    assert any(reason.startswith("gemm.host.blocked: ") for reason in caught.value.reasons)
    assert all(reason in str(caught.value) for reason in caught.value.reasons)


def test_a_graph_that_was_declined_can_be_planned_otherwise(linear, monkeypatch):
    it = linear()
    with monkeypatch.context() as patched:
        patched.setattr(host.GemmHostBlocked, "caps", ())
        patched.setenv("CUDNN_AOT_CACHE", "/nonexistent/store")
        with pytest.raises(cudnnGraphNotSupportedError):
            it.graph.build()
    it.graph.build()


def test_a_graph_of_no_family_is_declined():
    g = cudnn.pygraph(io_data_type="FLOAT", compute_data_type="FLOAT", target="cpu")
    g.reduction(g.tensor([4, 4]), mode=cudnn.reduction_mode.ADD, out_dims=[4, 1]).set_output(True)
    with pytest.raises(cudnnGraphNotSupportedError, match="no engine family serves"):
        g.build()


def test_the_walk_goes_on_after_a_decline(linear, three_engines):
    it = linear()
    it.graph.create_execution_plans()
    assert [it.graph.get_plan_name_at_index(i) for i in range(3)] == three_engines
    it.graph.build_plans()
    assert it.graph.get_plan_name() == it.graph.selected_engine.name == "gemm.host.blocked"
    it.graph.execute(it.pack())
    it.check()


def test_a_pinned_plan_that_declines_raises(linear, three_engines):
    g = linear().graph
    g.create_execution_plans()
    assert g.select_plan(0) is g
    assert g.selected_engine.name == "gemm.host.declining"
    with pytest.raises(cudnnGraphNotSupportedError, match="it has a bad day"):
        g.build_plans()
    with pytest.raises(cudnnGraphNotSupportedError, match="it has a bad day"):
        g.execute({})


def test_a_pinned_plan_is_what_runs(linear, three_engines):
    it = linear()
    it.graph.create_execution_plans()
    it.graph.select_plan(2)
    it.graph.build_plans()
    assert it.graph.get_plan_name() == "gemm.host.noted"
    assert it.graph.get_behavior_notes() == [cudnn.behavior_note.RUNTIME_COMPILATION]
    it.graph.execute(it.pack())
    it.check()


def test_a_pinned_plan_leaves_no_trace_for_others(linear, three_engines):
    """What another process finds stored is the plan that the walk takes, not one that was asked
    for by name.
    """
    pinned = linear("pinned")
    pinned.graph.create_execution_plans()
    pinned.graph.select_plan(2).build_plans()
    other = linear("pinned").graph
    other.build()
    assert other.get_plan_name() == "gemm.host.blocked"


def test_all_builds_every_plan_and_keeps_the_pin(linear, three_engines):
    g = linear().graph
    g.create_execution_plans()
    g.build_plans(cudnn.build_plan_policy.ALL)
    assert g.get_plan_name() == "gemm.host.blocked"
    g.select_plan(2)
    g.build_plans(policy=cudnn.build_plan_policy.ALL)
    assert g.get_plan_name() == "gemm.host.noted"
    g.select_plan(0)
    with pytest.raises(cudnnGraphNotSupportedError, match="bad day"):
        g.build_plans(cudnn.build_plan_policy.ALL)


def test_building_at_a_place_uses_that_plan(linear, three_engines):
    it = linear()
    it.graph.create_execution_plans()
    assert it.graph.build_plan_at_index(2) is it.graph
    assert it.graph.get_plan_name() == "gemm.host.noted"
    it.graph.execute_plan_at_index(it.pack(), None, 1)
    it.check()
    assert it.graph.get_plan_name() == "gemm.host.noted"  # the plan in use stays


def test_a_fault_of_an_engine_propagates(linear, three_engines, empty_overlay, monkeypatch):
    def lower(self, facts, knobs, target):
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(host.Declining, "lower", lower)
    with pytest.raises(ZeroDivisionError):
        linear("fault").graph.build()


EXCLUSIONS = {
    "engines": lambda g: g.deselect_engines(["gemm.host.noted"]),
    "behavior": lambda g: g.deselect_behavior_notes([cudnn.behavior_note.RUNTIME_COMPILATION]),
    "numeric": lambda g: g.deselect_numeric_notes([cudnn.numerical_note.TENSOR_CORE]),
    "wanted behavior": lambda g: g.select_behavior_notes(
        [cudnn.behavior_note.SUPPORTS_CUDA_GRAPH_NATIVE_API]
    ),
    "wanted numeric": lambda g: g.select_numeric_notes([cudnn.numerical_note.FFT]),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("exclude", EXCLUSIONS.values(), ids=EXCLUSIONS)
def test_every_path_to_a_plan_honours_the_exclusions(linear, three_engines, exclude, when):
    g = linear().graph
    if when == "before":
        assert exclude(g) is g
    g.create_execution_plans()
    if when == "after":
        exclude(g)
    for call in (
        lambda: g.build_plan_at_index(2),
        lambda: g.execute_plan_at_index({}, None, 2),
        lambda: g.get_workspace_size_plan_at_index(2),
        lambda: g.select_plan(2).build_plans(),
        lambda: g.execute({}),
    ):
        with pytest.raises(cudnnGraphNotSupportedError, match="is (de)?selected"):
            call()


def test_the_walk_leaves_out_what_is_excluded(linear, three_engines):
    it = linear()
    it.graph.deselect_engines(["gemm.host.blocked"])
    it.graph.build()
    assert it.graph.get_plan_name() == "gemm.host.noted"
    it.graph.deselect_engines(["gemm.host.noted"])  # the one in use
    with pytest.raises(cudnnGraphNotSupportedError) as caught:
        it.graph.execute(it.pack())
    assert len(caught.value.reasons) >= 3


def test_a_limit_on_workspace(linear):
    it = linear()
    it.graph.deselect_workspace_greater_than(0)
    it.graph.build()
    it.graph.execute(it.pack())
    it.check()
    with pytest.raises(UsageError, match="workspace limit"):
        it.graph.deselect_workspace_greater_than(-1)
    it.graph.execute(it.pack())  # what was refused changes nothing
    it.check()


@pytest.mark.parametrize("is_planned", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("method", "argument"),
    [
        ("deselect_workspace_greater_than", -1),
        ("deselect_workspace_greater_than", 1.5),
        ("deselect_workspace_greater_than", [1]),
        ("deselect_engines", "gemm.host.blocked"),
        ("deselect_engines", 7),
        ("deselect_engines", [1]),
        ("deselect_behavior_notes", [1]),
        ("select_behavior_notes", 1.5),
        ("deselect_numeric_notes", "FFT"),
        ("select_numeric_notes", [None]),
    ],
)
def test_a_wrong_exclusion_is_refused_at_once_and_forgotten(linear, method, argument, is_planned):
    it = linear()
    if is_planned:
        it.graph.create_execution_plans()
    with pytest.raises(UsageError, match="workspace limit|engine name|note"):
        getattr(it.graph, method)(argument)
    it.graph.build()
    it.graph.execute(it.pack())
    it.check()


def test_an_exclusion_may_be_any_iterable(linear):
    g = linear().graph.deselect_engines(iter(["gemm.host.blocked"]))
    with pytest.raises(cudnnGraphNotSupportedError, match="gemm.host.blocked is deselected"):
        g.build()


@pytest.mark.parametrize("index", [-1, 1, 7])
def test_a_place_that_is_not_there(linear, index):
    g = linear().graph
    g.build()
    for call in (
        g.select_plan,
        g.build_plan_at_index,
        g.get_plan_name_at_index,
        g.get_engine_and_knobs_at_index,
        g.get_behavior_notes_for_plan_at_index,
        g.get_workspace_size_plan_at_index,
        lambda place: g.execute_plan_at_index({}, None, place),
    ):
        with pytest.raises(IndexError, match="plan index"):
            call(index)
    assert issubclass(PlanIndexError, UsageError)


def test_modes_go_by_name(linear):
    linear().graph.create_execution_plans(["A", "FALLBACK"])
    with pytest.raises(UsageError, match="heuristic mode: got 'C', want one of A, B"):
        linear().graph.create_execution_plans(["C"])


def test_threads_that_build_share_one_plan(linear):
    it = linear()
    plans = []

    def run() -> None:
        it.graph.build_plans()
        plans.append(it.graph._program.current)

    it.graph.create_execution_plans()
    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(plans) == 8 and len(set(map(id, plans))) == 1


@pytest.mark.parametrize("policy", ["junk", 17, None])
def test_a_policy_that_there_is_not(linear, policy):
    g = linear().graph
    with pytest.raises(UsageError, match="want one of HEURISTICS_CHOICE, ALL"):
        g.build_plans(policy)
    g.build_plans("ALL")


def test_a_child_forked_while_a_thread_builds_can_build(linear, monkeypatch):
    import os

    from cudnn_aot.compiler.program.program import Program

    it = linear()
    it.graph.create_execution_plans()
    inside, leave = threading.Event(), threading.Event()
    real = Program._walk

    def walk(program):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            leave.wait(60)
        return real(program)

    monkeypatch.setattr(Program, "_walk", walk)
    thread = threading.Thread(target=it.graph.build)
    thread.start()
    inside.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(30)  # what hangs is killed
        try:
            it.graph.execute(it.pack())
            it.check()
        except BaseException:
            os._exit(1)
        os._exit(0)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("first", ["execute", "build", "build_plans"])
def test_threads_that_come_before_a_plan_share_one(linear, first):
    for _ in range(12):
        it = linear()
        start = threading.Barrier(4)
        found: list[object] = []

        def run(it=it, start=start, found=found) -> None:
            start.wait()
            try:
                if first == "execute":
                    it.graph.execute({**it.pack(), it.y: np.empty_like(it.result)})
                else:
                    getattr(it.graph, first)()
                found.append(it.graph._program.current)
            except Exception as error:
                found.append(error)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [it.graph._program.current] * 4


def test_key_is_the_same_in_every_process(linear):
    import subprocess
    import sys

    code = """
import cudnn_aot as cudnn
types = cudnn.data_type
g = cudnn.pygraph("other", types.FLOAT, types.FLOAT, types.FLOAT)
a, b, bias = g.tensor([1, 4, 8]), g.tensor([1, 8, 16]), g.tensor([1, 1, 16])
g.relu(g.bias(g.matmul(a, b), bias)).set_output(True)
print(g.key())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == linear().graph.key(), done.stderr
