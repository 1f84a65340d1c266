"""Entry point of ``cudnn-aot``: loads one command at a time and turns errors into exit codes.

No traceback reaches a user: an error is one line on stderr, and ``CUDNN_AOT_DEBUG=1`` shows where
an unexpected one came from. Exit codes: 0 done, 1 failed, 2 usage, 3 declined, 130 interrupted.
"""

import sys
from collections.abc import Sequence

from cudnn_aot.cache.switch import is_debugging
from cudnn_aot.cli.output import abandon_stdout, complain, open_standard_streams, print_json
from cudnn_aot.errors import Error, UsageError


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    open_standard_streams()
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        return _run(arguments)
    except BrokenPipeError:
        abandon_stdout()
        return 141  # as if SIGPIPE had ended us


def _run(arguments: list[str]) -> int:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    as_json = "--json" in options

    def fail(kind: str, message: str, code: int) -> int:
        line = " ".join(message.split())
        complain(f"error: {line}")
        if as_json:
            print_json({"error": {"kind": kind, "message": line, "exit_code": code}})
        return code

    try:
        debugging = is_debugging()
    except UsageError as error:
        return fail(type(error).__name__, str(error), error.exit_code)
    try:
        from cudnn_aot.cli.commands import run_command
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        return fail(
            "ModuleNotFoundError",
            "the command line needs click, which the serving install leaves out: "
            "pip install 'cudnn-aot[cli]' (to look at stores) or 'cudnn-aot[compile]' (to build)",
            1,
        )
    try:
        return run_command(arguments)
    except Error as error:
        return fail(type(error).__name__, str(error), error.exit_code)
    except KeyboardInterrupt:
        return fail("KeyboardInterrupt", "interrupted", 130)
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        if debugging:
            raise
        return fail(
            "ModuleNotFoundError",
            f"module {error.name!r} is not installed: pip install 'cudnn-aot[compile]' on a build "
            "machine, numpy for `run` on a serving machine",
            1,
        )
    except OSError as error:
        if debugging:
            raise
        where = f"{error.filename}: " if error.filename else ""
        return fail("OSError", where + (error.strerror or str(error)).lower(), 1)
    except Exception as error:
        if debugging:
            raise
        return fail(
            type(error).__name__,
            f"internal error: {type(error).__name__}: {error}; CUDNN_AOT_DEBUG=1 shows the "
            "traceback",
            1,
        )


if __name__ == "__main__":
    sys.exit(main())
