"""``gemm.sm90.folding``: the GEMM family on Hopper's tensor cores with reductions of the result.

The kernels and schedules of ``gemm.sm90.persistent``, whose tiles leave partial values that a
second kernel folds.
"""

from __future__ import annotations

from dataclasses import dataclass

from cudnn_aot.recipes.gemm.capability import GemmCapability
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.sm90 import SM90, TENSOR_CORES, GemmSm90Persistent


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldingCapability(GemmCapability):
    """Of graphs with reductions alone."""

    def why_not_facts(self, facts: GemmFacts) -> str | None:
        if not facts.epilogue.reductions:
            return "nothing of the result is reduced"
        return GemmCapability.why_not_facts(self, facts)


class GemmSm90Folding(GemmSm90Persistent):
    """Persistent TMA + WGMMA; reductions from partial values of each tile, in a second step."""

    name = "gemm.sm90.folding"
    caps = (FoldingCapability(**SM90 | TENSOR_CORES),)
