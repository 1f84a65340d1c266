"""Builders for launch-table expressions and predicates, folding what is constant.

Each function returns plain JSON data. Folding keeps tables short and lets a lowering see that a
guard can never hold.
"""

from __future__ import annotations

from typing import Any

Expr = Any  # int | str | list
Predicate = Any  # bool | list


def dim(uid: int, axis: int) -> Expr:
    return ["dim", uid, axis]


def stride(uid: int, axis: int) -> Expr:
    return ["stride", uid, axis]


def mul(*factors: Expr) -> Expr:
    constant = 1
    rest = []
    for factor in factors:
        if isinstance(factor, int):
            constant *= factor
        else:
            rest.append(factor)
    if constant == 0 or not rest:
        return constant
    terms = rest if constant == 1 else [constant, *rest]
    return terms[0] if len(terms) == 1 else ["mul", *terms]


def ceil_div(a: Expr, b: int) -> Expr:
    return -(-a // b) if isinstance(a, int) else ["ceil_div", a, b]


def floor_div(a: Expr, b: int) -> Expr:
    if b == 1:
        return a
    return a // b if isinstance(a, int) else ["floor_div", a, b]


def round_up(a: Expr, b: int) -> Expr:
    return -(-a // b) * b if isinstance(a, int) else ["round_up", a, b]


def minimum(a: Expr, b: Expr) -> Expr:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else ["min", a, b]


def maximum(a: Expr, b: Expr) -> Expr:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else ["max", a, b]


def eq(a: Expr, b: Expr) -> Predicate:
    return a == b if isinstance(a, int) and isinstance(b, int) else ["eq", a, b]


def lt(a: Expr, b: Expr) -> Predicate:
    return a < b if isinstance(a, int) and isinstance(b, int) else ["lt", a, b]


def le(a: Expr, b: Expr) -> Predicate:
    return a <= b if isinstance(a, int) and isinstance(b, int) else ["le", a, b]


def divides(divisor: int, a: Expr) -> Predicate:
    if divisor == 1:
        return True
    return a % divisor == 0 if isinstance(a, int) else ["divides", divisor, a]


def aligned(uid: int, nbytes: int) -> Predicate:
    return ["aligned", uid, nbytes]


def present(uid: int) -> Predicate:
    return ["present", uid]


def negate(predicate: Predicate) -> Predicate:
    return not predicate if isinstance(predicate, bool) else ["not", predicate]


def all_of(*predicates: Predicate) -> Predicate:
    """Conjunction without constants and repeats; False if any part is the constant False."""
    kept: list[Predicate] = []
    for predicate in predicates:
        if predicate is False:
            return False
        if predicate is not True and predicate not in kept:
            kept.append(predicate)
    if not kept:
        return True
    return kept[0] if len(kept) == 1 else ["and", *kept]


def any_of(*predicates: Predicate) -> Predicate:
    """Disjunction without constants and repeats; True if any part is the constant True."""
    kept: list[Predicate] = []
    for predicate in predicates:
        if predicate is True:
            return True
        if predicate is not False and predicate not in kept:
            kept.append(predicate)
    if not kept:
        return False
    return kept[0] if len(kept) == 1 else ["or", *kept]
