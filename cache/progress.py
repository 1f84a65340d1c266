"""What long work tells while it goes on; who does it prints nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Stage(str, Enum):
    """What is being done."""

    LOAD = "load"  # one event per graph file read
    PLAN = "plan"  # one event per graph and target planned or found unchanged
    COMPILE = "compile"  # one event per distinct kernel compiled, found or failed
    VERIFY = "verify"  # one event per file of a store that was checked
    SEND = "send"  # one event per file or layer that is there now
    RECEIVE = "receive"  # one event per file or layer that is here now
    MERGE = "merge"  # one event per kernel and graph of the sources that was looked at
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
