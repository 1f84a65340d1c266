"""Which GEMM plans to try, best first, from facts and target alone: a table for very few rows, and
the cost model of `model` for more.
"""

from __future__ import annotations

from collections.abc import Sequence

from cudnn_aot.compiler.planning.engine import PlanConfig
from cudnn_aot.compiler.planning.ranges import Ranges, by_rows
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm import tma
from cudnn_aot.recipes.gemm.config import GemvConfig, tile_class
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.model import PLAIN, Extents, Menu, best_sm90, menu_for, rank_sm90

# Engine ids.
SM90_PERSISTENT, SM90_GEMV, SM90_ANY_STRIDE = 20_000, 20_002, 20_004

# Up to so many rows a kernel that streams B beats every tile, by 1 to 4 %; of the least columns on,
# schedules that are within 3 % of its best.
FEW_ROWS = 2
STREAMS = (
    (16384, GemvConfig(rows=2, columns=2, k_warps=1, unroll=2)),
    (4096, GemvConfig(rows=2, columns=2, k_warps=2, unroll=2)),
    (1024, GemvConfig(rows=2, columns=2, k_warps=8, unroll=2)),
)
# Below this, and for a batch or another type, nothing was measured: the model decides.
FEW_ROWS_K = 2048

# A symbolic M is served by ranges that end at these rows: those of the table, then of one and of
# several tiles, each twice the one before.
RANGE_ENDS = (FEW_ROWS, 64, 128, 256, 512, 1024)


def recommend(
    kind: str, facts: GemmFacts, offered: Sequence[int], target: Target
) -> list[PlanConfig | Ranges]:
    """Ranked plan entries for mode ``kind`` (``"A"`` or ``"FALLBACK"``), for the offered engine
    ids only.

    There is no marker for the backend's plans among them, so ours come first: no cell was timed
    beside cuDNN's yet. A cell that is found slower puts its plans behind the marker.
    """
    plans: list[PlanConfig | Ranges] = []
    is_plain = not facts.epilogue.reductions and not facts.epilogue.nodes
    menu = menu_for(tile_class(facts), not is_plain) if SM90_PERSISTENT in offered else PLAIN
    few = _few_rows([facts.extents], offered, facts)
    if kind == "A" and few and not facts.symbols:
        plans.append(few)
    for engine_id in offered:
        if engine_id in (SM90_GEMV, SM90_ANY_STRIDE):
            continue
        if engine_id == SM90_PERSISTENT and (reason := tma.why_never(facts)):
            # Its other kernel has no schedule: all knobs build the same.
            plans.append(PlanConfig(engine_id, menu.fallback, f"no TMA: {reason}"))
        elif engine_id == SM90_PERSISTENT and kind == "FALLBACK":
            plans.append(PlanConfig(engine_id, menu.fallback, "the smallest of everything"))
        elif engine_id == SM90_PERSISTENT:
            plans += _ranges(engine_id, offered, facts, target.sm_count, menu)
            plans += _ranked(engine_id, facts.extents, target.sm_count, menu)
        else:
            plans.append(PlanConfig(engine_id, why="has no knobs"))
    if kind == "A" and SM90_GEMV in offered:  # right for any rows
        plans.append(PlanConfig(SM90_GEMV, STREAMS[1][1], "behind what tiles do"))
    if SM90_ANY_STRIDE in offered:  # behind whatever moves more of the operands at a time
        plans.append(PlanConfig(SM90_ANY_STRIDE, why="takes what others cannot; has no knobs"))
    return plans


def _few_rows(
    cases: Sequence[Extents], offered: Sequence[int], facts: GemmFacts
) -> PlanConfig | None:
    """What the table has for all of these extents; None where it does not say."""
    n = min(extents["n"] for extents in cases)
    is_measured = facts.a.dtype == "BFLOAT16" and all(
        extents["batch"] == 1 and extents["m"] <= FEW_ROWS and extents["k"] >= FEW_ROWS_K
        for extents in cases
    )
    if is_measured and SM90_GEMV in offered:
        for least, config in STREAMS:
            if n >= least:
                why = f"the table's for up to {FEW_ROWS} rows"
                return PlanConfig(SM90_GEMV, config, why)
    return None


def _ranked(engine_id: int, extents: Extents, sm_count: int, menu: Menu) -> list[PlanConfig]:
    ranked = rank_sm90(extents, sm_count, menu)
    return [PlanConfig(engine_id, config, f"modelled {us:.1f} us") for config, us in ranked]


def _ranges(
    engine_id: int, offered: Sequence[int], facts: GemmFacts, sm_count: int, menu: Menu
) -> list[Ranges]:
    """One plan for all of a symbolic M, with a schedule per range; none where one does for all."""

    def best(values: Sequence[int], name: str) -> PlanConfig:
        cases = [facts.extents_at({name: value}) for value in values]
        few = _few_rows(cases, offered, facts)
        return few or PlanConfig(engine_id, best_sm90(cases, sm_count, menu))

    safe = PlanConfig(engine_id, menu.fallback, "the smallest of everything")
    return by_rows(facts.m, facts.symbols, RANGE_ENDS, best, safe)
