"""Expressions and predicates of a launch table as a person writes them, and the ranges in them."""

from typing import Any

_INFIX = {"add": " + ", "sub": " - ", "mul": "*", "eq": " == ", "lt": " < ", "le": " <= "}
_INFIX |= {"and": " and ", "or": " or "}


def format_expression(value: Any) -> str:
    """A launch-table expression or predicate as a person writes it."""
    if isinstance(value, bool):
        return "always" if value else "never"
    if not isinstance(value, list):
        return str(value)
    form, *parts = value
    texts = [format_expression(part) for part in parts]
    if form in _INFIX:
        nested = [
            f"({text})" if isinstance(part, list) and part[0] in _INFIX and form != "mul" else text
            for part, text in zip(parts, texts, strict=True)
        ]
        return _INFIX[form].join(nested)
    if form == "divides":
        return f"{texts[0]} divides {texts[1]}"
    return f"{form}({', '.join(texts)})"


def expression_terms(predicate: Any) -> list[str]:
    """The terms of a conjunction, nested ones spread out."""
    if isinstance(predicate, list) and predicate[:1] == ["and"]:
        return [term for part in predicate[1:] for term in expression_terms(part)]
    return [format_expression(predicate)]


def symbol_bounds(predicate: Any, symbol: str, low: int, high: int) -> tuple[int, int] | None:
    """The least range within ``low..high`` in which every value of a symbol lies for which a
    conjunction can hold; None where it speaks of other things alone.
    """
    if predicate is True:
        return low, high
    found = None
    for form, a, b in _comparisons(predicate):
        if a == symbol and isinstance(b, int):
            bounds = (b if form == "eq" else low, b - 1 if form == "lt" else b)
        elif b == symbol and isinstance(a, int):
            bounds = (a + 1 if form == "lt" else a, a if form == "eq" else high)
        else:
            continue
        earlier = found or (low, high)
        found = max(earlier[0], bounds[0]), min(earlier[1], bounds[1])
    return found


def _comparisons(predicate: Any) -> list[Any]:
    """The comparisons of a conjunction, nested ones spread out."""
    if not isinstance(predicate, list) or not predicate:
        return []
    if predicate[0] == "and":
        return [found for part in predicate[1:] for found in _comparisons(part)]
    return [predicate] if predicate[0] in ("eq", "lt", "le") and len(predicate) == 3 else []
