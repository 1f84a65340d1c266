"""Extents and strides: an integer, or a coefficient times a product of the graph's symbols.

``"4096*M"`` in a file is ``SymExpr(4096, ("M",))`` here and ``["mul", 4096, "M"]`` in a launch
table. A value is canonical when it comes from this module: symbols sorted, no coefficient 0, no
empty product, so two extents are equal exactly when they compare equal.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias

from cudnn_aot.compiler.graph.record import Record
from cudnn_aot.errors import InvalidGraphError

INT64_MAX = 2**63 - 1
SYMBOL_MAX = 2**31 - 1
MAX_RANK = 8  # the cuDNN backend's limit, and enough for every op here
MAX_TEXT = 200  # characters of an extent: two symbols with the longest names, and a coefficient

_SYMBOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
_INTEGER = re.compile(r"[0-9]{1,19}\Z")


class SymExpr(Record):
    """``coef`` times the product of ``symbols`` (sorted; a repeated name is a power)."""

    coef: int
    symbols: tuple[str, ...]

    def __init__(self, coef: int, symbols: tuple[str, ...]) -> None:
        state = self.__dict__
        state["coef"], state["symbols"] = coef, symbols

    def __eq__(self, other: object) -> bool:
        if type(other) is not SymExpr:
            return NotImplemented
        return self.coef == other.coef and self.symbols == other.symbols

    def __hash__(self) -> int:
        return hash((self.coef, self.symbols))

    def __str__(self) -> str:
        factors = [] if self.coef == 1 else [str(self.coef)]
        return "*".join([*factors, *self.symbols])

    def __mul__(self, other: Any) -> Extent:
        return mul(self, as_extent(other))

    __rmul__ = __mul__


Extent: TypeAlias = int | SymExpr


class Symbol(Record):
    """A symbolic extent's range: multiples of ``multiple_of`` in ``[min, max]``.

    ``hint`` is the value that planning ranks for (default: ``max``); it is no part of a graph's
    key.
    """

    min: int = 1
    max: int = SYMBOL_MAX
    hint: int | None = None
    multiple_of: int = 1

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is Symbol else NotImplemented

    def __hash__(self) -> int:
        return hash((self.min, self.max, self.hint, self.multiple_of))

    @property
    def planned(self) -> int:
        """The value to plan for when none is given: the hint, else the largest legal one."""
        return self.hint if self.hint is not None else self.max - self.max % self.multiple_of

    def why_not(self) -> str | None:
        """Why the declaration is wrong, or None."""
        for field in ("min", "max", "multiple_of", "hint"):
            value = getattr(self, field)
            if (value is not None or field != "hint") and type(value) is not int:
                return f"{field}: got {value!r}, want an integer"
        if not 0 <= self.min <= self.max <= SYMBOL_MAX:
            return f"got min {self.min} and max {self.max}, want 0 <= min <= max <= {SYMBOL_MAX}"
        if not 1 <= self.multiple_of <= INT64_MAX:
            return f"multiple_of: got {self.multiple_of}, want at least 1 and below 2**63"
        if self.max // self.multiple_of * self.multiple_of < self.min:
            return f"no multiple of {self.multiple_of} lies in [{self.min}, {self.max}]"
        return None if self.hint is None else self.refuse(self.hint)

    def refuse(self, value: int) -> str | None:
        """Why `value` is not legal for this symbol, or None."""
        if not self.min <= value <= self.max:
            return f"got {value}, want {self.min}..{self.max}"
        if value % self.multiple_of:
            return f"got {value}, want a multiple of {self.multiple_of}"
        return None


def is_symbol_name(text: str) -> bool:
    """Whether `text` may name a symbol."""
    return _SYMBOL_NAME.match(text) is not None


def make(coef: int, symbols: Iterable[str]) -> Extent:
    """The canonical extent ``coef * product(symbols)``."""
    names = tuple(sorted(symbols))
    return SymExpr(coef, names) if names and coef else coef


@lru_cache(maxsize=1024)  # the tensors of a graph say the same few
def parse_extent(text: str) -> Extent:
    """Read ``"4096*M"``: non-negative integers and symbol names joined by ``*``."""
    if len(text) > MAX_TEXT:
        raise InvalidGraphError(
            f"bad extent: got text of {len(text)} characters, want at most {MAX_TEXT}"
        )
    coef, names = 1, []
    for factor in text.split("*"):
        factor = factor.strip()
        if _INTEGER.match(factor):
            coef *= int(factor)
        elif is_symbol_name(factor):
            names.append(factor)
        else:
            raise InvalidGraphError(
                f"bad extent: got {text[:80]!r}, want integers and symbols joined by '*', "
                "for example '4096*M'"
            )
    if coef > INT64_MAX:
        raise InvalidGraphError(f"bad extent: got {text[:80]!r}, want a coefficient below 2**63")
    return make(coef, names)


def as_extent(value: Any) -> Extent:
    """`value` (integer, ``"4096*M"`` or `SymExpr`) as an extent; refuses anything else."""
    if type(value) is int and 0 <= value <= INT64_MAX:
        return value
    if isinstance(value, SymExpr):
        return make(value.coef, value.symbols)
    if isinstance(value, str):
        return parse_extent(value)
    if not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            pass
        else:
            if 0 <= number <= INT64_MAX:
                return number
            raise InvalidGraphError(f"bad extent: got {number}, want 0 <= extent < 2**63")
    raise InvalidGraphError(f"bad extent: got {value!r}, want an integer or text such as '4096*M'")


def as_extents(values: Any) -> tuple[Extent, ...]:
    """Every item of `values` as an extent; more than a tensor can have are refused unread."""
    if type(values) not in (tuple, list):
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InvalidGraphError(f"bad extents: got {values!r}, want a list of extents")
        values = list(islice(values, MAX_RANK + 1))
    check_rank(len(values))
    for value in values:
        if type(value) is not int or not 0 <= value <= INT64_MAX:
            return tuple(as_extent(value) for value in values)
    return tuple(values)  # mostly


def check_rank(rank: int) -> None:
    """Refuse more extents than a tensor can have, before anything is computed from them."""
    if rank > MAX_RANK:
        raise InvalidGraphError(f"got rank {rank}, want 1 to {MAX_RANK}")


def mul(*extents: Extent) -> Extent:
    """The product."""
    if len(extents) == 2:  # mostly: a step and the next extent
        a, b = extents
        if isinstance(a, int):
            a, b = b, a
        if isinstance(b, int):
            if isinstance(a, int):
                return a * b
            return SymExpr(a.coef * b, a.symbols) if b else 0
    coef = 1
    names: list[str] = []
    for extent in extents:
        if isinstance(extent, SymExpr):
            coef *= extent.coef
            names.extend(extent.symbols)
        else:
            coef *= extent
    return make(coef, names)


def evaluate(extent: Extent, values: Mapping[str, int]) -> int:
    """The integer that `extent` is when its symbols have `values`."""
    if isinstance(extent, int):
        return extent
    value = extent.coef
    try:
        for name in extent.symbols:
            value *= values[name]
    except KeyError as missing:
        raise InvalidGraphError(f"symbol {missing.args[0]!r} has no value") from None
    return value


def symbols_of(extents: Iterable[Extent]) -> set[str]:
    """The names that occur in `extents`."""
    return {name for extent in extents if isinstance(extent, SymExpr) for name in extent.symbols}


def extent_expr(extent: Extent) -> int | str | list[Any]:
    """`extent` as a launch-table expression: ``17``, ``"M"`` or ``["mul", 4096, "M"]``."""
    if isinstance(extent, int):
        return extent
    factors: list[int | str] = [*([] if extent.coef == 1 else [extent.coef]), *extent.symbols]
    return factors[0] if len(factors) == 1 else ["mul", *factors]


def extent_json(extent: Extent) -> int | str:
    """`extent` as graph files write it."""
    return extent if isinstance(extent, int) else str(extent)


def format_extents(extents: Sequence[Extent]) -> str:
    """``[1, M, 4096]``, for messages."""
    return f"[{', '.join(str(extent) for extent in extents)}]"


def row_major(dim: Sequence[Extent]) -> tuple[Extent, ...]:
    """Strides of a dense row-major tensor; outside an extent of 0 they are 0, as a symbol's are."""
    step: Extent = 1
    strides: tuple[Extent, ...] = (1,) if dim else ()
    for extent in dim[:0:-1]:
        step = step * extent
        strides = (step, *strides)
    return strides


def packed(dim: Sequence[Extent], order: Sequence[int]) -> tuple[Extent, ...]:
    """Strides of a dense tensor whose axes lie in memory in `order`, outermost first."""
    inner = row_major([dim[axis] for axis in order])
    return tuple(inner[order.index(axis)] for axis in range(len(dim)))


def broadcast(a: Sequence[Extent], b: Sequence[Extent]) -> tuple[Extent, ...] | None:
    """Right-aligned numpy broadcast of two shapes, or None. A symbol equals only itself."""
    if a == b:
        return tuple(a)
    rank = max(len(a), len(b))
    left = (1,) * (rank - len(a)) + tuple(a)
    right = (1,) * (rank - len(b)) + tuple(b)
    merged: list[Extent] = []
    for x, y in zip(left, right, strict=True):
        if y == 1 or x == y:
            merged.append(x)
        elif x == 1:
            merged.append(y)
        else:
            return None
    return tuple(merged)
