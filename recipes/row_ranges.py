"""A plan for each of several ranges of a symbol that counts rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from cudnn_aot.compiler.graph.extents import Extent, Symbol, SymExpr
from cudnn_aot.compiler.planning.engine import PlanConfig
from cudnn_aot.compiler.planning.ranges import Range, Ranges


def ranges_of(
    rows: Extent,
    symbols: Mapping[str, Symbol],
    row_ends: Sequence[int],
    best: Callable[[Sequence[int], str], PlanConfig],
    safe: PlanConfig,
) -> list[Ranges]:
    """One plan for all of ``rows``, with a schedule per range; none where one does for all, or they
    are not a multiple of one symbol.

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
    """The hint, if it lies in the range, else both ends and the middle."""
    if symbol.hint is not None and low <= symbol.hint <= high:
        return [symbol.hint]
    return list(dict.fromkeys([low, math.isqrt(max(low, 1) * high), high]))
