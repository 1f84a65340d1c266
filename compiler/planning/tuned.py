"""Ranges of a symbolic graph out of what was measured at some values of its symbol.

A measurement speaks for the values around it: as far as a factor of `REACH`, and half way, by
ratio, to the next one. Beyond that the heuristics' plans serve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cudnn_aot.compiler.graph.extents import Symbol
from cudnn_aot.compiler.planning.engine import PlanConfig
from cudnn_aot.compiler.planning.ranges import Range, Ranges

REACH = 4


@dataclass(frozen=True, slots=True)
class Point:
    """A value of the symbol, and the plans that were measured there, best first."""

    value: int
    plans: tuple[PlanConfig, ...]


def tuned_ranges(
    name: str, symbol: Symbol, points: Sequence[Point], base: Ranges | PlanConfig
) -> Ranges | PlanConfig:
    """The plans of the points around them, and elsewhere those of ``base``.

    Args:
        points: ascending, one at least.
        base: serves the whole domain; if it is ranges, of this symbol alone.
    """
    parts: list[Range] = []
    for whole in _parts(name, symbol, base):
        ((_, low, high),) = whole.bounds
        for at, point in enumerate(points):
            first, last = _speaks_for(points, at)
            first, last = max(first, low), min(last, high)
            if first > last:
                continue
            if low < first:
                parts.append(Range(((name, low, first - 1),), whole.plan, whole.others))
            others = (*point.plans[1:], whole.plan, *whole.others)
            parts.append(Range(((name, first, last),), point.plans[0], others))
            low = last + 1
        if low <= high:
            parts.append(Range(((name, low, high),), whole.plan, whole.others))
    joined = _joined(parts)
    if len(joined) == 1:
        return joined[0].plan
    values = ", ".join(str(point.value) for point in points)
    return Ranges(tuple(joined), f"measured at {name}={values}")


def _parts(name: str, symbol: Symbol, base: Ranges | PlanConfig) -> Sequence[Range]:
    if isinstance(base, PlanConfig):
        return [Range(((name, symbol.min, symbol.max),), base)]
    return sorted(base.parts, key=lambda part: part.bounds)


def _speaks_for(points: Sequence[Point], at: int) -> tuple[int, int]:
    """The lowest and highest value that a point speaks for."""
    value = points[at].value
    low, high = -(-value // REACH), value * REACH
    if at > 0:
        low = max(low, math.isqrt(points[at - 1].value * value) + 1)
    if at + 1 < len(points):
        high = min(high, math.isqrt(value * points[at + 1].value))
    return low, high


def _joined(parts: Sequence[Range]) -> list[Range]:
    """Neighbours that the same plan serves as one."""
    joined: list[Range] = []
    for part in parts:
        if joined and joined[-1].plan == part.plan:
            before = joined.pop()
            ((name, low, _),), ((_, _, high),) = before.bounds, part.bounds
            whys = dict.fromkeys((before.plan.why, part.plan.why))
            plan = PlanConfig(part.plan.engine_id, part.plan.knobs, "; ".join(whys))
            others = tuple(dict.fromkeys((*before.others, *part.others)))
            joined.append(Range(((name, low, high),), plan, others))
        else:
            joined.append(part)
    return joined
