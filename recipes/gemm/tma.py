"""Which operands a declaration lets TMA move; the ranking and the lowering both go by it.

A TMA descriptor takes 16-byte addresses, one contiguous axis, and on the others strides that are
16-byte multiples above 0. What is said here is of buffers laid out as declared: a graph that rules
TMA out gets no branch with it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from cudnn_aot.compiler.graph.extents import Symbol
from cudnn_aot.compiler.planning import expressions as ex
from cudnn_aot.recipes.gemm import lowering
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.runs import Run
from cudnn_aot.recipes.operand import (
    ALIGN_BYTES,
    DTYPE_BYTES,
    Operand,
    bounds,
    is_multiple,
)

# Of blocks that have a scale: a k tile of FP8, and the columns of the least tile.
SCALED_DEPTH, SCALED_COLUMNS = 128, 32


def batch_axes(operand: Operand, runs: Sequence[Run] | None) -> list[list[int]]:
    """Its own batch axes, by those that are one axis; ``runs`` None says that all are."""
    every = [operand.batch_axes] if runs is None else [run.of(operand) for run in reversed(runs)]
    return [axes for axes in every if axes]


def stepped_axes(operand: Operand, unit_axis: int, runs: Sequence[Run] | None) -> list[int]:
    """The axes whose strides a descriptor has: the matrix's other axis, and the innermost of each
    run of the batch.

    ``unit_axis`` is the contiguous one, -1 or -2.
    """
    return [operand.axis(-3 - unit_axis), *(axes[-1] for axes in batch_axes(operand, runs))]


@functools.lru_cache(maxsize=256)  # every range of a plan has the same
def guard(operand: Operand, unit_axis: int, runs: tuple[Run, ...] | None = None) -> ex.Predicate:
    """Whether the buffer of a call fits a descriptor whose contiguous axis is ``unit_axis`` (-1 or
    -2).
    """
    other = stepped_axes(operand, unit_axis, runs)[0]
    strides = [ex.stride(operand.uid, other)]
    strides += [lowering.axes_step(operand, axes) for axes in batch_axes(operand, runs)]
    return ex.all_of(
        ex.aligned(operand.uid, ALIGN_BYTES),
        ex.eq(ex.stride(operand.uid, operand.axis(unit_axis)), 1),
        *(ex.divides(step_elements(operand), stride) for stride in strides),
        *(ex.lt(0, stride) for stride in strides),
    )


def step_elements(operand: Operand) -> int:
    """What strides are multiples of, in elements."""
    return ALIGN_BYTES // DTYPE_BYTES[operand.dtype]


def matrices(facts: GemmFacts, axes: tuple[int, int]) -> list[tuple[Operand, int]]:
    """A and every B, each with its contiguous axis of ``axes``, what `unit_axes` gives."""
    return [(facts.a, axes[0]), *((b, axes[1]) for b in facts.every_b)]


def unit_axes(facts: GemmFacts) -> tuple[int, int] | None:
    """The contiguous axes of A and of B, -1 or -2; None if one has none."""
    majors = facts.majors()
    if majors is None:
        return None
    return -1 if majors[0] == "k" else -2, -2 if majors[1] == "k" else -1


def why_not(facts: GemmFacts, outputs: Sequence[Operand]) -> str | None:
    """None where the TMA kernel may serve a call that stores these outputs, else the reason.

    TMA loads A and B. It need not store: threads can, where the outputs' rows are contiguous.
    """
    if bounds(facts.k, facts.symbols)[1] == 0:
        return "K is 0"
    axes = unit_axes(facts)
    if axes is None:
        return f"{facts.a.name!r} or {facts.b.name!r} has no contiguous axis"
    if reason := _why_not_scaled(facts):
        return reason
    if DTYPE_BYTES[facts.a.dtype] == 1 and facts.majors() != ("k", "k"):
        return f"{facts.a.name!r} and {facts.b.name!r} are 8-bit and not both contiguous along K"
    for operand, axis in matrices(facts, axes):
        if operand.stride[operand.axis(axis)] != 1:
            return f"{operand.name!r} is not contiguous along the axis that {facts.b.name!r} is"
        if reason := why_not_operand(operand, axis, facts.symbols, facts.batch_runs):
            return reason
    for output in outputs:
        if output.stride[output.axis(-1)] != 1:
            return f"the rows of {output.name!r} are not contiguous"
    return None


def _why_not_scaled(facts: GemmFacts) -> str | None:
    """The tensor cores sum a k tile of some columns before it is scaled."""
    for scale in facts.scales:
        if scale is not None and scale.depth % SCALED_DEPTH:
            return (
                f"{scale.operand.name!r} has a scale for each {scale.depth} of K, "
                f"want a multiple of {SCALED_DEPTH}"
            )
    for scale in facts.scales[1:]:
        if scale is not None and scale.rows % SCALED_COLUMNS:
            return (
                f"{scale.operand.name!r} has a scale for each {scale.rows} columns, "
                f"want a multiple of {SCALED_COLUMNS}"
            )
    return None


def why_never(facts: GemmFacts) -> str | None:
    """None where the TMA kernel may serve some call, else the reason why it serves none."""
    reasons = [
        why_not(facts, variant.stored) for variant in lowering.variants(facts) if variant.outputs
    ]
    return None if None in reasons else reasons[0]


def may_store(outputs: Sequence[Operand], facts: GemmFacts) -> bool:
    """Whether TMA may store all of these."""
    symbols, runs = facts.symbols, facts.batch_runs
    return all(why_not_operand(operand, -1, symbols, runs) is None for operand in outputs)


def may_load(operand: Operand, facts: GemmFacts) -> bool:
    """Whether TMA may load a matrix of the epilogue, in every batch another one."""
    symbols, runs = facts.symbols, facts.batch_runs
    long = [run for run in runs if any(extent != 1 for extent in run.extents(facts.batch))]
    is_whole = all(run.of(operand) for run in long)
    is_row_major = operand.stride[operand.axis(-1)] == 1
    return is_whole and is_row_major and why_not_operand(operand, -1, symbols, runs) is None


def why_not_operand(
    operand: Operand,
    unit_axis: int,
    symbols: Mapping[str, Symbol],
    runs: Sequence[Run] | None = None,
) -> str | None:
    """None where the declared strides fit a descriptor, else the reason."""
    for axis in stepped_axes(operand, unit_axis, runs):
        stride = operand.stride[axis]
        if stride == 0:
            return f"stride of {operand.name!r} on axis {axis} is 0"
        if not is_multiple(stride, step_elements(operand), symbols):
            verb = "is not" if isinstance(stride, int) else "need not be"
            return (
                f"stride {stride} of {operand.name!r} on axis {axis} {verb} "
                f"a multiple of {ALIGN_BYTES} bytes"
            )
    return None
