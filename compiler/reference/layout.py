"""Two layouts that strides cannot say: whole 128x4 tiles of scales, and packed ragged batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnn_aot.compiler.reference.call import Array
from cudnn_aot.errors import InvalidGraphError


def to_128x4(scale: Array, along: int = -1) -> Array:
    """The blob of a scale tensor declared ``F8_128x4``: flat, in the order of its bytes.

    The last two axes are rows and scales of a row, `along` (-1 or -2) being the axis of the scales
    (the one of unit stride); earlier axes are batches. Tiles of 128 rows by 4 scales follow each
    other, those of one band of rows first; in a tile, row r and scale c are at ``(r % 32) * 16 +
    (r // 32) * 4 + c`` (the tensor cores' layout of block scales). What pads the last tiles is 0.
    """
    rows = scale if along in (-1, scale.ndim - 1) else np.swapaxes(scale, -1, -2)
    bands, groups = -(-rows.shape[-2] // 128), -(-rows.shape[-1] // 4)
    padded = np.zeros((*rows.shape[:-2], bands * 128, groups * 4), rows.dtype)
    padded[..., : rows.shape[-2], : rows.shape[-1]] = rows
    tiles = padded.reshape(-1, bands, 4, 32, groups, 4)  # band, r // 32, r % 32, group, c
    return np.ascontiguousarray(tiles.transpose(0, 1, 4, 3, 2, 5)).reshape(-1)


def from_128x4(blob: Array, dim: tuple[int, ...], along: int = -1) -> Array:
    """The scales of `dim` out of a blob; the inverse of `to_128x4`."""
    dim = tuple(dim)
    swapped = along not in (-1, len(dim) - 1)
    shape = (*dim[:-2], dim[-1], dim[-2]) if swapped else dim
    bands, groups = -(-shape[-2] // 128), -(-shape[-1] // 4)
    batch = int(np.prod(shape[:-2], dtype=np.int64))
    if blob.size != batch * bands * groups * 512:
        raise InvalidGraphError(
            f"F8_128x4 blob of {dim}: got {blob.size} scales, "
            f"want {batch * bands * groups * 512} (whole tiles of 128x4)"
        )
    tiles = blob.reshape(batch, bands, groups, 32, 4, 4).transpose(0, 1, 4, 3, 2, 5)
    padded = tiles.reshape(*shape[:-2], bands * 128, groups * 4)
    rows = padded[..., : shape[-2], : shape[-1]]
    return np.ascontiguousarray(np.swapaxes(rows, -1, -2) if swapped else rows)


def pack_ragged(
    values: Array,
    lengths: np.ndarray[Any, Any],
    offsets: np.ndarray[Any, Any],
    stride: tuple[int, ...],
    multiplier: int = 1,
) -> Array:
    """The flat buffer of a ragged ``[B, H, S, D]`` tensor (THD): element (b, h, s, d) of the first
    ``lengths[b]`` positions is at ``offsets[b] * multiplier + h * stride_h + s * stride_s + d *
    stride_d``. The buffer ends at the last offset, where there are B + 1 of them.
    """
    starts = _starts(offsets, multiplier)
    places = [_places(values.shape, stride, int(n)) + starts[b] for b, n in enumerate(lengths)]
    ends = [int(place.max()) + 1 for place in places if place.size]
    size = max([*ends, int(starts[-1]) if len(starts) > values.shape[0] else 0], default=0)
    buffer = np.zeros(size, values.dtype)
    for batch, place in enumerate(places):
        buffer[place] = values[batch][:, : place.shape[1]]
    return buffer


def unpack_ragged(
    buffer: Array,
    dim: tuple[int, ...],
    lengths: np.ndarray[Any, Any],
    offsets: np.ndarray[Any, Any],
    stride: tuple[int, ...],
    multiplier: int = 1,
) -> Array:
    """The declared ``[B, H, S, D]`` out of a packed buffer, zeros beyond each batch's length."""
    starts = _starts(offsets, multiplier)
    values = np.zeros(dim, buffer.dtype)
    for batch, length in enumerate(lengths):
        place = _places(tuple(dim), stride, int(length)) + starts[batch]
        values[batch][:, : place.shape[1]] = buffer.reshape(-1)[place]
    return values


def _starts(offsets: np.ndarray[Any, Any], multiplier: int) -> np.ndarray[Any, Any]:
    return np.rint(np.asarray(offsets, np.float64)).astype(np.int64).reshape(-1) * multiplier


def _places(dim: tuple[int, ...], stride: tuple[int, ...], length: int) -> np.ndarray[Any, Any]:
    """Element numbers ``[H, length, D]`` of one batch, from its start."""
    _, heads, _, width = dim
    h, s, d = np.ogrid[:heads, :length, :width]
    return np.asarray(h * stride[1] + s * stride[2] + d * stride[3], np.int64)
