"""Whose plans come first in a store: read from the family's ranking, without a library or a DSL."""

from __future__ import annotations

import pytest
from standin import ONE, TWO, relu_graph

from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning.engine import PlanConfig, Refusal
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.planning.providers import provider_order
from cudnn_aot.compiler.planning.rank import BACKEND
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError

CPU = load_target("cpu")
OURS, OTHER = PlanConfig(ONE), PlanConfig(TWO)


@pytest.mark.parametrize(
    ("proposals", "first"),
    [
        ({"A": [BACKEND, OURS]}, "cudnn"),
        ({"A": [OURS, BACKEND, OTHER]}, "native"),
        ({"A": [OURS]}, "native"),
        ({"A": [], "FALLBACK": [BACKEND, OURS]}, "cudnn"),
        ({"A": [], "FALLBACK": [OURS]}, "cudnn"),  # its plans of mode A come before
        ({"A": [], "FALLBACK": []}, "native"),
    ],
    ids=["leads", "follows", "no marker", "leads the fallback", "mode A", "nothing of ours"],
)
def test_the_first_plan_of_each_decides(standin, proposals, first):
    standin.SCRIPT.proposals = proposals
    order = provider_order(relu_graph(), CPU)
    assert order[0] == first and sorted(order) == ["cudnn", "native"]


def test_where_nothing_is_ranked_ours_come_first(standin):
    standin.SCRIPT.acts["family", "analyze"] = Refusal("not this graph")
    assert provider_order(relu_graph(), CPU) == ("native", "cudnn")
    standin.SCRIPT.acts["family", "validate"] = cudnnGraphNotSupportedError("nor this")
    assert provider_order(relu_graph(), CPU) == ("native", "cudnn")
    assert provider_order(Graph("empty"), CPU) == ("native", "cudnn")


def test_it_needs_no_compiler(standin, monkeypatch):
    import cudnn_aot.compiler.planning.plan_list as plan_list

    monkeypatch.setattr(plan_list, "why_no_dsl", lambda version: "there is none")
    standin.SCRIPT.proposals = {"A": [BACKEND, OURS]}
    with pytest.raises(cudnnGraphNotSupportedError, match="there is none"):
        plan_graph(relu_graph(), CPU)
    assert provider_order(relu_graph(), CPU) == ("cudnn", "native")
