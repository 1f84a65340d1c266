"""Entry point of ``cudnn-aot``: loads one command at a time and turns errors into exit codes.

No traceback reaches a user: an error is one line on stderr, and ``CUDNN_AOT_DEBUG=1`` shows where
an unexpected one came from. Exit codes: 0 done, 1 failed, 2 usage, 3 declined, 130 interrupted,
143 and 129 ended by SIGTERM and SIGHUP.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from cudnn_aot.cache.switch import is_debugging
from cudnn_aot.cli.output import abandon_stdout, complain, open_standard_streams, print_json
from cudnn_aot.errors import Error


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    open_standard_streams()
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        with _ending_in_order():
            return _run(arguments)
    except BrokenPipeError:
        abandon_stdout()
        return 141  # as if SIGPIPE had ended us


class _Ended(KeyboardInterrupt):
    """A signal that ends processes, by its number: cleaned up after as after an interrupt."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """Time-outs of CI end a build by a signal, which must not leave its staging behind.

    What somebody ignores, as under `nohup`, or handles stays as it is.
    """

    def end(number: int, frame: FrameType | None) -> None:
        for each in ours:  # `timeout` sends it to the process and to its group
            signal.signal(each, signal.SIG_IGN)
        raise _Ended(number)

    ours: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        ours += [each for each in _ENDING if signal.getsignal(each) is signal.SIG_DFL]
    for each in ours:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def _run(arguments: list[str]) -> int:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    as_json = "--json" in options

    def fail(kind: str, message: str, code: int) -> int:
        line = " ".join(message.split())
        complain(f"error: {line}")
        if as_json:
            try:
                print_json({"error": {"kind": kind, "message": line, "exit_code": code}})
            except BrokenPipeError:
                raise
            except OSError:
                pass  # the line has told
        return code

    debugging = False
    try:
        debugging = is_debugging()
        from cudnn_aot.cli.commands import run_command

        return run_command(arguments)
    except Error as error:
        return fail(type(error).__name__, str(error), error.exit_code)
    except _Ended as ended:
        name = signal.Signals(ended.number).name
        return fail("KeyboardInterrupt", f"ended by {name}", 128 + ended.number)
    except KeyboardInterrupt:
        return fail("KeyboardInterrupt", "interrupted", 130)
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        if error.name == "click":
            line = (
                "the command line needs click, which the serving install leaves out: "
                "pip install 'cudnn-aot[cli]' (to look at stores) or 'cudnn-aot[compile]' (to "
                "build)"
            )
        elif debugging:
            raise
        else:
            line = (
                f"module {error.name!r} is not installed: pip install 'cudnn-aot[compile]' on a "
                "build machine, numpy for `run` and `tune` on a serving machine"
            )
        return fail("ModuleNotFoundError", line, 1)
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
