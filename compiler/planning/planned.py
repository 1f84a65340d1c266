"""A lowered plan as a value: what a build compiles and records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cudnn_aot.cache.spec import KernelSpec
from cudnn_aot.compiler.planning.engine import Note


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """What serves one range of a plan: its bounds by symbol, and the engine and knobs."""

    bounds: dict[str, tuple[int, int]] = field(hash=False)
    engine_id: int
    engine_name: str
    knobs: dict[str, int] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Planned:
    """A lowered plan: who serves the graph, with which knobs, and what it runs.

    With ``ranges``, engine and knobs are those of the first one. Blobs and requirements are those
    of its `Lowering`; of a plan that was read from a record, they are in the record alone. Notes
    are None where the record has none of them.
    """

    engine_id: int
    engine_name: str
    knobs: dict[str, int] = field(hash=False)
    kernels: tuple[KernelSpec, ...]
    table: dict[str, Any] = field(hash=False)
    ranges: tuple[PlannedRange, ...] = ()
    blobs: tuple[bytes, ...] = field(default=(), repr=False)
    requirements: dict[str, Any] = field(default_factory=dict, hash=False)
    notes: frozenset[Note] | None = None

    @property
    def engine_names(self) -> tuple[str, ...]:
        """Of all that serve it, each once, in the order of the ranges."""
        names = [part.engine_name for part in self.ranges] or [self.engine_name]
        return tuple(dict.fromkeys(names))
