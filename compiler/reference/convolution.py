"""Convolutions of any spatial rank: forward, gradient of the image, gradient of the filter.

Images are ``[N, C, spatial...]``, filters ``[K, C / groups, spatial...]``; as in cuDNN the number
of groups is the image's channels over the filter's. Every op is one sum over the filter's taps: a
tap pairs output position o with image position ``o * stride + tap * dilation - pre_padding``, and
positions outside of the image count as zeros. ``CONVOLUTION`` mode runs the taps in reverse.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudnn_aot.compiler.reference.call import Array, Call, Reference, Results

_Index = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Window:
    """How a filter moves over an image: per spatial axis, padding before, stride, dilation."""

    image: tuple[int, ...]
    filter: tuple[int, ...]
    output: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    reverse: bool

    def taps(self) -> Iterator[tuple[_Index, _Index, _Index]]:
        """Every tap: its index in the filter, and the image and output positions that it pairs."""
        for tap in itertools.product(*(range(extent) for extent in self.filter)):
            pairs = [self._along(axis, tap[axis]) for axis in range(len(tap))]
            index = tap
            if self.reverse:
                index = tuple(n - 1 - t for n, t in zip(self.filter, tap, strict=True))
            yield index, tuple(image for image, _ in pairs), tuple(output for _, output in pairs)

    def _along(self, axis: int, tap: int) -> tuple[slice, slice]:
        shift = tap * self.dilation[axis] - self.padding[axis]
        stride = self.stride[axis]
        first = max(0, -(shift // stride))  # the first output whose image position is >= 0
        last = min(self.output[axis] - 1, (self.image[axis] - 1 - shift) // stride)
        count = max(0, last - first + 1)
        start = first * stride + shift if count else 0
        return (
            slice(start, start + (count - 1) * stride + 1 if count else start, stride),
            slice(first, first + count),
        )


def _window(
    call: Call, image: tuple[int, ...], filters: tuple[int, ...], output: tuple[int, ...]
) -> _Window:
    rank = len(image) - 2
    both = call.attr("padding") or (0,) * rank
    pre = tuple(call.attr("pre_padding") or both)
    post = tuple(call.attr("post_padding") or both)
    stride = tuple(call.attr("stride") or (1,) * rank)
    dilation = tuple(call.attr("dilation") or (1,) * rank)
    for name, given in (("pre_padding", pre), ("post_padding", post)):
        if len(given) != rank:
            raise call.refuse(f"{name}: got {len(given)} numbers, want {rank}")
    extents = tuple(
        (image[i + 2] + pre[i] + post[i] - (filters[i + 2] - 1) * dilation[i] - 1) // stride[i] + 1
        for i in range(rank)
    )
    if output and output != extents:
        raise call.refuse(f"output positions: got {output}, want {extents} by the attributes")
    reverse = call.choice("convolution_mode", "CROSS_CORRELATION") == "CONVOLUTION"
    return _Window(image[2:], filters[2:], extents, pre, stride, dilation, reverse)


def _groups(call: Call, channels: int, filters: tuple[int, ...]) -> int:
    groups, rest = divmod(channels, filters[1])
    if rest or filters[0] % groups:
        raise call.refuse(
            f"channels: got {channels} of the image and {filters[:2]} of the filter, "
            "want groups that divide both"
        )
    return groups


def _grouped(x: Array, groups: int, axis: int) -> Array:
    """The channels on `axis` as (groups, channels of one)."""
    shape = (*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
    return x.reshape(shape)


_ALL: _Index = (slice(None),) * 3  # batch, group, channel: or group, output channel, input channel


def _flat(x: Array) -> Array:
    """Positions as one axis: [batch, group, channel, position]."""
    return x.reshape(*x.shape[:3], math.prod(x.shape[3:]))


def _fprop(call: Call) -> Results:
    image, weight = call["image"], call["weight"]
    groups = _groups(call, image.shape[1], weight.shape)
    window = _window(call, image.shape, weight.shape, ())
    x, w = _grouped(image, groups, 1), _grouped(weight, groups, 0)
    y = np.zeros((image.shape[0], groups, w.shape[1], *window.output))
    for tap, at, out in window.taps():
        part = y[_ALL + out]
        part += (w[_ALL + tap] @ _flat(x[_ALL + at])).reshape(part.shape)
    return {"Y": y.reshape(image.shape[0], weight.shape[0], *window.output)}


def _dgrad(call: Call) -> Results:
    """The transpose of the forward op as a function of the image, whose extents are declared."""
    loss, weight, dim = call["loss"], call["filter"], call.dim("DX")
    groups = _groups(call, dim[1], weight.shape)
    window = _window(call, dim, weight.shape, loss.shape[2:])
    dy, w = _grouped(loss, groups, 1), _grouped(weight, groups, 0)
    dx = np.zeros((dim[0], groups, weight.shape[1], *dim[2:]))
    for tap, at, out in window.taps():
        part = dx[_ALL + at]
        turned = w[_ALL + tap].swapaxes(-1, -2)
        part += (turned @ _flat(dy[_ALL + out])).reshape(part.shape)
    return {"DX": dx.reshape(dim)}


def _wgrad(call: Call) -> Results:
    """The transpose of the forward op as a function of the filter, whose extents are declared."""
    image, loss, dim = call["image"], call["loss"], call.dim("DW")
    groups = _groups(call, image.shape[1], dim)
    window = _window(call, image.shape, dim, loss.shape[2:])
    x, dy = _grouped(image, groups, 1), _grouped(loss, groups, 1)
    dw = np.zeros((groups, dim[0] // groups, *dim[1:]))
    for tap, at, out in window.taps():
        product = _flat(dy[_ALL + out]) @ _flat(x[_ALL + at]).swapaxes(-1, -2)
        dw[_ALL + tap] += product.sum(axis=0)
    return {"DW": dw.reshape(dim)}


REFERENCES: dict[str, Reference] = {
    "conv_fprop": _fprop,
    "conv_dgrad": _dgrad,
    "conv_wgrad": _wgrad,
}
