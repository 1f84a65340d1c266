"""The contract between planning and the engines in ``recipes``.

An engine says what it takes (capability rows), and lowers a graph's facts to kernels and a launch
table. It ships no ``execute``: one C++ executor walks every table. Facts describe, capabilities
judge, heuristics rank; the three never mix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cudnn_aot.cache.spec import KernelSpec
from cudnn_aot.compiler.target.target import Target


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an analyzer or engine does not take a graph: one sentence, lower case, no trailing
    dot.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """One entry of a ranked plan list: an engine and the knobs it will build with.

    ``knobs`` are ``(knob name, value)`` pairs in name order, from the public vocabulary of
    ``knobs.py``. The pair ``(engine_id, knobs)`` is the identity of a plan.
    """

    engine_id: int
    knobs: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Lowering:
    """What a plan runs: kernels by position, and the launch table that names them by that
    position.
    """

    kernels: tuple[KernelSpec, ...]
    table: dict[str, Any] = field(hash=False)


class Engine(Protocol):
    """Engines are stateless: everything they need comes in the arguments."""

    name: str

    def check_support(self, facts: Any, target: Target) -> Refusal | None:
        """None when the engine takes the graph on the target, else the reason; from facts
        alone, cheap.
        """
        ...

    def lower(self, facts: Any, knobs: Mapping[str, int], target: Target) -> Lowering | Refusal:
        """Kernels and launch table for one config; pure, compiles nothing."""
        ...
