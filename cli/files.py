"""Files that commands write beside the store."""

from collections.abc import Callable
from pathlib import Path

from cudnn_aot.cache.output import standard_stream, write_output
from cudnn_aot.cli.output import complain, say
from cudnn_aot.errors import UsageError


def publish(path: Path, text: str, what: str) -> Callable[[str], None]:
    """Write ``what`` as `write_output` does; returns how to tell of it in a line.

    That is on stdout, unless this is the file.

    Raises:
        UsageError: the system refuses.
    """
    tell = complain if standard_stream(path) == 1 else say
    try:
        write_output(path, text.encode())
    except BrokenPipeError:
        raise  # who reads the stream has seen enough
    except OSError as error:
        raise UsageError(
            f"{path}: cannot write {what}: {(error.strerror or str(error)).lower()}"
        ) from None
    return tell
