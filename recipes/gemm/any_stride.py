"""``gemm.sm90.any_stride``: the GEMM family on Hopper's CUDA cores. It takes any strides and any
element-aligned pointer, every type of operands, several matmuls of one A, and reductions of the
result.

The same branch serves, in the plans of the other engines, the calls that their fast one cannot
take.
"""

from __future__ import annotations

from typing import Any

from cudnn_aot.cache.spec import kernel_spec
from cudnn_aot.compiler.planning.engine import Engine, Lowering, Refusal
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm import lowering
from cudnn_aot.recipes.gemm.capability import ANY_STRIDE, GemmCapability
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.folds import second_step
from cudnn_aot.recipes.gemm.lowering import KernelParts, TableBuilder, Variant

TEMPLATE = "gemm.kernels.simt:matmul"
TILE = 64  # rows and columns of the result of which a block leaves one partial value


class GemmSm90AnyStride(Engine):
    """fp32 FMA or INT32 multiply-adds on the CUDA cores, whatever the strides and types; reductions
    in a second step.
    """

    name = "gemm.sm90.any_stride"
    caps = (
        GemmCapability(
            kind="cuda",
            sm_lo=90,
            sm_hi=90,
            is_arch_specific=True,
            **ANY_STRIDE,
        ),
    )

    def lower(self, facts: GemmFacts, knobs: Any, target: Target) -> Lowering | Refusal:
        builder = TableBuilder(facts, "cuda")
        for variant, parts in builder.variants():
            add_any_stride_branch(builder, facts, variant, parts, target)
        return Lowering(tuple(builder.kernels), builder.table())


def add_any_stride_branch(
    builder: TableBuilder, facts: GemmFacts, variant: Variant, parts: KernelParts, target: Target
) -> None:
    """The branch that takes what none before it does."""
    params = lowering.matmul_params(facts, parts)
    kernel = builder.kernel(kernel_spec(TEMPLATE, params, target))
    folds = second_step(builder, facts, variant, parts, (TILE, TILE), target)
    args = [{"arg": "launch"}, *parts.operands, *parts.inputs, *folds.outputs]
    steps = [{"step": "kernel", "kernel": kernel, "args": args}, *folds.steps]
    builder.add(f"any_stride{variant.name}", variant.guard, folds.workspace, steps)
