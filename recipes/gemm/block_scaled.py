"""``gemm.sm90.block_scaled``: FP8 whose A or B has a scale for each block of rows and K, on Hopper.

The kernels and schedules of ``gemm.sm90.persistent``, which scale the sums of a block before they
are added.
"""

from __future__ import annotations

from dataclasses import dataclass

from cudnn_aot.recipes.gemm.capability import SCALES, GemmCapability
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.sm90 import SM90, TENSOR_CORES, GemmSm90Persistent
from cudnn_aot.recipes.operand import FP8_DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockScaledCapability(GemmCapability):
    """Of graphs with such scales alone."""

    scales: bool = True

    def why_not_facts(self, facts: GemmFacts) -> str | None:
        if not facts.is_scaled:
            return "neither A nor B has a scale for each block"
        return GemmCapability.why_not_facts(self, facts)


class GemmSm90BlockScaled(GemmSm90Persistent):
    """Persistent TMA + WGMMA whose sums of 128 of K are scaled in fp32 before they are added."""

    name = "gemm.sm90.block_scaled"
    caps = (
        BlockScaledCapability(
            **SM90
            | TENSOR_CORES
            | {"dtypes": FP8_DTYPES, "features": (*TENSOR_CORES["features"], SCALES)}
        ),
    )
