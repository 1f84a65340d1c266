"""Reductions as the kernels trace them: one table row per mode.

A mode folds numbers in any grouping: ``map`` each, ``combine`` two, and ``finish`` what is left of
``count`` of them. ``identity`` changes nothing that it is combined with, and is what is left of
none. The functions run while a kernel is traced, on fp32 (or, on the host, fp64) scalars or vectors
of one *machine* (`pointwise.DEVICE`, `pointwise.HOST`).

What a mode gives is stated by its float64 reference in ``compiler/reference/reductions.py``. NaN
propagates through every mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fold:
    """A row: ``map(machine, x)``, ``combine(machine, x, y)``, ``finish(machine, x, count)``."""

    identity: float
    combine: Callable[..., Any]
    map: Callable[..., Any] = lambda m, x: x
    finish: Callable[..., Any] = lambda m, x, count: x


def _sum(m: Any, x: Any, y: Any) -> Any:
    return x + y


def _larger(m: Any, x: Any, y: Any) -> Any:
    return m.maximum(x, y)


def _magnitude(m: Any, x: Any) -> Any:
    return m.abs(x)


FOLDS: dict[str, Fold] = {
    "ADD": Fold(0.0, _sum),
    "MIN": Fold(math.inf, lambda m, x, y: m.minimum(x, y)),
    "MAX": Fold(-math.inf, _larger),
    "AMAX": Fold(0.0, _larger, _magnitude),
    "AVG": Fold(0.0, _sum, finish=lambda m, x, count: x / count),
    "NORM1": Fold(0.0, _sum, _magnitude),
    "NORM2": Fold(0.0, _sum, lambda m, x: x * x, lambda m, x, count: m.sqrt(x)),
}


def fold(mode: str) -> Fold:
    """The row of a mode; ValueError lists what there is."""
    if mode not in FOLDS:
        raise ValueError(f"reduction: got mode {mode!r}, want one of {', '.join(FOLDS)}")
    return FOLDS[mode]
