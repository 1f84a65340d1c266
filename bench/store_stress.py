"""Many processes build, read and prune one store for long; ends with an error at the first fault.

    python bench/store_stress.py [--operations 200000] [--processes 8] [--seed 1]

Compiles one CPU plan, and copies it into the store under other names with other kernels
(tests/support/store_stress.py). Prints how many of each operation there were, and how long it took.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from program import positive, run_main

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--operations", type=positive, default=200_000)
    parser.add_argument("--processes", type=positive, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    from class_graphs import build_store
    from store_stress import run

    with tempfile.TemporaryDirectory() as scratch:
        source, place = Path(scratch) / "source", Path(scratch) / "place"
        source.mkdir()
        place.mkdir()
        source = build_store(source)
        started = time.perf_counter()
        did = run(place / "store", source, options.seed, options.processes, options.operations)
        took = time.perf_counter() - started
    for what, count in sorted(did.items()):
        print(f"{count:8} {what}")
    print(f"{took:8.1f} s, {options.processes} processes, seed {options.seed}")


if __name__ == "__main__":
    run_main(main)
