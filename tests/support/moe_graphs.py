"""Graphs of a grouped matmul, built with the public API."""

from __future__ import annotations

from typing import Any

import cudnn_aot as cudnn
from cudnn_aot.compiler.graph.graph import Graph

BF16, FLOAT = cudnn.data_type.BFLOAT16, cudnn.data_type.FLOAT
INT32 = cudnn.data_type.INT32

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
) -> Graph:
    """``rows`` routed rows, which GATHER reads from, and COMBINE adds into, ``tokens``."""
    g = cudnn.pygraph(
        name=f"grouped_{mode.lower()}",
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
