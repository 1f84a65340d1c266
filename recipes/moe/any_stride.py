"""``moe.sm90.any_stride``: the grouped matmul on Hopper's CUDA cores, for every layout.

One launch, whose grid follows from extents alone: blocks read the offsets and find their rows. No
number comes back to the host. SCATTER has one before it, which zeroes.

The same branch serves, in the plans of the other engine, the calls that its fast one cannot take.
"""

from __future__ import annotations

from typing import Any

from cudnn_aot.compiler.planning.engine import Engine, Lowering, Refusal
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm.capability import SM90
from cudnn_aot.recipes.moe import lowering
from cudnn_aot.recipes.moe.capability import MoeCapability
from cudnn_aot.recipes.moe.facts import MoeFacts

TEMPLATE = "moe.kernels.simt:grouped_matmul"
ZERO_TEMPLATE = "moe.kernels.simt:zero"


class MoeSm90AnyStride(Engine):
    """Groups found on the device, in one launch (SCATTER: after one that zeroes); fp32 FMA."""

    name = "moe.sm90.any_stride"
    caps = (MoeCapability(**SM90),)

    def lower(self, facts: MoeFacts, knobs: Any, target: Target) -> Lowering | Refusal:
        return lowering.lower(facts, target, any_stride_branch(facts))


def any_stride_branch(facts: MoeFacts) -> lowering.Branch:
    """The branch that takes every call."""
    return lowering.Branch("any_stride", TEMPLATE, zero=zero_template(facts))


def zero_template(facts: MoeFacts) -> str | None:
    """What goes before a kernel for Hopper that does not write every row of the output."""
    return ZERO_TEMPLATE if facts.mode == "SCATTER" else None
