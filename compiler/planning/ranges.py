"""Plans of a graph with symbolic extents that differ by range: one table that chooses by the call.

A family may propose a `Ranges`: boxes of its symbols that partition the declared domain, each with
its own plan. Every box is lowered on its own, with the symbols narrowed to it, and the
tables are merged: a branch is guarded by its box, what all boxes share is there once. An extent
outside the domain is refused as ever, by the symbol's declaration.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cudnn_aot.cache.plan_record import bound_words
from cudnn_aot.cache.spec import KernelSpec, place_of
from cudnn_aot.compiler.graph.extents import Extent, Symbol, SymExpr
from cudnn_aot.compiler.planning import expressions as ex
from cudnn_aot.compiler.planning.engine import Lowering, PlanConfig

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Range:
    """A box of the domain, and the plan that serves it.

    Attributes:
        bounds: ``(symbol, lowest, highest)``, both inclusive, for the symbols that it narrows, one
            at least.
        plan: what serves it; its ``why`` is the reason of this range.
        others: what serves it where the plan declines, best first. They are no part of its
            identity, and gone once the range is lowered.
    """

    bounds: tuple[tuple[str, int, int], ...]
    plan: PlanConfig
    others: tuple[PlanConfig, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return ", ".join(bound_words(*bound) for bound in self.bounds)

    def served_by(self, plan: PlanConfig, declined: Sequence[str]) -> Range:
        """The same, lowered: ``plan`` was taken, and ``declined`` says what was not."""
        why = "; ".join([*declined, plan.why] if plan.why else declined)
        return Range(self.bounds, replace(plan, why=why))


@dataclass(frozen=True, slots=True)
class Ranges:
    """One plan of the list, made of a plan for each of several ranges: all of them or none.

    Attributes:
        declined: once it is lowered, what declined in its ranges, in sentences.
    """

    parts: tuple[Range, ...]
    why: str = field(default="", compare=False)
    declined: tuple[str, ...] = field(default=(), compare=False)

    def served_by(self, parts: Sequence[Range], declined: Sequence[str]) -> Ranges:
        """The same, lowered: ``parts`` have the plans that were taken, ``declined`` says what was
        not.
        """
        pairs = zip(self.parts, parts, strict=True)
        changed = [str(part) for part, taken in pairs if part.plan != taken.plan]
        words = f"where that declines the next of the range: {', '.join(changed)}"
        why = f"{self.why}; {words}" if changed and self.why else words if changed else self.why
        return Ranges(tuple(parts), why, tuple(declined))


def check_partition(ranges: Ranges, symbols: Mapping[str, Symbol]) -> None:
    """Check that the boxes cover the domain of the symbols, each point of it once.

    Raises:
        ValueError: they do not; the fault is the family's.
    """
    cut: dict[str, set[int]] = {}
    for part in ranges.parts:
        names = [name for name, _, _ in part.bounds]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"range {str(part)!r}: want bounds of one symbol or more, once each")
        for name, low, high in part.bounds:
            symbol = symbols.get(name)
            if symbol is None or not symbol.min <= low <= high <= symbol.max:
                raise ValueError(
                    f"range {bound_words(name, low, high)} is not within the symbol's domain"
                )
            cut.setdefault(name, {symbol.min, symbol.max + 1}).update((low, high + 1))
    # Between two neighbouring cuts nothing changes, so one point of each cell stands for all.
    for point in itertools.product(*(sorted(points)[:-1] for points in cut.values())):
        values = dict(zip(cut, point, strict=True))
        holders = [part for part in ranges.parts if _contains(part, values)]
        if len(holders) != 1:
            where = ", ".join(f"{name}={value}" for name, value in values.items()) or "nothing"
            raise ValueError(f"{len(holders)} ranges hold {where}, want one")


def _contains(part: Range, values: Mapping[str, int]) -> bool:
    return all(low <= values[name] <= high for name, low, high in part.bounds)


def by_rows(
    rows: Extent,
    symbols: Mapping[str, Symbol],
    row_ends: Sequence[int],
    best: Callable[[Sequence[int], str], PlanConfig],
    safe: PlanConfig,
) -> list[Ranges]:
    """What a family may propose for an extent ``rows``: a plan with a schedule per range of its
    symbol. Nothing where one schedule does for all, or the extent is no multiple of one symbol.

    Args:
        row_ends: the rows at which a range may end.
        best: the plan for some values of the symbol of that name.
        safe: what to take where that declines.
    """
    if not isinstance(rows, SymExpr) or len(rows.symbols) != 1:
        return []
    (name,) = rows.symbols
    symbol = symbols[name]
    step = symbol.multiple_of
    ends = [end // rows.coef // step * step for end in row_ends]
    # A range of the value 0 alone would be a schedule for no rows.
    ends = [end for end in dict.fromkeys(ends) if max(symbol.min, 1) <= end < symbol.max]
    ends.append(symbol.max)
    parts: list[tuple[int, int, PlanConfig, list[int]]] = []
    low = symbol.min
    for high in ends:
        values = _samples(symbol, low, high)
        plan = best(values, name)
        if parts and parts[-1][2] == plan:
            low, _, _, earlier = parts.pop()
            values = earlier + values
        parts.append((low, high, plan, values))
        low = high + 1
    if len(parts) == 1:
        return []
    ranges = []
    for low, high, plan, values in parts:
        why = plan.why or f"the model's best at {name}={', '.join(map(str, values))}"
        named = PlanConfig(plan.engine_id, plan.knobs, why)
        ranges.append(Range(((name, low, high),), named, () if named == safe else (safe,)))
    return [Ranges(tuple(ranges), f"the best for each of {len(parts)} ranges of {name}")]


def _samples(symbol: Symbol, low: int, high: int) -> list[int]:
    """The hint, if it lies in the range, else both ends and the middle: values that it may have."""
    if symbol.hint is not None and low <= symbol.hint <= high:
        return [symbol.hint]
    step = symbol.multiple_of
    last = max(high // step * step, low)
    every = (low, math.isqrt(max(low, 1) * high), high)
    return list(dict.fromkeys(min(-(-value // step) * step, last) for value in every))


def narrow(symbols: Mapping[str, Symbol], part: Range) -> dict[str, Symbol]:
    """The symbols within one range; a hint that lies outside is dropped."""
    narrowed = dict(symbols)
    for name, low, high in part.bounds:
        old = symbols[name]
        hint = old.hint if old.hint is not None and low <= old.hint <= high else None
        narrowed[name] = Symbol(min=low, max=high, hint=hint, multiple_of=old.multiple_of)
    return narrowed


def narrow_facts(facts: Any, part: Range) -> Any:
    """A family's facts within one range. Facts with symbols have them in a field ``symbols``."""
    return replace(facts, symbols=narrow(facts.symbols, part))


def merge(lowered: Sequence[tuple[Range, Lowering]], symbols: Mapping[str, Symbol]) -> Lowering:
    """One table out of one per range. ``symbols`` is the whole domain.

    Checks of all ranges hold for every call: a check that one range does without is one that its
    extents cannot break.

    Raises:
        ValueError: the tables describe different operands or devices, or run blobs.
    """
    kernels: list[KernelSpec] = []
    checks: list[Json] = []
    let: Json = {}
    entries: list[list[Json]] = []
    first = lowered[0][1].table
    for _, lowering in lowered:
        table = lowering.table
        if lowering.blobs:
            raise ValueError("a plan made of ranges runs kernels alone")
        if any(table.get(name) != first.get(name) for name in ("version", "device", "operands")):
            raise ValueError("the ranges of one plan have tables of different operands")
        for name, expr in table.get("let", {}).items():
            if let.setdefault(name, expr) != expr:
                raise ValueError(f"the ranges of one plan mean different things by {name!r}")
        checks += [check for check in table["checks"] if check not in checks]
        position = [place_of(kernel, kernels) for kernel in lowering.kernels]
        entries.append([_entry(table, entry, position) for entry in table["dispatch"]])
    head, middles, tail = _shared_ends(entries)
    dispatch: list[Json] = []
    branches: Json = {}
    for entry in head:
        _add(dispatch, branches, entry, entry["when"], "")
    for (part, _), middle in zip(lowered, middles, strict=True):
        for entry in middle:
            guard = ex.all_of(*_bounds(part, symbols), entry["when"])
            _add(dispatch, branches, entry, guard, f" {part}")
    for entry in tail:
        _add(dispatch, branches, entry, entry["when"], "")
    merged = {**first, "checks": checks, "dispatch": dispatch, "branches": branches}
    merged["symbols"] = {
        name: {"min": symbol.min, "max": symbol.max, "multiple_of": symbol.multiple_of}
        for name, symbol in sorted(symbols.items())
    }
    if let:
        merged["let"] = let
    return Lowering(tuple(kernels), merged)


def _entry(table: Json, entry: Json, position: Sequence[int]) -> Json:
    """A dispatch entry with its branch in place, and kernels by their place in the merged plan."""
    branch = table["branches"][entry["branch"]]
    steps = [
        {**step, "kernel": position[step["kernel"]]} if step["step"] == "kernel" else step
        for step in branch["steps"]
    ]
    return {**entry, "steps": steps, "workspace": branch["workspace"]}


def _shared_ends(entries: list[list[Json]]) -> tuple[list[Json], list[list[Json]], list[Json]]:
    """The entries that begin all lists, what is left of each, and the entries that end them all."""
    shortest = min(map(len, entries))
    first = entries[0]
    begin = 0
    while begin < shortest and all(each[begin] == first[begin] for each in entries):
        begin += 1
    end = 0
    while end < shortest - begin and all(each[-1 - end] == first[-1 - end] for each in entries):
        end += 1
    middles = [each[begin : len(each) - end] for each in entries]
    return first[:begin], middles, first[len(first) - end :]


def _bounds(part: Range, symbols: Mapping[str, Symbol]) -> Iterator[ex.Predicate]:
    """Whether a call lies in the range; the domain's own ends need no test.

    Ranges mostly come in ascending order, so a call in a later one breaks the upper bound: it is
    tested first.
    """
    for name, low, high in part.bounds:
        if high < symbols[name].max:
            yield ex.le(name, high)
        if low > symbols[name].min:
            yield ex.le(low, name)


def _add(
    dispatch: list[Json], branches: Json, entry: Json, guard: ex.Predicate, suffix: str
) -> None:
    name = entry["branch"] + suffix
    branch = {"workspace": entry["workspace"], "steps": entry["steps"]}
    if branches.setdefault(name, branch) != branch:
        raise ValueError(f"two branches of one plan are named {name!r}")
    dispatch.append({"when": guard, "branch": name})
