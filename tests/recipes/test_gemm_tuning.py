"""Measured GEMM plans: what a tuning file puts first, and what it does to plan keys."""

import json
from pathlib import Path

import batch_graphs
import gemm_graphs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.facts import facts_for
from cudnn_aot.compiler.planning.plan import plan_configs, plan_graph, plan_key
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.planning.tuning import load_tuning
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.recipes.gemm import tma
from cudnn_aot.recipes.gemm.config import (
    CLUSTER_SPLITS,
    SM90_CLUSTERS,
    SM90_TILES,
    GemmConfig,
    TileClass,
)

H200 = load_target("h200")
TILE_64x256 = {
    "TILE_M": 64, "TILE_N": 256, "TILEK": 64, "TILE_CGA_M": 1, "TILE_CGA_N": 1, "SPLIT_K_SLC": 1,
    "STREAM_K": 0, "WARP_SPEC_CFG": 0,
}  # fmt: skip


def frozen(m, n=512, k=256):
    return gemm_graphs.plain("g", m, n, k).freeze()


def entry(graph, *plans, target="h200", **changes):
    """A file's entry about a graph."""
    facts = facts_for(graph, manifest.resolve("gemm.analyze:analyze"))
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
    measured = tuned.entries[0]
    ranked = {*plain.entries, measured}
    assert set(tuned.entries) == ranked, "the ranked plans are still there, each once"


def test_the_file_in_the_documentation_is_taken(tmp_path: Path):
    text = (Path(__file__).parents[2] / "docs/tuning.md").read_text(encoding="utf-8")
    (shown,) = (block for block in text.split("```json")[1:] if '"layout_class"' in block)
    path = tmp_path / "tuning.json"
    path.write_text(shown.split("```")[0])
    tuned = PlanList(frozen(64, 4096, 4096), H200, tuning=load_tuning(path))
    (shown_plan,) = json.loads(path.read_text())["entries"][0]["plans"]
    assert tuned.entries[0].why == "measured" and tuned.lower(0).knobs == shown_plan["knobs"]


def test_a_plan_that_the_engine_does_not_have_is_passed_over(tmp_path: Path):
    """A file outlives versions: engines go, and so do knobs and tiles."""
    graph = frozen(64)
    plans = [
        ("gemm.sm90.gone", {}),
        ("gemm.sm90.persistent", {**TILE_64x256, "TILE_M": 96}),
        ("gemm.sm90.persistent", {"STAGES": 3}),
        ("gemm.sm90.persistent", {k: v for k, v in TILE_64x256.items() if k != "STREAM_K"}),
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
    # An entry without plans takes the place of one that is shipped.
    assert plan_key(graph, H200, tuning=tuning_of(tmp_path, entry(graph))) not in (first, without)


def symbolic(n=4096, k=4096, m="M", **fields):
    symbols = {"M": {"min": 0, "max": 8192, **fields}}
    return gemm_graphs.plain("g", m, n, k, symbols=symbols).freeze()


def test_ranges_of_a_symbolic_graph_are_what_was_measured(tmp_path: Path):
    """Measured on concrete graphs of the class; beyond their reach the model's ranges serve."""
    graph = symbolic()
    small = {**TILE_64x256, "TILE_N": 64, "STREAM_K": 1}
    tuning = tuning_of(
        tmp_path,
        entry(frozen(64, 4096, 4096), ("gemm.sm90.persistent", TILE_64x256)),
        entry(frozen(1, 4096, 4096), ("gemm.sm90.persistent", small)),
        entry(frozen(16, 4096, 2048), ("gemm.sm90.persistent", small)),  # another K
    )
    plans, model = PlanList(graph, H200, tuning=tuning), PlanList(graph, H200)
    found = {text: (name, why) for text, name, why in plans.ranges(0)}
    # Those from 5 to 15 are farther than four times from either.
    assert found["M=0..4"] == (
        "gemm.sm90.persistent[SPLIT_K_SLC=1, STREAM_K=1, TILEK=64, TILE_CGA_M=1, TILE_CGA_N=1, "
        "TILE_M=64, TILE_N=64, WARP_SPEC_CFG=0]",
        "measured at M=1",
    )
    assert "M=5..15" in found
    assert found["M=16..256"][1] == "measured at M=64"
    said = ("measured at", "the model's best", "by the table of few rows")
    assert all(any(part in why for part in said) for _, why in found.values())
    assert model.ranges(0)[-1] == plans.ranges(0)[-1]
    planned = plan_graph(graph, H200, tuning=tuning)
    assert planned.ranges[0].bounds == {"M": (0, 4)} and planned.ranges[0].knobs == small
    keys = {
        plan_key(graph, H200),
        plan_key(graph, H200, tuning=tuning),
        plan_key(
            graph,
            H200,
            tuning=tuning_of(
                tmp_path,
                entry(frozen(64, 4096, 4096), ("gemm.sm90.persistent", TILE_64x256)),
            ),
        ),
    }
    assert len(keys) == 3


def test_times_of_a_file_are_in_no_key(tmp_path: Path):
    graph = frozen(64)
    about = entry(graph, ("gemm.sm90.persistent", TILE_64x256))
    key = plan_key(graph, H200, tuning=tuning_of(tmp_path, about))
    about["plans"][0]["us"] = 11.5
    about["device"] = "NVIDIA H200"
    timed = tuning_of(tmp_path, about)
    assert plan_key(graph, H200, tuning=timed) == key


@given(st.integers(0, 8192), st.sampled_from(["M", "2*M", "64*M"]), st.sampled_from([1, 8]))
def test_extents_tell_the_symbol(value: int, rows: str, step: int):
    facts = facts_for(symbolic(m=rows, multiple_of=step), manifest.resolve("gemm.analyze:analyze"))
    extents = facts.extents_at({"M": value})
    assert facts.symbols_at(extents) == {"M": value}  # which it need not take
    for name in ("batch", "n", "k"):
        assert facts.symbols_at({**extents, name: extents[name] + 1}) is None
    above = facts.extents_at({"M": 9000})
    assert facts.symbols_at({**extents, "m": above["m"]}) == {"M": 9000}
    assert facts.symbols_at({}) is None


@pytest.mark.parametrize("make", [*gemm_graphs.TEST_GRAPHS, *batch_graphs.BATCH_AXES_GRAPHS])
def test_a_class_says_whether_tma_may_load_the_matrices(make):
    facts = facts_for(make().freeze().canonical(), manifest.resolve("gemm.analyze:analyze"))
    reasons = [
        tma.why_not_operand(operand, axis, facts.symbols, facts.batch_runs)
        for operand, axis in tma.matrices(facts, tma.unit_axes(facts))
        if operand.stride[operand.axis(axis)] == 1
    ]
    assert facts.layout_class.endswith(" unaligned") is any(reasons)


def test_extents_tell_a_symbolic_batch():
    symbols = {"B": {"min": 1, "max": 64}}
    graph = gemm_graphs.plain("g", 128, 256, 512, batch="B", symbols=symbols).freeze()
    facts = facts_for(graph, manifest.resolve("gemm.analyze:analyze"))
    assert facts.symbols_at(facts.extents_at({"B": 5})) == {"B": 5}


def test_what_is_measured_is_every_schedule_that_has_work_to_do():
    graph = frozen(64, 4096, 4096)
    best, *others = plan_configs(graph, H200)
    assert (best.engine_name, best.knobs) == (
        plan_graph(graph, H200).engine_name,
        plan_graph(graph, H200).knobs,
    )
    knobs = [tuple(planned.knobs.items()) for planned in (best, *others)]
    assert len(set(knobs)) == len(knobs) > 100
    engines = [planned.engine_name for planned in (best, *others)]
    assert set(engines) == {"gemm.sm90.persistent"}  # for 64 rows no GEMV
    # Each has a kernel, and all share the one for any strides.
    kernels = {spec.key for planned in (best, *others) for spec in planned.kernels}
    apart = {
        (
            config.tile,
            config.cluster_m,
            config.cluster_n,
            config.cluster_k,
            config.stream_k,
            config.pingpong,
        )
        for config in GemmConfig.measured(4096, TileClass(2, 1))
    }
    assert {tile for tile, *_ in apart} == set(SM90_TILES[2])
    assert {each[1:] for each in apart} == {
        *((*cluster, 1, 0, pingpong) for cluster in SM90_CLUSTERS for pingpong in (0, 1)),
        *((1, 1, splits, 0, 0) for splits in CLUSTER_SPLITS),
        *((*cluster, 1, 1, 0) for cluster in SM90_CLUSTERS),
    }
    assert len(apart) + 1 <= len(kernels) <= len(apart) + 2  # the best may be none of them
    short = plan_configs(frozen(64, 4096, 64), H200)
    tiles = [planned for planned in short if planned.engine_name == "gemm.sm90.persistent"]
    assert {(planned.knobs["SPLIT_K_SLC"], planned.knobs["STREAM_K"]) for planned in tiles} == {
        (1, 0)
    }
    assert len(plan_configs(frozen(64), load_target("cpu"))) == 1
    unaligned = gemm_graphs.plain("g", 64, 512, 255).freeze()  # no TMA: one kernel, no schedule
    assert len(plan_configs(unaligned, H200)) == 1
