"""Rules of pointwise ops; that inputs broadcast to the result is part of their shape rule."""

from __future__ import annotations

from cudnn_aot.compiler.graph.op import NodeView, Refusal, Rule


def index_axis(view: NodeView) -> Refusal | None:
    """axis is one of the input's"""
    axis, rank = view.attr("axis"), len(view.dim("input"))
    if not 0 <= axis < rank:
        return Refusal(f"attribute axis: got {axis}, want 0 to {rank - 1}, an axis of the input")
    return None


def clips_in_order(view: NodeView) -> Refusal | None:
    """lower_clip is at most upper_clip"""
    upper = view.attrs.get("upper_clip")
    if upper is None:
        return None
    lower = view.attr("lower_clip")
    if lower > upper:
        return Refusal(f"attribute lower_clip: got {lower}, want at most upper_clip {upper}")
    return None


CLIPPED: tuple[Rule, ...] = (clips_in_order,)
GEN_INDEX: tuple[Rule, ...] = (index_axis,)
