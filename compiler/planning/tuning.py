"""Measured plans: a file that says, per layout class and extents, what was fastest on a GPU.

::

    {"format": 1, "entries": [
      {"family": "gemm", "target": "h200", "layout_class": "...", "extents": {"m": 64, ...},
       "plans": [{"engine": "gemm.sm90.persistent", "knobs": {"TILE_M": 64, ...}, "us": 11.2}]}]}

A plan of the file comes before those that the heuristics rank; an entry that names an engine or
knobs that are gone is passed over. Facts say their own ``layout_class`` and ``extents``, and those
of a graph with symbols for which values of them extents are its own (``symbols_at``). What else a
file says, such as times, is for people, and decides nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cudnn_aot.cache.canonical import canonical_digest
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import UsageError

FORMAT = 1
_FIELDS = {"family": str, "target": str, "layout_class": str, "extents": dict, "plans": list}

# An engine's name and public knobs.
Choice = tuple[str, dict[knob_type, int]]
_Plans = list[dict[str, Any]]


class Tuning:
    """The entries of a tuning file, by what they were measured for."""

    def __init__(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._classes: dict[tuple[str, str, str], list[tuple[dict[str, int], _Plans]]] = {}
        for entry in entries:
            place = (entry["family"], entry["target"], entry["layout_class"])
            plans = [{"engine": plan["engine"], "knobs": plan["knobs"]} for plan in entry["plans"]]
            self._classes.setdefault(place, []).append((entry["extents"], plans))

    def plans(self, family: str, facts: Any, target: Target) -> Iterator[Choice]:
        """What was measured for a graph's extents on a target, best first."""
        for extents, plans in self._about(family, facts, target):
            if extents == facts.extents:
                yield from _choices(plans)

    def points(
        self, family: str, facts: Any, target: Target
    ) -> list[tuple[dict[str, int], list[Choice]]]:
        """Of a graph with symbols, the values of them for which plans were measured, ascending,
        and those plans, best first.
        """
        return [
            (values, list(_choices(plans)))
            for values, plans in self._of_symbols(family, facts, target)
        ]

    def digest(self, family: str, facts: Any, target: Target) -> str:
        """Of what the file says about a graph, for its plan key; empty when that is nothing."""
        own = [plans for e, plans in self._about(family, facts, target) if e == facts.extents]
        said = [plans for plans in own if plans]
        others = [each for each in self._of_symbols(family, facts, target) if each[1]]
        return canonical_digest({"plans": said, "points": others}) if said or others else ""

    def content_digest(self) -> str:
        """Of all that the file says; order and spelling of its entries do not count."""
        return canonical_digest(
            sorted(
                canonical_digest([*place, extents, plans])
                for place, entries in self._classes.items()
                for extents, plans in entries
            )
        )

    def _about(
        self, family: str, facts: Any, target: Target
    ) -> Sequence[tuple[dict[str, int], _Plans]]:
        return self._classes.get((family, target.name, facts.layout_class), ())

    def _of_symbols(
        self, family: str, facts: Any, target: Target
    ) -> list[tuple[dict[str, int], _Plans]]:
        if not facts.symbols:
            return []
        found = [
            (values, plans)
            for extents, plans in self._about(family, facts, target)
            if (values := facts.symbols_at(extents))
        ]
        return sorted(found, key=lambda each: sorted(each[0].items()))


def _choices(plans: _Plans) -> Iterator[Choice]:
    for plan in plans:
        yield plan["engine"], {knob_type[k]: v for k, v in plan["knobs"].items()}


def load_tuning(path: str | Path) -> Tuning:
    """Read a tuning file.

    Raises:
        UsageError: it cannot be read or is no tuning file of this format.
    """
    return Tuning(read_entries(path))


def read_entries(path: str | Path) -> list[dict[str, Any]]:
    """The entries of a tuning file, as it has them.

    Raises:
        UsageError: as of `load_tuning`.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # a FIFO would be waited for without end
        raise UsageError(f"tuning file {str(path)!r} is not a regular file")
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
    seen: set[str] = set()
    for index, entry in enumerate(listed):
        fault = _fault(entry)
        if fault is None and place_of(entry) in seen:
            fault = "it is about the graphs of an earlier entry: put all plans in one"
        if fault:
            raise UsageError(f"tuning file {str(path)!r}: entries[{index}]: {fault}")
        seen.add(place_of(entry))
    return listed


def place_of(entry: Mapping[str, Any]) -> str:
    """What an entry is about; a file has one entry about it."""
    fields = ("family", "target", "layout_class", "extents")
    return canonical_digest([entry[field] for field in fields])


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
