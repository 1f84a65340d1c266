"""Which plans of a GEMM are listed, and what their keys follow."""

from __future__ import annotations

from dataclasses import replace

import gemm_graphs
import pytest

from cudnn_aot.compiler.graph.enums import heur_mode
from cudnn_aot.compiler.planning import plan as planning
from cudnn_aot.compiler.planning.plan import plan_key
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.recipes.gemm.config import GemmConfig

H200 = load_target("h200")


def declared_graph(a_stride=(64 * 512, 512, 1), y_stride=(64 * 256, 256, 1), optional=False):
    """[64, 512] by [512, 256], with the strides of A and of the output."""
    g = gemm_graphs.graph("g")
    a = g.tensor(name="A", dim=[1, 64, 512], stride=list(a_stride))
    y = g.matmul(a, gemm_graphs.operand(g, "B", 512, 256, transposed=True), name="mm")
    y.set_output(True, optional=optional).set_data_type(gemm_graphs.BF16).set_name("Y")
    y.set_stride(list(y_stride))
    if optional:
        rows = g.relu(y).set_output(True).set_data_type(gemm_graphs.BF16)
        rows.set_stride([64 * 256, 256, 1])
    return g


def up_to_4096(*names):
    return {name: {"min": 1, "max": 4096} for name in names}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: gemm_graphs.plain("g", 130, 96, 77),
            "stride 77 of 'A' on axis 1 is not a multiple of 16 bytes",
        ),
        (
            lambda: gemm_graphs.other_majors("g", 256, 333, 128, False, False),
            "stride 333 of 'B' on axis 1 is not a multiple of 16 bytes",
        ),
        (
            lambda: gemm_graphs.plain("g", "M", 64, "K", symbols=up_to_4096("M", "K")),
            "stride K of 'A' on axis 1 need not be a multiple of 16 bytes",
        ),
        (
            lambda: gemm_graphs.plain("g", "M", 96, 77, symbols=up_to_4096("M")),
            "stride 77 of 'A' on axis 1 is not a multiple of 16 bytes",
        ),
        (lambda: gemm_graphs.plain("g", 8, 16, 0), "K is 0"),
        (
            lambda: declared_graph(a_stride=(64 * 1024, 1024, 2)),
            "'A' or 'B' has no contiguous axis",
        ),
        (lambda: declared_graph(a_stride=(512, 0, 1)), "stride of 'A' on axis 1 is 0"),
        (
            lambda: declared_graph(y_stride=(64 * 512, 512, 2)),
            "the rows of 'Y' are not contiguous",
        ),
    ],
    ids=["odd-k", "odd-n", "any-k", "odd-k-any-m", "no-k", "no-major", "stride-0", "no-rows"],
)
def test_a_graph_that_rules_tma_out_has_one_plan_which_says_so(make, why):
    """Without TMA there is no schedule to choose: whatever the knobs, one kernel is built."""
    plans = PlanList(make(), H200, engines=["gemm.sm90.persistent"])
    assert [entry.why for entry in plans.entries] == [f"no TMA: {why}"]
    planned = plans.lower(0)
    assert "any_stride" in planned.table["branches"] and planned.ranges == ()
    assert not any("tile" in spec.params for spec in planned.kernels)
    # What was recorded when other plans were listed still builds, and builds the same.
    engine_id, knobs = plans.engine_and_knobs(0)
    other = GemmConfig(128, 256, 64, 2, 1, 1).to_public()
    assert other != knobs
    replayed = plans.lower(plans.append(engine_id, other))
    assert (replayed.kernels, replayed.table) == (planned.kernels, planned.table)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gemm_graphs.plain("g", 201, 333, 264),  # stored by threads
        lambda: gemm_graphs.plain(
            "g", 64, 64, "K", symbols={"K": {"min": 8, "max": 4096, "multiple_of": 8}}
        ),
        lambda: declared_graph(y_stride=(64 * 256, 1, 64), optional=True),  # may be left out
    ],
    ids=["direct", "multiples", "optional-columns"],
)
def test_a_graph_that_tma_may_serve_has_its_schedules_ranked(make):
    plans = PlanList(make(), H200, engines=["gemm.sm90.persistent"])
    assert len(plans) > 3
    assert all(any("tile" in s.params for s in plans.lower(i).kernels) for i in range(len(plans)))


def test_plan_key_follows_graph_target_and_planner(monkeypatch):
    graph = gemm_graphs.plain("g", 64, 64, 64)
    key = plan_key(graph, H200)
    assert key == plan_key(gemm_graphs.plain("renamed", 64, 64, 64), H200)
    others = [
        plan_key(graph, load_target("h100")),
        plan_key(gemm_graphs.plain("g", 64, 64, 128), H200),
    ]
    others += [
        plan_key(
            graph, replace(H200, **{name: f"{value}x" if isinstance(value, str) else value + 1})
        )
        for name, value in H200.descriptor().items()
    ]
    others.append(plan_key(graph, replace(H200, sm_count=float(H200.sm_count))))  # equal in Python
    others.append(plan_key(graph, H200, modes=(heur_mode.FALLBACK, heur_mode.A)))
    monkeypatch.setattr(planning, "_source_digest", lambda family: "edited")
    others.append(plan_key(graph, H200))
    assert len({key, *others}) == 1 + len(others)
