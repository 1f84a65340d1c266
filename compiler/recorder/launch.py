"""Runs a program with the recorder injected into it and into every Python process below it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from cudnn_aot.errors import UsageError

SPOOL_VARIABLE = "CUDNN_AOT_RECORD_SPOOL"
INJECT = Path(__file__).resolve().parent / "inject"

# Ctrl-C is not here: the terminal sends it to the program as well as to us.
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def recording_environment(spool: Path, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with what starts the recorder in a Python process."""
    # An empty item of PYTHONPATH means the working directory, so none may be made here.
    parts = [str(INJECT), *filter(None, [base.get("PYTHONPATH", "")])]
    return {**base, "PYTHONPATH": os.pathsep.join(parts), SPOOL_VARIABLE: str(spool)}


def run_recorded(command: Sequence[str], spool: Path, *, stdout_to_stderr: bool = False) -> int:
    """Run `command` to its end and return its exit code, 128 + N if signal N ended it.

    Signals sent to this process go to the program.

    Raises:
        UsageError: the program cannot be started.
    """
    try:
        process = subprocess.Popen(
            command,
            env=recording_environment(spool, os.environ),
            stdout=sys.stderr.fileno() if stdout_to_stderr else None,
        )
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot run {command[0]!r}: {reason}") from None
    with _forwarding(process):
        code = process.wait()
    return 128 - code if code < 0 else code


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals on while the block runs; handlers, unlike ignored signals, are not inherited."""

    def forward(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT or not _is_foreground():
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, *_FORWARDED)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_foreground() -> bool:
    """Whether this process group owns a terminal, which then sends Ctrl-C to all of the group."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:  # noqa: PTH123
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
