"""What choosing among ranges costs a call: one table with one range beside one with six.

    python bench/ranges.py [--rounds 400] [--burst 2000]

Both tables run the same kernel, which does nothing but count, on the CPU; calls lie in the first and in
the last range. A call's time on a busy machine moves by more than the choice costs, so short bursts of
all kinds take turns, and what is printed is the median of the differences within a turn.
"""  # noqa: E501

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

import tables  # noqa: E402
from program import positive, run_main

from cudnn_aot import _native  # noqa: E402
from cudnn_aot.compiler.graph.extents import Symbol  # noqa: E402
from cudnn_aot.compiler.planning.engine import Lowering, PlanConfig  # noqa: E402
from cudnn_aot.compiler.planning.ranges import Range, check_partition, merge, narrow  # noqa: E402
from cudnn_aot.compiler.planning.ranges import Ranges as RangesOf  # noqa: E402
from cudnn_aot.runtime.plan import initialise_ffi  # noqa: E402

ENDS = (1, 16, 64, 256, 1024, 65536)
TARGET_NS = 50.0
DOMAIN = {"M": Symbol(min=0, max=ENDS[-1])}


def lowered(part: Range, number: int) -> Lowering:
    """As a GEMM's on a GPU: the fast branch asks for alignment and strides, the other for nothing.

    The branches of ranges differ in an argument that the kernel does not read.
    """
    x = tables.operand(1, ["M", 64], [64, 1])
    y = tables.operand(2, ["M", 64], [64, 1], kind="output")
    fast = [
        guard
        for uid in (1, 2)
        for guard in (
            ["aligned", uid, 4],
            ["eq", ["stride", uid, 1], 1],
            ["divides", 8, ["stride", uid, 0]],
            ["lt", 0, ["stride", uid, 0]],
        )
    ]
    table = tables.table(
        [x, y],
        symbols={
            name: {"min": s.min, "max": s.max, "multiple_of": 1}
            for name, s in narrow(DOMAIN, part).items()
        },
        dispatch=[{"when": ["and", *fast], "branch": "fast"}, {"when": True, "branch": "slow"}],
        branches={
            name: {
                "workspace": [],
                "steps": [tables.kernel({"arg": "launch"}, {"arg": "int", "value": value})],
            }
            for name, value in (("fast", number), ("slow", -1))
        },
    )
    return Lowering(("count",), table)  # type: ignore[arg-type]


def plan_of(ends: tuple[int, ...], kernel: Any) -> Any:
    plan = PlanConfig(0)
    lows = (0, *(end + 1 for end in ends[:-1]))
    parts = [Range((("M", a, b),), plan) for a, b in zip(lows, ends, strict=True)]
    check_partition(RangesOf(tuple(parts)), DOMAIN)
    table = merge([(part, lowered(part, i)) for i, part in enumerate(parts)], DOMAIN).table
    assert len(table["dispatch"]) == len(ends) + 1
    return _native.Plan(table, [kernel])


def burst_ns(call: Callable[[], None], count: int) -> float:
    started = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - started) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive, default=400)
    parser.add_argument("--burst", type=positive, default=2000)
    given = parser.parse_args()
    initialise_ffi()
    kernel = _native.load_kernel(tables.library(), "count")
    one, six = plan_of(ENDS[-1:], kernel), plan_of(ENDS, kernel)
    bound = {1: 1 << 20, 2: 1 << 24}  # addresses that nothing reads

    def call(plan: Any, rows: int) -> Callable[[], None]:
        symbols = {"M": rows}
        return lambda: plan.execute(bound, symbols=symbols)

    worst = 0.0
    print(f"host ns per execute, medians of {given.rounds} bursts of {given.burst}")
    print(f"{'':16}{'1 range':>10}{'6 ranges':>10}{'more':>8}")
    for where, rows in (("first range", 1), ("last range", ENDS[-1])):
        calls = (call(one, rows), call(six, rows))
        for each in calls:
            burst_ns(each, given.burst)
        turns = []
        for turn in range(given.rounds):
            order = (0, 1) if turn % 2 else (1, 0)  # neither always goes second
            timed = {index: burst_ns(calls[index], given.burst) for index in order}
            turns.append((timed[0], timed[1]))
        single, ranged = (statistics.median(column) for column in zip(*turns, strict=True))
        more = statistics.median(b - a for a, b in turns)
        worst = max(worst, more)
        print(f"{where:16}{single:10.0f}{ranged:10.0f}{more:8.1f}")
    print(f"target: at most {TARGET_NS:.0f} ns more")
    raise SystemExit(worst > TARGET_NS)


if __name__ == "__main__":
    run_main(main)
