"""Graphs that only engines which are not mature take, for the GPU tests; built with the public API.

``python tests/support/opt_in_graphs.py FOLDER`` writes them as graph files; ``cudnn-aot build``
has plans of them for Hopper where ``CUDNN_AOT_OPT_IN_ENGINES`` is on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from gemm_graphs import (
    BF16,
    E4M3,
    FLOAT,
    HALF,
    INT8,
    INT32,
    graph,
    operand,
    plain,
    reduced,
    scaled,
)
from moe_graphs import grouped

import cudnn_aot as cudnn
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph

INT64 = cudnn.data_type.INT64
ANY_M = {"M": {"min": 0, "max": 4096, "hint": 200}}
FOLDS = (("ADD", "m"), ("AMAX", "n"), ("MAX", "m"), ("MIN", "n"), ("NORM2", "mn"), ("AVG", "mn"))


def sums(name: str, m, n, k) -> Graph:
    """The INT32 sums of products of INT8, and the largest magnitude of each column of them."""
    g = graph(name)
    a = operand(g, "A", m, k, data_type=INT8)
    b = operand(g, "B", k, n, data_type=INT8)
    y = g.matmul(a, b, name="mm", compute_data_type=INT32)
    y.set_output(True).set_data_type(INT32).set_name("Y")
    largest = g.reduction(y, mode=cudnn.reduction_mode.AMAX, name="amax").set_dim([1, 1, n])
    largest.set_output(True).set_data_type(FLOAT).set_name("largest")
    return g


def routed(name: str, **fields) -> Graph:
    g = grouped(**fields)
    g.name = name
    return g


OPT_IN_GRAPHS: tuple[Callable[[], Graph], ...] = (
    lambda: reduced("folds", 200, 130, 72, FOLDS),
    lambda: reduced("folds_any_m", "M", 67, 40, FOLDS[:2], symbols=ANY_M),
    lambda: reduced("folds_alone", 129, 200, 64, FOLDS[4:], batch=3, whole=False),
    lambda: plain("float", 130, 96, 77, io=FLOAT),
    lambda: scaled("int8", 65, 96, 100, (INT8, INT8), FLOAT),
    lambda: sums("int8_sums", 67, 45, 333),
    lambda: routed("groups", rows=400, k=136, n=200, experts=8, offsets=8),
    lambda: routed("groups_any_m", rows="M", k=64, n=72, offsets=9, io=FLOAT, symbols=ANY_M),
    lambda: routed("groups_gather", mode="GATHER", rows=300, k=45, n=67, tokens=90, integers=INT64),
    lambda: routed("groups_fp8", rows=130, k=72, n=65, io=E4M3, out=BF16),
    lambda: routed("groups_scatter", mode="SCATTER", rows=260, k=64, n=130, io=HALF, out=FLOAT),
)


def main(folder: str) -> None:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for g in (make() for make in OPT_IN_GRAPHS):
        (out / f"{g.name}.json").write_text(graph_json.dumps(g), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
