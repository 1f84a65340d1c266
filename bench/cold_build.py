"""Cold build of distinct GEMM kernels for h200: one worker, two workers, and the DSL by hand.

    python bench/cold_build.py [--kernels 100] [--workers 1,2] [--folder FOLDER]

The kernels are one GEMM with different epilogues under different schedules: 100 keys, 100 objects.
Each build starts with an empty store and new workers, and goes through all that `build` does for a
kernel: lock, worker, source digest and audit, link, checks, publication. "by hand" is one process
that imports the DSL once and exports the same templates to object files in a loop, without any of
it: the difference per kernel is what the machinery costs. Needs no GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import config_store
import gemm_graphs
from program import positive, run_main

from cudnn_aot.cache.compile import CompilerPool, compile_cached
from cudnn_aot.cache.spec import KernelSpec
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build.estimate import longest_first
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target

ACTIVATIONS = ("gelu", "relu", "swish", "tanh", "sigmoid")

_BY_HAND = """
import json, os, sys, time
from pathlib import Path
from cudnn_aot.cache import export
from cudnn_aot.cache.source import split_template
from cudnn_aot.cache.toolchain import dsl_folder
jobs = json.load(sys.stdin)
export.bind_environment(jobs[0]["gpu_arch"])
libraries = dsl_folder() / "dsl_packages" / "cutlass" / "_mlir" / "_mlir_libs"
export.bind_flavor(jobs[0]["toolchain"]["dsl_flavor"], libraries)
for number, job in enumerate(jobs):
    module, function = split_template(job["template"])
    output = Path(sys.argv[1]) / f"{number}.o"
    export.export(module, function, job["params"], job["gpu_arch"], job["host_level"],
                  tuple(job["options"]), output)
"""


def kernels(count: int) -> list[KernelSpec]:
    """The first ``count`` distinct kernels, over schedules and activations in turns."""
    found: dict[str, KernelSpec] = {}
    target = load_target(config_store.TARGET)
    symbols = {"M": {"min": 0, "max": 4096}}
    plans = [
        PlanList(gemm_graphs.chain("g", "M", 328, 832, op, symbols=symbols), target)
        for op in ACTIVATIONS
    ]
    for config, plan in itertools.product(config_store.configs(), plans):
        index = plan.append(config_store.ENGINE, config.to_public())
        for spec in plan.lower(index).kernels:
            if spec.template == "gemm.kernels.sm90:matmul":
                found.setdefault(spec.key, spec)
        if len(found) >= count:
            break
    if len(found) < count:
        sys.exit(f"error: --kernels: got {count}, want at most {len(found)}")
    return list(found.values())[:count]


def build(specs: list[KernelSpec], workers: int, store: Path) -> None:
    """Fill an empty store."""
    with (
        StoreWriter(store) as writer,
        CompilerPool(workers) as pool,
        ThreadPoolExecutor(workers) as threads,
    ):
        entries = list(
            threads.map(lambda spec: compile_cached(spec, writer, pool), longest_first(specs))
        )
    assert all(entry.compiled for entry in entries)
    assert len({entry.object_digest for entry in entries}) == len(specs)


def by_hand(specs: list[KernelSpec], folder: Path) -> None:
    """Export every object in one process."""
    subprocess.run(
        [sys.executable, "-c", _BY_HAND, str(folder)],
        input=json.dumps([spec.canonical() for spec in specs]),
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def measure(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds by the clock, and of processors in this process and its ended children."""
    before, started = os.times(), time.perf_counter()
    work()
    took, after = time.perf_counter() - started, os.times()
    return took, sum(after[:4]) - sum(before[:4])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=positive, default=100)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--folder", type=Path, help="where stores are built (default: temporary)")
    given = parser.parse_args()
    specs = kernels(given.kernels)
    print(f"{len(specs)} kernels, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        runs: list[tuple[str, Callable[[], None]]] = [("by hand", lambda: by_hand(specs, folder))]
        for workers in map(int, given.workers.split(",")):
            label, store = f"{workers} workers", folder / f"store {workers}"
            runs.append((label, partial(build, specs, workers, store)))
        hand_ms = first_s = 0.0
        for label, work in runs:
            took_s, processor_s = measure(work)
            processor_ms = 1e3 * processor_s / len(specs)
            hand_ms = hand_ms or processor_ms
            first_s = first_s or (took_s if label != "by hand" else 0.0)
            faster = f", {first_s / took_s:.2f} x the first" if first_s else ""
            print(
                f"{label:9}: {took_s:7.1f} s, {1e3 * took_s / len(specs):6.0f} ms per kernel; "
                f"{processor_ms:6.0f} ms of processor per kernel "
                f"({processor_ms - hand_ms:+.0f}){faster}",
                flush=True,
            )


if __name__ == "__main__":
    run_main(main)
