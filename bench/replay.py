"""Times of launches on a GPU: replays of CUDA graphs of them, that go round sets of operands.

So neither the host nor a gap between launches is in them, and small operands do not stay in L2.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

try:
    import torch
except ImportError:  # a bench has a help, and some have work, that need none
    torch = None  # type: ignore[assignment]

Launch = Callable[[int], object]  # of the operand set with this number

ROUNDS, MAX_LAUNCHES, MAX_SETS = 15, 100, 16
MEASUREMENT_US = 1000.0  # what one measurement takes at least, by launching more often


def need_gpu() -> None:
    """End the program where nothing can be measured."""
    if torch is None:
        sys.exit("error: measuring takes torch, which is not installed: pip install torch")
    if not torch.cuda.is_available():
        sys.exit("error: measuring takes a GPU, and torch finds none: run it on a GPU host")


def sets_for(bytes_per_set: int) -> int:
    """How many sets of operands it takes that going round them misses L2."""
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    return int(min(MAX_SETS, max(2, -(-2 * l2_bytes // bytes_per_set))))


def launcher(plan: Any, bound: Sequence[dict[int, object]]) -> Launch:
    """Executes the plan on one of these operand sets, on the current stream."""
    need = plan.workspace_bytes()
    workspace = torch.empty(need, device="cuda", dtype=torch.uint8) if need else None
    return lambda index: plan.execute(
        bound[index], workspace, stream=torch.cuda.current_stream().cuda_stream
    )


def replays(launch: Launch, sets: int, most: int = MAX_LAUNCHES) -> Callable[[], float]:
    """What gives the microseconds of a launch, each time it is called: of ``most`` in a graph."""

    def timed(work: Callable[[], object], count: int) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        return float(1e3 * start.elapsed_time(stop) / count)

    for index in range(sets):
        launch(index)
    once = timed(lambda: launch(0), 1)
    count = max(1, min(most, math.ceil(MEASUREMENT_US / once)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(count):
            launch(index % sets)
    timed(graph.replay, count)
    return lambda: timed(graph.replay, count)


def medians(
    launches: Sequence[Launch], sets: int, rounds: int = ROUNDS, most: int = MAX_LAUNCHES
) -> list[float]:
    """Microseconds of each launch, in turns."""
    timers = [replays(launch, sets, most) for launch in launches]
    times = [[timer() for timer in timers] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float(((got.float() - want).norm() / want.norm()).item())
