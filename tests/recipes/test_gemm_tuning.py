"""Measured GEMM plans: what a tuning file puts first, and what it does to plan keys."""

import json
from pathlib import Path

import gemm_graphs
import pytest

from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.facts import facts_for
from cudnn_aot.compiler.planning.plan import plan_graph, plan_key
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.planning.tuning import load_tuning
from cudnn_aot.compiler.target.target import load_target

H200 = load_target("h200")
TILE_64x256 = {
    "TILE_M": 64, "TILE_N": 256, "TILEK": 64, "TILE_CGA_M": 1, "TILE_CGA_N": 1, "SPLIT_K_SLC": 1,
}  # fmt: skip


def frozen(m, n=512, k=256):
    return gemm_graphs.plain("g", m, n, k).freeze()


def entry(graph, *plans, target="h200", **changes):
    """A file's entry about a graph."""
    facts = facts_for(graph, manifest.resolve("gemm.facts:analyze"))
    listed = [{"engine": engine, "knobs": knobs} for engine, knobs in plans]
    return {
        "family": "gemm",
        "target": target,
        "layout_class": facts.layout_class,
        "extents": facts.extents,
        "plans": listed,
        **changes,
    }


def tuning_of(tmp_path: Path, *entries):
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps({"format": 1, "entries": entries}))
    return load_tuning(path)


def test_a_measured_plan_is_taken_and_says_so(tmp_path: Path):
    graph = frozen(64)
    tuning = tuning_of(tmp_path, entry(graph, ("gemm.sm90.persistent", TILE_64x256)))
    plain, tuned = PlanList(graph, H200), PlanList(graph, H200, tuning=tuning)
    assert plan_graph(graph, H200, tuning=tuning).knobs == TILE_64x256
    assert plan_graph(graph, H200).knobs != TILE_64x256
    assert tuned.entries[0].why == "measured"
    assert set(tuned.entries) == set(plain.entries), "the ranked plans are still there, each once"


def test_a_plan_that_the_engine_does_not_have_is_passed_over(tmp_path: Path):
    """A file outlives versions: engines go, and so do knobs and tiles."""
    graph = frozen(64)
    plans = [
        ("gemm.sm90.gone", {}),
        ("gemm.sm90.persistent", {**TILE_64x256, "TILE_M": 96}),
        ("gemm.sm90.persistent", {"STAGES": 3}),
        ("gemm.host.blocked", {}),
        ("gemm.sm90.persistent", TILE_64x256),
    ]
    tuned = PlanList(graph, H200, tuning=tuning_of(tmp_path, entry(graph, *plans)))
    assert [plan.why for plan in tuned.entries].count("measured") == 1
    assert tuned.lower(0).knobs == TILE_64x256


@pytest.mark.parametrize(
    "change",
    [{"target": "h100"}, {"family": "conv"}, {"layout_class": "other"}, {"extents": {"m": 65}}],
    ids=lambda change: next(iter(change)),
)
def test_a_file_speaks_of_what_it_was_measured_for(tmp_path: Path, change):
    graph = frozen(64)
    about = entry(graph, ("gemm.sm90.persistent", TILE_64x256)) | change
    tuning = tuning_of(tmp_path, about)
    assert plan_graph(graph, H200, tuning=tuning).knobs != TILE_64x256
    assert plan_key(graph, H200, tuning=tuning) == plan_key(graph, H200)


def test_a_plan_key_follows_what_the_file_says_of_its_graph_alone(tmp_path: Path):
    graph, other = frozen(64), frozen(128)
    plan = ("gemm.sm90.persistent", TILE_64x256)
    without = plan_key(graph, H200)
    first = plan_key(graph, H200, tuning=tuning_of(tmp_path, entry(graph, plan)))
    two = tuning_of(tmp_path, entry(other, plan), entry(graph, plan))
    assert plan_key(graph, H200, tuning=two) == first != without
    changed = tuning_of(tmp_path, entry(graph, ("gemm.sm90.persistent", {})), entry(other, plan))
    assert plan_key(graph, H200, tuning=changed) not in (first, without)
    assert plan_key(other, H200, tuning=changed) == plan_key(other, H200, tuning=two)
    assert plan_key(graph, H200, tuning=tuning_of(tmp_path, entry(graph))) == without
