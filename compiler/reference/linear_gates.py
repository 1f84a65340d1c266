"""What the linear-attention ops do to their operands before the recurrence, and the derivatives.

The formulas are those of the docstrings of the cuDNN frontend's torch ops for linear attention and,
where these name a constant in passing, of its kernels:

- decay ``alpha`` from ``g``: ``exp(g)`` in the log domain; ``g + 1e-10`` in the linear domain (the
  floor is added, so the gradient is ``1 / (g + 1e-10)``); under ``safe_gate`` the log of alpha is
  ``-exp(a_log) * softplus(g + dt_bias)`` for `gdn` and `gdp`, and ``gate_lower_bound *
  sigmoid(exp(a_log) * (g + dt_bias))`` for `kda` and `gdn2` (the bound is -5 unless given). An
  absent ``a_log`` or ``dt_bias`` is 0.
- ``use_qk_l2norm`` multiplies each q and k row by ``1 / sqrt(sum x**2 + 1e-6)``.
- ``use_beta_sigmoid`` takes ``sigmoid(beta)``, twice that with ``allow_neg_eigval``.
- ``beta_guard`` of `gdn2`: see `guarded`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.reference.call import (
    Array,
    Call,
    Declared,
    sigmoid,
    softplus,
    summed_to,
)
from cudnn_aot.compiler.reference.storage import round_to

_LINEAR_FLOOR = 1e-10
_NORM_EPSILON = 1e-6
_LOWER_BOUND = -5.0
_GUARD_MARGIN = 1 / 32


@dataclass(frozen=True, slots=True)
class Gate:
    """The log decay and its derivatives, all of the shape of ``g``."""

    decay: Array
    by_g: Array
    by_a_log: Array

    def gradients(self, call: Call, d_decay: Array) -> dict[str, Array]:
        """dG, and the gradients of the parameters that are given."""
        grads = {"dG": d_decay * self.by_g}
        for port, by in (("a_log", self.by_a_log), ("dt_bias", self.by_g)):
            if port in call.inputs:
                shape = call[port].shape
                whole = d_decay * by
                if len(shape) < whole.ndim - 1:  # one number for a head, a gate for each channel
                    whole = whole.sum(axis=-1)
                grads[f"d_{port}"] = summed_to(whole, shape)
        return grads


def gate(call: Call, family: str) -> Gate:
    """The decay of a delta rule, from ``g`` ``[T, HO]`` or ``[T, HO, K]``."""
    g = call["g"]
    ones, zeros = np.ones_like(g), np.zeros_like(g)
    if not call.attr("safe_gate", False):
        if call.attr("gate_domain", "log") == "log":
            return Gate(g, ones, zeros)
        alpha = g + _LINEAR_FLOOR
        return Gate(np.log(alpha), 1 / alpha, zeros)
    a_log, bias = call.get("a_log"), call.get("dt_bias")
    x = g if bias is None else g + bias
    amplitude = ones
    if a_log is not None:
        amplitude = np.exp(a_log if g.ndim == 2 else a_log[:, None]) * ones
    if family in ("kda", "gdn2"):
        bound = call.attr("gate_lower_bound", _LOWER_BOUND)
        z = amplitude * x
        slope = bound * sigmoid(z) * sigmoid(-z)
        return Gate(bound * sigmoid(z), slope * amplitude, slope * z)
    decay = -amplitude * softplus(x)
    return Gate(decay, -amplitude * sigmoid(x), decay)


def strength(call: Call, beta: Array) -> tuple[Array, Array]:
    """The write strength, and its derivative by ``beta``."""
    if not call.attr("use_beta_sigmoid", False):
        return beta, np.ones_like(beta)
    factor = 2.0 if call.attr("allow_neg_eigval", False) else 1.0
    return factor * sigmoid(beta), factor * sigmoid(beta) * sigmoid(-beta)


def normalised(call: Call, x: Array) -> Array:
    """Rows of q or k as the recurrence takes them."""
    return x * _inverse_norm(x) if call.attr("use_qk_l2norm", False) else x


def normalised_backward(call: Call, x: Array, grad: Array) -> Array:
    """The gradient of the rows themselves."""
    if not call.attr("use_qk_l2norm", False):
        return grad
    inverse = _inverse_norm(x)
    y = x * inverse
    return inverse * (grad - y * (y * grad).sum(axis=-1, keepdims=True))


def _inverse_norm(x: Array) -> Array:
    return np.asarray(1 / np.sqrt((x * x).sum(axis=-1, keepdims=True) + _NORM_EPSILON))


def guarded(call: Call, beta: Array, k: Array, decay: Array) -> Array:
    """`gdn2`'s ``beta_guard``: erase gates that would let the state grow, drawn to their mean.

    For a token and head, with weights ``w = k**2`` (k normalised), ``n = sum w``, ``a = sum beta
    w``, ``nu = sum beta**2 w`` and the headroom ``c2 = exp(-2 max decay)``, the erase step
    ``I - k (beta k)^T`` after the decay does not expand iff ``n nu - a**2 <= (c2 - 1) * (1 -
    (1 - a)**2 / c2)``. Where it would, beta moves towards ``mu = a / n`` so far that the left side
    is 31/32 of the right one. Betas are rounded to the type of the operands; where that breaks the
    bound by more than four of its steps, every channel takes mu. The gradient passes straight
    through.
    """
    weights = k * k

    def spread(b: Array) -> tuple[Array, Array, Array]:
        a = (b * weights).sum(axis=-1, keepdims=True)
        nu = (b * b * weights).sum(axis=-1, keepdims=True)
        room = (c2 - 1) * (1 - (1 - a) ** 2 / c2)
        return np.maximum(n * nu - a * a, 0), np.maximum(room, 0), n * nu + a * a

    n = weights.sum(axis=-1, keepdims=True)
    c2 = np.exp(-2 * decay.max(axis=-1, keepdims=True))
    have, room, _ = spread(beta)
    unsafe = (n > 1e-20) & (have > room)
    mean = (beta * weights).sum(axis=-1, keepdims=True) / np.maximum(n, 1e-20)
    factor = np.sqrt((1 - _GUARD_MARGIN) * room / np.maximum(have, 1e-30)).clip(0, 1)
    moved = np.where(unsafe, mean + factor * (beta - mean), beta)
    dtype = call.declared.get("k", Declared()).data_type
    if dtype is None:
        return moved
    rounded = round_to(moved, dtype).astype(np.float64)
    have, room, size = spread(rounded)
    step = 2.0**-10 if dtype is data_type.HALF else 2.0**-7
    broken = unsafe & (have > room + 4 * step * size)
    mean = (rounded * weights).sum(axis=-1, keepdims=True) / np.maximum(n, 1e-20)
    return np.where(broken, round_to(mean, dtype), rounded)


def to_heads(x: Array, heads: int) -> Array:
    """``[T, H, ...]`` repeated to more heads: head h reads head ``h // (heads / H)``."""
    return np.repeat(x, heads // max(x.shape[1], 1), axis=1)


def from_heads(grad: Array, heads: int) -> Array:
    """A gradient of `to_heads`, summed over the heads that read the same one."""
    each = grad.shape[1] // max(heads, 1)
    return grad.reshape(grad.shape[0], heads, each, *grad.shape[2:]).sum(axis=2)
