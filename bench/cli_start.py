"""Start of the command line: from the start of the process to its end, for each help.

    python bench/cli_start.py [--repeat 9] [--imports]

Every run is a process of its own, its files in the page cache; the runs of all commands take turns.
Prints medians and the least, by the clock and of the processor, beside a bare interpreter and one
that imports click: what is left is ours. A completion is what a shell waits for. ``--imports`` also
prints the modules that take longest to import, by ``python -X importtime``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

from program import positive, run_main

from cudnn_aot.cli.commands import COMMANDS

PROGRAM = [sys.executable, "-m", "cudnn_aot.cli.main"]
COMPLETE = {
    "_CUDNN_AOT_COMPLETE": "bash_complete",
    "COMP_WORDS": "cudnn-aot build --target h",
    "COMP_CWORD": "3",
}
CASES: dict[str, tuple[list[str], dict[str, str]]] = {
    "python": ([sys.executable, "-c", "pass"], {}),
    "python, click": ([sys.executable, "-c", "import click"], {}),
    "--help": ([*PROGRAM, "--help"], {}),
    **{f"{name} --help": ([*PROGRAM, name, "--help"], {}) for name in COMMANDS},
    "a completion": (PROGRAM, COMPLETE),
}


def run(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Milliseconds by the clock and of the processor."""
    started, before = time.perf_counter(), os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, env={**os.environ, **env}, check=True)
    after, ended = os.times(), time.perf_counter()
    used = after.children_user + after.children_system
    used -= before.children_user + before.children_system
    return 1e3 * (ended - started), 1e3 * used


def slowest_imports(command: list[str], most: int = 12) -> list[tuple[int, str]]:
    """Microseconds of a module itself, without those that it imports; longest first."""
    timed = [command[0], "-X", "importtime", *command[1:]]
    done = subprocess.run(timed, capture_output=True, text=True, check=True)
    rows = [
        line.removeprefix("import time:").split("|")
        for line in done.stderr.splitlines()
        if line.startswith("import time:") and "self" not in line
    ]
    return sorted(((int(row[0]), row[2].strip()) for row in rows), reverse=True)[:most]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=positive, default=9)
    parser.add_argument("--imports", action="store_true")
    arguments = parser.parse_args()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for _ in range(arguments.repeat):
        for name, (command, env) in CASES.items():
            times[name].append(run(command, env))
    print(f"{'':<20} {'median':>9} {'least':>9} {'processor':>10} {'least':>9}   ms")
    for name, runs in times.items():
        clock, used = zip(*runs, strict=True)
        print(
            f"{name:<20} {statistics.median(clock):9.0f} {min(clock):9.0f} "
            f"{statistics.median(used):10.0f} {min(used):9.0f}"
        )
    if arguments.imports:
        for name in ("--help", "build --help"):
            print(f"\n{name}: modules that take longest by themselves, us")
            for taken, module in slowest_imports(CASES[name][0]):
                print(f"{taken:9}  {module}")


if __name__ == "__main__":
    run_main(main)
