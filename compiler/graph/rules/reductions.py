"""Rules of reductions."""

from __future__ import annotations

from cudnn_aot.compiler.graph.op import NodeView, Refusal, Rule, wrong
from cudnn_aot.compiler.graph.rules.domain import may_equal
from cudnn_aot.compiler.graph.rules.tables import INTEGERS, types


def reduced_axes(view: NodeView) -> Refusal | None:
    """OUT_0 has the input's rank; each axis the input's extent, or 1, or with group_offset on one axis the number of groups"""  # noqa: E501
    dim, out = view.dim("input"), view.dim("OUT_0")
    if not out:
        return None
    if len(out) != len(dim):
        return wrong("OUT_0", f"rank {len(out)}", f"{len(dim)}, as input")
    offsets = view.dim("group_offset")
    grouped = 0
    for axis, (extent, given) in enumerate(zip(dim, out, strict=True)):
        if given == 1 or may_equal(view, given, extent):
            continue
        is_symbolic = not isinstance(given, int) or not all(type(n) is int for n in offsets)
        if offsets and not grouped and (is_symbolic or given in _groups(view)):
            grouped += 1
            continue
        groups = ", or the number of groups" if offsets else ""
        return wrong("OUT_0", f"{given} on axis {axis}", f"{extent} or 1{groups}")
    return None


def _groups(view: NodeView) -> tuple[int, int]:
    """How many groups the offsets may mean: as many, or one less with the end among them."""
    count = 1
    for extent in view.dim("group_offset"):
        count *= extent if isinstance(extent, int) else 1
    return count, count - 1


REDUCTION: tuple[Rule, ...] = (reduced_axes, types("group_offset", allowed=INTEGERS))
