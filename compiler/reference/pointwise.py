"""Pointwise ops: one float64 formula per row.

Comparisons and logic give 1 and 0, and take any number but 0 for true. A NaN goes through every
op, `max` and `min` included, and is unequal to everything. A backward op takes the incoming
gradient (``loss``) and the *input* of the forward op, never its output.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from cudnn_aot.compiler.reference.call import (
    Array,
    Call,
    Reference,
    Results,
    erf,
    erfc,
    sigmoid,
    softplus,
    with_negatives,
)

Formula: TypeAlias = Callable[..., Array]


def _phi(x: Array) -> Array:
    """The normal distribution, through erfc, which keeps the digits of the negative tail."""
    return 0.5 * erfc(x * -math.sqrt(0.5))


def _gelu(x: Array) -> Array:
    return x * _phi(x)


def _bump(z: Array, values: Array) -> Array:
    """`values` of a function of `z` that goes to 0 on both sides, where the formula has 0 * inf."""
    return np.where(np.isinf(z), 0.0, values)


def _gelu_slope(x: Array) -> Array:
    return _phi(x) + _bump(x, x * np.exp(-0.5 * x * x)) / math.sqrt(2 * math.pi)


_C, _CUBIC = math.sqrt(2 / math.pi), 0.044715


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(_C * (x + _CUBIC * x**3)))


def _gelu_tanh_slope(x: Array) -> Array:
    t = np.tanh(_C * (x + _CUBIC * x**3))
    bump = 0.5 * x * (1 - t * t) * _C * (1 + 3 * _CUBIC * x * x)
    return 0.5 * (1 + t) + _bump(x, bump)


def _elu(x: Array) -> Array:
    """With alpha 1."""
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _elu_slope(x: Array) -> Array:
    return np.where(x > 0, 1.0, np.exp(np.minimum(x, 0)))


def _tanh_slope(x: Array) -> Array:
    return 4 * sigmoid(2 * x) * sigmoid(-2 * x)  # 1 - tanh(x)**2 without its cancellation


def _sigmoid_slope(x: Array) -> Array:
    return sigmoid(x) * sigmoid(-x)


def _swish(x: Array, beta: float) -> Array:
    return x * sigmoid(beta * x)


def _swish_slope(x: Array, beta: float) -> Array:
    z = beta * x if beta else np.where(np.isnan(x), x, 0.0)
    return sigmoid(z) + _bump(z, z * sigmoid(z) * sigmoid(-z))


def _relu(x: Array, slope: float, lower: float, upper: float | None) -> Array:
    """Continuous at the lower clip: the slope applies to what lies below it."""
    clips = [clip for clip in (lower, upper) if clip is not None]
    if x.dtype == np.int64:
        if not slope and all(float(clip).is_integer() and abs(clip) < 2**63 for clip in clips):
            return np.clip(x, int(lower), None if upper is None else int(upper))
        x = x.astype(np.float64)
    below = lower + slope * (x - lower) if slope else lower  # 0 * inf is not 0
    y = np.where(x < lower, below, x)
    return y if upper is None else np.where(y > upper, upper, y)


def _relu_slope(x: Array, slope: float, lower: float, upper: float | None) -> Array:
    """At a clip itself the gradient is that of the side away from the open range."""
    inner = np.where(x <= lower, slope, 1.0)
    inner = inner if upper is None else np.where(x >= upper, 0.0, inner)
    return np.where(np.isnan(x), np.nan, inner)


def _relu_attrs(call: Call) -> tuple[float, float, float | None]:
    return (
        call.attr("negative_slope", 0.0),
        call.attr("lower_clip", 0.0),
        call.attr("upper_clip"),
    )


def _leaky_attrs(call: Call) -> tuple[float, float, None]:
    return call.attr("negative_slope", 0.0), 0.0, None


def _beta(call: Call) -> tuple[float]:
    return (call.attr("swish_beta", 1.0),)


def _is_true(x: Array) -> Array:
    return x != 0


def _row(*ports: str) -> Callable[[Formula], Reference]:
    """A reference that applies a formula to the operands of `ports`."""

    def of(formula: Formula) -> Reference:
        def reference(call: Call) -> Results:
            return {"OUT_0": np.asarray(formula(*(call[port] for port in ports)), np.float64)}

        return reference

    return of


def _choice(*ports: str) -> Callable[[Formula], Reference]:
    """As `_row`, for formulas that keep every digit of INT64."""

    def of(formula: Formula) -> Reference:
        def reference(call: Call) -> Results:
            chosen = np.asarray(formula(*(call.exact(port) for port in ports)))
            return {"OUT_0": chosen.astype(np.float64) if chosen.dtype == bool else chosen}

        return reference

    return of


def _with(attrs: Callable[[Call], tuple[float | None, ...]], formula: Formula) -> Reference:
    """A unary op that has attributes."""
    return lambda call: {"OUT_0": formula(call.exact("input"), *attrs(call))}


def _backward(
    slope: Formula, attrs: Callable[[Call], tuple[float | None, ...]] = lambda call: ()
) -> Reference:
    """``loss`` times the slope of the forward op at ``input``."""
    return lambda call: {"OUT_0": call["loss"] * slope(call["input"], *attrs(call))}


def _gen_index(call: Call) -> Results:
    """The position of each element along one axis."""
    shape, axis = call["input"].shape, int(call.attr("axis", 0))
    if not -len(shape) <= axis < len(shape):
        raise call.refuse(f"axis: got {axis}, want one of the {len(shape)} axes of the input")
    along = [1] * len(shape)
    along[axis] = shape[axis]
    index = np.arange(shape[axis], dtype=np.float64).reshape(along)
    return {"OUT_0": np.broadcast_to(index, shape).copy()}


def _select(call: Call) -> Results:
    chosen = np.where(_is_true(call["mask"]), call.moved("input0"), call.moved("input1"))
    return {"OUT_0": np.asarray(chosen)}


_unary, _ab, _pair = _row("input"), _row("a", "b"), _row("input0", "input1")
_compare = _choice("input", "comparison")

REFERENCES: dict[str, Reference] = {
    "abs": _choice("input")(lambda x: np.abs(with_negatives(x))),
    "ceil": _unary(np.ceil),
    "cos": _unary(np.cos),
    "elu": _unary(_elu),
    "erf": _unary(erf),
    "exp": _unary(np.exp),
    "floor": _unary(np.floor),
    "gelu": _unary(_gelu),
    "gelu_approx_tanh": _unary(_gelu_tanh),
    "identity": lambda call: {"OUT_0": call.moved("input")},
    "log": _unary(np.log),
    "logical_not": _unary(lambda x: ~_is_true(x)),
    "neg": _choice("input")(lambda x: np.negative(with_negatives(x))),
    "reciprocal": _unary(lambda x: 1 / x),
    "rsqrt": _unary(lambda x: 1 / np.sqrt(x)),
    "sigmoid": _unary(sigmoid),
    "sin": _unary(np.sin),
    "softplus": _unary(softplus),
    "sqrt": _unary(np.sqrt),
    "tan": _unary(np.tan),
    "tanh": _unary(np.tanh),
    "add": _ab(np.add),
    "add_square": _ab(lambda a, b: a + b * b),
    "div": _ab(np.divide),
    "logical_and": _ab(lambda a, b: _is_true(a) & _is_true(b)),
    "logical_or": _ab(lambda a, b: _is_true(a) | _is_true(b)),
    "mul": _ab(np.multiply),
    "sub": _ab(np.subtract),
    "max": _choice("input0", "input1")(np.maximum),
    "min": _choice("input0", "input1")(np.minimum),
    "mod": _pair(np.fmod),  # the remainder has the sign of the dividend, as C's fmod
    "pow": _pair(np.power),
    "cmp_eq": _compare(np.equal),
    "cmp_ge": _compare(np.greater_equal),
    "cmp_gt": _compare(np.greater),
    "cmp_le": _compare(np.less_equal),
    "cmp_lt": _compare(np.less),
    "cmp_neq": _compare(np.not_equal),
    "bias": _row("input", "bias")(np.add),
    "scale": _row("input", "scale")(np.multiply),
    "binary_select": _select,
    "relu": _with(_relu_attrs, _relu),
    "leaky_relu": _with(_leaky_attrs, _relu),
    "swish": _with(_beta, _swish),
    "gen_index": _gen_index,
    "elu_backward": _backward(_elu_slope),
    "gelu_approx_tanh_backward": _backward(_gelu_tanh_slope),
    "gelu_backward": _backward(_gelu_slope),
    "sigmoid_backward": _backward(_sigmoid_slope),
    "softplus_backward": _backward(sigmoid),
    "tanh_backward": _backward(_tanh_slope),
    "relu_backward": _backward(_relu_slope, _relu_attrs),
    "leaky_relu_backward": _backward(_relu_slope, _leaky_attrs),
    "swish_backward": _backward(_swish_slope, _beta),
}
