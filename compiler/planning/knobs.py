"""The public knob vocabulary: names and numbers of cuDNN's ``knob_type``.

Only the knobs that an engine of ours uses are listed. Backend values ``0..32`` and the frontend
band from 1000 keep the numbers that programs have recorded; both are append-only. Knobs change
speed, never numerics.
"""

from __future__ import annotations

import enum


class knob_type(enum.Enum):  # noqa: N801  (the public name in cuDNN's API)
    TILEK = 6
    SPLIT_K_SLC = 9
    TILE_CGA_M = 14
    TILE_CGA_N = 15
    TILE_M = 26
    TILE_N = 27


def plan_name(engine: str, knobs: tuple[tuple[str, int], ...]) -> str:
    """Stable printed form of a plan: ``engine[KNOB=value, …]``, knobs in name order."""
    inside = ", ".join(f"{name}={value}" for name, value in sorted(knobs))
    return f"{engine}[{inside}]" if inside else engine
