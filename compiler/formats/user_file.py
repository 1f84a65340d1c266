"""Opens the files that a user names: graphs, logs, records."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cudnn_aot.errors import UsageError


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
        raise UsageError(f"{path}: cannot read the {what}: {reason}") from None
