"""GEMM graphs whose batch axes do not merge, for the GPU tests, built with the public API.

``python tests/support/batch_graphs.py FOLDER`` writes them as graph files, for ``cudnn-aot build``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from gemm_graphs import ANY_M, BF16, E4M3, EVERY_AXES, FLOAT, HALF, graph

import cudnn_aot as cudnn
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph


def of_heads(g: Graph, name: str, rows, columns, batch, heads, transposed=False, **fields):
    """A matrix of each of some heads, ``[batch, rows, heads, columns]`` in memory, or its
    transpose: its batch axes do not merge.
    """
    width = columns * heads
    stride = [f"{rows}*{width}", columns, width, 1]
    dim = [batch, heads, rows, columns]
    if transposed:
        dim, stride = [*dim[:2], columns, rows], [*stride[:2], 1, width]
    return g.tensor(name=name, dim=dim, stride=stride, **fields)


def of_batch(g: Graph, name: str, rows, columns, batch, transposed=False, **fields):
    """A matrix of each of a batch of several axes, one after the other; 1 where it is broadcast."""
    inner = [1, rows] if transposed else [columns, 1]
    sizes = [
        f"{rows}*{columns}*" + "*".join(map(str, [1, *batch[i + 1 :]])) for i in range(len(batch))
    ]
    return g.tensor(name=name, dim=[*batch, rows, columns], stride=[*sizes, *inner], **fields)


def scores(
    name: str, rows, columns, depth, batch=2, heads=3, io=BF16, out=None, folds=(), symbols=None
) -> Graph:
    """Queries times the transpose of keys, of each head, and folds of that, ``(mode, axes)``."""
    g = graph(name, io, symbols)
    q = of_heads(g, "Q", rows, depth, batch, heads)
    y = g.matmul(q, of_heads(g, "K", columns, depth, batch, heads, transposed=True), name="mm")
    y.set_output(True).set_data_type(out or io).set_name("Y")
    for mode, axes in folds:
        kept = [1 if "m" in axes else rows, 1 if "n" in axes else columns]
        folded = g.reduction(y, mode=cudnn.reduction_mode[mode], name=f"{mode}_{axes}")
        # A value of every head beside the other.
        folded.set_dim([batch, heads, *kept])
        folded.set_stride([f"{kept[0]}*{kept[1]}*{heads}", 1, f"{kept[1]}*{heads}", heads])
        folded.set_output(True).set_data_type(FLOAT).set_name(f"{mode}_{axes}")
    return g


def weighted(
    name: str, rows, columns, depth, batch=2, heads=3, io=BF16, fused=False, symbols=None
) -> Graph:
    """Weights of each head times its values, as rows of all heads; ``fused`` with a bias of each
    head, a factor of each matrix and a residual.
    """
    g = graph(name, io, symbols)
    p = of_batch(g, "P", rows, depth, [batch, heads])
    y = g.matmul(p, of_heads(g, "V", depth, columns, batch, heads), name="mm")
    if fused:
        bias = g.tensor(name="bias", dim=[1, heads, 1, columns])
        factors = g.tensor(name="factors", dim=[batch, heads, 1, 1], data_type=FLOAT)
        y = g.mul(g.add(y, bias.set_stride([heads * columns, columns, columns, 1])), factors)
        factors.set_stride([1, batch, 1, 1])
        y = g.add(g.relu(y), of_heads(g, "residual", rows, columns, batch, heads))
    y.set_output(True).set_data_type(BF16 if fused else io).set_name("Y")
    width = columns * heads
    y.set_dim([batch, heads, rows, columns]).set_stride([f"{rows}*{width}", columns, width, 1])
    return g


def spread(
    name: str, m, n, k, batch_a, batch_b, io=BF16, out=None, a_within=False, symbols=None
) -> Graph:
    """A product of matrices that are broadcast over some axes of the batch and not over others;
    with ``a_within`` the last of them is within the rows of A.
    """
    g = graph(name, io, symbols)
    a = of_heads(g, "A", m, k, *batch_a) if a_within else of_batch(g, "A", m, k, batch_a)
    y = g.matmul(a, of_batch(g, "B", k, n, batch_b, transposed=True), name="mm")
    y.set_output(True).set_data_type(out or io).set_name("Y")
    return g


def absorbed(name: str, batch, n, k, heads=3, symbols=None) -> Graph:
    """A row of each head of a batch times the matrix of its head, with a bias of each head, a
    factor of each row, a residual and the largest magnitude of each row.
    """
    g = graph(name, symbols=symbols)
    a = of_batch(g, "A", 1, k, [batch, heads])
    y = g.matmul(a, of_batch(g, "B", k, n, [1, heads], transposed=True), name="mm")
    y = g.bias(y, of_batch(g, "bias", 1, n, [1, heads]))
    y = g.mul(y, of_batch(g, "factors", 1, 1, [batch, heads], data_type=FLOAT))
    y = g.add(y, of_batch(g, "residual", 1, n, [batch, heads]))
    y.set_output(True).set_data_type(BF16).set_name("Y")
    largest = g.reduction(y, mode=cudnn.reduction_mode.AMAX, name="amax")
    largest.set_dim([batch, heads, 1, 1]).set_stride([heads, 1, 1, 1])
    largest.set_output(True).set_data_type(FLOAT).set_name("amax")
    return g


def grouped_queries(name: str, rows, columns, depth, batch=2, groups=2, each=3) -> Graph:
    """Queries times the transpose of keys that several heads share: three runs of batch axes."""
    g = graph(name)
    width = groups * each * depth
    q = g.tensor(
        name="Q",
        dim=[batch, groups, each, rows, depth],
        stride=[rows * width, each * depth, depth, width, 1],
    )
    k = g.tensor(
        name="K",
        dim=[batch, groups, 1, depth, columns],
        stride=[columns * groups * depth, depth, depth, 1, groups * depth],
    )
    g.matmul(q, k, name="mm").set_output(True).set_data_type(BF16).set_name("Y")
    return g


# Whose batch axes are two runs of equal steps, or three.
BATCH_AXES_GRAPHS: tuple[Callable[[], Graph], ...] = (
    lambda: scores("heads_scores", 200, 136, 64),
    lambda: scores("heads_scores_any_m", "M", 136, 64, symbols=ANY_M),
    lambda: scores("heads_scores_long", 1024, 1024, 128, batch=3, heads=5),
    lambda: scores("heads_scores_half", 130, 72, 128, io=HALF, out=FLOAT),
    lambda: scores("heads_scores_fp8", 200, 144, 128, io=E4M3, out=BF16),
    lambda: scores("heads_scores_few_rows", 2, 1032, 128, heads=8),
    lambda: scores("heads_scores_one_row", 1, 4104, 128, heads=8),
    lambda: scores("heads_scores_deep", 16, 128, 16384, batch=1, heads=2),
    lambda: scores("heads_odd_depth", 65, 40, 45),  # no TMA descriptor
    lambda: scores("heads_folds", 130, 136, 64, folds=EVERY_AXES),
    lambda: scores("heads_folds_any_m", "M", 72, 64, folds=EVERY_AXES, symbols=ANY_M),
    lambda: scores("heads_folds_odd_depth", 65, 40, 45, folds=EVERY_AXES),
    lambda: weighted("heads_values", 200, 64, 136),
    lambda: weighted("heads_values_any_m", "M", 128, 264, symbols=ANY_M),
    lambda: weighted("heads_values_fused", 200, 64, 136, fused=True),
    lambda: weighted("heads_values_fused_any_m", "M", 72, 136, fused=True, symbols=ANY_M),
    lambda: weighted("heads_values_fused_odd", 67, 45, 77, fused=True),
    lambda: spread("spread_a_over_heads", 130, 136, 72, [2, 1], [2, 3]),
    lambda: spread("spread_a_over_batch", 130, 136, 72, [1, 3], [2, 3]),
    lambda: spread("spread_b_over_heads", 130, 136, 72, [2, 3], [2, 1]),
    lambda: spread("spread_b_within", 130, 136, 72, [2, 3], [2, 1], a_within=True),
    lambda: spread("spread_b_one_row", 1, 4104, 1032, [2, 3], [1, 3]),
    lambda: spread("spread_b_any_m", "M", 136, 264, [2, 3], [2, 1], symbols=ANY_M),
    lambda: absorbed("absorbed", 20, 520, 136),
    lambda: absorbed("absorbed_any_batch", "M", 520, 136, symbols=ANY_M),
    lambda: spread("spread_both", 130, 136, 72, [2, 1], [1, 3], out=FLOAT),
    lambda: spread("spread_one_row", 1, 4104, 1032, [2, 1], [2, 3]),
    lambda: spread("spread_any_m", "M", 136, 264, [2, 1], [2, 3], symbols=ANY_M),
    lambda: spread("spread_any_batch", 40, 72, 64, ["M", 1], ["M", 3], symbols=ANY_M),
    lambda: spread("spread_any_heads", 40, 72, 64, [2, "M"], [1, "M"], symbols=ANY_M),
    lambda: spread("spread_three", 40, 72, 64, [2, 1, 4], [2, 3, 1]),
    lambda: spread("spread_three_odd_k", 40, 72, 45, [2, 1, 4], [2, 3, 1]),
    lambda: grouped_queries("grouped_queries", 130, 136, 64),
    lambda: grouped_queries("grouped_queries_one_row", 1, 4104, 128, each=4),
)


def main(folder: str) -> None:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for g in (make() for make in BATCH_AXES_GRAPHS):
        (out / f"{g.name}.json").write_text(graph_json.dumps(g), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
