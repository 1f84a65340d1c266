"""Files that commands write beside the store."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cudnn_aot.cache.output import check_output, standard_stream, write_output
from cudnn_aot.cli.output import complain, say
from cudnn_aot.errors import Error, UsageError

# What a person named wrongly; anything else, such as a disk that is full, is no wrong command.
_WRONG_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENAMETOOLONG)


def publish(path: Path, text: str, what: str) -> Callable[[str], None]:
    """Write ``what`` as `write_output` does; returns how to tell of it in a line.

    That is on stdout, unless this is the file.

    Raises:
        UsageError: no file can be there.
        Error: the system refuses.
    """
    tell = complain if standard_stream(path) == 1 else say
    with _refusals(path, what):
        write_output(path, text.encode())
    return tell


def check_path(path: Path, what: str) -> None:
    """Refuse what `publish` would, ahead of the work that ``what`` takes.

    Raises:
        UsageError: as of `publish`.
        Error: likewise.
    """
    with _refusals(path, what):
        check_output(path)


@contextmanager
def _refusals(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # who reads the stream has seen enough
    except OSError as error:
        kind = UsageError if error.errno in _WRONG_PATH else Error
        raise kind(
            f"{path}: cannot write {what}: {(error.strerror or str(error)).lower()}"
        ) from None
