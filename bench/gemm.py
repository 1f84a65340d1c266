"""Stored GEMM plans beside torch (cuBLAS): TFLOP/s, medians of interleaved launches.

    python bench/gemm.py --store STORE

Random data, one run for both sides, CUDA events around each launch behind a filled queue, operand
sets rotated so that small matrices do not stay in L2. Every timed result is checked against fp32
first.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Callable, Sequence

import torch

from cudnn_aot import runtime
from cudnn_aot.cache.reader import StoreReader

NAME = re.compile(r"bench_(\d+)x(\d+)x(\d+)\Z")
ROUNDS = 30
L2_BYTES = 60 << 20
MAX_SETS = 16


def operand_sets(m: int, n: int, k: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Enough sets of A, B and Y that going round them misses L2."""
    bytes_per_set = 2 * (m * k + n * k + m * n)
    count = min(MAX_SETS, max(2, -(-2 * L2_BYTES // bytes_per_set)))
    sets = []
    for _ in range(count):
        a = torch.randn(1, m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(1, n, k, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        y = torch.full((1, m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        sets.append((a, b, y))
    return sets


def relative_error(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> float:
    expected = a.float() @ b.float()
    return ((y.float() - expected).norm() / expected.norm()).item()


def time_in_turns(launches: Sequence[Callable[[int], object]], sets: int) -> list[float]:
    """Median milliseconds of each launch, in turns; a launch gets the number of its operand set."""
    filler = torch.empty(64 << 20, device="cuda", dtype=torch.uint8)
    times: list[list[float]] = [[] for _ in launches]
    for index in range(ROUNDS + 5):
        marks = []
        for launch in launches:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            filler.zero_()  # the device works on this while the host enqueues what is timed
            filler.zero_()
            start.record()
            launch(index % sets)
            end.record()
            marks.append((start, end))
        torch.cuda.synchronize()
        if index >= 5:
            for elapsed, (start, end) in zip(times, marks, strict=True):
                elapsed.append(start.elapsed_time(end))
    return [statistics.median(elapsed) for elapsed in times]


def launcher(plan, bound: Sequence[dict[int, object]]) -> Callable[[int], object]:
    """Executes the plan on one of these operand sets."""
    need = plan.workspace_bytes()
    workspace = torch.empty(need, device="cuda", dtype=torch.uint8) if need else None
    stream = torch.cuda.current_stream().cuda_stream
    return lambda index: plan.execute(bound[index], workspace, stream=stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    path = parser.parse_args().store
    reader, store = StoreReader(path), runtime.open(path, target="h200")
    shapes = [(name, NAME.match(name)) for target, name in reader.names() if target == "h200"]
    print(f"{torch.cuda.get_device_name()}, bf16, median of {ROUNDS} interleaved launches")
    print(f"{'M x N x K':>20}{'ours us':>10}{'torch us':>10}{'ours TF/s':>11}{'torch TF/s':>11}"
          f"{'ratio':>8}{'error':>10}  plan")  # fmt: skip
    for name, match in sorted(shapes, key=lambda pair: pair[0]):
        if match is None:
            continue
        m, n, k = (int(group) for group in match.groups())
        plan = store.plan(name)
        output = next(o["uid"] for o in plan.table["operands"] if o["kind"] == "output")
        uids = (plan.uids["A"], plan.uids["B"], output)
        sets = operand_sets(m, n, k)
        ours_on = launcher(plan, [dict(zip(uids, each, strict=True)) for each in sets])
        ours_on(0)
        torch.cuda.synchronize()
        error = relative_error(*sets[0])
        if not error < 5e-3:
            raise SystemExit(f"{name}: relative error {error}, want below 5e-3")

        def theirs_on(index, sets=sets):
            a, b, y = sets[index]
            torch.matmul(a, b, out=y)

        ours, theirs = time_in_turns((ours_on, theirs_on), len(sets))
        flops = 2e-9 * m * n * k
        knobs = ", ".join(f"{knob}={value}" for knob, value in sorted(plan.knobs.items()))
        print(f"{f'{m} x {n} x {k}':>20}{ours * 1e3:10.1f}{theirs * 1e3:10.1f}"
              f"{flops / ours:11.1f}{flops / theirs:11.1f}{theirs / ours:8.3f}{error:10.1e}"
              f"  {plan.engine}[{knobs}]")  # fmt: skip


if __name__ == "__main__":
    main()
