"""Canonical JSON: the one byte string of a plain value, on which every key and digest rests.

Plain values are ``None``, ``bool``, ``int``, ``str``, finite ``float``, lists or tuples of plain
values and mappings from ``str`` to plain values. Anything else raises: an enum, a numpy integer or
a path would give a key that another process, or another version, spells differently.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

# Made once: `json.dumps` makes an encoder for each call with settings of its own.
_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
).encode
# Plain by their type alone; a float has to be finite.
SCALARS = frozenset({type(None), bool, int, str})


def field_names(value: Mapping[str, Any], where: str) -> list[str]:
    """The sorted names of a mapping's fields; raises TypeError where one is no string."""
    for name in value:
        if type(name) is not str:
            raise TypeError(
                f"{where} has the field {name!r} of type {type(name).__name__}, want str"
            )
    return sorted(value)


def plain(value: Any, where: str = "value") -> Any:
    """A deep copy of ``value`` made of dict, list and scalars; raises TypeError for other types."""
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise TypeError(f"{where} is {value}: a key holds finite numbers only")
        return value
    if kind in (list, tuple):
        # Most parts are scalars: their place in words is not made.
        return [
            item if type(item) in SCALARS else plain(item, f"{where}[{index}]")
            for index, item in enumerate(value)
        ]
    if isinstance(value, Mapping):
        return {name: plain(value[name], f"{where}.{name}") for name in field_names(value, where)}
    raise TypeError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}: a key holds only None, bool, int, "
        "float, str, lists and mappings of them"
    )


def canonical_bytes(value: Any) -> bytes:
    """Sorted fields, no blanks, ASCII, no final newline."""
    return plain_bytes(plain(value))


def plain_bytes(value: Any) -> bytes:
    """As `canonical_bytes`, of a value known to be plain, such as one read from JSON.

    Raises:
        ValueError: a number in it is not finite, which JSON as Python reads it may hold.
    """
    return _encode(value).encode("ascii")


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def canonical_digest(value: Any) -> str:
    """SHA-256 of the canonical bytes, as 64 hex digits."""
    return sha256_hex(canonical_bytes(value))
