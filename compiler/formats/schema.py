"""The JSON Schema of the graph file, made from the op table.

It says what can be said of a file without reading it as a graph: fields, their types and ranges,
and for every op its ports and attributes. The reader refuses whatever the schema refuses, and one
thing more that a schema cannot tell apart: a number such as ``4.0`` where an integer is wanted.
"""

from __future__ import annotations

import enum
from typing import Any

from cudnn_aot.compiler.formats.attributes import INTEGER, attribute_schema, is_writable
from cudnn_aot.compiler.formats.graph_json import MARKER, VERSION
from cudnn_aot.compiler.graph.enums import data_type, scalar_type, tensor_reordering
from cudnn_aot.compiler.graph.extents import INT64_MAX, MAX_RANK, SYMBOL_MAX
from cudnn_aot.compiler.graph.op import Op, Port
from cudnn_aot.compiler.graph.ops.table import OPS

_TEXT = {"type": "string"}
_FLAG = {"type": "boolean", "default": False}
_UID = {"type": "integer", "minimum": 0, "maximum": INT64_MAX}
_COUNT = {"type": "integer", "minimum": 1, "maximum": INT64_MAX, "default": 1}
_SYMBOL = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
_FACTOR = rf"\s*([0-9]{{1,19}}|{_SYMBOL})\s*"
_INDEX = "_(0|[1-9][0-9]*)$"


def graph_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) of a graph file, as a JSON document."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"cudnn-aot graph, version {VERSION}",
        **_object(
            (MARKER, "tensors", "nodes"),
            {
                MARKER: {"const": VERSION},
                "$schema": _TEXT,
                "name": _TEXT,
                **dict.fromkeys(
                    ("io_data_type", "intermediate_data_type", "compute_data_type"),
                    _ref("data_type"),
                ),
                "symbols": {
                    "type": "object",
                    "propertyNames": {"pattern": f"^{_SYMBOL}$"},
                    "additionalProperties": _symbol(),
                },
                "tensors": {"type": "array", "items": _ref("tensor")},
                "nodes": {"type": "array", "items": _ref("node"), "minItems": 1},
            },
        ),
        "$defs": {
            "data_type": _names(data_type, "NOT_SET"),
            "uid": _UID,
            "extents": {
                "type": "array",
                "items": {
                    "anyOf": [
                        {"type": "integer", "minimum": 0, "maximum": INT64_MAX},
                        {"type": "string", "pattern": rf"^{_FACTOR}(\*{_FACTOR})*$"},
                    ]
                },
                "minItems": 1,
                "maxItems": MAX_RANK,
            },
            "tensor": _tensor(),
            "node": _node(),
            "ops": {spec.name: _op(spec) for spec in OPS.values()},
        },
    }


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _names(kind: type[enum.Enum], *without: str) -> dict[str, Any]:
    return {"enum": [name for name in kind.__members__ if name not in without]}


def _object(required: Any, properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


def _symbol() -> dict[str, Any]:
    value = {"type": "integer", "minimum": 0, "maximum": SYMBOL_MAX}
    return _object(
        (),
        {
            "min": {**value, "default": 1},
            "max": {**value, "default": SYMBOL_MAX},
            "hint": value,
            "multiple_of": {**INTEGER, "minimum": 1, "default": 1},
        },
    )


def _tensor() -> dict[str, Any]:
    return _object(
        ("uid",),
        {
            "uid": _ref("uid"),
            "name": _TEXT,
            "data_type": _ref("data_type"),
            "dim": _ref("extents"),
            "stride": _ref("extents"),
            "is_virtual": _FLAG,
            "is_optional": _FLAG,
            "is_pass_by_value": _FLAG,
            "pass_by_value": {"type": "number"},
            "scalar_type": _names(scalar_type),
            "ragged_offset": _ref("uid"),
            "ragged_offset_multiplier": _COUNT,
            "reordering_type": _names(tensor_reordering),
            "alignment_value": _COUNT,
        },
    )


def _node() -> dict[str, Any]:
    ports = {"type": "object", "additionalProperties": _ref("uid")}
    return {
        **_object(
            ("op", "inputs", "outputs"),
            {
                "op": {"enum": list(OPS)},
                "name": _TEXT,
                "inputs": ports,
                "outputs": ports,
                "attrs": {"type": "object"},
                "compute_data_type": _ref("data_type"),
            },
        ),
        "allOf": [
            {
                "if": {"properties": {"op": {"const": name}}},
                "then": _ref(f"ops/{name}"),
            }
            for name in OPS
        ],
    }


def _op(spec: Op) -> dict[str, Any]:
    """What the fields of a node of this op hold."""
    attrs = [attr for attr in spec.attrs if is_writable(attr)]
    needed = [attr.name for attr in attrs if attr.required]
    results = [port for port in spec.ports if port.is_result]
    outputs = _ports(results)
    for output in spec.outputs:
        outputs["properties"][output.name] = _ref("uid")
    outputs["required"] += [output.name for output in spec.outputs if output.when is None]
    return {
        "required": ["attrs"] if needed else [],
        "properties": {
            "inputs": _ports([port for port in spec.ports if not port.is_result]),
            "outputs": outputs,
            "attrs": _object(needed, {attr.name: attribute_schema(attr) for attr in attrs}),
        },
    }


def _ports(ports: list[Port]) -> dict[str, Any]:
    """Uids by port; the items of a list port are ``<port>_0``, ``<port>_1``, ..."""
    schema = _object(
        [f"{port.name}_0" if port.is_list else port.name for port in ports if not port.optional],
        {port.name: _ref("uid") for port in ports if not port.is_list},
    )
    lists = {f"^{port.name}{_INDEX}": _ref("uid") for port in ports if port.is_list}
    return {**schema, **({"patternProperties": lists} if lists else {})}
