"""Which GEMM plans to try, best first, from facts and target alone: a table for few rows, and a
cost model over a short menu for more.

The model is a rough count per work item, in SM cycles: the slower of math and operand traffic,
plus what a tile costs besides its main loop; the waves of items over the SMs give the time of the
launch. It orders candidates; it does not predict. Its numbers and the table were fitted to what
`cudnn-aot tune` measured on an H200 (bench/NOTES.md, "Schedules by measurement").
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cudnn_aot.compiler.graph.extents import Symbol, SymExpr
from cudnn_aot.compiler.planning.engine import PlanConfig
from cudnn_aot.compiler.planning.ranges import Range, Ranges
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm import tma
from cudnn_aot.recipes.gemm.config import GemmConfig, GemvConfig, tile_class
from cudnn_aot.recipes.gemm.facts import GemmFacts

# Engine ids.
SM90_PERSISTENT, SM90_GEMV, SM90_ANY_STRIDE = 20_000, 20_002, 20_004
Extents = dict[str, int]  # batch, m, n, k

TILE_K_BYTES = 128
# (tile_m, tile_n, cluster_m, cluster_n): two math warpgroups for 128 rows, one for 64.
# What wins ties first: smaller tiles, and to share B, which is read from memory, before A.
MENU = (
    (64, 64, 1, 1),
    (64, 64, 2, 1),
    (64, 64, 1, 2),
    (64, 128, 1, 1),
    (64, 128, 2, 1),
    (64, 128, 1, 2),
    (64, 256, 2, 1),
    (128, 128, 2, 1),
    (128, 256, 2, 1),
)
SPLITS = (1, 2, 4, 8)

# Multiply-adds per SM and cycle that a tile reaches in BFLOAT16, by its rows and the columns of all
# of its products; the peak is 2048.
MATH_MACS_PER_CYCLE = {
    (64, 64): 1300.0,
    (64, 128): 1450.0,
    (64, 256): 1475.0,
    (128, 128): 1565.0,
    (128, 256): 1800.0,
}
# How many times as many of FP8, by the rows of a tile. The tensor cores do twice as many; while one
# math warpgroup promotes its sums, they work for the other, if there is one. An estimate.
FP8_SPEEDUP = {64: 1.25, 128: 1.8}
# Operand bytes that one SM asks of L2 per cycle; rows beyond the matrix cost as much as others.
OPERAND_BYTES_PER_CYCLE = 42.0
# All SMs together take this much from memory per cycle (3.5 TB/s at 1.755 GHz).
MEMORY_BYTES_PER_CYCLE = 2000.0
# What splitting costs whatever its size: the fill that zeroes the counters, and the wait for the
# last block's partial tile.
SPLIT_CYCLES = 4500.0
# Pipeline fill, epilogue and store of one tile; writing and reading back a partial element costs
# more than storing a result.
TILE_CYCLES = 2200.0
STORE_BYTES_PER_CYCLE = 16.0
CYCLES_PER_US = 1755.0


@dataclass(frozen=True, slots=True)
class Menu:
    """The schedules to rank for a class of tiles, see `tile_class`.

    Attributes:
        configs: every tile with every number of splits, in the order of ties.
        tiles: rows of `MENU`, each with the cycles of math per element of K, and of storing a
            partial tile.
        fallback: serves every graph, whatever its extents.
    """

    element_bytes: int
    products: int
    splits: tuple[int, ...]
    configs: tuple[GemmConfig, ...]
    tiles: tuple[tuple[int, int, int, int, float, float], ...]
    fallback: GemmConfig

    @property
    def tile_k(self) -> int:
        return TILE_K_BYTES // self.element_bytes


@functools.lru_cache(maxsize=8)
def menu_for(element_bytes: int, products: int) -> Menu:
    """The menu of a class of tiles."""
    tile_k, splits = TILE_K_BYTES // element_bytes, SPLITS if products == 1 else SPLITS[:1]
    rows = [
        (tile_m, tile_n, cluster_m, cluster_n)
        for tile_m, tile_n, cluster_m, cluster_n in MENU
        if GemmConfig(tile_m, tile_n, tile_k, cluster_m, cluster_n, 1).why_not_for(
            element_bytes, products
        )
        is None
    ]
    tiles = []
    for tile_m, tile_n, cluster_m, cluster_n in rows:
        columns = products * tile_n
        macs = MATH_MACS_PER_CYCLE[tile_m, columns]
        if element_bytes == 1:
            macs *= FP8_SPEEDUP[tile_m]
        tiles.append(
            (
                tile_m,
                tile_n,
                cluster_m,
                cluster_n,
                tile_m * columns / macs,
                4 * tile_m * tile_n / STORE_BYTES_PER_CYCLE,
            )
        )
    configs = tuple(
        GemmConfig(tile_m, tile_n, tile_k, cluster_m, cluster_n, count, int(count > 1))
        for tile_m, tile_n, cluster_m, cluster_n in rows
        for count in splits
    )
    fallback = GemmConfig(64, 128, tile_k, 1, 1, 1)
    return Menu(element_bytes, products, splits, configs, tuple(tiles), fallback)


PLAIN = menu_for(2, 1)  # of one matmul of 16-bit elements
CONFIGS, FALLBACK = PLAIN.configs, PLAIN.fallback

_NEVER = (math.inf, math.inf)

# Up to so many rows a kernel that streams B beat every tile, on B of 50 and of 117 MB in BFLOAT16;
# these schedules are within 4 % of the best at each number of rows.
FEW_ROWS = ((2, SM90_GEMV, GemvConfig(rows=2, columns=2, k_warps=4, unroll=2)),)
STREAMS = {engine_id: config for _, engine_id, config in FEW_ROWS}
# Below these, and for a batch or another type, nothing was measured: the model decides.
FEW_ROWS_N, FEW_ROWS_K = 4096, 4096

# A symbolic M is served by ranges that end at these rows: those of the table, then of one and of
# several tiles, each twice the one before.
RANGE_ENDS = (2, 16, 64, 128, 256, 512, 1024)


def recommend(
    kind: str, facts: GemmFacts, offered: Sequence[int], target: Target
) -> list[PlanConfig | Ranges]:
    """Ranked plan entries for mode ``kind`` (``"A"`` or ``"FALLBACK"``), for the offered engine
    ids only.

    There is no marker for the backend's plans among them, so ours come first: no cell was timed
    beside cuDNN's yet. A cell that is found slower puts its plans behind the marker.
    """
    plans: list[PlanConfig | Ranges] = []
    menu = menu_for(*tile_class(facts)) if SM90_PERSISTENT in offered else PLAIN
    few = _few_rows([facts.extents], offered, facts)
    if kind == "A" and few and not facts.symbols:
        plans.append(few)
    for engine_id in offered:
        if engine_id in STREAMS or engine_id == SM90_ANY_STRIDE:
            continue
        if engine_id == SM90_PERSISTENT and (reason := tma.why_never(facts)):
            # Its other kernel has no schedule: all knobs build the same.
            plans.append(PlanConfig(engine_id, menu.fallback, f"no TMA: {reason}"))
        elif engine_id == SM90_PERSISTENT and kind == "FALLBACK":
            plans.append(PlanConfig(engine_id, menu.fallback, "the smallest of everything"))
        elif engine_id == SM90_PERSISTENT:
            plans += _ranges(offered, facts, target.sm_count, menu)
            plans += _ranked(engine_id, facts.extents, target.sm_count, menu)
        else:
            plans.append(PlanConfig(engine_id, why="has no knobs"))
    if kind == "A":  # right for any rows, and best for none that the table does not name
        why = "behind what tiles do"
        plans += [PlanConfig(e, config, why) for e, config in STREAMS.items() if e in offered]
    if SM90_ANY_STRIDE in offered:  # behind whatever moves more of the operands at a time
        plans.append(PlanConfig(SM90_ANY_STRIDE, why="takes what others cannot; has no knobs"))
    return plans


def _few_rows(
    cases: Sequence[Extents], offered: Sequence[int], facts: GemmFacts
) -> PlanConfig | None:
    """What the table has for all of these extents; None where it does not say."""
    rows = max(extents["m"] for extents in cases)
    is_measured = facts.a.dtype == "BFLOAT16" and all(
        extents["batch"] == 1 and extents["n"] >= FEW_ROWS_N and extents["k"] >= FEW_ROWS_K
        for extents in cases
    )
    for most, engine_id, config in FEW_ROWS:
        if rows <= most and is_measured and engine_id in offered:
            return PlanConfig(engine_id, config, f"the table's for up to {most} rows")
    return None


def _ranked(engine_id: int, extents: Extents, sm_count: int, menu: Menu) -> list[PlanConfig]:
    ranked = rank_sm90(extents, sm_count, menu)
    return [PlanConfig(engine_id, config, f"modelled {us:.1f} us") for config, us in ranked]


def rank_sm90(
    extents: Extents, sm_count: int, menu: Menu = PLAIN
) -> list[tuple[GemmConfig, float]]:
    """The menu by modelled microseconds, best first; ties keep the menu's order."""
    splits = _splits([extents], menu)
    modelled = modelled_cycles(splits, extents, sm_count, menu)
    pairs = zip(_configs(splits, menu), modelled, strict=True)
    worth = [pair for pair in pairs if pair[1] is not _NEVER]
    return [(c, t[0] / CYCLES_PER_US) for c, t in sorted(worth, key=operator.itemgetter(1))]


def best_sm90(cases: Sequence[Extents], sm_count: int, menu: Menu = PLAIN) -> GemmConfig:
    """The first of `rank_sm90`; for several cases, by the sum over them of how much slower than the
    best a config is.
    """
    splits = _splits(cases, menu)
    modelled = [modelled_cycles(splits, extents, sm_count, menu) for extents in cases]
    order: Sequence[Any] = modelled[0]
    if len(cases) > 1:
        order = [0.0] * len(order)
        for times in modelled:
            fastest = min(times)[0]
            order = [lag + time / fastest for lag, (time, _) in zip(order, times, strict=True)]
    return _configs(splits, menu)[order.index(min(order))]


def _splits(cases: Sequence[Extents], menu: Menu) -> list[int]:
    """The splits of the menu that leave each block work to do."""
    longest_k = max(extents["k"] for extents in cases)
    return [splits for splits in menu.splits if splits <= max(1, longest_k // (4 * menu.tile_k))]


def _configs(splits: Sequence[int], menu: Menu) -> list[GemmConfig]:
    return [config for config in menu.configs if config.splits <= splits[-1]]


def _ranges(offered: Sequence[int], facts: GemmFacts, sm_count: int, menu: Menu) -> list[Ranges]:
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
    parts: list[tuple[int, int, PlanConfig, list[int]]] = []
    low = symbol.min
    for high in ends:
        values = _samples(symbol, low, high)
        cases = [facts.extents_at({name: value}) for value in values]
        best = _few_rows(cases, offered, facts) or PlanConfig(
            SM90_PERSISTENT, best_sm90(cases, sm_count, menu)
        )
        if parts and parts[-1][2] == best:
            low, _, _, earlier = parts.pop()
            values = earlier + values
        parts.append((low, high, best, values))
        low = high + 1
    if len(parts) == 1:
        return []
    safe = PlanConfig(SM90_PERSISTENT, menu.fallback, "the smallest of everything")
    ranges = []
    for low, high, best, values in parts:
        why = best.why or f"the model's best at {name}={', '.join(map(str, values))}"
        plan = PlanConfig(best.engine_id, best.knobs, why)
        ranges.append(Range(((name, low, high),), plan, () if plan == safe else (safe,)))
    return [Ranges(tuple(ranges), f"the best for each of {len(parts)} ranges of {name}")]


def _samples(symbol: Symbol, low: int, high: int) -> list[int]:
    """The hint, if it lies in the range, else both ends and the middle."""
    if symbol.hint is not None and low <= symbol.hint <= high:
        return [symbol.hint]
    return list(dict.fromkeys([low, math.isqrt(max(low, 1) * high), high]))


def modelled_cycles(
    splits: Sequence[int], extents: Extents, sm_count: int, menu: Menu = PLAIN
) -> list[tuple[float, float]]:
    """Modelled time of one launch of each tile of the menu with each of ``splits``, in SM cycles;
    then, for ties on memory, that of the SMs alone.

    A symbolic graph asks for some hundred of them: what they share is computed once.
    """
    m, n, k, batch = (extents[name] or 1 for name in ("m", "n", "k", "batch"))
    element_bytes, products = menu.element_bytes, menu.products
    moved = element_bytes * k * (m + products * n) + 2 * m * n
    memory = batch * moved / MEMORY_BYTES_PER_CYCLE
    floor = memory + TILE_CYCLES
    # Every split writes its partial tile, and the last to arrive reads them all.
    ways = [
        (count, -(-k // count), 1 + count / 2, SPLIT_CYCLES) if count > 1 else (1, k, 0.0, 0.0)
        for count in splits
    ]
    modelled = []
    for tile_m, tile_n, cluster_m, cluster_n, math_cycles, partial in menu.tiles:
        tiles_m, tiles_n = -(-m // tile_m), -(-n // tile_n)
        clusters_m = -(-tiles_m // cluster_m) * cluster_m
        clusters_n = -(-tiles_n // cluster_n) * cluster_n
        tiles = clusters_m * clusters_n * batch
        # A cluster shares what its blocks have in common; alone, a block shares nothing.
        rows = tile_m / cluster_n if tiles_n > 1 else tile_m
        columns = tile_n / cluster_m if tiles_m > 1 else tile_n
        per_k = element_bytes * (rows + products * columns) / OPERAND_BYTES_PER_CYCLE
        if per_k < math_cycles:
            per_k = math_cycles
        for count, length, partials, launch in ways:
            if count > 1 and tiles >= sm_count:  # every SM has a tile to work at
                modelled.append(_NEVER)
                continue
            waves = -(-tiles * count // sm_count)
            cycles = (length * per_k + TILE_CYCLES + partial * partials) * waves
            modelled.append(((cycles if cycles > floor else floor) + launch, cycles))
    return modelled
