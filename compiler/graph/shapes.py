"""Shape and layout rules that the rows of several ops share.

A rule answers None where the extents do not follow from the operands, among them arithmetic that an
extent cannot express: an extent is an integer or a product with symbols, so ``S - 1`` of a symbol
has no spelling and the caller declares the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cudnn_aot.compiler.graph.extents import Extent, SymExpr, packed, row_major
from cudnn_aot.compiler.graph.op import Dim, Layout, NodeView, Shape, When


def minus(extent: Extent, number: int) -> Extent | None:
    """``extent - number``, or None where an extent cannot express it."""
    if number == 0:
        return extent
    return extent - number if isinstance(extent, int) and extent >= number else None


def larger(a: Extent, b: Extent) -> Extent | None:
    """The larger of two extents, or None where symbols leave it open."""
    if a == b:
        return a
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else None


def ceil_div(extent: Extent, number: int) -> Extent | None:
    """``ceil(extent / number)``, or None where an extent cannot express it."""
    if isinstance(extent, int):
        return -(-extent // number)
    if extent.coef % number == 0:
        return SymExpr(extent.coef // number, extent.symbols)
    return None


def whole(dim: Sequence[Extent | None]) -> Dim | None:
    """`dim`, or None if any of its extents is open."""
    known = tuple(extent for extent in dim if extent is not None)
    return known if len(known) == len(dim) else None


def like(port: str) -> Shape:
    """The extents of an operand."""
    return Shape(f"as {port}", lambda view: view.dim(port) or None)


def keeps(port: str, *axes: int) -> Shape:
    """The extents of an operand on `axes`, 1 elsewhere."""

    def rule(view: NodeView) -> Dim:
        return tuple(extent if axis in axes else 1 for axis, extent in enumerate(view.dim(port)))

    named = " and ".join(str(axis) for axis in axes)
    return Shape(f"{port} on axis {named}, 1 elsewhere", rule)


def constant(*dim: int) -> Shape:
    """The same extents always."""
    return Shape(f"{list(dim)}", lambda view: dim)


def wired(port: str) -> When:
    """The output exists iff the operand is given."""
    return When(f"{port} is given", lambda view: view.has(port))


def asked(attr: str, *needed: str) -> When:
    """The output exists iff the attribute is on and the operands `needed` are given."""
    text = " and ".join([attr, *(f"{port} is given" for port in needed)])
    return When(text, lambda view: bool(view.attr(attr)) and all(map(view.has, needed)))


def follows(*names: str) -> Layout:
    """The strides of the first operand that has the output's extents, else row-major.

    That is what the cuDNN backend gives an output whose strides are not set. Of no `names`, any
    operand is looked at. Strides of 0, which repeat elements, are not taken over.
    """

    def rule(view: NodeView, dim: Dim) -> Dim:
        for tensor in map(view.tensor, names) if names else view.inputs.values():
            if tensor is not None and tensor.dim == dim and len(tensor.stride) == len(dim):
                stride = tensor.stride
                if all(stride) or all(
                    e == 1 for e, step in zip(dim, stride, strict=True) if not step
                ):
                    return stride
        return row_major(dim)

    return Layout(f"as {names[0]}" if names else "as the first operand of its extents", rule)


def _channels_last(rank: int) -> list[int]:
    return [0, *range(2, rank), 1] if rank > 1 else [0] * rank


CHANNELS_LAST = Layout("channels last", lambda view, dim: packed(dim, _channels_last(len(dim))))


def axes_inward(view: NodeView, port: str) -> list[int]:
    """The axes of an operand by their strides, outermost first; of equal strides, extent 1 inside.

    So the order does not depend on which extents are 1. The cuDNN frontend has equal strides in
    the order of the axes, which gives axes of extent 1 other strides.
    Strides with symbols have an order if they are row-major or channels last, else row-major's.
    """
    operand = view.inputs[port]
    steps = [step for step in operand.stride if isinstance(step, int)]
    if len(steps) == len(operand.stride):
        dim = operand.dim
        return sorted(range(len(steps)), key=lambda axis: (-steps[axis], dim[axis] == 1))
    rank = len(operand.dim)
    order = _channels_last(rank)
    is_last = packed(operand.dim, order) == operand.stride != row_major(operand.dim)
    return order if is_last else list(range(rank))


def in_order_of(port: str) -> Layout:
    """Dense, the axes in memory in the order that they have in an operand."""

    def rule(view: NodeView, dim: Dim) -> Dim:
        order = axes_inward(view, port)
        return packed(dim, order) if len(order) == len(dim) else row_major(dim)

    return Layout(f"dense, axes in the order of {port}'s", rule)


def viewed(text: str, rule: Callable[[NodeView, Dim], Dim]) -> Layout:
    """The strides of a view of the input, by `rule` out of the input's; row-major of strides of 0,
    which repeat elements."""

    def strides(view: NodeView, dim: Dim) -> Dim:
        step = view.inputs["input"].stride
        is_view = len(step) == len(dim) and 0 not in step
        return rule(view, step) if is_view else row_major(dim)

    return Layout(text, strides)
