"""How progress is shown: a bar on a terminal, lines elsewhere; always on stderr."""

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cudnn_aot.cache.progress import Event, ProgressCallback, Stage, silent
from cudnn_aot.cli.output import complain, printable

if TYPE_CHECKING:
    from rich.progress import Task, TaskID
    from rich.text import Text

_TITLES = {
    Stage.LOAD: ("reading", "files"),
    Stage.PLAN: ("planning", "plans"),
    Stage.COMPILE: ("compiling", "kernels"),
    Stage.VERIFY: ("checking", "files"),
    Stage.SEND: ("sending", "parts"),
    Stage.RECEIVE: ("receiving", "parts"),
    Stage.MERGE: ("merging", "entries"),
}
# As a line now and then: there may be ten thousands.
_RARELY = (Stage.VERIFY, Stage.SEND, Stage.RECEIVE, Stage.MERGE)
LINE_S = 10.0  # between two of those lines


@contextmanager
def show_progress(quiet: bool) -> Iterator[ProgressCallback]:
    """A callback for long work; what it drew is gone when the block ends."""
    if quiet:
        yield silent
    elif _is_live() and _has_rich():
        with _bar() as callback:
            yield callback
    else:
        yield _Lines()


def _has_rich() -> bool:
    """Stores are looked at where it is not installed."""
    try:
        import rich.progress  # noqa: F401
    except ImportError:
        return False
    return True


def _is_live() -> bool:
    """Whether what is drawn on stderr can be drawn over: not in a log, though a runner of CI may
    give its jobs a terminal.
    """
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not in_ci


class _Lines:
    """Kernels and notes, and how far the rest is; reading and planning take milliseconds."""

    def __init__(self) -> None:
        self._said_s = time.monotonic()

    def __call__(self, event: Event) -> None:
        counted = f"[{event.done:{len(str(event.total))}}/{event.total}]"
        if event.stage is Stage.COMPILE:
            complain(f"{counted} {event.label} {event.detail}")
        elif event.stage is Stage.NOTE:
            complain(event.label)
        elif event.stage in _RARELY and time.monotonic() - self._said_s >= LINE_S:
            self._said_s = time.monotonic()
            complain(f"{counted} {_TITLES[event.stage][0]} {event.label}".rstrip())


class Pace:
    """How fast things get done: of the last few, since the first ones may have been there already.

    ``now`` is a time in seconds, that of a clock of the caller's.
    """

    def __init__(self, now: float) -> None:
        self._times = deque([now], maxlen=33)

    def count(self, now: float) -> None:
        """One more is done."""
        self._times.append(now)

    def per_second(self, now: float) -> float:
        """0 before the first is done."""
        return (len(self._times) - 1) / max(now - self._times[0], 1e-3)


def format_left(seconds: float) -> str:
    """``75`` as ``1:15 left``, two hours as ``2:00:00 left``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}") + " left"


@contextmanager
def _bar() -> Iterator[ProgressCallback]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
    from rich.table import Column
    from rich.text import Text

    class PaceColumn(ProgressColumn):
        """Things per second, and the time left at that pace."""

        def render(self, task: "Task") -> "Text":
            rate = task.fields["pace"].per_second(time.monotonic())
            if task.finished or not rate:
                return Text("")
            left = format_left(((task.total or 0) - task.completed) / rate)
            return Text(f"{rate:.1f} {task.fields['unit']}/s, {left}")

    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        PaceColumn(table_column=Column(no_wrap=True)),
        TextColumn(
            "{task.fields[label]}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
    )
    console = Console(stderr=True)
    # Expanded, the label alone gives way to what is wider than the terminal.
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        paces: dict[Stage, Pace] = {}
        tasks: dict[Stage, TaskID] = {}
        latest = time.monotonic()  # a stage starts when the one before it ended

        def callback(event: Event) -> None:
            nonlocal latest
            if event.stage is Stage.NOTE:
                progress.console.print(printable(event.label), markup=False, highlight=False)
                return
            if event.stage not in tasks:
                for task in tasks.values():
                    progress.update(task, visible=False)
                title, unit = _TITLES[event.stage]
                paces[event.stage] = Pace(latest)
                tasks[event.stage] = progress.add_task(
                    title, total=None, label="", unit=unit, pace=paces[event.stage]
                )
            latest = time.monotonic()
            paces[event.stage].count(latest)
            progress.update(
                tasks[event.stage],
                completed=event.done,
                total=event.total,
                label=printable(event.label),
            )

        yield callback
