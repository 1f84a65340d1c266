"""A bench as a program: what ends it early is one line, and an exit code as `cudnn-aot` has."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from cudnn_aot.errors import Error


def positive(text: str) -> int:
    """The type of an option that says how many, as nothing can be measured of none."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, want a whole number from 1")
    return int(text)


def run_main(main: Callable[[], None]) -> None:
    """Call ``main``, which reads the command line."""
    try:
        main()
    except KeyboardInterrupt:
        line, code = "interrupted", 130
    except Error as error:
        line, code = str(error), error.exit_code
    except OSError as error:
        line, code = str(error), 1
    else:
        return
    print(f"error: {line}", file=sys.stderr)
    sys.exit(code)
