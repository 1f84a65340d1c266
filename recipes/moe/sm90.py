"""``moe.sm90.persistent``: the grouped matmul on Hopper's tensor cores.

A plan has a branch with the TMA + WGMMA kernel and a slower one that takes any strides and any
element-aligned pointer; guards on the call's own strides and addresses choose. What a declaration
rules out for every call is the any-stride engine's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cudnn_aot.compiler.graph.enums import numerical_note
from cudnn_aot.compiler.planning.engine import Lowering, Refusal
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm.capability import SM90
from cudnn_aot.recipes.gemm.sm90 import A_PARTS, ScheduledEngine
from cudnn_aot.recipes.moe import lowering, tma
from cudnn_aot.recipes.moe.any_stride import any_stride_branch, zero_template
from cudnn_aot.recipes.moe.capability import MoeCapability
from cudnn_aot.recipes.moe.config import MoeConfig
from cudnn_aot.recipes.moe.facts import MoeFacts
from cudnn_aot.recipes.operand import ALIGN_BYTES, DTYPE_BYTES, FP8_DTYPES

TEMPLATE = "moe.kernels.sm90:grouped_matmul"
# Of tiles of 64 rows, which few rows get, boxes that a group has no rows in are not loaded.
BOXED_TILE_M = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCoreCapability(MoeCapability):
    """Of operands that the kernel may load and store."""

    def why_not_facts(self, facts: MoeFacts) -> str | None:
        return MoeCapability.why_not_facts(self, facts) or tma.why_not(facts)


class MoeSm90Persistent(ScheduledEngine):
    """Persistent TMA + WGMMA, groups found on the device, in one launch (SCATTER: after one that
    zeroes).

    Sums of FP8 products are fp32: the tensor cores, which keep fewer bits, add up 256 of K alone.
    """

    name = "moe.sm90.persistent"
    schedule = MoeConfig
    caps = (
        TensorCoreCapability(
            **SM90,
            dtypes=("BFLOAT16", "HALF", *FP8_DTYPES),
            layouts=("token contiguous along K, weight along K or N (FP8: K), output along N",),
            alignment_bytes=ALIGN_BYTES,
        ),
    )
    numerical_notes = frozenset({numerical_note.TENSOR_CORE})

    def configs(self, facts: MoeFacts, target: Target) -> Iterable[MoeConfig]:
        return MoeConfig.measured(DTYPE_BYTES[facts.token.dtype])

    def lower(self, facts: MoeFacts, knobs: MoeConfig, target: Target) -> Lowering | Refusal:
        if reason := knobs.why_not_for(DTYPE_BYTES[facts.token.dtype]):
            return Refusal(reason)
        sm_count: dict[str, Any] = {"arg": "int", "value": ["attr", "sm_count"]}
        fast = lowering.Branch(
            "tma",
            TEMPLATE,
            tma.guard(facts),
            {
                "b_major": tma.weight_major(facts),
                "tile": list(knobs.tile),
                "a_boxes": _a_boxes(facts, knobs),
                "store": "tma" if tma.stores_chunks(facts) else "direct",
            },
            (sm_count,),
            zero_template(facts),
        )
        return lowering.lower(facts, target, fast, any_stride_branch(facts))


def _a_boxes(facts: MoeFacts, config: MoeConfig) -> list[int]:
    """Rows of A that a load brings; one that gathers loads rows."""
    few = config.tile_m == BOXED_TILE_M and facts.mode != "GATHER"
    return A_PARTS if few else [config.tile_m]
