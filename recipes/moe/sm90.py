"""``moe.sm90.any_stride``: the grouped matmul on Hopper, for every layout.

One launch, whose grid follows from extents alone: blocks read the offsets and find their rows. No
number comes back to the host. SCATTER has one before it, which zeroes.
"""

from __future__ import annotations

from typing import Any

from cudnn_aot.compiler.planning.engine import Engine, Lowering, Refusal
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.moe import lowering
from cudnn_aot.recipes.moe.capability import MoeCapability
from cudnn_aot.recipes.moe.facts import MoeFacts

TEMPLATE = "moe.kernels.simt:grouped_matmul"
ZERO_TEMPLATE = "moe.kernels.simt:zero"


class MoeSm90AnyStride(Engine):
    """Groups found on the device, in one launch (SCATTER: after one that zeroes); fp32 FMA."""

    name = "moe.sm90.any_stride"
    caps = (MoeCapability(kind="cuda", sm_lo=90, sm_hi=90, is_arch_specific=True),)

    def lower(self, facts: MoeFacts, knobs: Any, target: Target) -> Lowering | Refusal:
        zero = ZERO_TEMPLATE if facts.mode == "SCATTER" else None
        return lowering.lower(facts, TEMPLATE, "any_stride", target, zero)
