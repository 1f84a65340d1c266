"""Which plans of a grouped matmul to try, best first: tiles by the cost model of matmuls.

A launch is modelled as a batch of matmuls, one of each group that has rows. Small groups get tiles
of 64 rows, of which loads bring what there is; columns and the number of groups decide how many
tiles there are for the SMs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from cudnn_aot.compiler.planning.engine import PlanConfig
from cudnn_aot.compiler.planning.ranges import Ranges, by_rows
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm.config import TileClass
from cudnn_aot.recipes.gemm.model import Extents, Menu, best_sm90, menu_for, rank_sm90
from cudnn_aot.recipes.moe import tma
from cudnn_aot.recipes.moe.config import MoeConfig
from cudnn_aot.recipes.moe.facts import MoeFacts
from cudnn_aot.recipes.operand import DTYPE_BYTES

SM90_PERSISTENT = 20_102
# As the model has them. What wins ties first: smaller tiles.
SCHEDULES = tuple((m, n, 1, 1, 1, 0, 0) for m in (64, 128) for n in range(32, 257, 32))
# A symbolic number of rows is served by ranges that end where a group has, on average, a load of
# few rows, one tile, and several.
RANGE_ENDS = (1, 16, 64, 128, 256, 512)


def recommend(
    kind: str, facts: MoeFacts, offered: Sequence[int], target: Target
) -> list[PlanConfig | Ranges]:
    """Ranked plan entries for mode ``kind`` (``"A"`` or ``"FALLBACK"``), for the offered engine
    ids only.
    """
    plans: list[PlanConfig | Ranges] = []
    if SM90_PERSISTENT in offered and tma.why_not(facts) is None:
        menu = menu_for(TileClass(DTYPE_BYTES[facts.token.dtype], 1), schedules=SCHEDULES)
        if kind == "FALLBACK":
            fallback = MoeConfig(*menu.fallback.tile)
            plans.append(PlanConfig(SM90_PERSISTENT, fallback, "the smallest of everything"))
        else:
            plans += _ranges(facts, target.sm_count, menu)
            for config, us in rank_sm90(as_batch(facts), target.sm_count, menu):
                tile, why = MoeConfig(*config.tile), f"modelled {us:.1f} us"
                plans.append(PlanConfig(SM90_PERSISTENT, tile, why))
    others = (engine_id for engine_id in offered if engine_id != SM90_PERSISTENT)
    return plans + [PlanConfig(engine_id, why="has no knobs") for engine_id in others]


def as_batch(facts: MoeFacts, given: Mapping[str, int] = MappingProxyType({})) -> Extents:
    """Extents of the batch of matmuls at ``given`` values of symbols, where rows choose their
    groups at random: of as many groups as are chosen, on the mean, and a standard deviation more
    rows than the mean of those, since a group of a few rows more than a tile takes two.
    """
    extents = facts.extents_at(given)
    rows, groups = max(extents["rows"], 1), facts.groups or 1
    chosen = max(round(groups * (1 - (1 - 1 / groups) ** rows)), 1)
    mean = rows / chosen
    m = min(math.ceil(mean + math.sqrt(mean)), rows)
    return {"batch": chosen, "m": m, "n": extents["n"], "k": extents["k"]}


def _ranges(facts: MoeFacts, sm_count: int, menu: Menu) -> list[Ranges]:
    """One plan for all of a symbolic number of rows, with a tile per range; none where one does for
    all.
    """

    def best(values: Sequence[int], name: str) -> PlanConfig:
        cases = [as_batch(facts, {name: value}) for value in values]
        return PlanConfig(SM90_PERSISTENT, MoeConfig(*best_sm90(cases, sm_count, menu).tile))

    safe = PlanConfig(SM90_PERSISTENT, MoeConfig(*menu.fallback.tile), "the smallest of everything")
    groups = facts.groups or 1
    return by_rows(facts.rows, facts.symbols, [groups * end for end in RANGE_ENDS], best, safe)
