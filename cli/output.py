"""What the command line prints: every line and every document goes through here.

Names come from files that others wrote. A line shows no control character of theirs: no newline
that makes two lines of one, no escape sequence for the terminal, no change of reading direction.
Documents hold names exactly; JSON spells such characters by itself.
"""

import contextlib
import json
import math
import os
import sys
from typing import Any


def printable(text: str) -> str:
    """``text`` with everything that is not a visible character or a blank escaped."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def say(*lines: str) -> None:
    """Print lines of a result on stdout."""
    _write("".join(printable(line) + "\n" for line in lines))


def complain(line: str) -> None:
    """Print one line on stderr; that nobody reads there, or a log is full, stops nothing."""
    with contextlib.suppress(OSError):
        print(printable(line), file=sys.stderr, flush=True)


def print_json(document: dict[str, Any], version: int | None = 1) -> None:
    """Print the document of a command on stdout, its ``format`` first.

    ``version`` is raised when a field that docs/json.md describes goes or changes its meaning; a
    new field changes nothing. None is for what is no document of ours, such as a JSON Schema. A
    number that JSON does not have, as the error of a result with NaN, is null.
    """
    numbered = document if version is None else {"format": version, **document}
    _write(json.dumps(_finite(numbered), indent=2, sort_keys=False, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        abandon_stdout()  # once is enough: what is left of it is not tried again
        raise OSError(error.errno, error.strerror, "standard output") from None


def open_standard_streams() -> None:
    """Give a stream that the caller closed to the null device.

    Otherwise the next file opened would take its number, and be written to by what prints there.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a locale may lack the characters of a name
            stream.reconfigure(errors="backslashreplace")


def abandon_stdout() -> None:
    """Nobody takes what stdout gets: no more is said there, not even when the interpreter ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
