"""The facts of a GEMM graph, for tests that have some of them in mind."""

from __future__ import annotations

from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.recipes.gemm.analyze import analyze
from cudnn_aot.recipes.gemm.facts import GemmFacts


def facts_of(graph) -> GemmFacts:
    graph.freeze()
    facts = analyze(graph)
    assert not isinstance(facts, Refusal), facts.reason
    return facts
