"""What a build tells while it runs; the driver itself prints nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Stage(str, Enum):
    """Where the build is."""

    LOAD = "load"  # one event per graph file read
    PLAN = "plan"  # one event per graph and target planned or found unchanged
    COMPILE = "compile"  # one event per distinct kernel compiled, found or failed
    NOTE = "note"  # something a person may want to know while waiting


@dataclass(frozen=True, slots=True)
class Event:
    """``done`` of ``total`` items of ``stage`` are finished, ``label`` being the last."""

    stage: Stage
    done: int
    total: int
    label: str
    detail: str = ""


ProgressCallback = Callable[[Event], None]


def silent(event: Event) -> None:
    """Show nothing."""
