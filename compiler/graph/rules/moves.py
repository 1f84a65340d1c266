"""Rules of the ops that move values and compute none."""

from __future__ import annotations

from typing import Any

from cudnn_aot.compiler.graph.enums import reshape_mode
from cudnn_aot.compiler.graph.extents import Extent, mul
from cudnn_aot.compiler.graph.op import NodeView, Refusal, Rule, Spelling, wrong
from cudnn_aot.compiler.graph.rules.domain import may_equal
from cudnn_aot.compiler.graph.rules.tables import same_type
from cudnn_aot.compiler.graph.tensor import Tensor

_KEEPS_TYPE = same_type("input", "OUT_0")


def same_elements(view: NodeView) -> Refusal | None:
    """OUT_0 has as many elements as the input"""
    have, want = mul(*view.dim("OUT_0")), mul(*view.dim("input"))
    if view.dim("OUT_0") and not may_equal(view, have, want):
        return wrong("OUT_0", f"{have} elements", f"the input's {want}")
    return None


def logical_keeps_type(view: NodeView) -> Refusal | None:
    """LOGICAL: OUT_0 has the input's type"""
    if view.attr("reshape_mode") is reshape_mode.LOGICAL:
        return _KEEPS_TYPE(view)
    return None


def _span(tensor: Tensor) -> int | None:
    """Elements from the first to the last one; None under symbols."""
    extents: list[Extent] = [*tensor.dim, *tensor.stride]
    if not all(isinstance(extent, int) for extent in extents) or 0 in tensor.dim:
        return None
    steps = zip(tensor.dim, tensor.stride, strict=True)
    return 1 + sum((n - 1) * s for n, s in steps if isinstance(n, int) and isinstance(s, int))


def view_stays_inside(view: NodeView) -> Refusal | None:
    """VIEW_ONLY: the strides of OUT_0 reach no further than the input's"""
    out = view.outputs["OUT_0"]
    if view.attr("reshape_mode") is not reshape_mode.VIEW_ONLY or not out.dim:
        return None
    reach, limit = _span(out), _span(view.inputs["input"])
    if reach is not None and limit is not None and reach > limit:
        return wrong("OUT_0", f"strides that span {reach} elements", f"at most the input's {limit}")
    return None


def in_place_input(view: NodeView) -> Refusal | None:
    """in_place_index is one of the inputs"""
    index, count = view.attr("in_place_index"), len(view.many_names("inputs"))
    if index is not None and not 0 <= index < count:
        return Refusal(f"attribute in_place_index: got {index}, want 0 to {count - 1}")
    return None


def _said_axis(view: NodeView) -> dict[str, Any]:
    axis, rank = view.attr("axis"), len(view.dim("inputs_0"))
    return {"axis": axis + rank if axis is not None and -rank <= axis < 0 else axis}


AXIS = Spelling("`axis` counted from the first one", ("axis",), _said_axis)

RESHAPE: tuple[Rule, ...] = (same_elements, logical_keeps_type, view_stays_inside)
SLICE: tuple[Rule, ...] = (_KEEPS_TYPE,)
TRANSPOSE: tuple[Rule, ...] = (_KEEPS_TYPE,)
CONCATENATE: tuple[Rule, ...] = (same_type("inputs", "OUT_0"), in_place_input)
