"""Lines about loading on standard error, as many as ``CUDNN_AOT_LOG`` asks for. Never raises."""

from __future__ import annotations

import os
import sys

from cudnn_aot.errors import UsageError

VARIABLE = "CUDNN_AOT_LOG"
LEVELS = ("off", "error", "warning", "info")  # each writes what those before it do


class Log:
    """The lines of one store. There is none for an execute."""

    __slots__ = ("_level",)

    def __init__(self) -> None:
        """Raises UsageError if the variable names no level."""
        chosen = os.environ.get(VARIABLE) or "off"
        if chosen not in LEVELS:
            raise UsageError(f"{VARIABLE}: got {chosen!r}, want {', '.join(LEVELS)}")
        self._level = LEVELS.index(chosen)

    def takes(self, level: str) -> bool:
        return LEVELS.index(level) <= self._level

    def write(self, level: str, message: str) -> None:
        """One line; what is no printable text in it is escaped."""
        if not self.takes(level):
            return
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in message)
        try:
            sys.stderr.write(f"cudnn-aot {level}: {text}\n")
        except (AttributeError, OSError, ValueError):  # there is none, or it is closed
            pass


__all__ = ["LEVELS", "VARIABLE", "Log"]
