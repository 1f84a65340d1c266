"""Stored plans of grouped matmuls beside torch: TFLOP/s and TB/s, medians of replays in turns.

    python bench/grouped.py --store STORE

Each stands beside ``torch._grouped_mm`` (FP8: ``torch._scaled_grouped_mm`` with scales of 1), if
this torch has it, and beside a matmul for each expert that has rows, whose groups are known when
its CUDA graph is captured. Rows choose their experts at random, anew in every operand set. Bytes
are those of touched weights, tokens and results, each once. Errors are relative to fp32.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from program import run_main
from replay import ROUNDS, Launch, launcher, medians, need_gpu, sets_for, torch

from cudnn_aot import runtime
from cudnn_aot.cache.reader import StoreReader

NAME = re.compile(r"bench_grouped_(bf16|fp8)_(\d+)x(\d+)x(\d+)x(\d+)\Z")
DTYPES = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}  # torch's names


@dataclass(frozen=True)
class Operands:
    """Token (R, K), weight (E, N, K), offsets (E + 1,), also as numbers, and the result (R, N)."""

    token: torch.Tensor
    weight: torch.Tensor
    offsets: torch.Tensor
    edges: tuple[int, ...]
    y: torch.Tensor

    @staticmethod
    def random(kind: str, experts: int, rows: int, n: int, k: int) -> Operands:
        dtype = getattr(torch, DTYPES[kind])
        token = torch.randn(rows, k, device="cuda").to(dtype)
        weight = torch.empty(experts, n, k, device="cuda", dtype=dtype)
        for matrix in weight:  # one after the other: fp32 of all may not fit
            matrix.copy_(torch.randn(n, k, device="cuda") * (1.0 if kind == "fp8" else k**-0.5))
        counts = torch.randint(0, experts, (rows,)).bincount(minlength=experts)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int()
        y = torch.full((rows, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        return Operands(token, weight, offsets.cuda(), tuple(offsets.tolist()), y)

    def groups(self) -> Iterator[tuple[int, slice]]:
        """The experts that have rows, and those rows."""
        for expert, (start, end) in enumerate(itertools.pairwise(self.edges)):
            if end > start:
                yield expert, slice(start, end)

    def bytes_moved(self) -> int:
        touched = sum(self.weight[expert].nbytes for expert, _ in self.groups())
        return touched + self.token.nbytes + self.y.nbytes

    def relative_error(self, got: torch.Tensor) -> float:
        """Of all rows, a group at a time."""
        off = total = 0.0
        for expert, rows in self.groups():
            want = self.token[rows].float() @ self.weight[expert].float().t()
            off += (got[rows].float() - want).square().sum().item()
            total += want.square().sum().item()
        return float((off / total) ** 0.5)


def operand_sets(kind: str, experts: int, rows: int, n: int, k: int) -> list[Operands]:
    """Enough that going round them misses L2."""
    itemsize = getattr(torch, DTYPES[kind]).itemsize
    size = itemsize * (rows * k + min(rows, experts) * n * k) + 2 * rows * n
    return [Operands.random(kind, experts, rows, n, k) for _ in range(sets_for(size))]


def grouped_mm(each: Operands, scales: Sequence[torch.Tensor]) -> torch.Tensor:
    weight, ends = each.weight.transpose(1, 2), each.offsets[1:]
    if each.token.dtype is torch.bfloat16:
        return torch._grouped_mm(each.token, weight, offs=ends)
    return torch._scaled_grouped_mm(
        each.token, weight, *scales, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=False
    )


def one_by_one(each: Operands, y: torch.Tensor, one: torch.Tensor) -> None:
    for expert, rows in each.groups():
        if each.token.dtype is torch.bfloat16:
            torch.mm(each.token[rows], each.weight[expert].t(), out=y[rows])
        else:
            y[rows] = torch._scaled_mm(
                each.token[rows],
                each.weight[expert].t(),
                scale_a=one,
                scale_b=one,
                out_dtype=torch.bfloat16,
            )


def rivals(sets: Sequence[Operands]) -> Iterator[tuple[str, float, Launch]]:
    """By name: the relative error, and a launch on one of the sets."""
    first = sets[0]
    experts, n = first.weight.shape[:2]
    scales = [torch.ones(shape, device="cuda") for shape in ((len(first.token),), (experts, n))]
    try:
        error = first.relative_error(grouped_mm(first, scales))
        yield "grouped_mm", error, lambda index: grouped_mm(sets[index], scales)
    except (AttributeError, RuntimeError, ValueError) as error:  # not in this torch
        print(f"grouped_mm: {str(error).splitlines()[0]}")
    try:
        y, one = torch.empty_like(first.y), torch.ones((), device="cuda")
        one_by_one(first, y, one)
        yield "one by one", first.relative_error(y), lambda index: one_by_one(sets[index], y, one)
    except (RuntimeError, ValueError) as error:
        print(f"one by one: {str(error).splitlines()[0]}")


def measure(plan: runtime.Plan, name: str, kind: str, shape: Sequence[int]) -> None:
    experts, rows, n, k = shape
    sets = operand_sets(kind, experts, rows, n, k)
    bound: list[dict[int, object]] = [
        {
            plan.uids["token"]: each.token.data_ptr(),
            plan.uids["weight"]: each.weight.data_ptr(),
            plan.uids["first_token_offset"]: each.offsets.data_ptr(),
            plan.uids["y"]: each.y.data_ptr(),
        }
        for each in sets
    ]
    ours = launcher(plan, bound)
    ours(0)
    torch.cuda.synchronize()
    error = sets[0].relative_error(sets[0].y)
    if not error < 1e-2:
        raise SystemExit(f"{name}: relative error {error}, want below 1e-2")
    table: list[tuple[str, float, Launch]] = [("ours", error, ours), *rivals(sets)]
    times = medians([launch for _, _, launch in table], len(sets))
    flops, moved = 2e-6 * rows * n * k, sum(each.bytes_moved() for each in sets) / len(sets) * 1e-6
    for (label, error, _), us in zip(table, times, strict=True):
        print(f"{name if label == 'ours' else '':<42}{label:<12}{us:9.1f}{flops / us:9.1f}"
              f"{moved / us:8.2f}{us / times[0]:8.3f}{error:10.1e}")  # fmt: skip
    knobs = ", ".join(f"{knob}={value}" for knob, value in sorted(plan.knobs.items()))
    print(f"    {plan.engine}[{knobs}]", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--match", default="", help="only graphs whose names have this")
    given = parser.parse_args()
    need_gpu()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    reader, store = StoreReader(given.store), runtime.open(given.store, target="h200")
    print(f"{torch.cuda.get_device_name()}, median of {ROUNDS} replays in turns")
    print(f"{'graph: experts x rows x N x K':<42}{'':<12}{'us':>9}{'TF/s':>9}{'TB/s':>8}"
          f"{'ratio':>8}{'error':>10}")  # fmt: skip
    for name in sorted(name for target, name in reader.names() if target == "h200"):
        if (match := NAME.match(name)) and given.match in name:
            measure(store.plan(name), name, match[1], [int(match[i]) for i in range(2, 6)])
            torch.cuda.empty_cache()


if __name__ == "__main__":
    run_main(main)
