"""Pointwise ops as the kernels trace them: one table row per op, one interpreter.

An epilogue is plain data (it is part of a kernel's key)::

    {"inputs":  [{"dtype", "kind"}, ...],
     "nodes":   [[op, [value ids], {attributes}], ...],
     "outputs": [{"value": id, "dtype"}, ...]}

Value 0 is the fp32 accumulator, values ``1..len(inputs)`` are the inputs widened to fp32, and each
node adds one more. Everything is computed in fp32; ``cast`` rounds to a narrower dtype and back,
which is what a port of that dtype does.

The functions run while a kernel is traced. Their values are fp32 scalars or register vectors
(``TensorSSA``); what the DSL spells differently on the device and on the host CPU goes through a
*machine* (``DEVICE``, ``HOST``).

NaN propagates through every op: a comparison with NaN is false, so a clamp selects the bound where
``x < bound`` and ``x`` elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float16, Float32, Float64, Uint16, Uint32

DTYPES = {"FLOAT": Float32, "HALF": Float16, "BFLOAT16": BFloat16}

# log(erfc(x) / t) + x^2 as a polynomial in t = 2 / (2 + x), x >= 0; fitted on [0, 26.5], relative
# error of erfc below 4e-11.
_ERFC = (
    -1.2655122243867645,
    1.0000060109504212,
    0.3748438883630235,
    0.08567964407672093,
    -0.10879397744910897,
    0.009357423009869192,
    -0.8209598923890777,
    2.540817524440092,
    -6.143357749696998,
    11.37671247983592,
    -14.053298095468358,
    11.165015926412408,
    -5.535477310512104,
    1.5710946909232697,
    -0.19612833813454342,
)


def _is_vector(value: Any) -> bool:
    return hasattr(value, "reduce")


# erfc(x) exp(x^2) / 2 is t times this polynomial in t = 1 / (1 + _TAIL_SCALE x), x >= 0, to 1.6e-7.
_TAIL_SCALE = 0.42
_TAIL = (
    0.11840996506956009,
    0.11982509279963319,
    0.09716675167493392,
    0.13500598848199208,
    -0.06644100292919382,
    0.22159519015032467,
    -0.1608481411659855,
    0.03528607705454565,
)


class Device:
    """Spelling of the GPU: scalars and register vectors.

    Short sequences without branches: a kernel's epilogue is unrolled over every accumulator of a
    thread, so each instruction here costs instruction cache as much as issue slots.
    """

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        """``a`` where the condition holds, else ``b``; either may be a number."""
        if _is_vector(condition):
            like = a if _is_vector(a) else b
            a = a if _is_vector(a) else cute.full_like(like, a)
            b = b if _is_vector(b) else cute.full_like(like, b)
            return cute.where(condition, a, b)
        return Float32(cutlass.select_(condition, Float32(a), Float32(b)))

    def exp(self, x: Any) -> Any:
        """Relative error about 1e-7 times ``1 + |x|``."""
        return cute.math.exp2(x * math.log2(math.e), fastmath=True)

    def tanh(self, x: Any) -> Any:
        return cute.math.tanh(x)

    def reciprocal(self, x: Any) -> Any:
        """``1 / x`` to one ulp; 0 for infinity."""
        if not _is_vector(x):
            return cute.arch.rcp_approx(x)
        result = cute.make_rmem_tensor(x.shape, Float32)
        result.store(x)
        for i in range(cute.size(x.shape)):
            result[i] = cute.arch.rcp_approx(result[i])
        return result.load()

    def half_erfc(self, x: Any) -> Any:
        """``erfc(x) / 2``, the Gaussian tail: relative error 1e-6, where ``1 + erf`` cancels."""
        a = cute.math.absf(x)
        t = self.reciprocal(a * _TAIL_SCALE + 1.0)
        tail = t * _TAIL[-1] + _TAIL[-2]
        for coefficient in reversed(_TAIL[:-2]):
            tail = tail * t + coefficient
        tail = tail * t * cute.math.exp2(x * x * -math.log2(math.e), fastmath=True)
        return self.select(x < 0.0, 1.0 - tail, tail)

    def round_to(self, x: Any, dtype: str) -> Any:
        return x.to(DTYPES[dtype]).to(Float32)


class Host:
    """Spelling of the CPU: scalars; nothing but operators, libm and integer bitcasts (no
    ``__truncsfbf2``, no ``math.erf``).
    """

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        return Float32(cutlass.select_(condition, Float32(a), Float32(b)))

    def exp(self, x: Any) -> Any:
        return cute.math.exp(x)

    def tanh(self, x: Any) -> Any:
        return cute.math.tanh(x)

    def reciprocal(self, x: Any) -> Any:
        return Float32(1.0) / x

    def half_erfc(self, x: Any) -> Any:
        x = x.to(Float64)
        a = Float64(cutlass.select_(x < Float64(0.0), -x, x))
        t = Float64(2.0) / (Float64(2.0) + a)
        tail = Float64(_ERFC[-1])
        for coefficient in reversed(_ERFC[:-1]):
            tail = tail * t + Float64(coefficient)
        half = Float64(0.5) * t * cute.math.exp(tail - a * a)
        return Float64(cutlass.select_(x < Float64(0.0), Float64(1.0) - half, half)).to(Float32)

    def round_to(self, x: Any, dtype: str) -> Any:
        if dtype == "BFLOAT16":
            return (bfloat16_bits(x).to(Uint32) << 16).bitcast(Float32)
        return x.to(DTYPES[dtype]).to(Float32)


DEVICE = Device()
HOST = Host()


def bfloat16_bits(x: Float32) -> Uint16:
    """Bits of ``x`` rounded to bfloat16, ties to even, by integer arithmetic; NaN stays NaN."""
    u = x.bitcast(Uint32)
    rounded = (u + Uint32(0x7FFF) + ((u >> 16) & Uint32(1))) >> 16
    is_nan = (u & Uint32(0x7FFFFFFF)) > Uint32(0x7F800000)
    return Uint32(cutlass.select_(is_nan, (u >> 16) | Uint32(0x40), rounded)).to(Uint16)


def _relu(m: Any, x: Any, negative_slope: float, lower_clip: float, upper_clip: float) -> Any:
    below = lower_clip if negative_slope == 0.0 else (x - lower_clip) * negative_slope + lower_clip
    y = m.select(x < lower_clip, below, x)
    return y if upper_clip == math.inf else m.select(y > upper_clip, upper_clip, y)


def _gelu(m: Any, x: Any) -> Any:
    return x * m.half_erfc(x * -math.sqrt(0.5))


def _gelu_approx_tanh(m: Any, x: Any) -> Any:
    # (1 + tanh(u)) / 2 is sigmoid(2 u).
    u = (x * x * x * 0.044715 + x) * math.sqrt(2.0 / math.pi)
    return x * _sigmoid(m, u * 2.0)


def _sigmoid(m: Any, x: Any) -> Any:
    return m.reciprocal(m.exp(-x) + 1.0)


def _swish(m: Any, x: Any, swish_beta: float) -> Any:
    return x * _sigmoid(m, x * swish_beta)


def _cast(m: Any, x: Any, dtype: str) -> Any:
    if dtype not in DTYPES:
        raise ValueError(f"cast: got dtype {dtype!r}, want one of {', '.join(DTYPES)}")
    return x if dtype == "FLOAT" else m.round_to(x, dtype)


@dataclass(frozen=True, slots=True)
class PointwiseOp:
    """A row: how many values it takes, its attributes with defaults, and ``function(machine,
    *values, **attributes)``.

    An attribute whose default is ``REQUIRED`` must be given; None in a graph means "not set".
    """

    arity: int
    function: Callable[..., Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)


REQUIRED = object()

OPS: dict[str, PointwiseOp] = {
    "identity": PointwiseOp(1, lambda m, x: x),
    "bias": PointwiseOp(2, lambda m, x, b: x + b),
    "add": PointwiseOp(2, lambda m, a, b: a + b),
    "mul": PointwiseOp(2, lambda m, a, b: a * b),
    "scale": PointwiseOp(2, lambda m, x, s: x * s),
    "relu": PointwiseOp(
        1, _relu, {"negative_slope": 0.0, "lower_clip": 0.0, "upper_clip": math.inf}
    ),
    "gelu": PointwiseOp(1, _gelu),
    "gelu_approx_tanh": PointwiseOp(1, _gelu_approx_tanh),
    "swish": PointwiseOp(1, _swish, {"swish_beta": 1.0}),
    "sigmoid": PointwiseOp(1, _sigmoid),
    "tanh": PointwiseOp(1, lambda m, x: m.tanh(x)),
    "cast": PointwiseOp(1, _cast, {"dtype": REQUIRED}),
}


def apply_op(machine: Any, name: str, values: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """The value of one node; ValueError for an unknown op or attribute, a missing attribute or a
    wrong number of values.
    """
    if name not in OPS:
        raise ValueError(f"pointwise op: got {name!r}, want one of {', '.join(OPS)}")
    op = OPS[name]
    if len(values) != op.arity:
        raise ValueError(f"{name}: got {len(values)} values, want {op.arity}")
    settings = dict(op.attributes)
    for key, value in attributes.items():
        if key not in settings:
            raise ValueError(f"{name}: got attribute {key!r}, want {', '.join(settings) or 'none'}")
        if value is not None:
            settings[key] = value
    for key, value in settings.items():
        if value is REQUIRED:
            raise ValueError(f"{name}: attribute {key!r} is missing")
    return op.function(machine, *values, **settings)


def apply(
    epilogue: Mapping[str, Any], acc: Any, inputs: Sequence[Any], machine: Any = DEVICE
) -> list[Any]:
    """The epilogue's output values, in fp32, in the order of its outputs.

    ``acc`` and ``inputs`` are fp32 scalars or vectors of one shape; a scalar input may stand beside
    a vector ``acc``.
    """
    if len(inputs) != len(epilogue["inputs"]):
        raise ValueError(f"epilogue: got {len(inputs)} inputs, want {len(epilogue['inputs'])}")
    values = [acc, *inputs]
    for name, arguments, attributes in epilogue["nodes"]:
        for index in arguments:
            if not 0 <= index < len(values):
                raise ValueError(f"{name}: got value id {index}, want 0..{len(values) - 1}")
        values.append(apply_op(machine, name, [values[index] for index in arguments], attributes))
    return [values[output["value"]] for output in epilogue["outputs"]]


__all__ = ["DEVICE", "DTYPES", "HOST", "OPS", "PointwiseOp", "apply", "apply_op", "bfloat16_bits"]
