"""``gemm.sm90.any_stride``: the GEMM family on Hopper's CUDA cores. It takes any strides and any
element-aligned pointer, every type of operands, several matmuls of one A, and reductions of the
result.

The same branch serves, in the plans of the other engines, the calls that their fast one cannot
take. A reduction is folded in two steps, in the same order at every call: the blocks of the matmul
write what they leave of each tile to the workspace, and a second kernel folds that. The second step
is that of the tensor cores too, whose tiles are others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_aot.cache.spec import kernel_spec
from cudnn_aot.compiler.planning import expressions as ex
from cudnn_aot.compiler.planning.engine import Engine, Lowering, Refusal
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm import lowering
from cudnn_aot.recipes.gemm.capability import ANY_STRIDE, SM90, GemmCapability
from cudnn_aot.recipes.gemm.facts import EpilogueOutput, GemmFacts
from cudnn_aot.recipes.gemm.lowering import Json, KernelParts, Problem, TableBuilder, Variant

TEMPLATE = "gemm.kernels.simt:matmul"
FOLD_TEMPLATE = "gemm.kernels.fold:fold"
TILE = 64  # rows and columns of the result of which a block leaves one partial value


class GemmSm90AnyStride(Engine):
    """fp32 FMA or INT32 multiply-adds on the CUDA cores, whatever the strides and types; reductions
    in a second step.
    """

    name = "gemm.sm90.any_stride"
    caps = (GemmCapability(**SM90, **ANY_STRIDE),)

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


@dataclass(frozen=True, slots=True)
class SecondStep:
    """What reductions add to a branch.

    Attributes:
        outputs: the matmul's arguments for its outputs, partial values where one is reduced.
        workspace: slices for those values.
        steps: behind the matmul, one for each reduction.
    """

    outputs: list[Json]
    workspace: list[Json]
    steps: list[Json]


def second_step(
    builder: TableBuilder,
    facts: GemmFacts,
    variant: Variant,
    parts: KernelParts,
    tile: tuple[int, int],
    target: Target,
) -> SecondStep:
    """Of a matmul that leaves one partial value for each ``tile``, rows and columns of the
    result.
    """
    outputs, workspace, steps = list(parts.outputs), [], []
    p = lowering.problem(facts)
    for position, output in enumerate(variant.outputs):
        if output.reduction is None:
            continue
        partials = _partials(p, output, tile)
        outputs[position] = partials.view
        workspace.append(partials.slice)
        steps.append(_fold_step(builder, output, partials, parts.outputs[position], target))
    return SecondStep(outputs, workspace, steps)


@dataclass(frozen=True, slots=True)
class _Partials:
    """What the tiles leave of a reduction, fp32 ``(T, R, L)``, with an ``L`` for each run of the
    batch: ``T`` tiles along the folded axes for each of ``R`` rows or columns that are kept; and
    how many values each fold is of.
    """

    slice: Json
    view: Json
    count: ex.Expr


def _partials(p: Problem, output: EpilogueOutput, tile: tuple[int, int]) -> _Partials:
    assert output.reduction is not None
    axes = output.reduction.axes
    extents, sizes = {"m": p.m, "n": p.n}, dict(zip("mn", tile, strict=True))
    tiles = ex.mul(*(ex.ceil_div(extents[axis], sizes[axis]) for axis in axes))
    kept = ex.mul(*(extent for axis, extent in extents.items() if axis not in axes))
    name = f"partials{output.operand.uid}"
    size = ex.mul(4, tiles, kept, p.batch)
    return _Partials(
        slice={"name": name, "bytes": size, "align": lowering.WORKSPACE_ALIGN_BYTES},
        view={
            "arg": "tensor",
            "slice": name,
            "dtype": "FLOAT",
            "dim": [tiles, kept, *p.runs],
            "stride": [1, tiles, *p.dense(ex.mul(tiles, kept))],
        },
        count=ex.mul(*(extents[axis] for axis in axes)),
    )


def _fold_step(
    builder: TableBuilder, output: EpilogueOutput, partials: _Partials, view: Json, target: Target
) -> Json:
    """Fold the tiles' values into the output, ``(R, L)``."""
    assert output.reduction is not None
    params = {"mode": output.reduction.mode, "dtype": output.operand.dtype}
    params |= lowering.runs_params(builder.facts)
    kernel = builder.kernel(kernel_spec(FOLD_TEMPLATE, params, target))
    strides = dict(zip("mn", view["stride"], strict=False))
    kept = [strides[axis] for axis in "mn" if axis not in output.reduction.axes]
    out = view | {
        "dim": partials.view["dim"][1:],
        "stride": [*(kept or [0]), *view["stride"][2:]],
    }
    args = [{"arg": "launch"}, {"arg": "int", "value": partials.count}, partials.view, out]
    return {"step": "kernel", "kernel": kernel, "args": args}
