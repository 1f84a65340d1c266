"""SIGKILL at 200 random moments of a CPU build: half entries, hangs, other bytes.

    python bench/kill_build.py [--points 200] [--seed 1] [--folder FOLDER]

The build is that of two graphs with two kernels, by the command line, killed with its whole process
group: half of the times by the clock, half as soon as a number of documents are there. After each
kill every byte of the store is verified; after every fifth the build is repeated to its end and the
store compared with that of an undisturbed build, byte by byte, modes and times included. Exit code
1 if anything was not as it should be.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import time
from pathlib import Path

from program import positive, run_main

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from cli_process import linear_graph, run_cli, write_graph
from kill_build import kill_builds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=positive, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where stores are built (default: temporary)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        graphs = (linear_graph("up", 64), linear_graph("down", 40, op="swish"))
        files = [write_graph(folder, graph) for graph in graphs]
        started = time.perf_counter()
        done = run_cli("build", *files, "-t", "cpu", "-j", "2", "--store", folder / "undisturbed")
        assert done.returncode == 0, done.stderr
        build_s = time.perf_counter() - started
        print(f"an undisturbed build: {build_s:.1f} s")
        (folder / "killed").mkdir()
        killed = kill_builds(
            files,
            folder / "undisturbed",
            folder / "killed",
            given.points,
            given.seed,
            build_s,
        )
    print(f"{given.points} kills, {killed.ended} of builds that had ended")
    for files_there, count in sorted(collections.Counter(killed.files).items()):
        print(f"  {count:3} with {files_there} documents in the store")
    for fault in killed.faults:
        print(f"FAULT: {fault}")
    print(f"{len(killed.faults)} faults, {time.perf_counter() - started:.0f} s")
    sys.exit(bool(killed.faults))


if __name__ == "__main__":
    run_main(main)
