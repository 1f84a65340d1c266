"""Which GEMM configs to try, best first: a cost model over a short menu, from facts and target.

The model is a rough count per work item, in SM cycles: the slower of math and operand traffic,
plus what a tile costs besides its main loop; the waves of items over the SMs give the time of the
launch. It orders candidates; it does not predict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cudnn_aot.compiler.graph.extents import SymExpr
from cudnn_aot.compiler.planning.engine import PlanConfig
from cudnn_aot.compiler.planning.ranges import Range, Ranges
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm import tma
from cudnn_aot.recipes.gemm.config import GemmConfig
from cudnn_aot.recipes.gemm.facts import GemmFacts

SM90_PERSISTENT = 20_000  # engine id
Extents = dict[str, int]  # batch, m, n, k

TILE_K = 64
# (tile_m, tile_n, cluster_m, cluster_n): two math warpgroups for 128 rows, one for 64.
# Smaller tiles first: they win ties.
MENU = (
    (64, 64, 1, 1),
    (64, 128, 1, 1),
    (64, 256, 1, 1),
    (128, 128, 2, 1),
    (128, 256, 2, 1),
)
SPLITS = (1, 2, 4, 8, 16)
CONFIGS = tuple(
    GemmConfig(tile_m, tile_n, TILE_K, cluster_m, cluster_n, splits)
    for tile_m, tile_n, cluster_m, cluster_n in MENU
    for splits in SPLITS
)
# Serves every graph, whatever its extents.
FALLBACK = GemmConfig(64, 128, TILE_K, 1, 1, 1)

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
CYCLES_PER_US = 1755.0


# A symbolic M is served by ranges that end at these rows: decode of one, of a quarter of a tile, of
# one tile of 64, and then where two and more tiles of rows fill the SMs.
RANGE_ENDS = (1, 16, 64, 256, 1024)


def recommend(
    kind: str, facts: GemmFacts, offered: Sequence[int], target: Target
) -> list[PlanConfig | Ranges]:
    """Ranked plan entries for mode ``kind`` (``"A"`` or ``"FALLBACK"``), for the offered engine
    ids only.

    There is no marker for the backend's plans among them, so ours come first: no cell was timed
    beside cuDNN's yet. A cell that is found slower puts its plans behind the marker.
    """
    plans: list[PlanConfig | Ranges] = []
    for engine_id in offered:
        if engine_id == SM90_PERSISTENT and (reason := tma.why_never(facts)):
            # Its other kernel has no schedule: all knobs build the same.
            plans.append(PlanConfig(engine_id, FALLBACK, f"no TMA: {reason}"))
        elif engine_id == SM90_PERSISTENT and kind == "FALLBACK":
            plans.append(PlanConfig(engine_id, FALLBACK, "the smallest of everything"))
        elif engine_id == SM90_PERSISTENT:
            plans += _ranges(engine_id, facts, target.sm_count)
            plans += _ranked(engine_id, facts.extents, target.sm_count)
        else:
            plans.append(PlanConfig(engine_id, why="has no knobs"))
    return plans


def _ranked(engine_id: int, extents: Extents, sm_count: int) -> list[PlanConfig]:
    ranked = rank_sm90([extents], sm_count)
    return [PlanConfig(engine_id, config, f"modelled {us:.1f} us") for config, us in ranked]


def rank_sm90(cases: Sequence[Extents], sm_count: int) -> list[tuple[GemmConfig, float]]:
    """The menu by modelled time, best first, each with its microseconds in the first case; ties
    keep the menu's order.

    For several cases, by the sum over them of how much slower than the best a config is.
    """
    longest_k = max(extents["k"] for extents in cases)
    configs = [config for config in CONFIGS if config.splits <= max(1, longest_k // (4 * TILE_K))]
    modelled = [modelled_cycles(configs, extents, sm_count) for extents in cases]
    order: list[Any] = modelled[0]
    if len(cases) > 1:
        order = [0.0] * len(configs)
        for times in modelled:
            fastest = min(times)[0]
            order = [lag + time[0] / fastest for lag, time in zip(order, times, strict=True)]
    places = sorted(range(len(configs)), key=order.__getitem__)
    return [(configs[place], modelled[0][place][0] / CYCLES_PER_US) for place in places]


def _ranges(engine_id: int, facts: GemmFacts, sm_count: int) -> list[Ranges]:
    """One plan for all of a symbolic M, with a schedule per range; none where one does for all."""
    if not isinstance(facts.m, SymExpr) or len(facts.m.symbols) != 1:
        return []
    (name,) = facts.m.symbols
    symbol = facts.symbols[name]
    step = symbol.multiple_of
    ends = [end // facts.m.coef // step * step for end in RANGE_ENDS]
    # A range of the value 0 alone would be a schedule for no rows.
    ends = [end for end in dict.fromkeys(ends) if max(symbol.min, 1) <= end < symbol.max]
    ends.append(symbol.max)
    parts: list[tuple[int, int, GemmConfig]] = []
    low = symbol.min
    for high in ends:
        best, _ = rank_sm90(_samples(facts, name, low, high), sm_count)[0]
        if parts and parts[-1][2] == best:
            parts[-1] = (parts[-1][0], high, best)
        else:
            parts.append((low, high, best))
        low = high + 1
    if len(parts) == 1:
        return []
    ranges = (
        Range(((name, low, high),), PlanConfig(engine_id, config)) for low, high, config in parts
    )
    why = f"the model's best for each of {len(parts)} ranges of {name}"
    return [Ranges(tuple(ranges), why)]


def _samples(facts: GemmFacts, name: str, low: int, high: int) -> list[Extents]:
    """Extents at the hint, if it lies in the range, else at both ends and in the middle."""
    hint = facts.symbols[name].hint
    if hint is not None and low <= hint <= high:
        values = [hint]
    else:
        values = [low, math.isqrt(max(low, 1) * high), high]
    samples = []
    for value in dict.fromkeys(values):
        samples.append(facts.extents_at({name: value}))
    return samples


def modelled_cycles(
    configs: Sequence[GemmConfig], extents: Extents, sm_count: int
) -> list[tuple[float, float]]:
    """Modelled time of one launch of each config, in SM cycles; then, for ties on memory, that of
    the SMs alone.

    A symbolic graph asks for some hundred of them: what configs share is computed once.
    """
    m, n, k, batch = (max(1, extents[name]) for name in ("m", "n", "k", "batch"))
    memory = 2 * batch * (m * k + n * k + m * n) / MEMORY_BYTES_PER_CYCLE
    floor = memory + TILE_CYCLES
    modelled = []
    tile: tuple[int, int, int, int] | None = None
    for config in configs:
        own = config.tile_m, config.tile_n, config.cluster_m, config.cluster_n
        if own != tile:  # configs that differ in splits alone follow each other
            tile_m, tile_n, cluster_m, cluster_n = tile = own
            clusters_m = -(-m // (tile_m * cluster_m)) * cluster_m
            clusters_n = -(-n // (tile_n * cluster_n)) * cluster_n
            tiles = clusters_m * clusters_n * batch
            # Rows beyond the matrix are not read; a cluster shares what its blocks have in common.
            rows, columns = min(m, tile_m) / cluster_n, min(n, tile_n) / cluster_m
            per_k = max(
                tile_m * tile_n / MATH_MACS_PER_CYCLE[tile_m],
                2 * (rows + columns) / OPERAND_BYTES_PER_CYCLE,
            )
            partial = 4 * tile_m * tile_n / STORE_BYTES_PER_CYCLE
        splits = config.splits
        cycles = -(-k // splits) * per_k + TILE_CYCLES
        launch = 0.0
        if splits > 1:
            # Every split writes its partial tile, and the last to arrive reads them all.
            cycles += partial * (1 + splits / 2)
            launch = SPLIT_CYCLES
        cycles *= -(-tiles * splits // sm_count)  # waves
        modelled.append(((cycles if cycles > floor else floor) + launch, cycles))
    return modelled
