"""What `tune` found beside cuBLAS: microseconds of a launch, both replayed from CUDA graphs.

    python bench/tuned.py --graphs FOLDER                 # write the graphs; then, with no GPU:
    cudnn-aot build FOLDER --target h200 --all-configs --store candidates
    cudnn-aot tune --store candidates -o h200.json        # on the GPU host, and there:
    python bench/tuned.py --tuning h200.json

The graphs are projections of real models without an epilogue, M being a symbol. The second use
times `torch.matmul` at the extents of each entry as `tune` times plans: replays of a CUDA graph of
up to 20 launches over operands that together are twice as large as L2, the median of 10. Prints the
ratio of cuBLAS's time to that of the fastest plan; the geometric mean in the end.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from program import run_main
from replay import medians, need_gpu, sets_for, torch

from cudnn_aot.compiler.planning.tuning import read_entries

# (N, K) of the projections: qkv, o, gate and up in one, down.
MODELS = {
    "llama_8b": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    "llama_70b": ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
    "qwen3_4b": ((6144, 2560), (2560, 4096), (19456, 2560), (2560, 9728)),
}
PROJECTIONS = ("qkv", "o", "gate_up", "down")
REPLAYS, LAUNCHES = 10, 20  # as `tune` has them


def write_graphs(folder: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    import gemm_graphs

    from cudnn_aot.compiler.formats import graph_json

    folder.mkdir(parents=True, exist_ok=True)
    for model, shapes in MODELS.items():
        for projection, (n, k) in zip(PROJECTIONS, shapes, strict=True):
            symbols = {"M": {"min": 1, "max": 16384}}
            graph = gemm_graphs.plain(f"{model}_{projection}", "M", n, k, symbols=symbols)
            (folder / f"{graph.name}.json").write_text(graph_json.dumps(graph))


def cublas_us(m: int, n: int, k: int) -> float:
    count = sets_for(2 * (m * k + n * k + m * n))
    sets = []
    for _ in range(count):
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).t()
        sets.append((a, b, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)))

    def launch(index: int) -> None:
        a, b, y = sets[index]
        torch.matmul(a, b, out=y)

    return medians([launch], count, REPLAYS, LAUNCHES)[0]


def compare(entries: list[dict[str, Any]]) -> None:
    print(
        f"{'M x N x K':>22}{'ours us':>10}{'cuBLAS us':>11}{'ratio':>8}{'weights GB/s':>14}  knobs"
    )
    ratios = []
    for entry in entries:
        m, n, k = (entry["extents"][name] for name in ("m", "n", "k"))
        best = entry["plans"][0]
        theirs = cublas_us(m, n, k)
        ratios.append(theirs / best["us"])
        knobs = " ".join(f"{name}={value}" for name, value in best["knobs"].items())
        print(
            f"{f'{m} x {n} x {k}':>22}{best['us']:10.2f}{theirs:11.2f}{ratios[-1]:8.3f}"
            f"{2e-3 * n * k / best['us']:14.0f}  {knobs}",
            flush=True,
        )
    print(f"geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--graphs", type=Path, help="write the graphs into this folder")
    given.add_argument("--tuning", type=Path, help="the file that `tune` wrote for them")
    asked = parser.parse_args()
    if asked.graphs:
        write_graphs(asked.graphs)
    else:
        need_gpu()
        plain = "BFLOAT16xBFLOAT16 kk []  -> BFLOAT16"
        compare([e for e in read_entries(asked.tuning) if e["layout_class"] == plain])


if __name__ == "__main__":
    run_main(main)
