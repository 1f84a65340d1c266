"""What schedules of few rows take, which `recipes/gemm/few_rows_table.py` has.

    python bench/few_rows.py --build STORE     # one plan per schedule; then, on the GPU host:
    python bench/few_rows.py --store STORE > few_rows_table.py

The time of few rows is that of reading B. It is linear in K, and of N only the number of tiles or
blocks matters. Each schedule is timed at numbers of them around whole waves, for two K; what is
printed, by that number, is the time that does not depend on K, and that of 1024 elements of it, of
the schedules that are the first choice for some N and K. Matmuls of BFLOAT16 and of FP8 E4M3, and
gated FFNs of both, replayed from CUDA graphs, B out of L2. Every result is compared with fp32.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from program import run_main
from replay import launcher, medians, need_gpu, relative_error, sets_for, torch

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
COLUMNS = (32, 48, 64, 96, 128, 160, 192, 224, 256)
# By the rows of A that are measured: the schedules, each rows and columns of a tile, rows of a
# cluster, blocks of a cluster that split K, and whether it is ping-pong. Of A 16 rows are loaded
# where that is all there are, else whole tiles.
ONE_TILE = (
    *((64, columns, 1, 1, 0) for columns in COLUMNS[:-2]),
    *((64, columns, 1, 2, 0) for columns in (32, 64, 96, 128, 160)),
    *((64, columns, 1, 4, 0) for columns in (64, 128)),
)
SCHEDULES = {
    16: ONE_TILE,
    64: ONE_TILE,
    128: (
        *((64, columns, 2, 1, 0) for columns in (48, 64, 96, 128, 160, 192)),
        *((64, columns, 1, 2, 0) for columns in (64, 96, 128)),
        *((128, columns, 1, 1, 0) for columns in (32, 64, 96, 128, 160, 192)),
        *((128, columns, 1, 2, 0) for columns in (64, 96, 128)),
        *((128, columns, 1, 4, 0) for columns in (64, 128)),
    ),
    256: (
        *((64, columns, 2, 1, 0) for columns in (64, 96, 128, 160, 192, 224)),
        *((128, columns, 2, 1, 0) for columns in (64, 96, 128, 160, 192, 224, 256)),
        *((128, columns, 1, 1, 0) for columns in (64, 96, 128)),
        *((128, columns, 1, 2, 0) for columns in (64, 96, 128)),
        (128, 128, 1, 4, 0),
        *((128, columns, 2, 1, 1) for columns in (96, 128, 160)),
    ),
}
# Of the GEMV: columns, warps along K, loads in flight.
STREAMS = ((1, 1, 4), (1, 2, 4), (1, 4, 4), (2, 1, 2), (2, 2, 2), (2, 4, 2))
STREAM_ROWS, STREAM_WARPS = (1, 2), 8
LEAST_TILE = min(SCHEDULES)  # rows of the least that tiles are measured for
# Bytes of an element, and matmuls of one A.
KINDS = ((2, 1), (1, 1), (2, 2), (1, 2))
SMS = 132
WAVES = (
    0.13, 0.25, 0.49, 0.55, 0.67, 0.82, 0.97, 1.0, 1.06, 1.25, 1.49, 1.55, 1.75, 2.0, 2.06, 2.5,
    3.0, 3.06, 3.5, 4.0, 4.06, 5.0, 5.06, 6.0, 6.06, 7.0, 8.0, 8.06, 10.0, 16.0,
)  # fmt: skip
DEPTHS = (2048, 8192)
MOST_COLUMNS, MULTIPLE, ROUNDS, ERROR = 1 << 16, 16, 5, 5e-3
HEAD = '''"""What schedules of few rows take on an H200: ``bench/few_rows.py`` on {date}."""

from cudnn_aot.recipes.gemm.config import GemmConfig, GemvConfig, TileClass
from cudnn_aot.recipes.gemm.few_rows import Row, Table

# fmt: off
# ruff: noqa: E501  (a row is a line)
TABLES = {{'''


def schedules(size: int, products: int) -> Iterator[tuple[int, Any]]:
    """Rows, and a schedule for them, of matrices of such elements."""
    from cudnn_aot.recipes.gemm.config import GemmConfig, GemvConfig, TileClass

    for rows, every in SCHEDULES.items():
        for tile_m, tile_n, cluster_m, splits, pingpong in every:
            tile = (tile_m, tile_n, 128 // size)
            config = GemmConfig(*tile, cluster_m, 1, splits, pingpong=pingpong)
            if (config.why_not() or config.why_not_for(TileClass(size, products))) is None:
                yield rows, config
    if (size, products) == (2, 1):
        for each in itertools.product(STREAM_ROWS, STREAMS):
            yield each[0], GemvConfig(each[0], *each[1])


def name_of(size: int, products: int, rows: int, config: Any) -> str:
    """Of its plan: rows of less than a tile have one."""
    values = "_".join(str(getattr(config, field)) for field in type(config).__slots__)
    return f"{size}_{products}_{max(rows, LEAST_TILE)}_{values}"


def graph_of(size: int, products: int, rows: int) -> Any:
    """A graph of any N and K, and of some rows: so many, or where they are no whole tile any."""
    sys.path.insert(0, str(SUPPORT))
    import gemm_graphs as made

    most = {"min": 0, "max": MOST_COLUMNS, "multiple_of": MULTIPLE}
    symbols: dict[str, Any] = {"N": most, "K": most}
    m: int | str = rows
    if rows <= LEAST_TILE:
        m, symbols["M"] = "M", {"min": 0, "max": LEAST_TILE}
    io = made.E4M3 if size == 1 else made.BF16
    name = f"few_rows_{size}_{products}_{rows}"
    if products == 2:
        return made.gated(name, m, "N", "K", io=io, out=made.BF16, symbols=symbols)
    if size == 1:
        return made.scaled(name, m, "N", "K", by_column=False, symbols=symbols)
    return made.plain(name, m, "N", "K", symbols=symbols)


def build(path: Path) -> None:
    sys.path.insert(0, str(SUPPORT))
    import config_store

    from cudnn_aot.recipes.gemm.config import GemmConfig
    from cudnn_aot.recipes.gemm.heuristics import SM90_GEMV, SM90_PERSISTENT

    graphs, plans = {}, {}
    for kind in KINDS:
        for rows, config in schedules(*kind):
            engine = SM90_PERSISTENT if isinstance(config, GemmConfig) else SM90_GEMV
            name, rows = name_of(*kind, rows, config), max(rows, LEAST_TILE)
            graph = graphs.setdefault((kind, rows), graph_of(*kind, rows))
            plans[name] = (name, graph, engine, config)
    config_store.store_plans(path, list(plans.values()))


def columns_of(rows: int, config: Any) -> tuple[int, int]:
    """Columns of an item, and items of those columns."""
    if hasattr(config, "tile_n"):
        return config.tile_n, max(rows // config.tile_m, 1) * config.splits
    return STREAM_WARPS // config.k_warps * config.columns, 1


def operands_of(size: int, products: int, m: int, n: int, k: int, pool: Any) -> list[Any]:
    """Sets of (A, each B, what else the graph has, Y), the B as they lie in the pool."""
    each = products * n * k
    count = min(sets_for(size * (m * k + each) + 2 * m * n), pool.numel() // each)
    a = torch.randn(1, m, k, device="cuda").to(pool.dtype)
    sets = []
    for i in range(count):
        bs = [pool[i * each + p * n * k :][: n * k].view(1, n, k) for p in range(products)]
        y = torch.full((1, m, n), math.nan, device="cuda", dtype=torch.bfloat16)
        scales = torch.tensor([0.5, 0.25], device="cuda").view(2, 1, 1, 1)
        sets.append((a, [b.transpose(1, 2) for b in bs], scales, y))
    return sets


def time_of(plan: Any, sets: list[Any]) -> float:
    """Microseconds of a launch."""
    output = next(o["uid"] for o in plan.table["operands"] if o["kind"] == "output")
    matrices = ("B",) if "B" in plan.uids else ("Bg", "Bu")
    bound = []
    for a, bs, scales, y in sets:
        given = {"A": a, "a_scale": scales[0], "b_scale": scales[1]}
        given |= dict(zip(matrices, bs, strict=True))
        named = {uid: given[name] for name, uid in plan.uids.items() if name in given}
        bound.append(named | {output: y})

    launch = launcher(plan, bound)
    a, bs, scales, y = sets[0]
    y.fill_(math.nan)
    launch(0)
    want, *others = (a[0].float() @ b[0].float() for b in bs)
    for other in others:
        want = torch.nn.functional.silu(want) * other
    if "a_scale" in plan.uids:
        want = want * (scales[0, 0, 0, 0] * scales[1, 0, 0, 0])
    error = relative_error(y[0], want)
    if not error < ERROR:
        shape = f"{a.shape[1]} x {y.shape[2]} x {a.shape[2]}"
        message = f"{plan.engine} {plan.knobs} of {shape}: error {error}, want below {ERROR}"
        raise SystemExit(message)
    return medians([launch], len(sets), ROUNDS)[0]


def points_of(timed: Callable[[int, int], float], rows: int, config: Any) -> Any:
    """By numbers of items, what comes of the time for a number of columns and K."""
    (columns, each), (shallow, deep) = columns_of(rows, config), DEPTHS
    points = []
    for items in sorted({max(1, round(SMS * wave / each)) * each for wave in WAVES}):
        n = -(-items // each * columns // MULTIPLE) * MULTIPLE
        if n <= MOST_COLUMNS:
            times = [timed(n, k) for k in DEPTHS]
            slope = 1024 * (times[1] - times[0]) / (deep - shallow)
            fixed = times[0] - slope * shallow / 1024
            points.append((items, round(fixed, 2), round(slope, 2)))
    return tuple(points)


def first_choices(rows: list[Any]) -> list[Any]:
    """Those that are the first choice for some N and K."""
    from cudnn_aot.recipes.gemm import few_rows

    table, chosen = few_rows.Table(tuple(rows)), set()
    low, high = few_rows.K_RANGE
    for m in sorted({row.rows for row in rows}):
        columns = range(few_rows.LEAST_COLUMNS, MOST_COLUMNS + 1, 256)
        for n, k in itertools.product(columns, (low, 2 * low, 4 * low, high // 2, high)):
            times = table.times(m, n, k)
            best = min(times, key=lambda config: times[config])
            chosen.add((next(r.rows for r in rows if r.config == best and r.serves(m, k)), best))
    return [row for row in rows if (row.rows, row.config) in chosen]


def show(row: Any) -> None:
    values = [getattr(row.config, field) for field in type(row.config).__slots__]
    while hasattr(row.config, "tile_n") and values[-1] == 0:
        values.pop()
    config = f"{type(row.config).__name__}({', '.join(map(str, values))})"
    print(f"    Row({row.rows}, {config}, {row.points}),", flush=True)


def measured(store: Any, size: int, products: int) -> Iterator[Any]:
    """A row for each schedule."""
    from cudnn_aot.recipes.gemm.few_rows import Row

    pool = torch.randn(products * MOST_COLUMNS * max(DEPTHS), device="cuda") * 0.5
    pool = pool.to(torch.float8_e4m3fn if size == 1 else torch.bfloat16)
    for rows, config in schedules(size, products):
        plan = store.plan(name_of(size, products, rows, config))

        def timed(n: int, k: int, rows: int = rows, plan: Any = plan) -> float:
            return time_of(plan, operands_of(size, products, rows, n, k, pool))

        yield Row(rows, config, points_of(timed, rows, config))


def measure(path: str) -> None:
    need_gpu()
    from cudnn_aot import runtime

    store = runtime.open(path, target="h200")
    print(HEAD.format(date=datetime.date.today()))
    for size, products in KINDS:
        print(f"TileClass({size}, {products}): Table((")
        for row in first_choices(list(measured(store, size, products))):
            show(row)
        print(")),")
    print("}")


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
    run_main(main)
