"""What `tune` finds of projections of models: the shipped tuning file, and times beside cuBLAS.

The shipped file is made by

    python bench/tuned.py --graphs graphs                       # and, still without a GPU:
    cudnn-aot build graphs --target h200 --all-configs --store candidates
    cudnn-aot tune --store candidates -o h200.json \\
        --symbol M=1,2,4,8,16,32,64,128,256,384,512,768,1024,1536,2048,3072,4096
    python bench/tuned.py --ship h200.json recipes/gemm/tuning/h200.json

of which the third runs on the GPU host. The graphs have no epilogue, M is a symbol; `--models`
chooses of which models they are. `--ship` puts first at each value of M what serves others too: of
each graph the fewest plans such that the first at every value is at most 2 % slower than the
fastest there, since each plan is a kernel of the graph's. Behind it are the fastest others.

    python bench/tuned.py --tuning h200.json

times `torch.matmul` at the extents of each entry as `tune` times plans: replays of a CUDA graph of
up to 20 launches over operands that together are twice as large as L2, the median of 10. Prints the
ratio of cuBLAS's time to that of the first plan; the geometric mean in the end.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from program import run_main
from replay import medians, need_gpu, sets_for, torch

from cudnn_aot.cache.canonical import canonical_bytes
from cudnn_aot.compiler.planning.tuning import FORMAT, read_entries
from cudnn_aot.errors import UsageError

# (N, K) of the projections: qkv, o, gate and up in one, down.
MODELS = {
    "llama_8b": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    "llama_70b": ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
    "qwen3_4b": ((6144, 2560), (2560, 4096), (19456, 2560), (2560, 9728)),
}
PROJECTIONS = ("qkv", "o", "gate_up", "down")
# Values of M that are measured. Where there are several waves of tiles, the best plan of a value is
# less good a little below it, so there they are nearer to each other.
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
REPLAYS, LAUNCHES = 10, 20  # as `tune` has them
# Of what is shipped: how much slower than the fastest a first plan may be, and plans of an entry.
NEARLY, KEPT = 1.02, 8

Times = Mapping[str, float]  # microseconds at one value of M, by plans


def write_graphs(folder: Path, models: Sequence[str]) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    import gemm_graphs

    from cudnn_aot.compiler.formats import graph_json

    folder.mkdir(parents=True, exist_ok=True)
    for model in models:
        for projection, (n, k) in zip(PROJECTIONS, MODELS[model], strict=True):
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


def first_plans(points: Sequence[Times]) -> list[str]:
    """For each of several values of M the plan to take there: at most `NEARLY` times as slow as the
    fastest, and of all such choices the one of the fewest plans, then of the fewest changes from a
    value to the next, then the fastest.
    """
    slower = [{plan: us / min(times.values()) for plan, us in times.items()} for times in points]
    near = [{plan: ratio for plan, ratio in at.items() if ratio <= NEARLY} for at in slower]
    plans = sorted({plan for at in near for plan in at})

    @functools.cache
    def cover(left: frozenset[int]) -> tuple[int, float, tuple[str, ...]]:
        """How many plans it takes for some of the values, how slow they are, and which."""
        if not left:
            return 0, 0.0, ()
        found = []
        for plan in plans:
            served = {at for at in left if plan in near[at]}
            if min(left) in served:
                count, slow, others = cover(left - served)
                slow += sum(near[at][plan] for at in served)
                found.append((count + 1, round(slow, 9), (plan, *others)))
        return min(found)

    chosen = cover(frozenset(range(len(points))))[2]
    paths: dict[str, tuple[int, float, tuple[str, ...]]] = {"": (0, 0.0, ())}
    for at in near:
        paths = {
            plan: min(
                (changes + (before not in ("", plan)), round(slow + at[plan], 9), (*path, plan))
                for before, (changes, slow, path) in paths.items()
            )
            for plan in chosen
            if plan in at
        }
    return list(min(paths.values())[2])


def shipped(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The entries of the shipped file, out of those of `tune`."""
    for place, entry in enumerate(entries):
        if reason := _why_not_measured(entry):
            raise UsageError(
                f"entries[{place}]: {reason}, want what `cudnn-aot tune` writes of a GEMM"
            )
    graphs: dict[bytes, list[Mapping[str, Any]]] = {}
    for entry in sorted(entries, key=lambda entry: entry["extents"]["m"]):
        others = {name: value for name, value in entry["extents"].items() if name != "m"}
        about = [entry["family"], entry["target"], entry["layout_class"], others]
        graphs.setdefault(canonical_bytes(about), []).append(entry)
    made = []
    for _, of_graph in sorted(graphs.items()):
        named = [{_identity(plan): plan for plan in entry["plans"]} for entry in of_graph]
        times = [{name: plan["us"] for name, plan in plans.items()} for plans in named]
        for entry, plans, first in zip(of_graph, named, first_plans(times), strict=True):
            others = sorted(plans.values(), key=lambda plan: plan["us"])
            others.remove(plans[first])
            made.append({**entry, "plans": [plans[first], *others[: KEPT - 1]]})
    return made


def _why_not_measured(entry: Mapping[str, Any]) -> str | None:
    if "m" not in entry["extents"]:
        return "it has no extent m"
    if not entry["plans"]:
        return "it has no plans"
    times = (plan.get("us") for plan in entry["plans"])
    wrong = [us for us in times if not (isinstance(us, int | float) and us > 0)]
    return f"us of a plan is {wrong[0]!r}" if wrong else None


def _identity(plan: Mapping[str, Any]) -> str:
    return canonical_bytes([plan["engine"], plan["knobs"]]).decode()


def text_of(entries: Sequence[Mapping[str, Any]]) -> str:
    """The text of a tuning file, an entry a line."""
    lines = [json.dumps(entry, sort_keys=True, separators=(",", ":")) for entry in entries]
    return "\n".join([f'{{"format":{FORMAT},"entries":[', ",\n".join(lines), "]}", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--graphs", type=Path, help="write the graphs into this folder")
    given.add_argument("--tuning", type=Path, help="the file that `tune` wrote for them")
    given.add_argument(
        "--ship", type=Path, nargs=2, metavar=("IN", "OUT"),
        help="write what is shipped of the file that `tune` wrote",
    )  # fmt: skip
    parser.add_argument(
        "--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS), metavar="MODEL",
        help=f"of which the graphs are: {', '.join(sorted(MODELS))}; default: all",
    )  # fmt: skip
    asked = parser.parse_args()
    if asked.graphs:
        write_graphs(asked.graphs, asked.models)
    elif asked.ship:
        source, output = asked.ship
        output.write_text(text_of(shipped(read_entries(source))))
    else:
        need_gpu()
        plain = "BFLOAT16xBFLOAT16 kk []  -> BFLOAT16"
        compare([e for e in read_entries(asked.tuning) if e["layout_class"] == plain])


if __name__ == "__main__":
    run_main(main)
