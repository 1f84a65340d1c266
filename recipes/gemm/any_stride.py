"""``gemm.sm90.any_stride``: the GEMM family on Hopper by the kernel that takes any strides."""

from __future__ import annotations

from typing import Any

from cudnn_aot.compiler.planning.engine import Engine, Lowering, Refusal
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm import lowering
from cudnn_aot.recipes.gemm.capability import ANY_STRIDE, GemmCapability
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.sm90 import SM90, add_any_stride_branch


class GemmSm90AnyStride(Engine):
    """fp32 FMA or INT32 multiply-adds on the CUDA cores: every type, any strides."""

    name = "gemm.sm90.any_stride"
    caps = (GemmCapability(**{**SM90, **ANY_STRIDE, "alignment_bytes": 1}),)

    def lower(self, facts: GemmFacts, knobs: Any, target: Target) -> Lowering | Refusal:
        builder = lowering.TableBuilder(facts, "cuda")
        for variant in lowering.variants(facts):
            if not variant.outputs:
                builder.add(f"nothing{variant.name}", variant.guard, [], [])
                continue
            parts = lowering.kernel_parts(facts, variant)
            add_any_stride_branch(builder, facts, variant, parts, target)
        return Lowering(tuple(builder.kernels), builder.table())
