"""``moe.host.blocked``: the grouped matmul on a CPU. Correct for any strides; blocked where the
weight has an inner stride of 1.
"""

from __future__ import annotations

from typing import Any

from cudnn_aot.compiler.planning.engine import Engine, Lowering, Refusal
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.moe import lowering
from cudnn_aot.recipes.moe.capability import MoeCapability
from cudnn_aot.recipes.moe.facts import MoeFacts

TEMPLATE = "moe.kernels.host:grouped_matmul"


class MoeHostBlocked(Engine):
    """One thread, group after group, fp32 accumulation."""

    name = "moe.host.blocked"
    caps = (MoeCapability(kind="cpu"),)

    def lower(self, facts: MoeFacts, knobs: Any, target: Target) -> Lowering | Refusal:
        return lowering.lower(facts, target, lowering.Branch("blocked", TEMPLATE))
