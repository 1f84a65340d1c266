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
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudnn_aot.cache.canonical import canonical_digest
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import UsageError, did_you_mean

FORMAT = 1
_FIELDS = {"family": str, "target": str, "layout_class": str, "extents": dict, "plans": list}
_KIND_WORDS = {str: "a string", dict: "an object", list: "a list"}

# An engine's name and public knobs.
Choice = tuple[str, dict[knob_type, int]]


@dataclass(frozen=True, slots=True)
class Entry:
    """What a tuning file says of a graph's extents; ``is_shipped``: the file comes with the
    family.
    """

    extents: dict[str, int]
    plans: list[dict[str, Any]]
    is_shipped: bool

    def choices(self) -> Iterator[Choice]:
        """The plans, best first."""
        for plan in self.plans:
            yield plan["engine"], {knob_type[k]: v for k, v in plan["knobs"].items()}


_Extents = tuple[tuple[str, int], ...]
_Classes = dict[tuple[str, str, str], dict[_Extents, Entry]]


class Tuning:
    """The entries of a tuning file, by what they were measured for."""

    def __init__(self, entries: Sequence[Mapping[str, Any]], *, is_shipped: bool = False) -> None:
        self._classes: _Classes = {}
        for entry in entries:
            place = (entry["family"], entry["target"], entry["layout_class"])
            plans = [{"engine": plan["engine"], "knobs": plan["knobs"]} for plan in entry["plans"]]
            extents = entry["extents"]
            found = self._classes.setdefault(place, {})
            found[tuple(sorted(extents.items()))] = Entry(extents, plans, is_shipped)

    def over(self, below: Tuning) -> Tuning:
        """All entries of both; of two about the same graphs the one here."""
        both = Tuning(())
        both._classes = {
            place: {**below._classes.get(place, {}), **self._classes.get(place, {})}
            for place in (*below._classes, *self._classes)
        }
        return both

    def at(self, family: str, facts: Any, target: Target) -> Entry | None:
        """What was measured for a graph's extents on a target."""
        about = self._about(family, facts, target)
        return about.get(tuple(sorted(facts.extents.items()))) if about else None

    def points(self, family: str, facts: Any, target: Target) -> list[tuple[dict[str, int], Entry]]:
        """Of a graph with symbols, the values of them for which plans were measured, ascending, in
        their domains or not, and what was measured there.
        """
        if not facts.symbols:
            return []
        found = [
            (values, entry)
            for entry in self._about(family, facts, target).values()
            if (values := facts.symbols_at(entry.extents))
        ]
        return sorted(found, key=lambda each: sorted(each[0].items()))

    def digest(self, family: str, facts: Any, target: Target) -> str:
        """Of what the file says about a graph, for its plan key; empty when that is nothing. An
        entry without plans says something: it takes the place of a shipped one.
        """
        own = self.at(family, facts, target)
        others = self.points(family, facts, target)
        if own is None and not others:
            return ""
        return canonical_digest(
            {
                "plans": None if own is None else own.plans,
                "points": [(values, entry.plans) for values, entry in others],
            }
        )

    def content_digest(self) -> str:
        """Of all that the file says; order and spelling of its entries do not count."""
        return canonical_digest(
            sorted(
                canonical_digest([*place, entry.extents, entry.plans])
                for place, entries in self._classes.items()
                for entry in entries.values()
            )
        )

    def _about(self, family: str, facts: Any, target: Target) -> Mapping[_Extents, Entry]:
        return self._classes.get((family, target.name, facts.layout_class), {})


def load_tuning(path: str | Path, *, is_shipped: bool = False) -> Tuning:
    """Read a tuning file.

    Raises:
        UsageError: it cannot be read or is no tuning file of this format.
    """
    return Tuning(read_entries(path), is_shipped=is_shipped)


def read_entries(path: str | Path) -> list[dict[str, Any]]:
    """The entries of a tuning file, as it has them.

    Raises:
        UsageError: as of `load_tuning`.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # a FIFO would be waited for without end
        raise UsageError(f"tuning file {str(path)!r} is not a regular file")
    try:
        text = Path(path).read_text(encoding="utf-8")
        document = json.loads(text, parse_constant=_refuse_constant)
    except OSError as error:
        raise UsageError(f"tuning file {str(path)!r}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"tuning file {str(path)!r} is not JSON: {error}") from None
    found = document.get("format") if isinstance(document, dict) else None
    if type(found) is not int or found != FORMAT:
        raise UsageError(f"tuning file {str(path)!r}: format is {_short(found)}, want {FORMAT}")
    listed = document.get("entries")
    if not isinstance(listed, list):
        raise UsageError(f"tuning file {str(path)!r}: entries is {_short(listed)}, want a list")
    seen: set[str] = set()
    for index, entry in enumerate(listed):
        fault = _fault(entry)
        if fault is None and place_of(entry) in seen:
            fault = "it is about the graphs of an earlier entry: put all plans in one"
        if fault:
            raise UsageError(f"tuning file {str(path)!r}: entries[{index}]: {fault}")
        seen.add(place_of(entry))
    return listed


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def place_of(entry: Mapping[str, Any]) -> str:
    """What an entry is about; a file has one entry about it."""
    fields = ("family", "target", "layout_class", "extents")
    return canonical_digest([entry[field] for field in fields])


def _fault(entry: Any) -> str | None:
    if not isinstance(entry, dict):
        return f"got {_short(entry)}, want an object"
    for name, kind in _FIELDS.items():
        if not isinstance(entry.get(name), kind):
            return f"{name} is {_short(entry.get(name))}, want {_KIND_WORDS[kind]}"
    for name, value in entry["extents"].items():
        if type(value) is not int:
            return f"extent {_short(name)} is {_short(value)}, want an integer"
    for place, plan in enumerate(entry["plans"]):
        if fault := _plan_fault(plan):
            return f"plans[{place}]: {fault}"
    return None


def _plan_fault(plan: Any) -> str | None:
    if not isinstance(plan, dict):
        return f"got {_short(plan)}, want an object with engine and knobs"
    if not isinstance(plan.get("engine"), str):
        return f"engine is {_short(plan.get('engine'))}, want the name of one"
    if not isinstance(plan.get("knobs"), dict):
        return f"knobs is {_short(plan.get('knobs'))}, want knob types with integers"
    for name, value in plan["knobs"].items():
        if name not in knob_type.__members__:
            near = did_you_mean(name, knob_type.__members__)
            return f"got knob {_short(name)}{near}, want one of the knob types"
        if type(value) is not int:
            return f"knob {name} is {_short(value)}, want an integer"
    return None


def _short(value: Any) -> str:
    return reprlib.repr(value)
