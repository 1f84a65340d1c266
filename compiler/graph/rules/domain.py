"""What symbolic extents leave open, decided in one place for every rule.

A rule about extents refuses a graph only if no values of its symbols keep the rule: a graph serves
the values that do, and each call is checked on its own. So the questions here are "may", and where
an answer would take solving an equation of several symbols it is yes. Integers are decided exactly.
"""

from __future__ import annotations

import math

from cudnn_aot.compiler.graph.extents import Extent, SymExpr
from cudnn_aot.compiler.graph.op import NodeView


def _values(view: NodeView, extent: Extent) -> tuple[int, int, int]:
    """The least and the largest value, and a number that divides all of them."""
    if isinstance(extent, int):
        return extent, extent, 1
    low = high = step = extent.coef
    for name in extent.symbols:
        symbol = view.symbols[name]
        multiple = symbol.multiple_of
        low *= -(-symbol.min // multiple) * multiple
        high *= symbol.max // multiple * multiple
        step *= multiple
    return low, high, step


def may_equal(view: NodeView, a: Extent, b: Extent) -> bool:
    """Whether two extents are equal for some values of the symbols."""
    if a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    low_a, high_a, step_a = _values(view, a)
    low_b, high_b, step_b = _values(view, b)
    if isinstance(a, SymExpr) and isinstance(b, SymExpr) and a.symbols == b.symbols:
        return low_a == 0  # the same product with other coefficients
    step = math.lcm(step_a, step_b)
    return max(low_a, low_b) <= min(high_a, high_b) // step * step


def may_be_at_most(view: NodeView, a: Extent, b: Extent) -> bool:
    """Whether ``a <= b`` for some values of the symbols."""
    if isinstance(a, SymExpr) and isinstance(b, SymExpr) and a.symbols == b.symbols:
        return a.coef <= b.coef or _values(view, a)[0] == 0
    return _values(view, a)[0] <= _values(view, b)[1]


def may_divide(view: NodeView, divisor: Extent, extent: Extent) -> bool:
    """Whether ``extent`` is a multiple of ``divisor`` for some values of the symbols."""
    if isinstance(divisor, int):
        low, high, step = _values(view, extent)
        if divisor == 0:
            return low == 0
        step = math.lcm(step, divisor)
        return low <= high // step * step
    if isinstance(extent, SymExpr) and extent.symbols == divisor.symbols:
        return extent.coef % divisor.coef == 0 or _values(view, extent)[0] == 0
    low = _values(view, extent)[0]
    return low == 0 or may_be_at_most(view, divisor, extent)
