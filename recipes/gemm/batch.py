"""A batch of matrices that are multiplied by one B, or each run of such ones of a batch, as one
matrix that has the rows of all.

So B is read once, and a tile may have rows of several matrices: eight matrices of one row are one
of eight. It is another way to give the problem to the same kernels, for calls in which each matrix
follows the one before; others are served as the batch that they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from cudnn_aot.compiler.graph.extents import mul
from cudnn_aot.compiler.planning import expressions as ex
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.lowering import (
    Json,
    KernelParts,
    Problem,
    Variant,
    bound_outputs,
    kernel_parts,
    problem,
)
from cudnn_aot.recipes.operand import bounds


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
    run, rows = facts.stacked_run(), facts.stacked()
    if run is not None and rows is not None:
        axis = 1 + len(facts.batch_runs) - facts.batch_runs.index(run)  # of views
        variant_of_rows = replace(variant, outputs=bound_outputs(rows.epilogue, variant.absent))
        p, count = problem(facts), problem(rows).m
        stacked = kernel_parts(rows, variant_of_rows)
        moved = replace(
            stacked,
            operands=[_stacked(view, axis, p, count) for view in stacked.operands],
            inputs=[_stacked(view, axis, p, count) for view in stacked.inputs],
            outputs=[_stacked(view, axis, p, count) for view in stacked.outputs],
        )
        has_several = all(
            bounds(extent, facts.symbols)[1] > 1
            for extent in (facts.m, mul(*run.extents(facts.batch)))
        )
        views = (*stacked.operands, *stacked.tail)
        guard = _follow(views, axis, p) if has_several else True
        yield Form("_rows", guard, rows, variant_of_rows, moved)
        if guard is True:
            return
    yield Form("", True, facts, variant, parts)


def _stacked(view: Json, axis: int, p: Problem, rows: ex.Expr) -> Json:
    """An argument with all ``rows`` of its ``axis``; what is the same for every matrix along that
    stays as it is.
    """
    if not _has_rows(view, axis):
        return view
    row, matrix = view["stride"][0], view["stride"][axis]
    if isinstance(p.m, int):
        step = row if p.m > 1 else matrix
    else:
        step = ["select", ex.lt(1, p.m), row, matrix]
    changed = {"dim": {0: rows, axis: 1}, "stride": {0: step, axis: 0}}
    return view | {
        key: [new.get(i, old) for i, old in enumerate(view[key])] for key, new in changed.items()
    }


def _follow(views: Iterable[Json], axis: int, p: Problem) -> ex.Predicate:
    """Whether the rows of a call's matrices follow each other along an axis of the views."""
    strides = [view["stride"] for view in views if _has_rows(view, axis)]
    follow = [ex.eq(stride[axis], ex.mul(p.m, stride[0])) for stride in strides]
    return ex.any_of(ex.lt(p.m, 2), ex.lt(p.runs[axis - 2], 2), ex.all_of(*follow))


def _has_rows(view: Json, axis: int) -> bool:
    return view["arg"] == "tensor" and view["stride"][axis] != 0
