"""The row of matmul."""

from __future__ import annotations

from cudnn_aot.compiler.graph.attr import FLOAT, Attr
from cudnn_aot.compiler.graph.extents import broadcast, format_extents
from cudnn_aot.compiler.graph.op import Dim, NodeView, Op, Output, Shape, ShapeError, Style, ports
from cudnn_aot.compiler.graph.rules import gemm


def _product(view: NodeView) -> Dim:
    """Batches broadcast; ``[..., M, K] @ [..., K, N] -> [..., M, N]``."""
    a, b = view.inputs["A"].dim, view.inputs["B"].dim
    if len(a) < 2 or len(b) < 2:
        port, rank = ("A", len(a)) if len(a) < 2 else ("B", len(b))
        raise ShapeError(port, f"rank {rank}", "at least 2")
    if a[-1] != b[-2]:
        raise ShapeError("B", f"dim {format_extents(b)}", f"K = {a[-1]} (A's last axis) on axis -2")
    batch = broadcast(a[:-2], b[:-2])
    if batch is None:
        raise ShapeError(
            "B",
            f"batch {format_extents(b[:-2])}",
            f"one that broadcasts with A's {format_extents(a[:-2])}",
        )
    return (*batch, a[-2], b[-1])


ROWS = (
    Op(
        "matmul",
        ports("A", "B"),
        (Output("C", Shape("batches broadcast, then [M, N]", _product)),),
        (Attr("padding", FLOAT, 0.0),),
        node_type="MATMUL",
        style=Style.MATMUL,
        rules=gemm.MATMUL,
    ),
)
