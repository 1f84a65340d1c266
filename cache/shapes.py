"""What the documents of a store and its plan records look like: fields and types, as data.

A shape is a row of `_KINDS` by its name, a list or an object of shapes, `Each` or `Maybe`. Fields
that no shape names are those of a later release, and are left alone. That a launch table is one,
its own parser tells. Standard library only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cudnn_aot.cache.layout import is_digest

_MAX_INT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Each:
    """An object with fields of any names, all of one shape."""

    of: Any


@dataclass(frozen=True, slots=True)
class Maybe:
    """Of a field: it may be absent."""

    of: Any


def _is_text(value: object) -> bool:
    # JSON can escape half of a surrogate pair, which no file or terminal takes.
    return isinstance(value, str) and (
        value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)
    )


def _is_int(value: object) -> bool:
    return type(value) is int and -_MAX_INT <= value <= _MAX_INT


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "text": ("a string", _is_text),
    "digest": ("64 hex digits", is_digest),
    "digest or null": ("64 hex digits or null", lambda v: v is None or is_digest(v)),
    "int": ("an integer of 64 bits", _is_int),
    "size": ("an integer of 0 or more", lambda v: _is_int(v) and v >= 0),
    "flag": ("a boolean", lambda v: isinstance(v, bool)),
    "object": ("an object", lambda v: isinstance(v, dict)),
}

_PLANS = {
    "plan_key": "text",
    "records": ["digest"],
    "reasons": ["text"],
    "all_configs": Maybe("flag"),
}
_PART = {"sha256": "digest", "bytes": Maybe("size")}
_REQUIREMENTS = {
    "gpu_arch": Maybe("text"),
    "smem_optin_bytes": Maybe("size"),
    "driver_min": Maybe("size"),
    "host_triple": Maybe("text"),
    "host_level": Maybe("text"),
    "glibc_min": Maybe("text"),
    "sm_count": Maybe("size"),
    "cudnn": Maybe("text"),
}
_CHOICE = {"engine": {"id": "int", "name": "text"}, "knobs": Each("int")}
_BLOB = {"blob": "digest", "bytes": "size"}

DOCUMENTS: Mapping[str, Any] = {
    "pointer": {
        "target": "text",
        "graph_key": "digest",
        "status": "text",
        "records": ["digest"],
        "reasons": ["text"],
        "graph": Maybe("digest or null"),
        "providers": Maybe(Each(_PLANS)),
    },
    "class": {"target": "text", "bucket": "digest", "graphs": ["digest"]},
    "name": {"name": "text", "graph_key": "digest", "uids": Each("int")},
    "kernel": {
        "key": "digest",
        "spec": {
            "toolchain": Maybe(Each("text")),
            "gpu_arch": Maybe("text"),
            "host_triple": Maybe("text"),
        },
        "symbol": "text",
        "object": _PART,
        "blob": _PART,
        "requirements": _REQUIREMENTS,
    },
    "build": {
        "version": "text",
        "sources": "text",
        "toolchain": Each(Each("text")),
        "cudnn": Each(Each("text")),
        "engines": ["text"],
        "targets": [{"name": "text"}],
        "graphs": [{"name": "text", "graph_key": "digest"}],
        "tuning": "text",
    },
    "plan record": {
        "format": "int",
        "graph_key": "digest",
        "target": "text",
        **_CHOICE,
        "ranges": Maybe([{"bounds": Each(["int"]), **_CHOICE}]),
        "table": "object",
        "kernels": [{"key": "digest", "symbol": "text", **_BLOB, "object": Maybe("digest")}],
        "blobs": Maybe([_BLOB]),
        "notes": Maybe(["text"]),
        "requirements": _REQUIREMENTS,
    },
}


def fault_of(kind: str, document: object) -> str | None:
    """Where a document of a kind departs from its shape: place, what is there, what is wanted."""
    if _is_right(kind)(document):
        return None
    fault = _fault(document, DOCUMENTS[kind])
    assert fault is not None
    place, say = fault
    return say(place.removeprefix("."))


@functools.cache
def _is_right(kind: str) -> Callable[[Any], bool]:
    return _test(DOCUMENTS[kind])


def _test(shape: Any) -> Callable[[Any], bool]:
    """Whether a value has a shape, as one function: nearly every document is right."""
    if isinstance(shape, str):
        return _KINDS[shape][1]
    if isinstance(shape, list):
        of_item = _test(shape[0])
        return lambda value: isinstance(value, list) and all(map(of_item, value))
    if isinstance(shape, Each):
        of_field = _test(shape.of)
        return lambda value: (
            isinstance(value, dict)
            and all(map(_is_text, value))
            and all(map(of_field, value.values()))
        )
    required = [(name, _test(s)) for name, s in shape.items() if not isinstance(s, Maybe)]
    optional = [(name, _test(s.of)) for name, s in shape.items() if isinstance(s, Maybe)]

    def is_right(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        for name, test in required:
            if name not in value or not test(value[name]):
                return False
        for name, test in optional:
            if name in value and not test(value[name]):
                return False
        return True

    return is_right


# A place is put into words on the way out.
_Fault = tuple[str, Callable[[str], str]]


def _fault(value: Any, shape: Any) -> _Fault | None:
    if isinstance(shape, str):
        want, takes = _KINDS[shape]
        return None if takes(value) else ("", functools.partial(_says, value, want))
    if isinstance(shape, list):
        if not isinstance(value, list):
            return "", functools.partial(_says, value, "a list")
        for at, item in enumerate(value):
            fault = _fault(item, shape[0])
            if fault is not None:
                return f"[{at}]{fault[0]}", fault[1]
        return None
    if not isinstance(value, dict):
        return "", functools.partial(_says, value, "an object")
    if isinstance(shape, Each):
        if not all(map(_is_text, value)):
            return "", "{}: a field's name is no text".format
        shape = dict.fromkeys(value, shape.of)
    for name, inner in shape.items():
        if name not in value:
            if isinstance(inner, Maybe):
                continue
            return f".{name}", "field {!r} is missing".format
        fault = _fault(value[name], inner.of if isinstance(inner, Maybe) else inner)
        if fault is not None:
            return f".{name}{fault[0]}", fault[1]
    return None


def _says(value: Any, want: str, place: str) -> str:
    got = next((word for kind, word in _WORDS.items() if type(value) is kind), "null")
    if isinstance(value, str):
        got = ascii(value[:80])
    elif want.startswith("an integer") and type(value) is int:
        got = "one out of range"
    return f"{place or 'the document'}: got {got}, want {want}"


_WORDS = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}

__all__ = ["DOCUMENTS", "Each", "Maybe", "fault_of"]
