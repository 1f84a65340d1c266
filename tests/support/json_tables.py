"""JSON Schemas made of the tables of docs/json.md, so that the page is what is compared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "json.md"
TYPES: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "any": {},
    "boolean or null": {"type": ["boolean", "null"]},
    "string or null": {"type": ["string", "null"]},
    "integer or null": {"type": ["integer", "null"]},
    "number or null": {"type": ["number", "null"]},
}


def sections(text: str | None = None) -> dict[str, list[tuple[str, str]]]:
    """By heading: (field, type) of every row."""
    found: dict[str, list[tuple[str, str]]] = {}
    heading = ""
    for line in (PAGE.read_text(encoding="utf-8") if text is None else text).splitlines():
        if line.startswith("## "):
            heading = line[3:]
            found[heading] = []
        elif line.startswith("| `"):
            fields, type_, _ = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:4])
            found[heading] += [(field, type_) for field in re.findall(r"`([^`]+)`", fields)]
    return found


def schema(rows: list[tuple[str, str]]) -> dict[str, Any]:
    """Of a document with exactly these fields, and ``format``."""
    root: dict[str, Any] = {}
    for path, type_ in [("format", "integer"), *rows]:
        steps = re.findall(r"\.\*|\[\]|[^.\[\]]+", path.rstrip("?"))
        _add(root, steps, TYPES[type_], path.endswith("?"))
    return root


def _add(node: dict[str, Any], steps: list[str], leaf: dict[str, Any], may_be_absent: bool) -> None:
    """Put a leaf at the end of a path, making what lies on the way; its last name may be absent."""
    if not steps:
        node.update(leaf)
        return
    step, rest = steps[0], steps[1:]
    if step == "[]":
        node["type"] = "array"
        child = node.setdefault("items", {})
    elif step == ".*":
        node["type"] = "object"
        child = node.setdefault("additionalProperties", {})
    else:
        node["type"] = "object"
        node.setdefault("additionalProperties", False)
        child = node.setdefault("properties", {}).setdefault(step, {})
        required = node.setdefault("required", [])
        is_last = all(each in ("[]", ".*") for each in rest)
        if step not in required and not (may_be_absent and is_last):
            required.append(step)
    _add(child, rest, leaf, may_be_absent)
