"""Strict reading of JSON from a file that may be anything: one line per fault, with the JSON path.

`parse` accepts UTF-8 JSON only and remembers duplicate keys and numbers that are not plain, so that
the typed accessors of `Value` can refuse them where they stand: ``$.tensors[2].uid: got NaN, want
an integer``.
"""

from __future__ import annotations

import enum
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from cudnn_aot.compiler.graph.text import refuse_text
from cudnn_aot.errors import InvalidGraphError, did_you_mean

MAX_BYTES = 16 << 20
MAX_DEPTH = 64
MAX_ITEMS = 100_000  # of a list, members of an object

_E = TypeVar("_E", bound=enum.Enum)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# Python's own int is faster than `_integer`, and most files have no run of so many digits.
_ANY_DIGIT_IS_0 = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 20


class _Twice(dict[str, Any]):
    """A JSON object with a key that was given twice."""

    duplicate: str


class _Odd:
    """A number that no field accepts: not finite, or too long."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def parse(data: bytes) -> Value:
    """The root of the JSON text `data`."""
    if len(data) > MAX_BYTES:
        raise InvalidGraphError(f"got {len(data)} bytes, want at most {MAX_BYTES}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidGraphError(
            f"not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}"
        ) from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer if _LONG_NUMBER in data.translate(_ANY_DIGIT_IS_0) else None,
            parse_float=_real,
            parse_constant=_Odd,
        )
    except json.JSONDecodeError as error:
        reason = "the file is empty" if not text.strip() else error.msg[0].lower() + error.msg[1:]
        raise InvalidGraphError(
            f"not JSON: {reason} (line {error.lineno}, column {error.colno})"
        ) from None
    except RecursionError:
        raise InvalidGraphError(f"nested deeper than {MAX_DEPTH} levels") from None
    return Value(value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    twice = _Twice(value)
    counts = Counter([key for key, _ in pairs])
    twice.duplicate = next(key for key, count in counts.items() if count > 1)
    return twice


def _integer(text: str) -> int | _Odd:
    return int(text) if len(text) <= 20 else _Odd(f"an integer of {len(text)} digits")


def _real(text: str) -> float | _Odd:
    value = float(text)
    return value if math.isfinite(value) else _Odd(text[:40])


def is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested deeper than `levels`."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return levels == 0 or any(is_deeper(item, levels - 1) for item in value)


def is_index(text: str) -> bool:
    """Whether `text` is a small number, as at the end of a port's name."""
    return 0 < len(text) < 10 and text.isascii() and text.isdecimal()


class Value:
    """A JSON value and where it stands; every accessor returns the checked value or raises.

    ``with value.locate():`` gives its path to what is refused inside, unless the refusal names a
    place itself.
    """

    __slots__ = ("raw", "_parent", "key")

    def __init__(self, raw: Any, parent: Value | None = None, key: str | int = "$") -> None:
        self.raw = raw
        self._parent = parent
        self.key = key

    @property
    def path(self) -> str:
        """The JSON path, ``$.tensors[2].uid``; made when it is asked for."""
        if self._parent is None:
            return str(self.key)
        key = self.key
        if isinstance(key, int):
            return f"{self._parent.path}[{key}]"
        return self._parent.path + (f".{key}" if _WORD.match(key) else f"[{json.dumps(key)}]")

    def fail(self, message: str) -> NoReturn:
        """Refuse this value."""
        raise InvalidGraphError(f"{self.path}: {message}")

    def locate(self) -> Value:
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, InvalidGraphError):
            self.blame(error)

    def blame(self, error: InvalidGraphError) -> None:
        """Raise `error` again with this value's path, unless it names a place itself.

        For loops over many values, where a ``with`` for each would take a good part of the time.
        """
        if not str(error).startswith("$"):
            raise InvalidGraphError(f"{self.path}: {error}") from None

    def want(self, what: str) -> NoReturn:
        """Refuse this value for what it is."""
        self.fail(f"got {self.describe()}, want {what}")

    def describe(self) -> str:
        """What the value is, in few words."""
        raw = self.raw
        if isinstance(raw, _Odd):
            return raw.text
        if isinstance(raw, dict):
            return "an object"
        if isinstance(raw, list):
            return "a list"
        text = json.dumps(raw)
        return text if len(text) <= 60 else f"{text[:57]}..."

    def at(self, key: str | int) -> Value:
        """The member or item `key`, which exists."""
        return Value(self.raw[key], self, key)

    def object(self) -> dict[str, Value]:
        """The members of an object, keys in file order."""
        return {key: Value(item, self, key) for key, item in self._members().items()}

    def _members(self) -> dict[str, Any]:
        raw = self.raw
        if type(raw) is not dict:
            if isinstance(raw, _Twice):
                self.fail(f"key {raw.duplicate!r} is given twice")
            self.want("an object")
        if len(raw) > MAX_ITEMS:
            self.fail(f"got {len(raw)} items, want at most {MAX_ITEMS}")
        return raw

    def fields(self, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Value]:
        """The members of an object that has every required field and no unknown one."""
        known = dict.fromkeys((*required, *optional))
        raw = self.raw_fields(required, known)
        return {name: Value(item, self, name) for name, item in raw.items()}

    def raw_fields(self, required: Collection[str], known: Collection[str]) -> dict[str, Any]:
        """The same without a `Value` for each, which `at` makes of those that need one.

        `known` are all fields, the required ones first.
        """
        members = self.raw
        if type(members) is not dict or len(members) > MAX_ITEMS:
            members = self._members()  # refuses it
        for name in members:
            if name not in known:
                near = did_you_mean(name, known)
                self.at(name).fail(f"unknown field{near}; known: {', '.join(known)}")
        for name in required:
            if name not in members:
                self.fail(f"field {name!r} is missing")
        return members

    def items(self) -> Iterator[Value]:
        """The items of a list."""
        return (Value(item, self, index) for index, item in enumerate(self.raw_items()))

    def each(self) -> Iterator[Value]:
        """The same as one `Value` that moves along the list: for many, none of which is kept."""
        item = Value(None, self)
        for place, raw in enumerate(self.raw_items()):
            item.key, item.raw = place, raw
            yield item

    def raw_items(self) -> list[Any]:
        if not isinstance(self.raw, list):
            self.want("a list")
        if len(self.raw) > MAX_ITEMS:
            self.fail(f"got {len(self.raw)} items, want at most {MAX_ITEMS}")
        return self.raw

    def integer(self) -> int:
        """An integer of at most 64 bits."""
        if type(self.raw) is not int:
            self.want("an integer")
        if not -(2**63) <= self.raw < 2**63:
            self.want("an integer below 2**63")
        return self.raw

    def number(self) -> int | float:
        """A finite number."""
        if type(self.raw) not in (int, float):
            self.want("a number")
        return self.raw

    def text(self) -> str:
        if not isinstance(self.raw, str):
            self.want("text")
        reason = refuse_text(self.raw)
        if reason:
            self.fail(reason)
        return self.raw

    def boolean(self) -> bool:
        if type(self.raw) is not bool:
            self.want("true or false")
        return self.raw

    def scalar(self) -> bool | int | float | str:
        """A number, text, true or false."""
        if isinstance(self.raw, str):
            return self.text()
        if not isinstance(self.raw, bool | int | float):
            self.want("a number, text, true or false")
        return self.raw

    def member(self, choices: type[_E], exclude: Collection[str] = ()) -> _E:
        """The member of an enum, by name."""
        raw = self.raw
        found = choices.__members__.get(raw) if isinstance(raw, str) else None
        if found is None or raw in exclude:
            names = [name for name in choices.__members__ if name not in exclude]
            self.want(f"one of {', '.join(names)}")
        return found
