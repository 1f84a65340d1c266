"""From a graph to its bound plan: random members of classes, and near misses of every kind.

    python bench/class_plans.py [--draws 10000] [--checked 100] [--folder FOLDER]

Builds a store with one symbolic graph of each class for the CPU, then declares a graph with random
extents and scalars for every draw, as a program does for each of its steps, and asks the store for
its plan. Fails on a miss of a member, a hit of a near miss, a compile or a wrong number (of
``--checked`` executed members). Prints median and 95th percentile of declaring the graphs
and of ``store.plan(graph)``, which validates them, by the clock and of the processor, which other
processes on the machine disturb less.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from class_graphs import (
    NEAR_MISSES,
    Batched,
    Linear,
    any_batched,
    any_linear,
    any_plain,
    build_store,
    execute_and_check,
)
from program import positive, run_main

from cudnn_aot import runtime
from cudnn_aot.cache import compile as cache_compile
from cudnn_aot.errors import NotInStoreError

CLASSES: dict[str, Callable[[random.Random], Linear | Batched]] = {
    "matmul, bias, relu; any M": any_plain,
    "the same, times a scalar": any_linear,
    "matmul, broadcast bias; any batch and M": any_batched,
}


Sample = tuple[float, float]  # microseconds: by the clock, of the processor


def time_class(
    store: runtime.Store, draw: Callable[[random.Random], Linear | Batched], draws: int
) -> tuple[list[Sample], list[Sample]]:
    """The times of declaring each graph, and of finding and binding its plan."""
    dice = random.Random(7)
    declared: list[Sample] = []
    bound: list[Sample] = []
    gc.collect()
    for _ in range(draws):
        member = draw(dice)
        marks = [(time.perf_counter_ns(), time.thread_time_ns())]
        graph = member.graph()
        marks.append((time.perf_counter_ns(), time.thread_time_ns()))
        plan = store.plan(graph)
        marks.append((time.perf_counter_ns(), time.thread_time_ns()))
        assert plan.symbols["M"] == member.m
        for samples, start, end in zip((declared, bound), marks, marks[1:], strict=False):
            samples.append(((end[0] - start[0]) / 1e3, (end[1] - start[1]) / 1e3))
    return declared, bound


def forbid_compiles() -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a plan was compiled")

    cache_compile.compile_cached = refused  # type: ignore[assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=positive, default=10_000, help="graphs of each class")
    parser.add_argument(
        "--checked", type=positive, default=100, help="members of each that are executed"
    )
    parser.add_argument("--folder", type=Path, help="where the store is built, and kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = build_store(options.folder or Path(scratch))
        forbid_compiles()
        store = runtime.open(path, target="cpu")
        print(f"{options.draws} graphs of each class, us {'':22} {'clock':>16} {'processor':>16}")
        print(f"{'':58} {'median':>8} {'95th':>7} {'median':>8} {'95th':>7}")
        for name, draw in CLASSES.items():
            measured = time_class(store, draw, options.draws)
            for what, samples in zip(("declaring", "graph -> bound plan"), measured, strict=True):
                row = f"{f'{name}: {what}':58}"
                for times in zip(*samples, strict=True):
                    ninety_fifth = sorted(times)[(19 * len(times) - 1) // 20]
                    row += f" {statistics.median(times):8.0f} {ninety_fifth:7.0f}"
                print(row)
        dice = random.Random(8)
        for draw in CLASSES.values():
            for seed in range(options.checked):
                graph = draw(dice).graph()
                execute_and_check(store.plan(graph), graph, seed)
        print(f"{len(CLASSES) * options.checked} executed and compared with the reference")
        for name, (member, reason) in NEAR_MISSES.items():
            try:
                plan = store.plan(member.graph())
            except NotInStoreError as error:
                assert reason in str(error), (name, str(error))
            else:
                raise AssertionError(f"{name}: found {plan}")
        print(f"{len(NEAR_MISSES)} near misses missed")


if __name__ == "__main__":
    run_main(main)
