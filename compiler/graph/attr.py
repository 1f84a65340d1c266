"""An op's attributes: their types, defaults and allowed values, and one normal form of each value.

Normal forms are plain and hashable: numbers, booleans, text, enum members, tuples of integers, and
``(start, stop, step)`` triples for slices. `plain` turns one into JSON values, and `Attr.normalise`
reads those back.
"""

from __future__ import annotations

import enum
import math
import numbers
import operator
from collections.abc import Callable, Iterable
from typing import Any

from cudnn_aot.compiler.graph.dtypes import as_data_type
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.record import Record
from cudnn_aot.errors import InvalidGraphError


class AttrType(Record):
    """A type of attribute.

    Attributes:
        word: what it is called in messages.
        read: gives a value's normal form, or raises `ValueError`.
        members: the names that it takes, if it is an enum.
    """

    word: str
    read: Callable[[Any], Any]
    members: tuple[str, ...] = ()


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("a finite number")
    return number


def _limit(value: Any) -> float | None:
    """A number, or infinity, which is no limit."""
    return None if value == math.inf else _float(value)


def _int(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError
    number = operator.index(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError("an integer of 64 bits")
    return number


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        if type(value).__name__ not in ("bool_", "bool"):  # numpy's
            raise ValueError
        return bool(value)
    return value


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _ints(value: Any) -> tuple[int, ...]:
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return tuple(_int(item) for item in value)
    return (_int(value),)


def _slice(value: Any) -> tuple[int, int | None, int]:
    if isinstance(value, slice):
        start, stop, step = value.start, value.stop, value.step
    elif isinstance(value, (list, tuple)) and len(value) == 3:
        start, stop, step = value
    else:
        raise ValueError
    step = 1 if step is None else _int(step)
    if step < 1:
        raise ValueError("slices with a step of at least 1")
    return 0 if start is None else _int(start), None if stop is None else _int(stop), step


def _slices(value: Any) -> tuple[tuple[int, int | None, int], ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError
    return tuple(_slice(item) for item in value)


def _function(value: Any) -> Any:
    if not callable(value):
        raise ValueError
    return value


FLOAT = AttrType("a number", _float)
LIMIT = AttrType("a number, or infinity for no limit", _limit)
INT = AttrType("an integer", _int)
BOOL = AttrType("true or false", _bool)
STR = AttrType("text", _str)
INTS = AttrType("a list of integers", _ints)
SLICES = AttrType("a list of slices", _slices)
FUNCTION = AttrType("a function", _function)


def one_of(kind: type[enum.Enum]) -> AttrType:
    """The type of a member of `kind`, or its name, or another library's member of that name."""
    members = {name: member for name, member in kind.__members__.items() if name != "NOT_SET"}

    def read(value: Any) -> Any:
        if kind is data_type:
            value = as_data_type(value)
        name = value if isinstance(value, str) else getattr(value, "name", None)
        if name not in members:
            raise ValueError
        return members[name]

    return AttrType(f"a {kind.__name__}: {', '.join(members)}", read, tuple(members))


class Attr(Record):
    """One attribute of an op.

    Attributes:
        name: the builder's keyword.
        type: what values it takes.
        default: the value when it is not given; None means that it is off.
        choices: the values that are allowed, or () for all of the type.
        required: there is no default: a node without it is refused.
        is_python_only: the cuDNN backend has no field for it; what it asks for is served by kernels
            of a Python library alone.
        is_baked: kernels may be compiled for its value. An attribute that no kernel bakes is passed
            at launch instead, and graphs that differ in it share plans.
        is_parameter: the builder has a parameter of its name (False for what a list argument
            carries, such as the probability in ``dropout=(0.1, seed, offset)``).
    """

    name: str
    type: AttrType
    default: Any = None
    choices: tuple[Any, ...] = ()
    required: bool = False
    is_python_only: bool = False
    is_baked: bool = True
    is_parameter: bool = True

    def normalise(self, value: Any) -> Any:
        """`value` in normal form; raises `InvalidGraphError` for one that is not allowed."""
        want = self.type.word
        try:
            normal = self.type.read(value)
        except (ValueError, TypeError) as error:
            reason = error.args[0] if type(error) is ValueError and error.args else want
            raise InvalidGraphError(
                f"attribute {self.name}: got {value!r}, want {reason}"
            ) from None
        if self.choices and normal not in self.choices:
            want = " or ".join(repr(plain(choice)) for choice in self.choices)
            raise InvalidGraphError(f"attribute {self.name}: got {value!r}, want {want}")
        return normal


def plain(value: Any) -> Any:
    """A normal form as JSON values: the name of an enum member, lists for tuples."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InvalidGraphError(f"got {value!r}: a Python function cannot be written or keyed")
