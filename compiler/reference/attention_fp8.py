"""Attention on 8-bit operands: one scale for a tensor (fp8), or one for a block of 32 (MXFP8).

The operands are dequantized and attention runs on them in float64; what the library rounds *inside*
(the probabilities, and dS in the backward op, to 8 bits before their products) is not rounded here,
since where and how often a kernel rounds them is its own affair: tolerances have to allow for it.
``scale_s`` times ``descale_s`` multiplies what comes of the probabilities, ``scale_dP`` times
``descale_dP`` what comes of dS; both products are 1 unless the caller makes them differ.

``Amax_S`` is the largest probability after dropout, before its scale; ``Amax_O``, ``amax_dQ`` ...
the largest magnitude of a result before its own scale; ``amax_dP`` that of dS with ``attn_scale``.

With an ``sf_o`` output, O is quantized in blocks along D: of 16 with E4M3 scales for an FP4 O, of
32 with E8M0 scales for an E4M3 O, after the multiplication with ``scale_o``, by the formula of
`quantize`.
"""

from __future__ import annotations

import numpy as np

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.reference.attention import (
    Problem,
    forward,
    gathered,
    problem_of,
    stats_base,
)
from cudnn_aot.compiler.reference.attention_backward import backward
from cudnn_aot.compiler.reference.call import Array, Call, Reference, Results
from cudnn_aot.compiler.reference.quantize import padded_to, quantize, stretch

_MX_BLOCK = 32


def _amax(x: Array) -> Array:
    return np.full((1, 1, 1, 1), np.abs(x).max(initial=0.0))


def _descaled(call: Call, port: str) -> Array:
    return call[port] * call.scalar(f"descale_{port}", 1.0)


def _block_descaled(call: Call, port: str, axis: int) -> Array:
    """An MXFP8 operand times its scales, which lie along `axis` (3: D, 2: the tokens)."""
    x, scale = call[port], call[f"descale_{port}"]
    blocks = tuple(_MX_BLOCK if i == axis else 1 for i in range(4))
    for i, block in enumerate(blocks):
        if scale.shape[i] < -(-x.shape[i] // block):
            raise call.refuse(
                f"descale_{port} axis {i}: got {scale.shape[i]}, "
                f"want at least {-(-x.shape[i] // block)}"
            )
    return x * stretch(scale[tuple(slice(0, n) for n in _whole(x, axis))], x.shape, blocks)


def _whole(x: Array, axis: int) -> tuple[int, ...]:
    """The extents of the scales without those that pad 128x4 tiles."""
    return tuple(-(-n // _MX_BLOCK) if i == axis else n for i, n in enumerate(x.shape))


def _forward(call: Call, problem: Problem, probability_scale: float) -> Results:
    if call.wants("rng_dump"):
        raise call.refuse("rng_dump shows the library's own random numbers")
    results = forward(problem, probability_scale)
    results["Stats"] = stats_base(call, results["Stats"])
    results["Amax_O"] = _amax(results["O"])
    scaled = results["O"] * call.scalar("scale_o", 1.0)
    results["O"] = scaled
    if call.wants("sf_o"):
        wanted = call.wanted["O"].data_type
        block = 16 if wanted is data_type.FP4_E2M1 else _MX_BLOCK
        scales = call.wanted["sf_o"].data_type
        if wanted is None or scales is None:
            raise call.refuse("outputs O and sf_o have no data type")
        results["O"], sf_o = quantize(scaled, block, -1, wanted, scales)
        results["sf_o"] = padded_to(sf_o, call.wanted["sf_o"].dim)
    return results


def _sdpa_fp8(call: Call) -> Results:
    k, v = (gathered(call, side, _descaled(call, side)) for side in ("k", "v"))
    problem = problem_of(call, _descaled(call, "q"), k, v)
    factor = call.scalar("scale_s", 1.0) * call.scalar("descale_s", 1.0)
    return _forward(call, problem, factor)


def _sdpa_mxfp8(call: Call) -> Results:
    """q and k have scales along D, v along the tokens: along the axis that the product sums."""
    k = gathered(call, "k", _block_descaled(call, "k", 3))
    v = gathered(call, "v", _block_descaled(call, "v", 2))
    results = _forward(call, problem_of(call, _block_descaled(call, "q", 3), k, v), 1.0)
    return {port: value for port, value in results.items() if port != "Amax_S"}


def _sdpa_fp8_backward(call: Call) -> Results:
    q, k, v, o, grad = (_descaled(call, port) for port in ("q", "k", "v", "o", "dO"))
    factors = (
        call.scalar("scale_s", 1.0) * call.scalar("descale_s", 1.0),
        call.scalar("scale_dP", 1.0) * call.scalar("descale_dP", 1.0),
    )
    problem = problem_of(call, q, k, v)
    rows = (o * grad).sum(axis=-1, keepdims=True)
    results, largest = backward(problem, rows, grad, call["stats"], factors=factors)
    for port in ("dQ", "dK", "dV"):
        results[f"amax_{port}"] = _amax(results[port])
        results[port] = results[port] * call.scalar(f"scale_{port}", 1.0)
    results["amax_dP"] = np.full((1, 1, 1, 1), largest)
    return results


def _sdpa_mxfp8_backward(call: Call) -> Results:
    """Each product reads the quantization whose scales lie along the axis that it sums.

    ``q_T``, ``k_T`` and ``dO_T`` are q, k and dO, in the same axes, quantized along the tokens; o
    and dO in 16 bits give ``rowsum(dO * o)``. The scales of v are taken along D, which dO v^T sums,
    where the tensor's extents allow it, else along the tokens as in the forward op.
    """
    v, scale = call["v"], call["descale_v"]
    along_d = scale.shape[2] >= v.shape[2] and scale.shape[3] >= -(-v.shape[3] // _MX_BLOCK)
    problem = problem_of(
        call,
        _block_descaled(call, "q", 3),
        _block_descaled(call, "k", 3),
        _block_descaled(call, "v", 3 if along_d else 2),
    )
    others = (
        _block_descaled(call, "q_T", 2),
        _block_descaled(call, "k_T", 2),
        _block_descaled(call, "dO_T", 2),
    )
    rows = (call["o_f16"] * call["dO_f16"]).sum(axis=-1, keepdims=True)
    results, _ = backward(
        problem,
        rows,
        _block_descaled(call, "dO", 3),
        call["stats"],
        others=others,
    )
    for port in ("dQ", "dK", "dV"):
        results[f"amax_{port}"] = _amax(results[port])
    return results


REFERENCES: dict[str, Reference] = {
    "sdpa_fp8": _sdpa_fp8,
    "sdpa_fp8_backward": _sdpa_fp8_backward,
    "sdpa_mxfp8": _sdpa_mxfp8,
    "sdpa_mxfp8_backward": _sdpa_mxfp8_backward,
}
