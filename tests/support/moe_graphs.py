"""Graphs of a grouped matmul, built with the public API.

``python tests/support/moe_graphs.py FOLDER`` writes those of the GPU tests as graph files, for
``cudnn-aot build``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cudnn_aot as cudnn
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph

BF16, HALF, FLOAT = cudnn.data_type.BFLOAT16, cudnn.data_type.HALF, cudnn.data_type.FLOAT
E4M3, INT32, INT64 = cudnn.data_type.FP8_E4M3, cudnn.data_type.INT32, cudnn.data_type.INT64

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
) -> Graph:
    """``rows`` routed rows, which GATHER reads from, and COMBINE adds into, ``tokens``."""
    g = cudnn.pygraph(
        name=name or f"grouped_{mode.lower()}",
        io_data_type=io,
        intermediate_data_type=FLOAT,
        compute_data_type=FLOAT,
        symbols=symbols,
    )
    token = g.tensor(name="token", dim=[1, tokens if mode == "GATHER" else rows, k])
    weight = g.tensor(name="weight", dim=[experts, k, n])
    first = g.tensor(name="first_token_offset", dim=[offsets, 1, 1], data_type=integers)
    places = {
        name: g.tensor(name=name, dim=[1, rows, 1], data_type=integers)
        for name in ("token_index", "token_ks")[: ROUTES[mode]]
    }
    if mode == "COMBINE":
        places["top_k_scores"] = g.tensor(name="top_k_scores", dim=[1, tokens, top_k])
    y = g.moe_grouped_matmul(token, weight, first, **places, mode=mode, top_k=top_k)
    y.set_output(True).set_data_type(out or io).set_name("y")
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


def main(folder: str) -> None:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for g in (make() for make in TEST_GRAPHS):
        (out / f"{g.name}.json").write_text(graph_json.dumps(g), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
