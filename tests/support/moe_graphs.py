"""Graphs of a grouped matmul, built with the public API.

``python tests/support/moe_graphs.py FOLDER [bench]`` writes those of the GPU tests, or of
``bench/grouped.py``, as graph files, for ``cudnn-aot build``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cudnn_aot as cudnn
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph

BF16, HALF, FLOAT = cudnn.data_type.BFLOAT16, cudnn.data_type.HALF, cudnn.data_type.FLOAT
E4M3, E5M2 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FP8_E5M2
INT32, INT64 = cudnn.data_type.INT32, cudnn.data_type.INT64

ROUTES = {"NONE": 0, "GATHER": 1, "SCATTER": 2, "COMBINE": 2}


def grouped(
    mode: str = "NONE",
    rows: Any = 24,
    k: Any = 16,
    n: Any = 20,
    experts: Any = 4,
    offsets: Any = 5,
    tokens: Any = 12,
    top_k: int = 2,
    io: Any = BF16,
    out: Any = None,
    integers: Any = INT32,
    symbols: Any = None,
    name: str = "",
    weight_major: str = "n",
    weight_type: Any = None,
    pitch: int = 1,
) -> Graph:
    """``rows`` routed rows, which GATHER reads from, and COMBINE adds into, ``tokens``. Rows of
    every matrix are ``pitch`` elements apart, or a multiple.
    """
    g = cudnn.pygraph(
        name=name or f"grouped_{mode.lower()}",
        io_data_type=io,
        intermediate_data_type=FLOAT,
        compute_data_type=FLOAT,
        symbols=symbols,
    )

    def step(width: Any) -> Any:
        return -(-width // pitch) * pitch if pitch > 1 else width

    height = tokens if mode == "GATHER" else rows
    token = g.tensor(name="token", dim=[1, height, k])
    weight = g.tensor(name="weight", dim=[experts, k, n], data_type=weight_type or io)
    if pitch > 1:
        token.set_stride([height * step(k), step(k), 1])
        weight.set_stride([k * step(n), step(n), 1])
    if weight_major == "k":
        weight.set_stride([n * step(k), 1, step(k)])
    first = g.tensor(name="first_token_offset", dim=[offsets, 1, 1], data_type=integers)
    places = {
        name: g.tensor(name=name, dim=[1, rows, 1], data_type=integers)
        for name in ("token_index", "token_ks")[: ROUTES[mode]]
    }
    if mode == "COMBINE":
        places["top_k_scores"] = g.tensor(name="top_k_scores", dim=[1, tokens, top_k])
    y = g.moe_grouped_matmul(token, weight, first, **places, mode=mode, top_k=top_k)
    y.set_output(True).set_data_type(out or io).set_name("y")
    if pitch > 1:
        y.set_stride([rows * step(n), step(n), 1])
    return g


ANY_M = {"M": {"min": 0, "max": 4096, "hint": 200}}

TEST_GRAPHS: tuple[Callable[[], Graph], ...] = (
    lambda: grouped(name="groups", rows=400, k=136, n=200, experts=8, offsets=8),
    lambda: grouped(name="groups_any_m", rows="M", k=64, n=72, offsets=9, io=FLOAT, symbols=ANY_M),
    lambda: grouped(
        "GATHER", name="groups_gather", rows=300, k=45, n=67, tokens=90, integers=INT64
    ),
    lambda: grouped(name="groups_fp8", rows=130, k=72, n=65, io=E4M3, out=BF16),
    lambda: grouped("SCATTER", name="groups_scatter", rows=260, k=64, n=130, io=HALF, out=FLOAT),
)

# What the tensor cores take, and mostly none of the tests above: of each mode, rows that end
# anywhere, K and N of no whole tiles, more segments than a warp has lanes, groups of a row or none.
TENSOR_CORE_GRAPHS: tuple[Callable[[], Graph], ...] = (
    lambda: grouped(
        name="groups_tma_any_m", rows="M", k=200, n=264, offsets=5, symbols=ANY_M, weight_major="k"
    ),
    lambda: grouped(name="groups_tma_large", rows=3000, k=328, n=520, experts=3, offsets=3),
    lambda: grouped(
        name="groups_tma_many", rows=90, k=72, n=136, experts=70, offsets=71, io=HALF,
        integers=INT64,
    ),
    lambda: grouped(  # rows of 130 bytes
        name="groups_tma_odd_n", rows=333, k=72, n=65, offsets=12, weight_major="k"
    ),
    lambda: grouped(
        name="groups_tma_fp8", rows=700, k=400, n=208, io=E4M3, weight_type=E5M2, out=BF16,
        weight_major="k",
    ),
    lambda: grouped(
        name="groups_tma_fp8_any_m", rows="M", k=272, n=144, experts=8, offsets=9, io=E4M3,
        symbols=ANY_M, weight_major="k",
    ),
    lambda: grouped(  # rows that end within 16 bytes
        name="groups_tma_pitch", rows=500, k=203, n=331, experts=6, offsets=6, pitch=16,
        weight_major="k",
    ),
    lambda: grouped(
        "SCATTER", name="groups_tma_scatter_pitch", rows=500, k=85, n=107, out=FLOAT, pitch=16
    ),
    lambda: grouped(
        name="groups_tma_fp8_large", rows=3000, k=400, n=528, experts=3, offsets=4, io=E4M3,
        out=BF16, weight_major="k",
    ),
    lambda: grouped(
        "GATHER", name="groups_tma_gather_large", rows=3000, k=328, n=520, experts=3, offsets=3,
        tokens=500,
    ),
    lambda: grouped(
        "GATHER", name="groups_tma_gather", rows=600, k=136, n=200, tokens=90, integers=INT64
    ),
    lambda: grouped(
        "GATHER", name="groups_tma_gather_any_m", rows="M", k=328, n=264, experts=8, offsets=8,
        tokens=700, io=HALF, out=FLOAT, symbols=ANY_M, weight_major="k",
    ),
    lambda: grouped(
        "GATHER", name="groups_tma_gather_fp8", rows=500, k=272, n=96, experts=40, offsets=41,
        tokens=70, io=E5M2, out=HALF, weight_major="k",
    ),
    lambda: grouped(
        "SCATTER", name="groups_tma_scatter", rows=560, k=64, n=136, io=HALF, out=FLOAT
    ),
    lambda: grouped(
        "SCATTER", name="groups_tma_scatter_any_m", rows="2*M", k=200, n=264, experts=8, offsets=9,
        symbols=ANY_M,
    ),
    lambda: grouped(
        "SCATTER", name="groups_tma_scatter_odd_n", rows=300, k=80, n=99, io=E4M3, out=E4M3,
        top_k=4, weight_major="k",
    ),
)  # fmt: skip


# Of `bench/grouped.py`: experts, N, K, and so many routed rows, as in models of eight large
# experts and of many small ones.
BENCH_SHAPES = (
    (8, 14336, 4096, (16, 128, 8192)),
    (8, 4096, 14336, (16, 128, 8192)),
    (64, 2048, 7168, (64, 384, 16384)),
    (256, 2048, 7168, (256, 32768)),
    (256, 7168, 2048, (256, 32768)),
)


def _bench(experts: int, n: int, k: int, rows: int, fp8: bool) -> Graph:
    kind = "fp8" if fp8 else "bf16"
    return grouped(
        name=f"bench_grouped_{kind}_{experts}x{rows}x{n}x{k}",
        rows=rows,
        k=k,
        n=n,
        experts=experts,
        offsets=experts + 1,
        io=E4M3 if fp8 else BF16,
        out=BF16,
        weight_major="k",
    )


BENCH_GRAPHS: tuple[Callable[[], Graph], ...] = tuple(
    functools.partial(_bench, experts, n, k, rows, fp8)
    for experts, n, k, every_rows in BENCH_SHAPES
    for rows in every_rows
    for fp8 in (False, True)
)


def main(folder: str, which: str = "tests") -> None:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    makers = BENCH_GRAPHS if which == "bench" else (*TEST_GRAPHS, *TENSOR_CORE_GRAPHS)
    for g in (make() for make in makers):
        (out / f"{g.name}.json").write_text(graph_json.dumps(g), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
