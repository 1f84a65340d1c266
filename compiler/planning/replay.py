"""Knobs as programs record and give them back: by knob type, and by range for a plan of ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.errors import UsageError, did_you_mean

PublicKnobs = dict[knob_type, int]


class RangedKnobs(dict[str, tuple[int, PublicKnobs]]):
    """Knobs of a plan that differ by range: by range in words, ``(engine id, knobs)``.

    What `PlanList.engine_and_knobs` gives for such a plan, and `PlanList.append` takes back.
    """


def ranged_knobs(knobs: Any) -> RangedKnobs | None:
    """Knobs by range, given as such or as a plain mapping of that shape; None for others.

    Raises:
        UsageError: what a range has is no ``(engine id, knobs)``.
    """
    if not isinstance(knobs, Mapping):
        return None
    is_ranged = isinstance(knobs, RangedKnobs) or any(
        isinstance(key, str) and "=" in key for key in knobs
    )
    if not is_ranged:
        return None
    ranged = RangedKnobs()
    for bounds, part in knobs.items():
        if not isinstance(part, list | tuple) or len(part) != 2:
            raise UsageError(f"range {bounds!r}: got {part!r}, want (engine id, knobs)")
        ranged[bounds] = (part[0], typed_knobs(part[1]))
    return ranged


def typed_knobs(knobs: Any) -> PublicKnobs:
    """Values by knob type, which may be given as such, by number or by name.

    Raises:
        UsageError: it is no mapping, a knob is unknown or there twice, or a value is no integer.
    """
    if not isinstance(knobs, Mapping):
        raise UsageError(f"knobs: got {knobs!r}, want a mapping by knob_type")
    typed: PublicKnobs = {}
    for given, value in knobs.items():
        try:
            if isinstance(given, str) and _is_number(given):  # JSON has keys of text
                given = int(given)
            knob = knob_type[given] if isinstance(given, str) else knob_type(given)
        except (KeyError, ValueError):
            near = did_you_mean(str(given), knob_type.__members__)
            raise UsageError(f"unknown knob {given!r}{near}, want a knob_type") from None
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
    if not isinstance(text, str):
        raise UsageError(f"range: got {text!r}, want such as 'M=1..64'")
    bounds = []
    for item in text.split(", "):
        name, _, span = item.partition("=")
        low, dots, high = span.partition("..")
        high = high if dots else low
        if not (name and _is_number(low) and _is_number(high)):
            raise UsageError(f"range: got {text!r}, want such as 'M=1..64'")
        bounds.append((name, int(low), int(high)))
    return tuple(bounds)


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii()
