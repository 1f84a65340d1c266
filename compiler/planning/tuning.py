"""Measured plans: a file that says, per layout class and extents, what was fastest on a GPU.

::

    {"format": 1, "entries": [
      {"family": "gemm", "target": "h200", "layout_class": "...", "extents": {"m": 64, ...},
       "plans": [{"engine": "gemm.sm90.persistent", "knobs": {"TILE_M": 64, ...}}]}]}

A plan of the file comes before those that the heuristics rank; an entry that names an engine or
knobs that are gone is passed over. Facts say their own ``layout_class`` and ``extents``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cudnn_aot.cache.canonical import canonical_digest
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import UsageError

FORMAT = 1
_FIELDS = {"family": str, "target": str, "layout_class": str, "extents": dict, "plans": list}


class Tuning:
    """The entries of a tuning file, by what they were measured for."""

    def __init__(self, entries: Mapping[str, list[dict[str, Any]]]) -> None:
        self._entries = dict(entries)

    def plans(
        self, family: str, facts: Any, target: Target
    ) -> Iterator[tuple[str, dict[knob_type, int]]]:
        """Engine names and knobs that were measured for a graph on a target, best first."""
        for plan in self._entries.get(_key(family, facts, target), ()):
            yield plan["engine"], {knob_type[k]: v for k, v in plan["knobs"].items()}

    def digest(self, family: str, facts: Any, target: Target) -> str:
        """Of what the file says about a graph, for its plan key; empty when that is nothing."""
        plans = self._entries.get(_key(family, facts, target))
        return canonical_digest(plans) if plans else ""

    def content_digest(self) -> str:
        """Of all that the file says; order and spelling of its entries do not count."""
        return canonical_digest(self._entries)


def _key(family: str, facts: Any, target: Target) -> str:
    return _join(family, target.name, facts.layout_class, facts.extents)


def _join(family: str, target: str, layout_class: str, extents: Mapping[str, int]) -> str:
    return canonical_digest([family, target, layout_class, dict(extents)])


def load_tuning(path: str | Path) -> Tuning:
    """Read a tuning file.

    Raises:
        UsageError: it cannot be read or is no tuning file of this format.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"tuning file {str(path)!r}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"tuning file {str(path)!r} is not JSON: {error}") from None
    found = document.get("format") if isinstance(document, dict) else None
    if type(found) is not int or found != FORMAT:
        raise UsageError(f"tuning file {str(path)!r}: format is {found!r}, want {FORMAT}")
    listed = document.get("entries")
    if not isinstance(listed, list):
        raise UsageError(f"tuning file {str(path)!r}: entries is {listed!r}, want a list")
    entries: dict[str, list[dict[str, Any]]] = {}
    for index, entry in enumerate(listed):
        fault = _fault(entry)
        if fault:
            raise UsageError(f"tuning file {str(path)!r}: entries[{index}]: {fault}")
        key = _join(entry["family"], entry["target"], entry["layout_class"], entry["extents"])
        if key in entries:
            raise UsageError(
                f"tuning file {str(path)!r}: entries[{index}]: it is about the graphs of an "
                "earlier entry: put all plans in one"
            )
        entries[key] = entry["plans"]
    return Tuning(entries)


def _fault(entry: Any) -> str | None:
    if not isinstance(entry, dict):
        return f"got {type(entry).__name__}, want an object"
    for name, kind in _FIELDS.items():
        if not isinstance(entry.get(name), kind):
            return f"{name} is {entry.get(name)!r}, want {kind.__name__}"
    if not all(type(value) is int for value in entry["extents"].values()):
        return f"extents are {entry['extents']!r}, want integers"
    for plan in entry["plans"]:
        if not isinstance(plan, dict) or not isinstance(plan.get("engine"), str):
            return f"got plan {plan!r}, want an engine and knobs"
        knobs = plan.get("knobs")
        if not isinstance(knobs, dict) or not all(
            name in knob_type.__members__ and type(value) is int for name, value in knobs.items()
        ):
            return f"knobs are {knobs!r}, want knob types and integers"
    return None
