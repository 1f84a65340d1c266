"""Rotary position embedding, as the cuDNN documentation states it (operations/RoPE).

The head dim (last axis) is a leading part that passes through and a trailing part of ``rope_dim``
(0: all of it) that rotates in halves, pair i being elements i and i + rope_dim / 2. ``freqs`` holds
raw angles, ``[S, 1, 1, width]``: position s of the input ``[B, H, S, D]`` rotates pair i by
``freqs[s, 0, 0, i]``. The angles of the second half, where the tensor has them, repeat the first
and are not read. ``output_scale`` multiplies every output element; the backward op rotates by the
negative angle under the same scale, which is the transpose of the forward op.
"""

from __future__ import annotations

import numpy as np

from cudnn_aot.compiler.reference.call import Array, Call, Reference, Results, in_rows


def _angles(call: Call, x: Array, half: int) -> Array:
    """The angles ``[S, half]`` of the input's positions."""
    freqs = in_rows(call["freqs"])
    positions = x.shape[-2]
    if freqs.shape[0] < positions or freqs.shape[1] < half:
        raise call.refuse(
            f"freqs: got {freqs.shape[0]} positions of {freqs.shape[1]} angles, "
            f"want at least {positions} of {half}"
        )
    return freqs[:positions, :half]


def _rotate(call: Call, port: str, sign: float) -> Array:
    x = call[port]
    width = int(call.attr("rope_dim", 0)) or x.shape[-1]
    if width % 2 or width > x.shape[-1]:
        raise call.refuse(f"rope_dim: got {width}, want an even number of at most {x.shape[-1]}")
    half, first = width // 2, x.shape[-1] - width
    angles = _angles(call, x, half)
    cos, sin = np.cos(angles), sign * np.sin(angles)
    low, high = x[..., first : first + half], x[..., first + half :]
    turned = [x[..., :first], low * cos - high * sin, high * cos + low * sin]
    return float(call.attr("output_scale", 1.0)) * np.concatenate(turned, axis=-1)


def _rope(call: Call) -> Results:
    return {"OUT_0": _rotate(call, "input", 1.0)}


def _rope_backward(call: Call) -> Results:
    return {"OUT_0": _rotate(call, "dY", -1.0)}


REFERENCES: dict[str, Reference] = {"rope": _rope, "rope_backward": _rope_backward}
