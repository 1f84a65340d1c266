"""Entry point of ``cudnn-aot``: loads one command at a time and turns errors into exit codes.

No traceback reaches a user: an error is one line on stderr, and ``CUDNN_AOT_DEBUG=1`` shows where
an unexpected one came from. Exit codes: 0 done, 1 failed, 2 usage, 3 declined, 130 interrupted.
"""

import os
import sys
from collections.abc import Sequence

from cudnn_aot.errors import Error


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        from cudnn_aot.cli.commands import run_command
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        return _fail(
            "the command line needs click, which the serving install leaves out: "
            "pip install 'cudnn-aot[cli]' (to look at stores) or 'cudnn-aot[compile]' (to build)",
            1,
        )
    try:
        code = run_command(args)
        sys.stdout.flush()
        return code
    except Error as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output went away: say nothing, now or when the interpreter flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ModuleNotFoundError as error:
        if _debugging():
            raise
        return _fail(
            f"module {error.name!r} is not installed: pip install 'cudnn-aot[compile]' on a build "
            "machine, numpy for `run` on a serving machine",
            1,
        )
    except OSError as error:
        if _debugging():
            raise
        where = f"{error.filename}: " if error.filename else ""
        return _fail(where + (error.strerror or str(error)).lower(), 1)
    except Exception as error:
        if _debugging():
            raise
        return _fail(
            f"internal error: {type(error).__name__}: {error}; CUDNN_AOT_DEBUG=1 shows the "
            "traceback",
            1,
        )


def _debugging() -> bool:
    return os.environ.get("CUDNN_AOT_DEBUG") == "1"


def _fail(message: str, code: int) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
