"""Which GEMM plans to try, best first, from facts and target alone: what was measured for few rows,
and the cost model of `model` for more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cudnn_aot.compiler.graph.extents import Extent, SymExpr
from cudnn_aot.compiler.planning.engine import PlanConfig
from cudnn_aot.compiler.planning.ranges import Ranges, by_rows
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm import few_rows, tma
from cudnn_aot.recipes.gemm.config import GemmConfig, GemvConfig, tile_class
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.few_rows_table import TABLES
from cudnn_aot.recipes.gemm.model import PLAIN, Extents, Menu, best_sm90, menu_for, rank_sm90
from cudnn_aot.recipes.operand import FP8_DTYPES

# Engine ids.
SM90_PERSISTENT, SM90_GEMV, SM90_ANY_STRIDE = 20_000, 20_002, 20_004

# A symbolic M is served by ranges that end at these rows: one, those of one load of A, of one tile,
# and of several, each twice the one before.
RANGE_ENDS = (1, 16, 64, 128, 256, 512, 1024)
TABLE_DTYPES = ("BFLOAT16", "HALF", *FP8_DTYPES, "INT8")
STREAM = GemvConfig(rows=2, columns=2, k_warps=2, unroll=2)  # behind what tiles do


def recommend(
    kind: str, facts: GemmFacts, offered: Sequence[int], target: Target
) -> list[PlanConfig | Ranges]:
    """Ranked plan entries for mode ``kind`` (``"A"`` or ``"FALLBACK"``), for the offered engine
    ids only.

    There is no marker for the backend's plans among them, so ours come first: no cell was timed
    beside cuDNN's yet. A cell that is found slower puts its plans behind the marker.
    """
    plans: list[PlanConfig | Ranges] = []
    declared, facts = facts, facts.stacked() or facts
    is_plain = not facts.epilogue.reductions and not facts.epilogue.nodes
    menu = menu_for(tile_class(facts), not is_plain) if SM90_PERSISTENT in offered else PLAIN
    reason = tma.why_never(facts)
    if kind == "A":
        engines = _of_few_rows(offered, reason is None)
        # Ranges are of one symbol: where the rows of all matrices have several, of those of each.
        has_several = isinstance(facts.m, SymExpr) and len(facts.m.symbols) > 1
        rows = declared.m if has_several else facts.m
        ranges = []
        if SM90_PERSISTENT in offered and reason is None:
            ranges = _ranges(rows, engines, facts, target.sm_count, menu)
        plans += ranges or _few_rows([facts.extents], engines, facts, target.sm_count)
    for engine_id in offered:
        if engine_id in (SM90_GEMV, SM90_ANY_STRIDE):
            continue
        if engine_id == SM90_PERSISTENT and reason is not None:
            # Its other kernel has no schedule: all knobs build the same.
            plans.append(PlanConfig(engine_id, menu.fallback, f"no TMA: {reason}"))
        elif engine_id == SM90_PERSISTENT and kind == "FALLBACK":
            plans.append(PlanConfig(engine_id, menu.fallback, "the smallest of everything"))
        elif engine_id == SM90_PERSISTENT:
            ranked = _ranked(engine_id, facts.extents, target.sm_count, menu)
            plans += [plan for plan in ranked if plan not in plans]
        else:
            plans.append(PlanConfig(engine_id, why="has no knobs"))
    stream = PlanConfig(SM90_GEMV, STREAM, "behind what tiles do")
    if kind == "A" and SM90_GEMV in offered and stream not in plans:  # right for any rows
        plans.append(stream)
    if SM90_ANY_STRIDE in offered:  # behind whatever moves more of the operands at a time
        plans.append(PlanConfig(SM90_ANY_STRIDE, why="takes what others cannot; has no knobs"))
    return plans


def _of_few_rows(offered: Sequence[int], has_tma: bool) -> dict[type, int]:
    """The engines among these whose schedules tables are of, by what those are."""
    engines: dict[type, int] = {}
    if SM90_PERSISTENT in offered and has_tma:
        engines[GemmConfig] = SM90_PERSISTENT
    if SM90_GEMV in offered:
        engines[GemvConfig] = SM90_GEMV
    return engines


def _few_rows(
    cases: Sequence[Extents], engines: Mapping[type, int], facts: GemmFacts, sm_count: int
) -> Iterator[PlanConfig]:
    """Best first, where all of these extents are of few rows, and a table is of such matrices:
    16-bit and FP8 along K. A chain, or another GPU of as many SMs, changes the times more than the
    order; so does INT8, which has the bytes of FP8, and goes by its tables.
    """
    tiles = tile_class(facts)
    table = TABLES.get(tiles._replace(is_integer=False))
    of = "of FP8 " if tiles.is_integer else ""
    is_measured = facts.a.dtype in TABLE_DTYPES and facts.majors() == ("k", "k")
    if table is None or not is_measured:
        return
    if not all(few_rows.is_measured(extents, sm_count) for extents in cases):
        return
    most, counted = cases[-1]["m"], "column" if facts.is_transposed else "row"
    times = table.times(most, cases[-1]["n"], cases[-1]["k"])
    for config in table.rank(cases, tuple(engines)):
        us = f"{times[config]:.1f} us for {most} {counted}{'s' * (most != 1)}"
        why = f"{us} {of}on an H200, by the table of few rows"
        yield PlanConfig(engines[type(config)], config, why)


def _ranked(engine_id: int, extents: Extents, sm_count: int, menu: Menu) -> list[PlanConfig]:
    ranked = rank_sm90(extents, sm_count, menu)
    return [PlanConfig(engine_id, config, f"modelled {us:.1f} us") for config, us in ranked]


def _ranges(
    rows: Extent, engines: Mapping[type, int], facts: GemmFacts, sm_count: int, menu: Menu
) -> list[Ranges]:
    """One plan for all of symbolic ``rows``, with a schedule per range; none where one does for
    all.
    """

    def best(values: Sequence[int], name: str) -> PlanConfig:
        cases = [facts.extents_at({name: value}) for value in values]
        few = next(_few_rows(cases, engines, facts, sm_count), None)
        return few or PlanConfig(SM90_PERSISTENT, best_sm90(cases, sm_count, menu))

    safe = PlanConfig(SM90_PERSISTENT, menu.fallback, "the smallest of everything")
    return by_rows(rows, facts.symbols, RANGE_ENDS, best, safe)
