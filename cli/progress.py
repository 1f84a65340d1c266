"""How a build's progress is shown: a bar on a terminal, lines elsewhere; always on stderr."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cudnn_aot.cli.output import complain, printable
from cudnn_aot.compiler.build.progress import Event, ProgressCallback, Stage, silent

_TITLES = {Stage.LOAD: "reading", Stage.PLAN: "planning", Stage.COMPILE: "compiling"}


@contextmanager
def show_progress(quiet: bool) -> Iterator[ProgressCallback]:
    """A callback for the driver; what it drew is gone when the block ends."""
    if quiet:
        yield silent
    elif sys.stderr.isatty():
        with _bar() as callback:
            yield callback
    else:
        yield _line


def _line(event: Event) -> None:
    """Kernels and notes only: reading and planning take milliseconds."""
    if event.stage is Stage.COMPILE:
        width = len(str(event.total))
        complain(f"[{event.done:{width}}/{event.total}] {event.label} {event.detail}")
    elif event.stage is Stage.NOTE:
        complain(event.label)


@contextmanager
def _bar() -> Iterator[ProgressCallback]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[label]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[Stage, TaskID] = {}

        def callback(event: Event) -> None:
            if event.stage is Stage.NOTE:
                progress.console.print(printable(event.label), markup=False, highlight=False)
                return
            if event.stage not in tasks:
                tasks[event.stage] = progress.add_task(
                    _TITLES[event.stage], total=event.total, label=""
                )
            progress.update(
                tasks[event.stage],
                completed=event.done,
                total=event.total,
                label=printable(event.label),
            )

        yield callback
