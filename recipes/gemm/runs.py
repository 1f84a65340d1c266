"""The batch axes of a GEMM in runs: axes that are one axis of equal steps to every tensor.

A tensor steps evenly along two neighbouring axes where the stride of the outer one is the extent of
the inner one times its stride, and it is the same for every matrix where it has neither. What a
declaration leaves open is taken to merge, and a call is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cudnn_aot.compiler.graph.extents import Extent, Symbol, mul, symbols_of
from cudnn_aot.recipes.operand import Operand, bounds, in_words, pinned


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring batch axes, outermost first, counted from the end of a tensor's extents: -3 is
    the innermost. ``why`` says why they are apart from those of the run before.
    """

    axes: tuple[int, ...]
    why: str = ""

    def of(self, operand: Operand) -> list[int]:
        """Those of a tensor's own axes that are more than a unit axis, outermost first."""
        own = (len(operand.dim) + axis for axis in self.axes)
        return [axis for axis in own if axis >= 0 and operand.dim[axis] != 1]

    def extents(self, batch: Sequence[Extent]) -> list[Extent]:
        """Those of its axes among the extents of all batch axes."""
        return [batch[axis + 2] for axis in self.axes]


def batch_runs(
    operands: Sequence[Operand], batch: Sequence[Extent], symbols: Mapping[str, Symbol]
) -> tuple[Run, ...]:
    """The fewest runs of these batch axes, outermost first; one at least, which may be of none."""
    runs: list[Run] = []
    for axis in range(-len(batch) - 2, -2):
        if batch[axis + 2] == 1:
            continue
        why = _why_apart(operands, runs[-1].axes[-1], axis, batch, symbols) if runs else ""
        if runs and why is None:
            runs[-1] = Run((*runs[-1].axes, axis), runs[-1].why)
        else:
            runs.append(Run((axis,), why or ""))
    return tuple(runs) or (Run(()),)


def _why_apart(
    operands: Iterable[Operand],
    outer: int,
    inner: int,
    batch: Sequence[Extent],
    symbols: Mapping[str, Symbol],
) -> str | None:
    """The reason why two neighbouring batch axes are not one axis to all of these, or None."""
    for operand in operands:
        both = Run((outer, inner)).of(operand)
        if len(both) == 1:
            own = operand.dim[:-2]
            own = (1,) * (len(batch) - len(own)) + own
            return (
                f"{operand.name!r} is broadcast over some batch axes and not over others: it has "
                f"{in_words(own)}, want {in_words(batch)}, or 1 on every axis"
            )
        if both and (reason := _why_uneven(operand, both[0], both[1], symbols)):
            return reason
    return None


def _why_uneven(
    operand: Operand, outer: int, inner: int, symbols: Mapping[str, Symbol]
) -> str | None:
    """The reason why a tensor does not step evenly along two of its axes, where the declaration
    tells that, in some call with more than one element along both; else None.

    What a stride is that has a symbol of its own, a call tells.
    """
    if any(bounds(operand.dim[axis], symbols)[1] <= 1 for axis in (outer, inner)):
        return None
    declared, step = operand.stride[outer], mul(operand.dim[inner], operand.stride[inner])
    if symbols_of((declared, step)) - symbols_of(operand.dim):
        return None
    if pinned(declared, symbols) == pinned(step, symbols):
        return None
    return (
        f"the batch axes of {operand.name!r} are not one run of equal steps: its stride on axis "
        f"{outer} is {declared}, want {step}, the extent of axis {inner} times its stride"
    )
