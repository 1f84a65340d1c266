"""Which plans of a grouped matmul to try: each machine has one engine, without knobs."""

from __future__ import annotations

from collections.abc import Sequence

from cudnn_aot.compiler.planning.engine import PlanConfig
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.moe.facts import MoeFacts


def recommend(
    kind: str, facts: MoeFacts, offered: Sequence[int], target: Target
) -> list[PlanConfig]:
    """Every offered engine, for either mode: each serves any call of a graph that it takes."""
    return [PlanConfig(engine_id, why="has no knobs") for engine_id in offered]
