"""What a tuning file proposes: measured plans, and ranges of a symbol out of them.

A measurement speaks for the values around it: as far as a factor of `REACH`, and half way, by
ratio, to the next one. Beyond that the heuristics' plans serve.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cudnn_aot.compiler.graph.extents import Symbol
from cudnn_aot.compiler.planning.engine import Engine, PlanConfig
from cudnn_aot.compiler.planning.ranges import Range, Ranges
from cudnn_aot.compiler.planning.rank import Proposal
from cudnn_aot.compiler.planning.tuning import Choice, Tuning
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import cudnnGraphNotSupportedError

REACH = 4


@dataclass(frozen=True, slots=True)
class Point:
    """A value of the symbol, and the plans that were measured there, best first."""

    value: int
    plans: tuple[PlanConfig, ...]


def measured_first(
    tuning: Tuning,
    family: str,
    facts: Any,
    target: Target,
    engines: Mapping[int, Engine],
    ranked: Sequence[Proposal],
) -> list[Proposal]:
    """What the heuristics propose, behind what was measured on the target."""
    by_range = [proposal for proposal in ranked if isinstance(proposal, Ranges)]
    measured = _known(tuning.plans(family, facts, target), engines, "measured")
    # One member of a class was measured: that does not speak for all of its ranges.
    first: list[Proposal] = [*by_range, *measured]
    base = next(
        (plan for plan in (*by_range, *ranked) if isinstance(plan, PlanConfig | Ranges)), None
    )
    if base is not None and len(facts.symbols) == 1:
        ((name, symbol),) = facts.symbols.items()
        points = [
            Point(values[name], plans)
            for values, choices in tuning.points(family, facts, target)
            if (plans := tuple(_known(choices, engines, f"measured at {name}={values[name]}")))
            and values[name] > 0
        ]
        if points:
            first.insert(0, tuned_ranges(name, symbol, points, base))
    return [*first, *ranked]


def _known(
    choices: Iterable[Choice], engines: Mapping[int, Engine], why: str
) -> Iterator[PlanConfig]:
    """What a tuning file names, as far as it is not of another version of the engines."""
    ids = {engine.name: engine_id for engine_id, engine in engines.items()}
    for name, knobs in choices:
        if name in ids:
            with contextlib.suppress(cudnnGraphNotSupportedError):
                record = engines[ids[name]].knobs_from_public(knobs)
                yield PlanConfig(ids[name], record, why)


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
