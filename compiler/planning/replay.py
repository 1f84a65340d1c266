"""Knobs as programs record and give them back: by knob type, and by range for a plan of ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.errors import UsageError

PublicKnobs = dict[knob_type, int]


class RangedKnobs(dict[str, tuple[int, PublicKnobs]]):
    """Knobs of a plan that differ by range: by range in words, ``(engine id, knobs)``.

    What `PlanList.engine_and_knobs` gives for such a plan, and `PlanList.append` takes back.
    """


def typed_knobs(knobs: Mapping[Any, Any]) -> PublicKnobs:
    """Values by knob type, which may be given as such, by number or by name.

    Raises:
        UsageError: a knob is unknown or there twice, or a value is no integer.
    """
    typed: PublicKnobs = {}
    for given, value in knobs.items():
        try:
            knob = knob_type[given] if isinstance(given, str) else knob_type(given)
        except (KeyError, ValueError):
            raise UsageError(f"unknown knob {given!r}, want a knob_type") from None
        if type(value) is not int:
            raise UsageError(f"knob {knob.name}: got {value!r}, want an integer")
        if typed.setdefault(knob, value) != value:
            raise UsageError(f"knob {knob.name}: got both {typed[knob]} and {value}")
    return typed


def parse_bounds(text: str) -> tuple[tuple[str, int, int], ...]:
    """The bounds that a `Range` in words says; a single value is written ``M=1`` or ``M=1..1``.

    Raises:
        UsageError: the text is no range.
    """
    bounds = []
    for item in text.split(", "):
        name, _, span = item.partition("=")
        low, dots, high = span.partition("..")
        high = high if dots else low
        if not (name and low.isdecimal() and high.isdecimal()):
            raise UsageError(f"range: got {text!r}, want such as 'M=1..64'")
        bounds.append((name, int(low), int(high)))
    return tuple(bounds)
