"""Rules of convolutions and their gradients.

One geometry holds for all three: an image ``[N, C, space]``, a filter ``[K, C / groups, space]``
and a result ``[N, K, space]`` whose extents are those of a forward convolution. Rules see it by
role; `_Roles` says which port has which role. What a shape rule has not decided is decided here.
"""

from __future__ import annotations

import math
from typing import Any

from cudnn_aot.compiler.graph.extents import format_extents
from cudnn_aot.compiler.graph.op import NodeView, Refusal, Rule, Spelling, unsupported, wrong
from cudnn_aot.compiler.graph.record import Record
from cudnn_aot.compiler.graph.rules.domain import may_be_at_most, may_divide, may_equal
from cudnn_aot.compiler.graph.rules.tables import documented, numbers

INT32_MAX = 2**31 - 1


class _Roles(Record):
    """The ports of image, filter and result."""

    image: str
    filter: str
    result: str

    def ports(self) -> tuple[str, str, str]:
        return self.image, self.filter, self.result


_FORWARD = _Roles("image", "weight", "Y")
_DATA = _Roles("DX", "filter", "loss")
_FILTER = _Roles("image", "DW", "loss")


def window_values(view: NodeView) -> Refusal | None:
    """padding is at least 0, stride and dilation at least 1, each with a number for every axis of space"""  # noqa: E501
    spatial = len(next(iter(view.inputs.values())).dim) - 2
    least = {"padding": 0, "pre_padding": 0, "post_padding": 0, "stride": 1, "dilation": 1}
    for name, limit in least.items():
        values = view.attr(name)
        if values and (len(values) != spatial or min(values) < limit):
            return Refusal(
                f"attribute {name}: got {list(values)}, "
                f"want {spatial} numbers of at least {limit}, one for each axis of space"
            )
    return None


def _same_rank(roles: _Roles) -> Rule:
    def rule(view: NodeView) -> Refusal | None:
        rank = len(next(iter(view.inputs.values())).dim)
        for port in roles.ports():
            dim = view.dim(port)
            if dim and (len(dim) != rank or rank < 3):
                want = f"{max(rank, 3)}: batch, channels, space"
                return wrong(port, f"rank {len(dim)}", want)
        return None

    return documented(f"{', '.join(roles.ports())} have one rank, of at least 3", rule)


def _positive(roles: _Roles) -> Rule:
    def rule(view: NodeView) -> Refusal | None:
        for port in roles.ports():
            dim = view.dim(port)
            if any(not may_be_at_most(view, 1, extent) for extent in dim):
                return wrong(port, f"dim {format_extents(dim)}", "extents of at least 1")
        return None

    return documented(f"extents of {', '.join(roles.ports())} are at least 1", rule)


def _channels(roles: _Roles) -> Rule:
    def rule(view: NodeView) -> Refusal | None:
        image, weight, result = (view.dim(port) for port in roles.ports())
        if not (image and weight and result):
            return None
        if not may_divide(view, weight[1], image[1]):
            return wrong(
                roles.filter,
                f"{weight[1]} channels",
                f"a divisor of the {image[1]} of {roles.image}: a group's channels",
            )
        for port, have, other, want in (
            (roles.result, result[1], roles.filter, weight[0]),
            (roles.result, result[0], roles.image, image[0]),
        ):
            if not may_equal(view, have, want):
                axis = 1 if other == roles.filter else 0
                return wrong(port, f"{have} on axis {axis}", f"{want}, as {other}")
        if isinstance(image[1], int) and isinstance(weight[1], int):
            groups = image[1] // weight[1]
            if not may_divide(view, groups, weight[0]):
                return wrong(roles.filter, f"{weight[0]} filters", f"a multiple of {groups} groups")
        return None

    return documented(
        f"channels of {roles.filter} divide those of {roles.image} into groups, which divide the "
        f"filters; {roles.result} has a channel for each filter, and {roles.image}'s batch",
        rule,
    )


def _space(roles: _Roles) -> Rule:
    def rule(view: NodeView) -> Refusal | None:
        image, weight, result = (view.dim(port) for port in roles.ports())
        if not (image and weight and result):
            return None
        for axis in range(2, len(image)):
            extent, taps, have = image[axis], weight[axis], result[axis]
            if not (isinstance(extent, int) and isinstance(taps, int) and isinstance(have, int)):
                continue
            padding, stride, dilation = _window(view, axis - 2)
            span = (taps - 1) * dilation + 1
            want = (extent + padding - span) // stride + 1
            if have != max(want, 0) or extent + padding < span:
                return wrong(
                    roles.result,
                    f"{have} places on axis {axis}",
                    f"{max(want, 0)} for {extent} of {roles.image}, padding {padding}, a span of "
                    f"{span} and stride {stride}",
                )
        return None

    return documented(
        f"space of {roles.result}: floor(({roles.image} + padding - span of {roles.filter}) / "
        "stride) + 1",
        rule,
    )


def _window(view: NodeView, axis: int) -> tuple[int, int, int]:
    """Padding on both sides together, stride and dilation on an axis of space."""

    def value(default: int, *names: str) -> int:
        given = next((view.attr(name) for name in names if view.attr(name)), None)
        return default if given is None else int(given[axis])

    padding = value(0, "pre_padding", "padding") + value(0, "post_padding", "padding")
    return padding, value(1, "stride"), value(1, "dilation")


def _said_window(view: NodeView) -> dict[str, Any]:
    """What is not given is no padding, and a stride and dilation of 1."""
    both = view.attr("padding")
    return {
        name: values if values and set(values) != {default} else None
        for name, values, default in (
            ("pre_padding", view.attr("pre_padding") or both, 0),
            ("post_padding", view.attr("post_padding") or both, 0),
            ("stride", view.attr("stride"), 1),
            ("dilation", view.attr("dilation"), 1),
        )
    }


WINDOW = Spelling(
    "`pre_padding` and `post_padding`, not `padding`; no padding of 0, no `stride` and `dilation` "
    "of 1",
    ("padding", "pre_padding", "post_padding", "stride", "dilation"),
    _said_window,
)


def filter_size(view: NodeView) -> Refusal | None:
    """weight has fewer than 2**31 elements"""
    dim = view.dim("weight")
    count = math.prod(extent for extent in dim if isinstance(extent, int))
    if count > INT32_MAX:
        return unsupported("weight", f"{count} elements", f"at most {INT32_MAX}")
    return None


def _rules(roles: _Roles) -> tuple[Rule, ...]:
    ports = roles.ports()
    return (
        _same_rank(roles),
        _positive(roles),
        window_values,
        _channels(roles),
        numbers(*ports),
    )


CONV_FPROP: tuple[Rule, ...] = (*_rules(_FORWARD), filter_size)  # its shape rule decides on space
CONV_DGRAD = (*_rules(_DATA), _space(_DATA))
CONV_WGRAD = (*_rules(_FILTER), _space(_FILTER))
