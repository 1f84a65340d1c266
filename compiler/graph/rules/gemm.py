"""Rules of matmul; that K agrees and batches broadcast is part of its shape rule."""

from __future__ import annotations

from cudnn_aot.compiler.graph.op import NodeView, Refusal, Rule, unsupported
from cudnn_aot.compiler.graph.rules.tables import numbers


def same_rank(view: NodeView) -> Refusal | None:
    """A and B have the same number of axes"""
    a, b = len(view.inputs["A"].dim), len(view.inputs["B"].dim)
    return unsupported("B", f"rank {b}", f"{a}, as A") if a != b else None


MATMUL: tuple[Rule, ...] = (same_rank, numbers("A", "B", "C"))
