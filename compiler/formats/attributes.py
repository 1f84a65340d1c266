"""How the attributes of the op table stand in JSON: one reading and one schema for each type.

Enum members are written by name, lists as lists, a slice as ``[start, stop, step]`` with null for
"to the end". A Python function has no form: a graph with one cannot be in a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from cudnn_aot.compiler.formats.json_reader import Value
from cudnn_aot.compiler.graph import attr as types
from cudnn_aot.compiler.graph.attr import Attr, AttrType, plain
from cudnn_aot.compiler.graph.op import Op

INTEGER = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """The JSON form of a type of attribute."""

    read: Callable[[Value], Any]
    schema: dict[str, Any]


def _integers(value: Value) -> tuple[int, ...]:
    return tuple(item.integer() for item in value.items())


def _slices(value: Value) -> tuple[tuple[int, int | None, int], ...]:
    slices = []
    for item in value.items():
        parts = list(item.items())
        if len(parts) != 3:
            item.fail(f"got {len(parts)} values, want [start, stop, step]")
        start, stop, step = parts
        end = None if stop.raw is None else stop.integer()
        slices.append((start.integer(), end, step.integer()))
    return tuple(slices)


_SLICE = {
    "type": "array",
    "prefixItems": [
        INTEGER,
        {"anyOf": [INTEGER, {"type": "null"}]},
        {**INTEGER, "minimum": 1},
    ],
    "items": False,
    "minItems": 3,
}

FORMS: dict[AttrType, Form] = {
    types.FLOAT: Form(Value.number, {"type": "number"}),
    types.LIMIT: Form(Value.number, {"type": "number"}),
    types.INT: Form(Value.integer, INTEGER),
    types.BOOL: Form(Value.boolean, {"type": "boolean"}),
    types.STR: Form(Value.text, {"type": "string"}),
    types.INTS: Form(_integers, {"type": "array", "items": INTEGER}),
    types.SLICES: Form(_slices, {"type": "array", "items": _SLICE}),
}


def is_writable(row: Attr) -> bool:
    """Whether a value of the attribute can be in a file."""
    return bool(row.type.members) or row.type in FORMS


def read_attributes(spec: Op, value: Value) -> dict[str, Any]:
    """The attributes of a node by name, each checked against its row."""
    rows, read = spec.attr_rows, {}
    member = Value(None, value)  # one for all: it moves along
    for name, raw in value.raw_fields((), rows).items():
        member.key, member.raw = name, raw
        read[name] = read_attribute(rows[name], member)
    return read


def read_attribute(row: Attr, value: Value) -> Any:
    """One attribute's value, of the type that its row says."""
    names = _names(row)
    if names:
        if value.raw not in names or isinstance(value.raw, bool):
            value.want(f"one of {', '.join(map(str, names))}")
        return value.raw
    form = FORMS.get(row.type)
    if form is None:
        value.fail("a Python function cannot be in a file")
    return form.read(value)


def attribute_schema(row: Attr) -> dict[str, Any]:
    """The JSON Schema of an attribute's value."""
    names = _names(row)
    schema: dict[str, Any] = {"enum": list(names)} if names else dict(FORMS[row.type].schema)
    if row.default is not None and not row.required:
        schema["default"] = plain(row.default)
    return schema


@cache
def _names(row: Attr) -> tuple[Any, ...]:
    """The values that the attribute takes, if it takes only a few."""
    return tuple(plain(choice) for choice in row.choices) or row.type.members
