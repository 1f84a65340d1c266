"""What a tuning file proposes: measured plans, and ranges of a symbol out of them.

A measurement speaks for the values below it, down to the one that was measured before, since
kernels work in whole tiles: 65 rows are two tiles of 64, as 128 are. It does so for no value that
is smaller than a `REACH`-th of it. Values above it that no other speaks for are its own up to
`REACH` times as much. Beyond that the heuristics' plans serve. It does not matter whether the
symbol may have the value itself: of up to 100 rows, what was measured at 128 speaks for 65 on. Only
one that is more than `BEYOND` times the symbol's largest is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cudnn_aot.compiler.graph.extents import Symbol
from cudnn_aot.compiler.planning.engine import Engine, PlanConfig
from cudnn_aot.compiler.planning.ranges import Range, Ranges
from cudnn_aot.compiler.planning.rank import Proposal
from cudnn_aot.compiler.planning.tuning import Entry, Tuning
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import cudnnGraphNotSupportedError

REACH, BEYOND = 4, 2


@dataclass(frozen=True, slots=True)
class Point:
    """A value of the symbol, and the plans that were measured there, best first; ``where`` in words
    if they are shipped.
    """

    value: int
    plans: tuple[PlanConfig, ...]
    where: str = ""


def measured_first(
    tuning: Tuning,
    family: str,
    facts: Any,
    target: Target,
    engines: Mapping[int, Engine],
    ranked: Sequence[Proposal],
) -> list[Proposal]:
    """What the heuristics propose, behind what was measured on the target."""
    own = tuning.at(family, facts, target)
    points = tuning.points(family, facts, target) if len(facts.symbols) == 1 else []
    if own is None and not points:
        return list(ranked)
    by_range = [proposal for proposal in ranked if isinstance(proposal, Ranges)]
    measured = () if own is None else _known(own, engines, _words(_where(own, target)))
    # One member of a class was measured: that does not speak for all of its ranges.
    first: list[Proposal] = [*by_range, *measured]
    base = next(
        (plan for plan in (*by_range, *ranked) if isinstance(plan, PlanConfig | Ranges)), None
    )
    if base is not None and points:
        ((name, symbol),) = facts.symbols.items()
        known = []
        for values, entry in points:
            where = _where(entry, target)
            why = _words(where, f" at {name}={values[name]}")
            plans = tuple(_known(entry, engines, why))
            if plans and 0 < values[name] <= BEYOND * symbol.max:
                known.append(Point(values[name], plans, where))
        if (tuned := tuned_ranges(name, symbol, known, base)) is not base:
            first.insert(0, tuned)
    return [*first, *ranked]


def _known(entry: Entry, engines: Mapping[int, Engine], why: str) -> Iterator[PlanConfig]:
    """What a tuning file names, as far as it is not of another version of the engines."""
    ids = {engine.name: engine_id for engine_id, engine in engines.items()}
    for name, knobs in entry.choices():
        if name in ids:
            with contextlib.suppress(cudnnGraphNotSupportedError):
                record = engines[ids[name]].knobs_from_public(knobs)
                yield PlanConfig(ids[name], record, why)


def _where(entry: Entry, target: Target) -> str:
    return f" on {target.name}" if entry.is_shipped else ""


def _words(where: str, at: str = "") -> str:
    return f"measured{where}{at}{' (shipped)' if where else ''}"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of the domain: what was measured for it, none of what the heuristics serve."""

    low: int
    high: int
    plan: PlanConfig
    others: tuple[PlanConfig, ...]
    points: tuple[Point, ...] = ()
    whys: tuple[str, ...] = ()  # of the heuristics


def tuned_ranges(
    name: str, symbol: Symbol, points: Sequence[Point], base: Ranges | PlanConfig
) -> Ranges | PlanConfig:
    """The plans of the points around them, and elsewhere those of ``base``; that alone where no
    point speaks for a value that has work to do.

    Args:
        points: ascending.
        base: serves the whole domain; if it is ranges, of this symbol alone.
    """

    def served(piece: _Piece) -> PlanConfig:
        said = "; ".join([*_said(name, piece.points), *dict.fromkeys(piece.whys)])
        return PlanConfig(piece.plan.engine_id, piece.plan.knobs, said)

    def has_work(low: int, high: int) -> bool:
        return high // symbol.multiple_of * symbol.multiple_of >= max(low, 1)

    pieces: list[_Piece] = []
    for whole in _parts(name, symbol, base):
        ((_, low, high),) = whole.bounds
        theirs = partial(_Piece, plan=whole.plan, others=whole.others, whys=(whole.plan.why,))
        begin = len(pieces)
        for at, point in enumerate(points):
            first, last = _speaks_for(points, at)
            first, last = max(first, low), min(last, high)
            if not has_work(first, last):
                continue
            if has_work(low, first - 1):
                pieces.append(theirs(low, first - 1))
                low = first
            others = (*point.plans[1:], whole.plan, *whole.others)
            pieces.append(_Piece(low, last, point.plans[0], others, (point,)))
            low = last + 1
        if begin == len(pieces) or has_work(low, high):
            pieces.append(theirs(low, high))
        else:
            pieces[-1] = replace(pieces[-1], high=high)
    spoke = dict.fromkeys(point for piece in pieces for point in piece.points)
    if not spoke:
        return base
    joined = _joined(pieces)
    if len(joined) == 1:
        return served(joined[0])
    parts = [Range(((name, each.low, each.high),), served(each), each.others) for each in joined]
    return Ranges(tuple(parts), "; ".join(_said(name, [*spoke])))


def _said(name: str, points: Sequence[Point]) -> Iterator[str]:
    """At which values plans were measured, apart for what is shipped."""
    for where in dict.fromkeys(point.where for point in points):
        values = dict.fromkeys(str(point.value) for point in points if point.where == where)
        yield _words(where, f" at {name}={', '.join(values)}")


def _parts(name: str, symbol: Symbol, base: Ranges | PlanConfig) -> Sequence[Range]:
    if isinstance(base, PlanConfig):
        return [Range(((name, symbol.min, symbol.max),), base)]
    return sorted(base.parts, key=lambda part: part.bounds)


def _speaks_for(points: Sequence[Point], at: int) -> tuple[int, int]:
    """The lowest and highest value that a point speaks for."""
    high = points[at].value * REACH
    if at + 1 < len(points):
        high = min(high, _lowest(points, at + 1) - 1)
    return _lowest(points, at), high


def _lowest(points: Sequence[Point], at: int) -> int:
    low = -(-points[at].value // REACH)
    return max(low, points[at - 1].value + 1) if at > 0 else low


def _joined(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Neighbours that the same plan serves as one."""
    joined: list[_Piece] = []
    for piece in pieces:
        if joined and joined[-1].plan == piece.plan:
            before = joined.pop()
            piece = _Piece(
                before.low,
                piece.high,
                piece.plan,
                tuple(dict.fromkeys((*before.others, *piece.others))),
                (*before.points, *piece.points),
                (*before.whys, *piece.whys),
            )
        joined.append(piece)
    return joined
