"""``gemm.host.blocked``: the GEMM family on a CPU. Correct for any strides; blocked where both
inner strides are 1.
"""

from __future__ import annotations

from typing import Any

from cudnn_aot.cache.spec import kernel_spec
from cudnn_aot.compiler.planning.engine import Engine, Lowering, Refusal
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm import lowering
from cudnn_aot.recipes.gemm.capability import ANY_STRIDE, GemmCapability
from cudnn_aot.recipes.gemm.facts import GemmFacts

TEMPLATE = "gemm.kernels.host:matmul"


class GemmHostBlocked(Engine):
    """One thread, the pointwise chain applied to each block of the result in fp32."""

    name = "gemm.host.blocked"
    caps = (GemmCapability(kind="cpu", **ANY_STRIDE),)

    def lower(self, facts: GemmFacts, knobs: Any, target: Target) -> Lowering | Refusal:
        builder = lowering.TableBuilder(facts, "cpu")
        for variant in lowering.variants(facts):
            steps = []
            if variant.outputs:
                parts = lowering.kernel_parts(facts, variant)
                params = {**lowering.operand_dtypes(facts), "epilogue": parts.epilogue}
                args = parts.operands + parts.tail
                kernel = builder.kernel(kernel_spec(TEMPLATE, params, target))
                steps = [{"step": "kernel", "kernel": kernel, "args": args}]
            builder.add(f"blocked{variant.name}", variant.guard, [], steps)
        return Lowering(tuple(builder.kernels), builder.table())
