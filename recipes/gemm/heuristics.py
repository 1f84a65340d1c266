"""Which GEMM configs to try, best first: a cost model over a short menu, from facts and target.

The model is a rough count per work item, in SM cycles: the slower of math and operand traffic,
plus what a tile costs besides its main loop; the waves of items over the SMs give the time of the
launch. It orders candidates; it does not predict.
"""

from __future__ import annotations

from collections.abc import Sequence

from cudnn_aot.compiler.planning.engine import PlanConfig
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.lowering import typical
from cudnn_aot.recipes.gemm.sm90 import GemmConfig

TILE_K = 64
# (tile_m, tile_n, cluster_m, cluster_n): two math warpgroups for 128 rows, one for 64.
# Smaller tiles first: they win ties.
SM90_TILES = (
    (64, 64, 1, 1),
    (64, 128, 1, 1),
    (64, 256, 1, 1),
    (128, 128, 2, 1),
    (128, 256, 2, 1),
)
SPLITS = (1, 2, 4, 8, 16)

# Dense bf16 WGMMA: 4096 multiply-adds per SM and cycle; a 64-row tile keeps one of two math
# warpgroups busy.
MATH_MACS_PER_CYCLE = {128: 4096.0, 64: 3300.0}
# Operand bytes that one SM takes from L2 per cycle.
OPERAND_BYTES_PER_CYCLE = 64.0
# All SMs together take this much from memory per cycle (4.2 TB/s at 1.755 GHz).
MEMORY_BYTES_PER_CYCLE = 2400.0
# What splitting costs whatever its size: the fill that zeroes the counters, 1.5 us, and the wait
# for the last block's partial tile.
SPLIT_CYCLES = 6500.0
# Pipeline fill, epilogue and store of one tile; writing and reading back a partial element costs
# more than storing a result.
TILE_CYCLES = 2200.0
STORE_BYTES_PER_CYCLE = 16.0


def recommend(
    kind: str, facts: GemmFacts, offered: Sequence[int], target: Target
) -> list[PlanConfig]:
    """Ranked plan entries for mode ``kind`` (``"A"`` or ``"FALLBACK"``), for the offered engine
    ids only.
    """
    plans = []
    for engine_id in offered:
        if engine_id % 100 == 0:
            configs = rank_sm90(facts, target.sm_count)
            if kind == "FALLBACK":
                configs = [GemmConfig(64, 128, TILE_K, 1, 1, 1)]
            plans += [PlanConfig(engine_id, config.knobs()) for config in configs]
        else:
            plans.append(PlanConfig(engine_id))
    return plans


def rank_sm90(facts: GemmFacts, sm_count: int) -> list[GemmConfig]:
    """The menu by modelled time, best first; ties keep the menu's order."""
    m, n, k = (max(1, typical(extent, facts.symbols)) for extent in (facts.m, facts.n, facts.k))
    batch = 1
    for extent in facts.batch:
        batch *= max(1, typical(extent, facts.symbols))
    configs = [
        GemmConfig(tile_m, tile_n, TILE_K, cluster_m, cluster_n, splits)
        for tile_m, tile_n, cluster_m, cluster_n in SM90_TILES
        for splits in SPLITS
        if splits <= max(1, k // (4 * TILE_K))
    ]
    return sorted(configs, key=lambda config: modelled_cycles(config, m, n, k, batch, sm_count))


def modelled_cycles(
    config: GemmConfig, m: int, n: int, k: int, batch: int, sm_count: int
) -> tuple[float, float]:
    """Modelled time of one launch in SM cycles; then, for ties on memory, that of the SMs alone."""
    tiles_m = -(-m // config.tile_m)
    tiles_n = -(-n // config.tile_n)
    clusters_m = -(-tiles_m // config.cluster_m) * config.cluster_m
    clusters_n = -(-tiles_n // config.cluster_n) * config.cluster_n
    items = clusters_m * clusters_n * batch * config.splits
    k_item = -(-k // config.splits)
    math = config.tile_m * config.tile_n * k_item / MATH_MACS_PER_CYCLE[config.tile_m]
    # Rows beyond the matrix are not read; a cluster shares what its blocks have in common.
    rows, columns = min(m, config.tile_m), min(n, config.tile_n)
    loaded = 2 * k_item * (rows / config.cluster_n + columns / config.cluster_m)
    cycles = max(math, loaded / OPERAND_BYTES_PER_CYCLE) + TILE_CYCLES
    if config.splits > 1:
        # Every split writes its partial tile, and the last to arrive reads them all.
        partial_bytes = 4 * config.tile_m * config.tile_n
        cycles += partial_bytes * (1 + config.splits / 2) / STORE_BYTES_PER_CYCLE
    waves = -(-items // sm_count)
    memory = 2 * batch * (m * k + n * k + m * n) / MEMORY_BYTES_PER_CYCLE
    launch = SPLIT_CYCLES if config.splits > 1 else 0.0
    return max(waves * cycles, memory + TILE_CYCLES) + launch, waves * cycles
