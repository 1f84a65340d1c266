"""Warm rebuild: a build of graphs whose plans and kernels the store holds, so that nothing is made.

    python bench/warm_build.py [--graphs 1000] [--target h200,cpu] [--repeat 5] [--folder FOLDER]

Makes distinct graphs that share a handful of kernels (a matmul, bias and activation; N and K
differ, M is a symbol), builds them once into a store of its own, and times later builds: the whole
process of `cudnn-aot build` from its start to its exit, with tables and with `--json`, and the call
of the library in a process that has imported it. Each row is one build for the targets it names.
Fails if a rebuild compiles, writes a file or does not find every plan. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import gemm_graphs
from program import positive, run_main

from cudnn_aot.compiler.build.driver import build
from cudnn_aot.compiler.formats import graph_json

_LIBRARY = """
import json, os, sys, time
from cudnn_aot.compiler.build.driver import build
folder, store, *targets = sys.argv[1:]
used, began = time.process_time(), time.perf_counter()
summary = build([folder], targets, store)
took = time.perf_counter() - began, time.process_time() - used
print(json.dumps({"took": took, **summary.to_json()}))
"""


def write_graphs(folder: Path, count: int) -> None:
    """``count`` graph files, no two of one key."""
    folder.mkdir()
    for number in range(count):
        n, k = 64 * (1 + number % 40), 256 * (1 + number // 40)
        symbols = {"M": {"min": 0, "max": 4096, "hint": 512}}
        graph = gemm_graphs.chain(f"layer_{number:04}", "M", n, k, "gelu", symbols=symbols)
        (folder / f"{graph.name}.json").write_text(graph_json.dumps(graph))


def make_store(graphs: Path, targets: list[str], store: Path) -> None:
    sync, os.fsync = os.fsync, lambda descriptor: None  # nobody needs it after a crash
    try:
        summary = build([graphs], targets, store)
    finally:
        os.fsync = sync
    print(
        f"{len(summary.graphs)} plans of {len(list(graphs.iterdir()))} graphs, "
        f"{summary.kernels.compiled} kernels, made in {summary.seconds:.0f} s"
    )


def check(document: dict, plans: int) -> None:
    """That a rebuild found everything and made nothing."""
    found = sum(row["status"] == "cached" for row in document["graphs"])
    made = (document["kernels"]["compiled"], document["files_written"])
    if found != plans or made != (0, 0):
        sys.exit(
            f"not a warm rebuild: got {found} plans, {made[0]} compiles and {made[1]} files "
            f"written, want {plans}, 0 and 0"
        )


def _installed() -> dict[str, str]:
    """The environment of a process whose modules are compiled to bytecode, as pip installs them."""
    return {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def process(command: list[str]) -> tuple[float, float, str]:
    """Seconds by the clock and of processors from the start to the exit, and what it printed."""
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(command, text=True, capture_output=True, env=_installed())
    took, after = time.perf_counter() - began, os.times()
    if done.returncode:
        sys.exit(done.stderr)
    return took, sum(after[2:4]) - sum(before[2:4]), done.stdout


def rebuilds(graphs: Path, targets: list[str], store: Path) -> dict[str, Callable]:
    """The ways to rebuild; each gives seconds by the clock, of processors, and what was printed."""
    script = [str(Path(sys.executable).with_name("cudnn-aot")), "build", str(graphs)]
    script += ["--target", ",".join(targets), "--store", str(store)]

    def library() -> tuple[float, float, str]:
        out = process([sys.executable, "-c", _LIBRARY, str(graphs), str(store), *targets])[2]
        return *json.loads(out)["took"], out

    return {
        "cudnn-aot build": lambda: process(script),
        "cudnn-aot build --json": lambda: process([*script, "--json"]),
        "build(...)": library,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--graphs", type=positive, default=1000)
    parser.add_argument("--target", default="h200,cpu")
    parser.add_argument("--repeat", type=positive, default=5)
    parser.add_argument("--folder", type=Path, help="where the store is made (default: temporary)")
    given = parser.parse_args()
    targets = given.target.split(",")
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        graphs, store = Path(name, "graphs"), Path(name, "store")
        write_graphs(graphs, given.graphs)
        make_store(graphs, targets, store)
        print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; milliseconds")
        for asked in [*([target] for target in targets), *([targets] if targets[1:] else [])]:
            for label, work in rebuilds(graphs, asked, store).items():
                clock, used = [], []
                for _ in range(given.repeat):
                    took_s, processor_s, out = work()
                    if out.startswith("{"):
                        check(json.loads(out), given.graphs * len(asked))
                    clock.append(1e3 * took_s)
                    used.append(1e3 * processor_s)
                print(
                    f"{label:22} {','.join(asked):9} clock {statistics.median(clock):6.0f}  "
                    f"least {min(clock):6.0f}  processor {statistics.median(used):6.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    run_main(main)
