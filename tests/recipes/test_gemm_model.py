"""Which schedule of a GEMM is ranked first, by the cost model."""

from __future__ import annotations

import math

import gemm_graphs
import pytest
from gemm_facts import facts_of

from cudnn_aot.compiler.graph.enums import heur_mode
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.recipes.gemm.config import GemmConfig, TileClass
from cudnn_aot.recipes.gemm.model import PLAIN, best_sm90, menu_for, modelled_cycles, rank_sm90

H200 = load_target("h200")


def test_ranking_is_complete_and_best_first():
    facts = facts_of(gemm_graphs.plain("g", 4096, 4096, 4096))
    ranked = [config for config, _ in rank_sm90(facts.extents, 132)]
    modelled = dict(zip(PLAIN.configs, modelled_cycles(PLAIN, facts.extents, 132), strict=True))
    worth = [times for times in modelled.values() if times[0] < math.inf]
    assert [modelled[config] for config in ranked] == sorted(worth)
    # All but those that would leave blocks without work.
    short = modelled_cycles(PLAIN, {**facts.extents, "k": 256}, 132)
    never = {c for c, times in zip(PLAIN.configs, short, strict=True) if times[0] == math.inf}
    assert never == {config for config in PLAIN.configs if config.splits > 1 or config.stream_k}
    assert best_sm90([facts.extents], 132) == best_sm90([facts.extents] * 3, 132) == ranked[0]
    assert (ranked[0].tile_m, ranked[0].tile_n, ranked[0].pingpong) == (128, 256, 0)
    assert len(set(ranked)) == len(ranked)


def test_ping_pong_leaves_registers_to_what_follows_a_tile():
    """A thread has 192 sums of a result that is stored as it is, at most 160 of others."""
    extents = (8192, 8192, 8192)
    for most, graph in (
        (192, gemm_graphs.plain("plain", *extents)),
        (160, gemm_graphs.fused("residual", *extents, "residual")),
        (160, gemm_graphs.reduced("amax", *extents, [("AMAX", "mn")])),
        (128, gemm_graphs.gated("gated", *extents)),
    ):
        entries = PlanList(graph, H200, modes=[heur_mode.A]).entries
        schedules = [entry.knobs for entry in entries if isinstance(entry.knobs, GemmConfig)]
        products = facts_of(graph).epilogue.products
        sums = [products * s.tile_m * s.tile_n // 128 for s in schedules if s.pingpong]
        assert max(sums) == most, graph.name


def test_graphs_of_ping_pong_give_a_warpgroup_more_than_one_tile():
    """Those of the GPU tests: blocks, some in pairs, whose warpgroups take turns more than once."""
    seen = set()
    for make in gemm_graphs.TEST_GRAPHS:
        if not (graph := make()).name.startswith("pingpong"):
            continue
        knobs = plan_graph(graph, H200).knobs
        config = GemmConfig.from_public({knob_type[k]: v for k, v in knobs.items()})
        facts = facts_of(graph)
        size = config.cluster_m
        tiles = -(-facts.m // (size * config.tile_m)) * -(-facts.n // config.tile_n)
        assert (config.pingpong, config.cluster_n, config.tile_m) == (1, 1, 128)
        assert tiles > 2 * (H200.sm_count // size)
        seen.add((facts.a.dtype, size, config.tile_n))
    assert seen == {("BFLOAT16", 2, 192), ("HALF", 2, 160), ("INT8", 1, 128)}


def test_graphs_of_turns_have_two_warpgroups_to_a_tile():
    """Those of the GPU tests, with any K: one tile of a block and several, clusters and none."""
    seen = set()
    for make in gemm_graphs.TEST_GRAPHS:
        if not (graph := make()).name.startswith("turns"):
            continue
        knobs = plan_graph(graph, H200).knobs
        config = GemmConfig.from_public({knob_type[k]: v for k, v in knobs.items()})
        assert (config.tile_m, config.pingpong, config.splits, config.stream_k) == (128, 0, 1, 0)
        tiles = -(-facts_of(graph).m // 128) * -(-facts_of(graph).n // config.tile_n)
        seen.add((config.cluster_m * config.cluster_n, -(-tiles // H200.sm_count)))
    assert seen == {(2, 4), (2, 1), (1, 1)}


def test_int8_is_ranked_as_what_promotes_nothing():
    """Ping-pong is among its schedules, and large tiles of it take less time than of FP8."""
    extents = {"batch": 1, "m": 8192, "n": 8192, "k": 8192}
    int8, fp8 = (
        dict(rank_sm90(extents, 132, menu_for(TileClass(1, 1, is_integer=is_integer))))
        for is_integer in (True, False)
    )
    assert all(config.pingpong for config in int8.keys() - fp8.keys())
    both = int8.keys() & fp8.keys()
    whole = [config for config in both if config.tile_m == 128 and config.tile_n >= 128]
    assert whole and all(int8[config] <= fp8[config] for config in whole)


# (batch, M, N, K): tile_m, tile_n, cluster_m, splits, ping-pong of what was the fastest, or within
# 2 % of it, on an H200 (bench/NOTES.md).
MEASURED = {
    (1, 1024, 1024, 1024): (64, 128, 1, 1, 1),
    (1, 4096, 4096, 4096): (128, 256, 2, 1, 0),
    (1, 8192, 8192, 8192): (128, 192, 2, 1, 1),
    (1, 16, 6144, 4096): (64, 48, 1, 1, 0),
    (1, 64, 4096, 4096): (64, 64, 1, 2, 0),
    (1, 16, 4096, 14336): (64, 64, 1, 2, 0),
    (1, 256, 6144, 4096): (64, 192, 2, 1, 0),
    (1, 256, 4096, 14336): (128, 128, 1, 2, 0),
    (1, 512, 4096, 4096): (128, 128, 2, 1, 0),
    (1, 1024, 19456, 2560): (128, 160, 2, 1, 1),
    (1, 4096, 19456, 2560): (128, 192, 2, 1, 1),
    (1, 4096, 4096, 14336): (128, 256, 2, 1, 0),
    (8, 2048, 2048, 2048): (128, 128, 2, 1, 1),
}


@pytest.mark.parametrize("extents", MEASURED, ids=lambda extents: "x".join(map(str, extents)))
def test_the_model_ranks_first_what_was_measured(extents):
    best = best_sm90([dict(zip(("batch", "m", "n", "k"), extents, strict=True))], 132)
    chosen = (best.tile_m, best.tile_n, best.cluster_m, best.splits, best.pingpong)
    assert chosen == MEASURED[extents] and not best.stream_k


def test_few_tiles_and_a_long_k_are_split():
    facts = facts_of(gemm_graphs.plain("g", 16, 512, 16384))
    best = best_sm90([facts.extents], 132)
    assert (best.splits > 1 or best.stream_k, best.tile_m) == (True, 64)
