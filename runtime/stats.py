"""What a store has done for a process: the numbers behind ``store.stats()``."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Stats:
    """Counted since the store was opened.

    Attributes:
        loads: plans that were loaded; one that a graph found again is not.
        misses: plans that were asked for and are not there.
        failures: of what was asked for and is there, by the class of the error.
        fallbacks: faults of one layer where another had what was asked for, by the class of the
            error.
        refusals: calls of ``execute`` that did not fit their plan, by rule.
        bytes: of the records and libraries that were read.
    """

    loads: int = 0
    misses: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    refusals: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0


class Counters:
    """The running counts of one store; from any thread.

    ``refusals`` is handed to the plans, which count into it themselves, with the interpreter lock.
    """

    def __init__(self) -> None:
        self.refusals: dict[str, int] = {}
        self._lock = threading.Lock()
        self._loads = self._misses = self._bytes = 0
        self._failures: dict[str, int] = {}
        self._fallbacks: dict[str, int] = {}

    def add_load(self, size: int) -> None:
        with self._lock:
            self._loads += 1
            self._bytes += size

    def add_miss(self) -> None:
        with self._lock:
            self._misses += 1

    def add_failure(self, error: Exception) -> None:
        self._add(self._failures, error)

    def add_fallback(self, error: Exception) -> None:
        self._add(self._fallbacks, error)

    def stats(self) -> Stats:
        with self._lock:
            return Stats(
                loads=self._loads,
                misses=self._misses,
                failures=dict(self._failures),
                fallbacks=dict(self._fallbacks),
                refusals=dict(self.refusals),
                bytes=self._bytes,
            )

    def _add(self, counts: dict[str, int], error: Exception) -> None:
        kind = type(error).__name__
        with self._lock:
            counts[kind] = counts.get(kind, 0) + 1


__all__ = ["Counters", "Stats"]
