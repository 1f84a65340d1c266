"""A batch of matrices that are multiplied by one B, as one matrix that has the rows of all.

So B is read once, and a tile may have rows of several matrices: eight matrices of one row are one
of eight. It is another way to give the problem to the same kernels, for calls in which each matrix
follows the one before; others are served as the batch that they are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from cudnn_aot.compiler.graph.extents import mul
from cudnn_aot.compiler.planning import expressions as ex
from cudnn_aot.recipes.gemm.facts import (
    COL,
    FULL,
    ROW,
    SCALAR,
    Epilogue,
    EpilogueOutput,
    GemmFacts,
)
from cudnn_aot.recipes.gemm.lowering import (
    Json,
    KernelParts,
    Problem,
    Variant,
    batch_axes,
    bound_outputs,
    kernel_parts,
    problem,
)
from cudnn_aot.recipes.operand import INT32_MAX, Operand, bounds, pinned

# Of one row each: what spreads along the columns differs from matrix to matrix, so from row to row.
_KINDS_OF_ROWS = {ROW: FULL, SCALAR: COL}


@dataclass(frozen=True, slots=True)
class Form:
    """A way to give a problem to kernels: facts with the extents that they see, the arguments, and
    which calls it is for, beside what ``variant`` asks of one. Names of branches have ``name``.
    """

    name: str
    guard: ex.Predicate
    facts: GemmFacts
    variant: Variant
    parts: KernelParts


def forms(facts: GemmFacts, variant: Variant, parts: KernelParts) -> Iterator[Form]:
    """The batch as rows, if it is declared so; and as it is, whose ``parts`` are given, unless the
    rows serve every call that it does.
    """
    if (rows := as_rows(facts)) is not None:
        variant_of_rows = replace(variant, outputs=bound_outputs(rows.epilogue, variant.absent))
        p, count = problem(facts), problem(rows).m
        stacked = kernel_parts(rows, variant_of_rows)
        moved = replace(
            stacked,
            operands=[_stacked(view, p, count) for view in stacked.operands],
            inputs=[_stacked(view, p, count) for view in stacked.inputs],
            outputs=[_stacked(view, p, count) for view in stacked.outputs],
        )
        has_several = all(
            bounds(extent, facts.symbols)[1] > 1 for extent in (facts.m, mul(*facts.batch))
        )
        guard = _follow((*stacked.operands, *stacked.tail), p) if has_several else True
        yield Form("_rows", guard, rows, variant_of_rows, moved)
        if guard is True:
            return
    yield Form("", True, facts, variant, parts)


@functools.lru_cache(maxsize=64)  # ranking and lowering of a plan ask for the same
def as_rows(facts: GemmFacts) -> GemmFacts | None:
    """Facts with the extents of the one matrix, where the declared matrices are that: what has
    rows has those of a matrix behind those of the one before, and all else is that of every matrix.
    """
    m = mul(facts.m, *facts.batch)
    if all(extent == 1 for extent in facts.batch) or bounds(m, facts.symbols)[1] > INT32_MAX:
        return None
    epilogue = _of_one_row(facts.epilogue) if facts.m == 1 else facts.epilogue
    inputs, outputs = epilogue.inputs, epilogue.outputs
    with_rows = [facts.a, *(output.operand for output in outputs)]
    with_rows += [operand for operand, kind in inputs if kind in (FULL, COL)]
    of_all = [*facts.every_b, *(operand for operand, kind in inputs if kind in (ROW, SCALAR))]
    a_scale, *b_scales = facts.scales
    of_all += [scale.operand for scale in b_scales if scale]
    if a_scale:
        with_rows.append(a_scale.operand)
    if (
        any(batch_axes(operand) for operand in of_all)
        or any(output.reduction and output.reduction.axes != "n" for output in outputs)
        or (a_scale and a_scale.rows != 1)
        or not all(_follows(operand, facts) for operand in with_rows)
    ):
        return None
    return replace(facts, m=m, batch=(1,) * len(facts.batch), epilogue=epilogue)


@functools.lru_cache(maxsize=64)  # kernels' parts are remembered by the epilogue
def _of_one_row(epilogue: Epilogue) -> Epilogue:
    """An epilogue of matrices of one row each, as one of the rows of all: what differs by matrix
    differs by row, and what a matrix leaves is what a row does.
    """
    inputs = [
        (operand, _KINDS_OF_ROWS.get(kind, kind) if batch_axes(operand) else kind)
        for operand, kind in epilogue.inputs
    ]
    return replace(
        epilogue, inputs=tuple(inputs), outputs=tuple(map(_output_of_row, epilogue.outputs))
    )


def _output_of_row(output: EpilogueOutput) -> EpilogueOutput:
    if output.reduction and output.reduction.axes == "mn":
        return replace(output, reduction=replace(output.reduction, axes="n"))
    return output


def _follows(operand: Operand, facts: GemmFacts) -> bool:
    """Whether the rows of each matrix, as declared, are behind those of the one before."""
    axes = batch_axes(operand)
    if not axes or facts.m == 1:
        return bool(axes)
    step = mul(facts.m, operand.stride[operand.axis(-2)])
    return pinned(operand.stride[axes[-1]], facts.symbols) == pinned(step, facts.symbols)


def _stacked(view: Json, p: Problem, rows: ex.Expr) -> Json:
    """An argument with all ``rows``; what is the same for every matrix stays as it is."""
    if not _has_rows(view):
        return view
    row, column, matrix = view["stride"]
    if isinstance(p.m, int):
        step = row if p.m > 1 else matrix
    else:
        step = ["select", ex.lt(1, p.m), row, matrix]
    return view | {"dim": [rows, view["dim"][1], 1], "stride": [step, column, 0]}


def _follow(views: Iterable[Json], p: Problem) -> ex.Predicate:
    """Whether the rows of a call's matrices follow each other."""
    strides = [view["stride"] for view in views if _has_rows(view)]
    follow = [ex.eq(matrix, ex.mul(p.m, row)) for row, _, matrix in strides]
    return ex.any_of(ex.lt(p.m, 2), ex.lt(p.batch, 2), ex.all_of(*follow))


def _has_rows(view: Json) -> bool:
    return view["arg"] == "tensor" and view["stride"][2] != 0
