"""cuDNN's side of the list, with a stand-in that answers: entries, knobs, notes, plans."""

from __future__ import annotations

import pytest
from cudnn_stand_in import ABSENT, CudnnStandIn

from cudnn_aot.compiler.build.records import plan_record
from cudnn_aot.compiler.graph.enums import behavior_note, heur_mode, numerical_note
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning.backend import BackendEntry
from cudnn_aot.compiler.planning.cudnn import Cudnn
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError

H200 = load_target("h200")
A, B, FALLBACK, OPENSOURCE = heur_mode.A, heur_mode.B, heur_mode.FALLBACK, heur_mode.OPENSOURCE
NAMES = ["cudnn.eng7", "cudnn.eng4[KERNEL_CFG=3]", "cudnn.eng5[STAGES=2, TILE_M=1]"]


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> CudnnStandIn:
    made = CudnnStandIn(monkeypatch)
    made.entries = [
        BackendEntry(7, (), "A", "eng7", 0),
        BackendEntry(4, (("KERNEL_CFG", 3),), "A", "eng4", 1, ("RUNTIME_COMPILATION", "NEWER")),
        BackendEntry(5, (("STAGES", 2), ("TILE_M", 1)), "FALLBACK", "eng5", 2),
    ]
    made.declines = set()
    return made


def product() -> Graph:
    graph = Graph("product", "BFLOAT16", "FLOAT", "FLOAT")
    a, b = graph.tensor([1, 64, 32], name="A"), graph.tensor([1, 32, 16], name="B")
    graph.matmul(a, b).set_output(True)
    return graph


def plan_list(modes=(A, FALLBACK), **options) -> PlanList:
    return PlanList(product(), H200, modes, backend=Cudnn(), engines=(), **options)


def test_its_plans_are_listed_by_mode_and_replay(cudnn: CudnnStandIn) -> None:
    plans = plan_list()
    assert [plans.name(index) for index in range(len(plans))] == NAMES and plans.reasons == []
    assert cudnn.asked == [("A", "FALLBACK")] and cudnn.made == []
    assert plans.engine_and_knobs(2) == (5, {knob_type.STAGES: 2, knob_type.TILE_M: 1})
    other = plan_list(())
    for index in range(3):
        assert other.append(*plans.engine_and_knobs(index)) == index
    assert [other.name(index) for index in range(3)] == NAMES
    assert len(cudnn.asked) == 1  # a list of recorded plans asks for no other
    with pytest.raises(cudnnGraphNotSupportedError, match="engine cudnn.eng4: no knob SPLIT_KV"):
        other.append(4, {"SPLIT_KV": 2})


def test_ours_come_first_where_no_marker_says_otherwise(cudnn: CudnnStandIn) -> None:
    plans = PlanList(product(), H200, (A,), backend=Cudnn(), needs_compiler=False)
    sides = [plans.name(index).partition(".")[0] for index in range(len(plans))]
    assert sides == ["gemm"] * (len(plans) - 2) + ["cudnn"] * 2


def test_opensource_has_no_entry_and_says_so(cudnn: CudnnStandIn) -> None:
    assert plan_list([OPENSOURCE]).reasons == [
        "cudnn: it lists no plan in mode OPENSOURCE, where it chooses by itself"
    ]
    assert len(plan_list([OPENSOURCE, B, A])) == 2 and cudnn.asked == [("B", "A")]
    ours = PlanList(product(), H200, (OPENSOURCE,), backend=Cudnn(), needs_compiler=False)
    assert len(ours) > 1 and {ours.name(i).partition(".")[0] for i in range(len(ours))} == {"gemm"}


def test_why_this_machine_offers_none(cudnn: CudnnStandIn) -> None:
    cudnn.found = ABSENT
    plans = plan_list()
    assert len(plans) == 0 and plans.reasons == [f"cudnn: {ABSENT.reason}"]
    assert plans.append(4, {"KERNEL_CFG": 3}) == 0  # its name needs no cuDNN, its plan does
    assert plans.name(0) == NAMES[1]
    with pytest.raises(cudnnGraphNotSupportedError, match="no libcuda.so.1"):
        plans.lower(0)


def test_a_plan_has_its_bytes_and_what_they_require(cudnn: CudnnStandIn) -> None:
    cudnn.workspace_bytes = 4096
    plans = plan_list()
    planned = plans.lower(1)
    assert plans.lower(1) is planned and cudnn.made == [4]
    assert planned.blobs == (b"engine 4 {'KERNEL_CFG': 3}",) and planned.kernels == ()
    assert plans.workspace_bytes(1) >= 4096
    record = plan_record("key", "h200", planned, [])
    assert record["engine"] == {"id": 4, "name": "cudnn.eng4"} and record["kernels"] == []
    assert record["requirements"]["cudnn"] == "9.19.0"
    assert [blob["bytes"] for blob in record["blobs"]] == [len(planned.blobs[0])]
    assert record["notes"] == ["RUNTIME_COMPILATION"]
    cudnn.declines = {7}
    assert plans.walk(lambda each: each.engine_id) == (1, 4)


def test_notes_are_those_of_each_plan(cudnn: CudnnStandIn) -> None:
    plans = plan_list()
    assert [plans.behavior_notes(index) for index in range(3)] == [
        [],
        [behavior_note.RUNTIME_COMPILATION],
        [],
    ]
    plans.deselect_notes([behavior_note.RUNTIME_COMPILATION])
    said = "behavior note RUNTIME_COMPILATION is deselected"
    assert [plans.why_excluded(index) for index in range(3)] == [None, said, None]
    assert cudnn.made == []
    plans = plan_list()
    plans.select_notes([behavior_note.RUNTIME_COMPILATION])
    assert plans.walk(lambda planned: planned.engine_id) == (1, 4)
    other = plan_list(())
    other.append(4, {"KERNEL_CFG": 3})
    assert other.behavior_notes(0) == [behavior_note.RUNTIME_COMPILATION]


@pytest.mark.parametrize("rule", ["select_notes", "deselect_notes"])
def test_a_rule_about_numerical_notes_excludes_what_tells_none(
    cudnn: CudnnStandIn, rule: str
) -> None:
    plans = plan_list()
    getattr(plans, rule)([numerical_note.NONDETERMINISTIC])
    which = rule.partition("_")[0] + "ed"
    assert plans.why_excluded(0) == (
        f"numerical note NONDETERMINISTIC is {which} and cudnn.eng7 tells none"
    )
    assert plans.numerical_notes(0) == []


def test_workspace_and_engines_exclude(cudnn: CudnnStandIn) -> None:
    cudnn.workspace_bytes = 4096
    plans = plan_list()
    plans.deselect_engines(["cudnn.eng7"])
    assert plans.walk(lambda planned: planned.engine_id) == (1, 4)
    plans.deselect_workspace_greater_than(4095)
    with pytest.raises(cudnnGraphNotSupportedError, match="may need .* of workspace, more than"):
        plans.walk(lambda planned: planned.engine_id)


def test_keys_are_by_modes(cudnn: CudnnStandIn) -> None:
    graph = product().freeze()
    keys = [Cudnn().key(graph, H200, modes) for modes in ((A, FALLBACK), (A,), (B,))]
    assert len(set(keys)) == 3 and Cudnn().key(graph, H200) == keys[0]
    cudnn.found = ABSENT
    assert Cudnn().key(graph, H200) == ABSENT
