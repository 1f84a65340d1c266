"""What schedules of few rows take, which `recipes/gemm/few_rows_table.py` has.

    python bench/few_rows.py --build STORE     # one plan per schedule; then, on the GPU host:
    python bench/few_rows.py --store STORE > few_rows_table.py

The time of few rows is that of reading B. It is linear in K, and of N only the number of tiles or
blocks matters. Each schedule is timed at numbers of them around whole waves, for two K; what is
printed, by that number, is the time that does not depend on K, and that of 1024 elements of it.
BFLOAT16, replayed from CUDA graphs, B out of L2. Every result is compared with fp32 first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import textwrap
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
# Columns of a tile of 64 rows, and blocks of a cluster that split K.
TILES = (
    *((columns, 1) for columns in (32, 48, 64, 96, 128, 160, 192)),
    *((columns, 2) for columns in (32, 64, 96, 128, 160)),
    *((columns, 4) for columns in (64, 128)),
)
# Rows of A: of one load of 16, of four of them, and those of a whole tile, which one load brings.
TILE_ROWS = (16, 63, 64)
# Rows, columns, warps along K, loads in flight.
STREAMS = (
    *((1, *rest) for rest in ((1, 1, 4), (1, 2, 4), (1, 4, 4), (2, 1, 2), (2, 2, 2), (2, 4, 2))),
    *((2, *rest) for rest in ((1, 1, 4), (1, 2, 4), (1, 4, 4), (2, 1, 2), (2, 2, 2), (2, 4, 2))),
)
SMS, WARPS = 132, 8
WAVES = (
    0.13, 0.25, 0.49, 0.55, 0.67, 0.82, 0.97, 1.0, 1.06, 1.25, 1.49, 1.55, 1.75, 2.0, 2.06, 2.5,
    3.0, 3.06, 3.5, 4.0, 4.06, 5.0, 5.06, 6.0, 6.06, 7.0, 8.0, 8.06, 10.0, 16.0,
)  # fmt: skip
DEPTHS = (2048, 8192)
MOST_COLUMNS, MULTIPLE, ROUNDS = 1 << 16, 8, 7
INDENT = " " * 8
HEAD = '''"""What schedules of few rows take on an H200: what ``bench/few_rows.py`` printed."""

from cudnn_aot.recipes.gemm.config import GemmConfig, GemvConfig
from cudnn_aot.recipes.gemm.few_rows import Row, Table

# fmt: off
TABLE = Table(('''
SYMBOLS = {
    "M": {"min": 0, "max": 64},
    "N": {"min": 0, "max": MOST_COLUMNS, "multiple_of": MULTIPLE},
    "K": {"min": 0, "max": 1 << 16, "multiple_of": MULTIPLE},
}


def schedules() -> list[tuple[int, Any]]:
    """Rows, and a schedule for them."""
    from cudnn_aot.recipes.gemm.config import GemmConfig, GemvConfig

    tiles = [(rows, GemmConfig(64, n, 64, 1, 1, s)) for n, s in TILES for rows in TILE_ROWS]
    return tiles + [(each[0], GemvConfig(*each)) for each in STREAMS]


def name_of(rows: int, config: Any) -> str:
    """Of its plan: any rows have one, but for whole tiles."""
    values = "_".join(str(getattr(config, field)) for field in type(config).__slots__)
    return f"{type(config).__name__}_{values}{'_whole' * (rows == max(TILE_ROWS))}"


def build(path: Path) -> None:
    sys.path.insert(0, str(SUPPORT))
    import config_store
    import gemm_graphs

    from cudnn_aot.recipes.gemm.config import GemmConfig
    from cudnn_aot.recipes.gemm.heuristics import SM90_GEMV, SM90_PERSISTENT

    few = gemm_graphs.plain("few_rows", "M", "N", "K", symbols=SYMBOLS)
    columns = {name: SYMBOLS[name] for name in ("N", "K")}
    whole = gemm_graphs.plain("whole_tile", max(TILE_ROWS), "N", "K", symbols=columns)
    plans = {}
    for rows, config in schedules():
        engine = SM90_PERSISTENT if isinstance(config, GemmConfig) else SM90_GEMV
        name = name_of(rows, config)
        plans[name] = (name, whole if rows == max(TILE_ROWS) else few, engine, config)
    config_store.store_plans(path, list(plans.values()))


def columns_of(config: Any) -> tuple[int, int]:
    """Columns of an item, and items of those columns."""
    if hasattr(config, "tile_n"):
        return config.tile_n, config.splits
    return WARPS // config.k_warps * config.columns, 1


def time_of(plan: Any, m: int, n: int, k: int, pool: Any) -> float:
    """Microseconds of a launch."""
    import torch
    from shapes import operand_sets, replays

    count = min(operand_sets(1, m, n, k), pool.numel() // (n * k))
    a = torch.randn(1, m, k, device="cuda", dtype=torch.bfloat16)
    bs = [pool[i * n * k :][: n * k].view(1, n, k).transpose(1, 2) for i in range(count)]
    y = torch.full((1, m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    output = next(o["uid"] for o in plan.table["operands"] if o["kind"] == "output")
    bound = [{plan.uids["A"]: a, plan.uids["B"]: b, output: y} for b in bs]

    def launch(index: int) -> None:
        plan.execute(bound[index], stream=torch.cuda.current_stream().cuda_stream)

    launch(0)
    want = a[0].float() @ bs[0][0].float()
    error = float(((y[0].float() - want).norm() / want.norm()).item())
    if not error < 5e-3:
        shape = f"{m} x {n} x {k}"
        raise SystemExit(f"{plan.engine} {plan.knobs} of {shape}: error {error}, want below 5e-3")
    timer = replays(launch, count)
    return statistics.median([timer() for _ in range(ROUNDS)])


def measure(path: str) -> None:
    import torch

    from cudnn_aot import runtime

    store = runtime.open(path, target="h200")
    pool = torch.randn(MOST_COLUMNS * max(DEPTHS), device="cuda", dtype=torch.bfloat16) * 0.02
    shallow, deep = DEPTHS
    print(HEAD)
    for rows, config in schedules():
        plan, (columns, each) = store.plan(name_of(rows, config)), columns_of(config)
        points = []
        for items in sorted({max(1, round(SMS * wave / each)) * each for wave in WAVES}):
            n = -(-items // each * columns // MULTIPLE) * MULTIPLE
            if n <= MOST_COLUMNS:
                times = [time_of(plan, rows, n, k, pool) for k in DEPTHS]
                slope = 1024 * (times[1] - times[0]) / (deep - shallow)
                fixed = times[0] - slope * shallow / 1024
                points.append(f"({items}, {fixed:.2f}, {slope:.2f}),")
        values = [getattr(config, field) for field in type(config).__slots__]
        print(f"    Row({rows}, {type(config).__name__}({', '.join(map(str, values[:6]))}), (")
        print(textwrap.fill(" ".join(points), 100, initial_indent=INDENT, subsequent_indent=INDENT))
        print("    )),", flush=True)
    print("))")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--build", type=Path, help="write the plans into this store")
    given.add_argument("--store", help="measure those of this store")
    asked = parser.parse_args()
    if asked.build:
        build(asked.build)
    else:
        measure(asked.store)


if __name__ == "__main__":
    main()
