"""Files that commands write where somebody named a path: replaced whole, or streams written into.

A link is followed and stays; a device, a pipe or another stream is never replaced or removed.
Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

_STANDARD = (1, 2)


def standard_stream(path: Path) -> int | None:
    """The descriptor of standard output or error that ``path`` is, such as ``/dev/stdout``."""
    with contextlib.suppress(OSError):
        status = path.stat()
        for descriptor in _STANDARD:
            if os.path.samestat(status, os.fstat(descriptor)):
                return descriptor
    return None


def replaceable(path: Path) -> Path | None:
    """Where a rename puts a file that is named ``path``, links being resolved; None if none may.

    Raises:
        OSError: the system does not let us look.
    """
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:  # a link to what is not there yet, too
        is_file = True
    if not is_file or standard_stream(path) is not None:
        return None
    return Path(os.path.realpath(path))


def write_output(path: Path, data: bytes) -> None:
    """Write a file: a reader finds the old or the new one, whole. Into a stream it is written.

    Raises:
        OSError: the system refuses, or ``path`` is neither a file nor a stream.
    """
    final = replaceable(path)
    if final is None:
        _write_into(path, data)
    else:
        replace(final, data)


def check_output(path: Path) -> None:
    """Raise what `write_output` would, as far as that is known before there is anything to write.

    Raises:
        OSError: as of `write_output`.
    """
    final = replaceable(path)
    if final is None:
        _check_stream(path)
    else:
        stage = _stage(final)
        stage.touch(exist_ok=False)
        stage.unlink()


def replace(path: Path, data: bytes, sync: bool = False) -> None:
    """Let a name be that of a new file with these bytes, whatever it was before, a link too.

    Args:
        sync: whether the bytes outlive a crash of the machine that the name outlives.

    Raises:
        OSError: the system refuses; the name is as it was.
    """
    stage = _stage(path)
    try:
        with stage.open("xb") as stream:
            stream.write(data)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        stage.replace(path)
    except BaseException:
        stage.unlink(missing_ok=True)
        raise


def _stage(path: Path) -> Path:
    """A new file beside ``path``, to be renamed."""
    return path.with_name(f".{secrets.token_hex(8)}.tmp")


def _check_stream(path: Path) -> None:
    mode = path.stat().st_mode
    if standard_stream(path) is None and not (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
        kind = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(kind, os.strerror(kind), str(path))


def _write_into(path: Path, data: bytes) -> None:
    _check_stream(path)
    standard = standard_stream(path)
    if standard is not None:  # opened anew, a file would be written from its start once more
        descriptor = os.dup(standard)
    else:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold what lets one process at a time read a file, change it and write it anew.

    That is a lock on the folder, so that nothing is left behind. Where there are no locks, or the
    folder may be written but not read, nothing is held.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            folder = Path(os.path.realpath(path)).parent
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
