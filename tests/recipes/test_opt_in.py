"""The graphs that a GPU host runs by engines that are not mature: each is theirs, and the CPU's."""

from __future__ import annotations

import pytest
from opt_in_graphs import OPT_IN_GRAPHS

from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning.manifest import FAMILIES, OPT_IN_VARIABLE
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError

YOUNG = {slot.name for family in FAMILIES for slot in family.engines if slot.opt_in}


@pytest.fixture(params=OPT_IN_GRAPHS, ids=lambda make: make().name)
def graph(request: pytest.FixtureRequest) -> Graph:
    return request.param()


def test_each_has_a_plan(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPT_IN_VARIABLE, "1")
    plan = plan_graph(graph, load_target("h200"))
    assert plan.engine_name in YOUNG and plan.kernels
    assert plan_graph(graph, load_target("cpu")).kernels


def test_none_is_served_unasked(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OPT_IN_VARIABLE, raising=False)
    with pytest.raises(cudnnGraphNotSupportedError, match=OPT_IN_VARIABLE):
        plan_graph(graph, load_target("h200"))


def test_every_engine_that_is_not_mature_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPT_IN_VARIABLE, "1")
    served = {plan_graph(make(), load_target("h200")).engine_name for make in OPT_IN_GRAPHS}
    assert served == YOUNG
