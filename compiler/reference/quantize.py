"""Block scaling: numbers of a narrow type and one scale for each block of them.

As the cuDNN documentation states it (operations/BlockScaling)::

    scale  = round_up(amax(block) / largest number of the output type)   in the scale's type
    output = round_to_nearest_even(block / scale)

MXFP8 has blocks of 32 and E8M0 scales, NVFP4 blocks of 16 and E4M3 scales. A block of zeros has the
least scale of its type; where that is 0 (E4M3) the outputs are 0. A last block may be shorter.
Scales are handled in logical order; `layout.to_128x4` gives the order of a declared ``F8_128x4``.
"""

from __future__ import annotations

import numpy as np

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.reference.call import Array, Call, Declared, Reference, Results
from cudnn_aot.compiler.reference.storage import largest, round_to, round_up_to


def quantize(
    x: Array, block: int, axis: int, dtype: data_type, scale_dtype: data_type
) -> tuple[Array, Array]:
    """`x` in blocks along `axis`: the quantized values, and the scales."""
    rows = np.moveaxis(x, axis, -1)
    length = rows.shape[-1]
    count = -(-length // block)
    padded = np.zeros((*rows.shape[:-1], count * block))
    padded[..., :length] = rows
    blocks = padded.reshape(*rows.shape[:-1], count, block)
    scale = round_up_to(np.abs(blocks).max(axis=-1) / largest(dtype), scale_dtype)
    divided = np.where(scale[..., None] == 0, 0.0, blocks / scale[..., None])
    values = round_to(divided, dtype).astype(np.float64).reshape(padded.shape)[..., :length]
    return np.moveaxis(values, -1, axis), np.moveaxis(scale, -1, axis)


def stretch(scale: Array, dim: tuple[int, ...], blocks: tuple[int, ...]) -> Array:
    """`scale` repeated over its blocks to `dim`; scales beyond (padding) are dropped."""
    for axis, (extent, block) in enumerate(zip(dim, blocks, strict=True)):
        if scale.shape[axis] == 1 and block == 1:
            continue  # broadcasts
        scale = np.repeat(scale, block, axis=axis)
        scale = scale[(slice(None),) * axis + (slice(0, extent),)]
    return scale


def _quantize(call: Call) -> Results:
    """Along ``axis`` (default the last). ``transpose`` packs the outputs along that axis, which is
    a matter of their strides and of no value.

    ``group_offset``, the row groups of `moe_grouped_matmul`, changes no value as long as no block
    crosses a group; the public description says nothing of blocks that do, so they are refused
    (they exist only where blocks run along the rows, axis -2).
    """
    x = call["input"]
    block = _block(call)
    axis = int(call.attr("axis", -1)) % x.ndim
    wanted, scales = (call.wanted.get(port, Declared()).data_type for port in ("Y", "scale"))
    if wanted is None or scales is None:
        raise call.refuse("outputs Y and scale have no data type")
    if "group_offset" in call.inputs and axis == x.ndim - 2:
        starts = call.integers("group_offset").reshape(-1)
        if (starts[starts < x.shape[axis]] % block).any():
            raise call.refuse(f"group_offset: got {starts.tolist()}, want multiples of {block}")
    values, scale = quantize(x, block, axis, wanted, scales)
    return {"Y": values, "scale": padded_to(scale, call.wanted["scale"].dim)}


def _block(call: Call) -> int:
    given = call.attr("block_size")
    block = int(given[0] if isinstance(given, (tuple, list)) else given or 0)
    if block < 1:
        raise call.refuse(f"block_size: got {given}, want at least 1")
    return block


def padded_to(scale: Array, dim: tuple[int, ...]) -> Array:
    """`scale` with zeros up to a larger declaration (whole 128x4 tiles)."""
    if not dim or dim == scale.shape:
        return scale
    padded = np.zeros(tuple(max(d, s) for d, s in zip(dim, scale.shape, strict=True)))
    padded[tuple(slice(0, extent) for extent in scale.shape)] = scale
    return padded


def _dequantize(call: Call) -> Results:
    """``input * descale``, each scale over ``block_size`` elements: one size for each of the last
    axes (``[1, 32]`` has blocks along the last), or a single size for the last axis. A tensor of
    whole 128x4 tiles may hold more scales than there are blocks. ``is_negative_scale`` says that
    scales may be negative and changes no value.
    """
    x, scale = call["input"], call["descale"]
    given = call.attr("block_size", (1,))
    sizes = tuple(int(size) for size in (given if isinstance(given, (tuple, list)) else (given,)))
    if scale.ndim != x.ndim or len(sizes) > x.ndim:
        raise call.refuse(
            f"descale: got rank {scale.ndim} and {len(sizes)} block sizes, want rank {x.ndim}"
        )
    blocks = (1,) * (x.ndim - len(sizes)) + sizes
    for axis, block in enumerate(blocks):
        count = -(-x.shape[axis] // block)
        if scale.shape[axis] < count and scale.shape[axis] != 1:
            raise call.refuse(f"descale axis {axis}: got {scale.shape[axis]}, want {count} blocks")
    return {"OUT_0": x * stretch(scale, x.shape, blocks)}


REFERENCES: dict[str, Reference] = {
    "block_scale_quantize": _quantize,
    "block_scale_dequantize": _dequantize,
}
