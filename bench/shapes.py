"""Stored GEMM plans beside torch (cuBLAS) over forty shapes: both sides replayed from CUDA graphs.

    python bench/shapes.py --graphs FOLDER                # write the graphs; then, with no GPU:
    cudnn-aot build FOLDER --target h200 --store STORE
    python bench/shapes.py --store STORE                  # on the GPU host

Squares, projections of real models from 1 to 16384 rows, odd extents and batches; random BFLOAT16.
Each result is compared with fp32 first. A measurement is the replay of a CUDA graph of launches
that go round operands twice as large as L2; the sides take turns, and the median of each counts.
Prints the ratio of cuBLAS's time to ours, the geometric mean and the least of them.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from program import run_main
from replay import launcher, medians, need_gpu, relative_error, sets_for, torch

SQUARES = tuple((1, n, n, n) for n in (1024, 2048, 4096, 8192, 16384))
ROWS = (1, 16, 64, 256, 1024, 4096, 16384)
# (N, K): qkv and down of Llama-3-8B, gate and up of Llama-3-70B, gate and up of Qwen3-4B.
WEIGHTS = ((6144, 4096), (4096, 14336), (57344, 8192), (19456, 2560))
PROJECTIONS = tuple((1, m, n, k) for n, k in WEIGHTS for m in ROWS)
OTHERS = (
    (1, 64, 4096, 4096),
    (1, 512, 4096, 4096),
    (1, 4095, 4097, 4096),
    (1, 333, 1023, 2048),
    (8, 2048, 2048, 2048),
    (64, 512, 512, 128),
    (128, 128, 1024, 1024),
)
SHAPES = SQUARES + PROJECTIONS + OTHERS
NAME = re.compile(r"(?:shape|bench)_(?:(\d+)x)?(\d+)x(\d+)x(\d+)\Z")


def write_graphs(folder: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    import gemm_graphs

    from cudnn_aot.compiler.formats import graph_json

    folder.mkdir(parents=True, exist_ok=True)
    for batch, m, n, k in SHAPES:
        graph = gemm_graphs.plain(f"shape_{batch}x{m}x{n}x{k}", m, n, k, batch=batch)
        (folder / f"{graph.name}.json").write_text(graph_json.dumps(graph))


def time_pair(plan: Any, uids: tuple[int, int, int], shape: tuple[int, ...]) -> list[float]:
    """Median microseconds of ours and of cuBLAS, and the relative error of ours."""
    batch, m, n, k = shape
    count = sets_for(2 * batch * (m * k + n * k + m * n))
    sets = []
    for _ in range(count):
        a = torch.randn(batch, m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(batch, n, k, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        y = torch.full((batch, m, n), math.nan, device="cuda", dtype=torch.bfloat16)
        sets.append((a, b, y))
    ours = launcher(plan, [dict(zip(uids, operands, strict=True)) for operands in sets])

    def cublas(index: int) -> None:
        a, b, y = sets[index]
        torch.matmul(a, b, out=y) if batch > 1 else torch.mm(a[0], b[0], out=y[0])

    ours(0)
    a, b, y = sets[0]
    error = relative_error(y, a.float() @ b.float())
    return [*medians((ours, cublas), count), error]


def in_order(names: list[str]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Batch, M, N, K and the name of each plain matmul among graphs, those of `SHAPES` first."""
    named = {}
    for name in names:
        if match := NAME.match(name):
            named[tuple(int(extent or 1) for extent in match.groups())] = name
    for shape in (*SHAPES, *sorted(set(named) - set(SHAPES))):
        if shape in named:
            yield shape, named[shape]


def copy_bandwidth() -> float:
    """GB/s read and written by a device copy."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    (us,) = medians([lambda _: torch.mul(source, 1.0, out=target)], 1)
    return 2e-3 * source.nbytes / us


def compare(path: str) -> None:
    need_gpu()
    from cudnn_aot import runtime
    from cudnn_aot.cache.reader import StoreReader

    torch.backends.cuda.matmul.allow_tf32 = False
    store = runtime.open(path, target="h200")
    names = [name for target, name in StoreReader(path).names() if target == "h200"]
    copied = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}; a copy moves {copied:.0f} GB/s")
    print(f"{'L x M x N x K':>26}{'ours us':>10}{'cuBLAS us':>11}{'ratio':>7}{'TFLOP/s':>9}"
          f"{'of copy':>9}{'error':>9}  plan")  # fmt: skip
    ratios = []
    for shape, name in in_order(names):
        plan = store.plan(name)
        output = next(o["uid"] for o in plan.table["operands"] if o["kind"] == "output")
        ours, cublas, error = time_pair(plan, (plan.uids["A"], plan.uids["B"], output), shape)
        if not error < 5e-3:
            raise SystemExit(f"{name}: relative error {error}, want below 5e-3")
        batch, m, n, k = shape
        ratios.append(cublas / ours)
        moved = 2e-3 * batch * (m * k + n * k + m * n) / ours
        knobs = " ".join(f"{knob}={value}" for knob, value in plan.knobs.items())
        print(f"{' x '.join(map(str, shape)):>26}{ours:10.2f}{cublas:11.2f}{ratios[-1]:7.3f}"
              f"{2e-6 * batch * m * n * k / ours:9.1f}{moved / copied:9.2f}{error:9.1e}"
              f"  {plan.engine.removeprefix('gemm.sm90.')} {knobs}", flush=True)  # fmt: skip
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"{len(ratios)} shapes: geometric mean {mean:.3f}, least {min(ratios):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--graphs", type=Path, help="write the graphs into this folder")
    given.add_argument("--store", help="the store that was built from them")
    asked = parser.parse_args()
    if asked.graphs:
        write_graphs(asked.graphs)
    else:
        compare(asked.store)


if __name__ == "__main__":
    run_main(main)
