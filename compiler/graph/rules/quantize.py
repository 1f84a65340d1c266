"""Rules of block scaling."""

from __future__ import annotations

from typing import Any

from cudnn_aot.compiler.graph.extents import mul
from cudnn_aot.compiler.graph.op import NodeView, Refusal, Rule, Spelling, wrong
from cudnn_aot.compiler.graph.rules.domain import may_be_at_most
from cudnn_aot.compiler.graph.rules.tables import ANY_FLOATS, INTEGERS, floats, numbers, types


def block_sizes(view: NodeView) -> Refusal | None:
    """block_size has a positive number for each of the last axes"""
    sizes, rank = view.attr("block_size"), len(view.dim("input"))
    if not 1 <= len(sizes) <= rank or min(sizes) < 1:
        return Refusal(
            f"attribute block_size: got {list(sizes)}, want 1 to {rank} numbers of at least 1"
        )
    return None


def stays_inside(view: NodeView) -> Refusal | None:
    """OUT_0 is virtual: a dequantized tensor is an operand of the graph's own nodes"""
    if not view.outputs["OUT_0"].is_virtual:
        return wrong("OUT_0", "an output of the graph", "a virtual tensor")
    return None


def enough_scales(view: NodeView) -> Refusal | None:
    """descale has the input's rank and on each axis at least a scale for each block; 1 for the whole of an axis without blocks"""  # noqa: E501
    dim, scales, sizes = view.dim("input"), view.dim("descale"), view.attr("block_size")
    if len(scales) != len(dim):
        return wrong("descale", f"rank {len(scales)}", f"{len(dim)}, as input")
    blocks = (1,) * (len(dim) - len(sizes)) + sizes
    for axis, (extent, count, size) in enumerate(zip(dim, scales, blocks, strict=True)):
        if size == 1 == count:
            continue
        if not may_be_at_most(view, extent, mul(count, size)):
            one = ", or 1" if size == 1 else ""
            return wrong(
                "descale",
                f"{count} scales on axis {axis}",
                f"at least one for each {size} of the input's {extent}{one}",
            )
    return None


def _said_axis(view: NodeView) -> dict[str, Any]:
    axis, last = view.attr("axis"), len(view.dim("input")) - 1
    return {"axis": None if axis in (-1, last) else axis}


def _said_sizes(view: NodeView) -> dict[str, Any]:
    sizes = view.attr("block_size") or ()
    return {"block_size": next((sizes[i:] for i, n in enumerate(sizes) if n != 1), sizes[-1:])}


LAST_AXIS = Spelling("no `axis` for the last one", ("axis",), _said_axis)
SIZES = Spelling("`block_size` from the first axis that has blocks", ("block_size",), _said_sizes)

_GROUPS = types("group_offset", allowed=INTEGERS)

BLOCK_SCALE_DEQUANTIZE: tuple[Rule, ...] = (
    block_sizes,
    stays_inside,
    enough_scales,
    numbers("input", "OUT_0"),
    types("descale", allowed=ANY_FLOATS),
)
BLOCK_SCALE_QUANTIZE: tuple[Rule, ...] = (
    _GROUPS,
    floats("input", "Y"),
    types("scale", allowed=ANY_FLOATS),
)
