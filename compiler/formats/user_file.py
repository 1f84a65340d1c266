"""Opens the files that a user names: graphs, logs, records."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from cudnn_aot.errors import UsageError, did_you_mean

_MAX_NAMES = 10_000  # comparing so many takes a tenth of a second


@contextmanager
def opened(path: Path, what: str) -> Iterator[BinaryIO]:
    """The file, open for reading; `what` it should be is for the message.

    Raises:
        UsageError: it cannot be read, inside the block too, or is a FIFO, a socket or a device,
            which could be waited for without end.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a folder fails by itself
            raise UsageError(
                f"{path}: cannot read the {what}: it is not a regular file: write the {what} to one"
            )
        with path.open("rb") as file:
            yield file
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        near = _beside(path) if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"{path}: cannot read the {what}: {reason}{near}") from None


def _beside(path: Path) -> str:
    """Of a file that is not there, what follows it: the nearest name in its folder."""
    try:
        names = [entry.name for entry in islice(path.parent.iterdir(), _MAX_NAMES)]
    except OSError:
        return ""
    return did_you_mean(path.name, names)
