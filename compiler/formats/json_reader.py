"""Strict reading of JSON from a file that may be anything: one line per fault, with the JSON path.

`parse` accepts UTF-8 JSON only and remembers duplicate keys and numbers that are not plain, so that
the typed accessors of `Value` can refuse them where they stand: ``$.tensors[2].uid: got NaN, want
an integer``.
"""

from __future__ import annotations

import contextlib
import enum
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from cudnn_aot.errors import InvalidGraphError

MAX_BYTES = 16 << 20
MAX_DEPTH = 64

_E = TypeVar("_E", bound=enum.Enum)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class _Object(dict[str, Any]):
    """A JSON object that remembers the first key it was given twice."""

    duplicate: str | None = None


@dataclass(frozen=True, slots=True)
class _Odd:
    """A number that no field accepts: not finite, or too long."""

    text: str


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
            parse_int=_integer,
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
    return Value(value, "$")


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    value = _Object()
    for key, item in pairs:
        if key in value and value.duplicate is None:
            value.duplicate = key
        value[key] = item
    return value


def _integer(text: str) -> int | _Odd:
    return int(text) if len(text) <= 20 else _Odd(f"an integer of {len(text)} digits")


def _real(text: str) -> float | _Odd:
    value = float(text)
    return value if math.isfinite(value) else _Odd(text[:40])


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value and its path; every accessor returns the checked value or raises."""

    raw: Any
    path: str

    def fail(self, message: str) -> NoReturn:
        """Refuse this value."""
        raise InvalidGraphError(f"{self.path}: {message}")

    @contextlib.contextmanager
    def locate(self) -> Iterator[None]:
        """Give this path to what is refused inside, unless the refusal names a place itself."""
        try:
            yield
        except InvalidGraphError as error:
            if str(error).startswith("$"):
                raise
            self.fail(str(error))

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
        if isinstance(key, int):
            return Value(self.raw[key], f"{self.path}[{key}]")
        dotted = f".{key}" if _WORD.match(key) else f"[{json.dumps(key)}]"
        return Value(self.raw[key], f"{self.path}{dotted}")

    def object(self) -> dict[str, Value]:
        """The members of an object, keys in file order."""
        if not isinstance(self.raw, dict):
            self.want("an object")
        if isinstance(self.raw, _Object) and self.raw.duplicate is not None:
            self.fail(f"key {self.raw.duplicate!r} is given twice")
        return {key: self.at(key) for key in self.raw}

    def fields(self, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Value]:
        """The members of an object that has every required field and no unknown one."""
        members = self.object()
        required, optional = tuple(required), tuple(optional)
        for name, member in members.items():
            if name not in required and name not in optional:
                member.fail(f"unknown field (known: {', '.join((*required, *optional))})")
        for name in required:
            if name not in members:
                self.fail(f"field {name!r} is missing")
        return members

    def items(self) -> Iterator[Value]:
        """The items of a list."""
        if not isinstance(self.raw, list):
            self.want("a list")
        return (self.at(index) for index in range(len(self.raw)))

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
        try:
            self.raw.encode()
        except UnicodeEncodeError:
            self.want("text without half of a surrogate pair")
        return self.raw

    def boolean(self) -> bool:
        if type(self.raw) is not bool:
            self.want("true or false")
        return self.raw

    def scalar(self) -> bool | int | float | str:
        """A number, text, true or false."""
        if not isinstance(self.raw, bool | int | float | str):
            self.want("a number, text, true or false")
        return self.raw

    def member(self, choices: type[_E], exclude: Iterable[str] = ()) -> _E:
        """The member of an enum, by name."""
        names = [name for name in choices.__members__ if name not in exclude]
        if self.raw not in names:
            self.want(f"one of {', '.join(names)}")
        return choices[self.raw]
