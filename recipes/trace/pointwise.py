"""Pointwise ops as the kernels trace them: one table row per op, one interpreter.

An epilogue is plain data (it is part of a kernel's key)::

    {"inputs":  [{"dtype", "kind"}, ...],
     "nodes":   [[op, [value ids], {attributes}], ...],
     "outputs": [{"value": id, "dtype"}, ...]}

Values are numbered: first the accumulators, one for each product, then the inputs widened to fp32,
and each node adds one more. Everything is computed in fp32, to which an INT32 accumulator is
rounded first; an output of an accumulator is the accumulator itself. An output with ``"reduce":
{"mode", "axes"}`` is not the value at every place but what a fold of it in fp32 leaves along
``"m"``, ``"n"`` or ``"mn"`` (``trace/reductions.py``). ``cast`` rounds to a narrower dtype and
back, which is what reading a port of that dtype does; an output is rounded by its store. A truth
value is 1 or 0, and any number but 0 is true, NaN included: so is what a ``cast`` to BOOLEAN makes
1.

The functions run while a kernel is traced. Their values are fp32 scalars or register vectors
(``TensorSSA``); what the DSL spells differently on the device and on the host CPU goes through a
*machine* (``DEVICE``, ``HOST``).

NaN propagates through every op that computes: a comparison with NaN is false, so a clamp selects
the bound where ``x < bound`` and ``x`` elsewhere. What an op gives is stated by its float64
reference in ``compiler/reference/pointwise.py``; a formula differs from that one only where fp32
would cancel, overflow or take more instructions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Float64

from cudnn_aot.recipes.trace import dtypes

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


# erf(x) / x as a polynomial in x^2, by its Taylor series; relative error below 1e-11 for |x| < 0.5.
_ERF = tuple(
    2.0 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(9)
)


def _each(function: Callable[..., Any], *values: Any) -> Any:
    """A function of scalars on every element of vectors; the DSL has no vector form of the GPU's
    approximate instructions.
    """
    if not dtypes.is_vector(values[0]):
        return function(*values)
    fragments = []
    for value in values:
        fragments.append(cute.make_rmem_tensor(value.shape, Float32))
        fragments[-1].store(value)
    result = fragments[0]
    for i in range(cute.size(values[0].shape)):
        result[i] = function(*(fragment[i] for fragment in fragments))
    return result.load()


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


# log2(erfc(x / sqrt 2) / 2) as a polynomial in x on [0, _GELU_END], of which x erfc(x / sqrt 2) / 2
# has an absolute error of 8e-8 if nothing were rounded. Behind the end two to its power is nothing
# beside a half.
_GELU_END = 6.0
_GELU_TAIL = (
    -0.9999982517522845,
    -1.1511617178007398,
    -0.45887549025979324,
    -0.0532876446384169,
    0.00800731459931666,
    -0.0007484622067270456,
    3.0860141533230786e-05,
)


class Machine:
    """What both machines spell alike. The DSL lowers these to libdevice on the GPU and to libm on
    the host, a few ulps off at most on the whole range.
    """

    # Whether there are instructions of BFLOAT16, and such that round vectors to 8-bit floats.
    on_gpu: ClassVar[bool]

    def widen(self, x: Any, dtype: type = Float32) -> Any:
        """Of any of the types, in ``dtype``, which holds its values."""
        return dtypes.widen(x, dtype, self.on_gpu)

    def narrow(self, x: Any, dtype: type) -> Any:
        """An output's value in its own type."""
        return dtypes.narrow(x, dtype, self.on_gpu)

    def round_to(self, x: Any, dtype: str) -> Any:
        return self.widen(self.narrow(x, dtypes.DTYPES[dtype]))

    def exp(self, x: Any) -> Any:
        return cute.math.exp(x)

    def log(self, x: Any) -> Any:
        return cute.math.log(x)

    def tanh(self, x: Any) -> Any:
        return cute.math.tanh(x)

    def sin(self, x: Any) -> Any:
        return cute.math.sin(x)

    def cos(self, x: Any) -> Any:
        return cute.math.cos(x)

    def tan(self, x: Any) -> Any:
        return cute.math.tan(x)

    def pow(self, a: Any, b: Any) -> Any:
        return cute.math.pow(a, b)

    def remainder(self, a: Any, b: Any) -> Any:
        """C's ``fmod``: exact, with the sign of ``a``."""
        return cute.math.rem(a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        """NaN if either is."""
        return cute.math.max(a, b, propagate_nan=True)

    def minimum(self, a: Any, b: Any) -> Any:
        """NaN if either is."""
        return cute.math.min(a, b, propagate_nan=True)

    def abs(self, x: Any) -> Any:
        return cute.math.absf(x)

    def ceil(self, x: Any) -> Any:
        return cute.math.ceil(x)

    def floor(self, x: Any) -> Any:
        return cute.math.floor(x)


class Device(Machine):
    """Spelling of the GPU: scalars and register vectors.

    Short sequences without branches where they are as exact: a kernel's epilogue is unrolled over
    every accumulator of a thread, so each instruction here costs instruction cache as much as issue
    slots.
    """

    on_gpu = True

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        """``a`` where the condition holds, else ``b``; either may be a number."""
        if dtypes.is_vector(condition):
            a = a if dtypes.is_vector(a) else cute.full(condition.shape, a, Float32)
            b = b if dtypes.is_vector(b) else cute.full(condition.shape, b, Float32)
            return cute.where(condition, a, b)
        return Float32(cutlass.select_(condition, Float32(a), Float32(b)))

    def alike(self, values: Sequence[Any]) -> list[Any]:
        """The values, all of them vectors if one is."""
        vectors = [value for value in values if dtypes.is_vector(value)]
        if len(vectors) in (0, len(values)):
            return list(values)
        return [v if dtypes.is_vector(v) else cute.full_like(vectors[0], v) for v in values]

    def maximum(self, a: Any, b: Any) -> Any:
        """One instruction, where the DSL's own takes four."""
        return _each(lambda a, b: cute.arch.fmax(a, b, nan=True), a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return _each(lambda a, b: cute.arch.fmin(a, b, nan=True), a, b)

    def fast_exp(self, x: Any) -> Any:
        """Relative error about 1e-7 times ``1 + |x|``."""
        return cute.math.exp2(x * math.log2(math.e), fastmath=True)

    def reciprocal(self, x: Any) -> Any:
        """``1 / x`` to one ulp where neither is subnormal; 0 for infinity."""
        return _each(cute.arch.rcp_approx, x)

    def divide(self, a: Any, b: Any) -> Any:
        """``a / b`` to two ulps on the full range, without the branches of an exact quotient."""
        return _each(lambda a, b: cute.math.div(a, b, full=True), *self.alike((a, b)))

    def sqrt(self, x: Any) -> Any:
        """To one ulp."""
        return _each(lambda x: cute.math.sqrt(x, approx=True), x)

    def rsqrt(self, x: Any) -> Any:
        """To two ulps."""
        return _each(lambda x: cute.math.rsqrt(x, approx=True), x)

    def erf(self, x: Any) -> Any:
        return cute.math.erf(x)

    def half_erfc(self, x: Any) -> Any:
        """``erfc(x) / 2``, the Gaussian tail: relative error 1e-6, where ``1 + erf`` cancels."""
        a = cute.math.absf(x)
        t = self.reciprocal(a * _TAIL_SCALE + 1.0)
        tail = t * _TAIL[-1] + _TAIL[-2]
        for coefficient in reversed(_TAIL[:-2]):
            tail = tail * t + coefficient
        tail = tail * t * cute.math.exp2(x * x * -math.log2(math.e), fastmath=True)
        return self.select(x < 0.0, 1.0 - tail, tail)

    def gelu(self, x: Any) -> Any:
        """As exact as ``x (1 + erf(x / sqrt 2)) / 2`` in fp32: the absolute error is 5e-7, so that
        below -5 nothing is left of what is less than that.
        """
        a = cute.math.absf(x)
        near = self.minimum(*self.alike((a, _GELU_END)))
        tail = near * _GELU_TAIL[-1] + _GELU_TAIL[-2]
        for coefficient in reversed(_GELU_TAIL[:-2]):
            tail = tail * near + coefficient
        return (0.5 - cute.math.exp2(tail, fastmath=True)) * a + x * 0.5


class Host(Machine):
    """Spelling of the CPU: scalars; nothing but operators, libm and integer bitcasts (no
    ``__truncsfbf2``, no ``math.erf``).
    """

    on_gpu = False

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        return Float32(cutlass.select_(condition, Float32(a), Float32(b)))

    def alike(self, values: Sequence[Any]) -> list[Any]:
        return list(values)

    def fast_exp(self, x: Any) -> Any:
        return cute.math.exp(x)

    def reciprocal(self, x: Any) -> Any:
        return Float32(1.0) / x

    def divide(self, a: Any, b: Any) -> Any:
        return Float32(a) / Float32(b)

    def sqrt(self, x: Any) -> Any:
        return cute.math.sqrt(x)

    def rsqrt(self, x: Any) -> Any:
        return Float32(1.0) / cute.math.sqrt(x)

    def erf(self, x: Any) -> Any:
        wide = x.to(Float64)
        square = wide * wide
        series = Float64(_ERF[-1])
        for coefficient in reversed(_ERF[:-1]):
            series = series * square + Float64(coefficient)
        far = 1.0 - 2.0 * self.half_erfc(x).to(Float64)
        return Float64(cutlass.select_(square < Float64(0.25), series * wide, far)).to(Float32)

    def half_erfc(self, x: Any) -> Any:
        x = x.to(Float64)
        a = Float64(cutlass.select_(x < Float64(0.0), -x, x))
        t = Float64(2.0) / (Float64(2.0) + a)
        tail = Float64(_ERFC[-1])
        for coefficient in reversed(_ERFC[:-1]):
            tail = tail * t + Float64(coefficient)
        half = Float64(0.5) * t * cute.math.exp(tail - a * a)
        return Float64(cutlass.select_(x < Float64(0.0), Float64(1.0) - half, half)).to(Float32)

    def gelu(self, x: Any) -> Any:
        return x * self.half_erfc(x * -math.sqrt(0.5))


DEVICE = Device()
HOST = Host()


def _relu(
    m: Any,
    x: Any,
    negative_slope: float,
    lower_clip: float,
    upper_clip: float | None,
) -> Any:
    below = lower_clip if negative_slope == 0.0 else (x - lower_clip) * negative_slope + lower_clip
    y = m.select(x < lower_clip, below, x)
    return y if upper_clip is None else m.select(y > upper_clip, upper_clip, y)


def _relu_slope(
    m: Any,
    x: Any,
    negative_slope: float,
    lower_clip: float,
    upper_clip: float | None,
) -> Any:
    """At a clip itself, that of the side away from the open range."""
    slope = m.select(x <= lower_clip, negative_slope, 1.0)
    slope = slope if upper_clip is None else m.select(x >= upper_clip, 0.0, slope)
    return m.select(x == x, slope, x)


def _bump(m: Any, z: Any, value: Any) -> Any:
    """``value``, which falls as ``exp(-|z|)``, without the product of 0 and infinity far out."""
    return m.select(m.abs(z) < 128.0, value, 0.0)


def _gelu(m: Any, x: Any) -> Any:
    return m.gelu(x)


def _gelu_slope(m: Any, x: Any) -> Any:
    density = m.fast_exp(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return m.half_erfc(x * -math.sqrt(0.5)) + _bump(m, x, x * density)


# gelu_approx_tanh is x (1 + tanh(u)) / 2, which is x sigmoid(2 u), with u = _TANH (x + _CUBIC x^3).
_TANH, _CUBIC = math.sqrt(2.0 / math.pi), 0.044715


def _gelu_approx_tanh(m: Any, x: Any) -> Any:
    u = (x * x * x * _CUBIC + x) * _TANH
    return x * _sigmoid(m, u * 2.0)


def _gelu_approx_tanh_slope(m: Any, x: Any) -> Any:
    z = (x * x * x * _CUBIC + x) * (2.0 * _TANH)
    z_slope = (x * x * (3.0 * _CUBIC) + 1.0) * (2.0 * _TANH)
    return _sigmoid(m, z) + _bump(m, z, x * _sigmoid_slope(m, z) * z_slope)


def _sigmoid(m: Any, x: Any) -> Any:
    return m.reciprocal(m.fast_exp(-x) + 1.0)


def _sigmoid_slope(m: Any, x: Any) -> Any:
    # sigmoid(x) sigmoid(-x), which 1 - sigmoid(x) would cancel in.
    decay = m.fast_exp(-m.abs(x))
    half = m.reciprocal(decay + 1.0)
    return decay * half * half


def _swish(m: Any, x: Any, swish_beta: float) -> Any:
    return x * _sigmoid(m, x * swish_beta)


def _swish_slope(m: Any, x: Any, swish_beta: float) -> Any:
    if swish_beta == 0.0:
        return m.select(x == x, 0.5, x)
    z = x * swish_beta
    return _sigmoid(m, z) + _bump(m, z, z * _sigmoid_slope(m, z))


def _elu(m: Any, x: Any) -> Any:
    # exp(x) - 1 is tanh(x / 2) (exp(x) + 1), which keeps the digits of a small x.
    return m.select(x > 0.0, x, m.tanh(x * 0.5) * (m.exp(x) + 1.0))


def _elu_slope(m: Any, x: Any) -> Any:
    return m.select(x > 0.0, 1.0, m.exp(x))


def _softplus(m: Any, x: Any) -> Any:
    # log(1 + e), with the part of e that 1 + e rounds away.
    e = m.exp(-m.abs(x))
    total = e + 1.0
    tail = m.log(total) + (e - (total - 1.0)) * m.reciprocal(total)
    return m.select(x > 0.0, x, 0.0) + tail


def _truth(m: Any, condition: Any) -> Any:
    return m.select(condition, 1.0, 0.0)


def _cast(m: Any, x: Any, dtype: str) -> Any:
    if dtype == "BOOLEAN":
        return _truth(m, x != 0.0)
    if dtype not in dtypes.DTYPES:
        wanted = ", ".join((*dtypes.DTYPES, "BOOLEAN"))
        raise ValueError(f"cast: got dtype {dtype!r}, want one of {wanted}")
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

_RELU = {"negative_slope": 0.0, "lower_clip": 0.0, "upper_clip": None}
_LEAKY = {"negative_slope": REQUIRED}
_SWISH = {"swish_beta": 1.0}


def _leaky(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of relu's attributes without its clips."""
    return lambda m, x, negative_slope: function(m, x, negative_slope, 0.0, None)


def _backward(
    slope: Callable[..., Any], attributes: Mapping[str, Any] | None = None
) -> PointwiseOp:
    """``loss`` times the slope of the forward op at its input."""
    return PointwiseOp(2, lambda m, loss, x, **own: loss * slope(m, x, **own), attributes or {})


OPS: dict[str, PointwiseOp] = {
    "identity": PointwiseOp(1, lambda m, x: x),
    "abs": PointwiseOp(1, lambda m, x: m.abs(x)),
    "neg": PointwiseOp(1, lambda m, x: -x),
    "ceil": PointwiseOp(1, lambda m, x: m.ceil(x)),
    "floor": PointwiseOp(1, lambda m, x: m.floor(x)),
    "reciprocal": PointwiseOp(1, lambda m, x: m.divide(1.0, x)),
    "sqrt": PointwiseOp(1, lambda m, x: m.sqrt(x)),
    "rsqrt": PointwiseOp(1, lambda m, x: m.rsqrt(x)),
    "exp": PointwiseOp(1, lambda m, x: m.exp(x)),
    "log": PointwiseOp(1, lambda m, x: m.log(x)),
    "sin": PointwiseOp(1, lambda m, x: m.sin(x)),
    "cos": PointwiseOp(1, lambda m, x: m.cos(x)),
    "tan": PointwiseOp(1, lambda m, x: m.tan(x)),
    "erf": PointwiseOp(1, lambda m, x: m.erf(x)),
    # Arithmetic on two values.
    "add": PointwiseOp(2, lambda m, a, b: a + b),
    "bias": PointwiseOp(2, lambda m, x, b: x + b),
    "sub": PointwiseOp(2, lambda m, a, b: a - b),
    "mul": PointwiseOp(2, lambda m, a, b: a * b),
    "scale": PointwiseOp(2, lambda m, x, s: x * s),
    "add_square": PointwiseOp(2, lambda m, a, b: a + b * b),
    "div": PointwiseOp(2, lambda m, a, b: m.divide(a, b)),
    "mod": PointwiseOp(2, lambda m, a, b: m.remainder(a, b)),
    "pow": PointwiseOp(2, lambda m, a, b: m.pow(a, b)),
    "max": PointwiseOp(2, lambda m, a, b: m.maximum(a, b)),
    "min": PointwiseOp(2, lambda m, a, b: m.minimum(a, b)),
    # Truth values.
    "cmp_eq": PointwiseOp(2, lambda m, a, b: _truth(m, a == b)),
    "cmp_neq": PointwiseOp(2, lambda m, a, b: _truth(m, a != b)),
    "cmp_lt": PointwiseOp(2, lambda m, a, b: _truth(m, a < b)),
    "cmp_le": PointwiseOp(2, lambda m, a, b: _truth(m, a <= b)),
    "cmp_gt": PointwiseOp(2, lambda m, a, b: _truth(m, a > b)),
    "cmp_ge": PointwiseOp(2, lambda m, a, b: _truth(m, a >= b)),
    "logical_not": PointwiseOp(1, lambda m, x: _truth(m, x == 0.0)),
    "logical_and": PointwiseOp(2, lambda m, a, b: m.select(a != 0.0, _truth(m, b != 0.0), 0.0)),
    "logical_or": PointwiseOp(2, lambda m, a, b: m.select(a != 0.0, 1.0, _truth(m, b != 0.0))),
    "binary_select": PointwiseOp(3, lambda m, a, b, mask: m.select(mask != 0.0, a, b)),
    # Activations.
    "relu": PointwiseOp(1, _relu, _RELU),
    "leaky_relu": PointwiseOp(1, _leaky(_relu), _LEAKY),
    "elu": PointwiseOp(1, _elu),
    "softplus": PointwiseOp(1, _softplus),
    "sigmoid": PointwiseOp(1, _sigmoid),
    "swish": PointwiseOp(1, _swish, _SWISH),
    "tanh": PointwiseOp(1, lambda m, x: m.tanh(x)),
    "gelu": PointwiseOp(1, _gelu),
    "gelu_approx_tanh": PointwiseOp(1, _gelu_approx_tanh),
    # Their gradients.
    "relu_backward": _backward(_relu_slope, _RELU),
    "leaky_relu_backward": _backward(_leaky(_relu_slope), _LEAKY),
    "elu_backward": _backward(_elu_slope),
    "softplus_backward": _backward(_sigmoid),
    "sigmoid_backward": _backward(_sigmoid_slope),
    "swish_backward": _backward(_swish_slope, _SWISH),
    "tanh_backward": _backward(lambda m, x: _sigmoid_slope(m, x * 2.0) * 4.0),
    "gelu_backward": _backward(_gelu_slope),
    "gelu_approx_tanh_backward": _backward(_gelu_approx_tanh_slope),
    # What a tensor of a narrower type between two ops does.
    "cast": PointwiseOp(1, _cast, {"dtype": REQUIRED}),
}


# About how many instructions an op takes for an element on the GPU, or more: those that say another
# number than `OTHER_INSTRUCTIONS` does. bench/chains.py measures them. Several take fewer, `exp` 8
# and `sqrt` 4; they stay with the others, since fewer makes blocks of columns wider than there are
# registers beside as many sums as there can be.
OTHER_INSTRUCTIONS = 24
_FEW = """
    identity abs neg ceil floor add bias sub mul scale add_square max min cmp_eq cmp_neq cmp_lt
    cmp_le cmp_gt cmp_ge logical_not logical_and logical_or binary_select relu leaky_relu cast
"""
INSTRUCTIONS = (
    dict.fromkeys(_FEW.split(), 2)
    | {"relu_backward": 3, "leaky_relu_backward": 3}
    | {"sigmoid": 4, "swish": 5, "gelu_approx_tanh": 9, "gelu": 11, "softplus": 39}
    | dict.fromkeys(["sin", "cos", "tan", "pow", "mod"], 80)
)
# A cast to 8 bits and back takes more than others do.
CAST_INSTRUCTIONS = {"FP8_E4M3": 12, "FP8_E5M2": 12, "INT8": 5}


def instructions(nodes: Sequence[Any]) -> int:
    """About how many a chain takes for an element."""
    return sum(
        CAST_INSTRUCTIONS.get(attributes.get("dtype")) or INSTRUCTIONS.get(name, OTHER_INSTRUCTIONS)
        for name, _, attributes in nodes
    )


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
    return op.function(machine, *machine.alike(values), **settings)


def apply(
    epilogue: Mapping[str, Any], accs: Sequence[Any], inputs: Sequence[Any], machine: Any = DEVICE
) -> list[Any]:
    """The epilogue's output values, in the order of its outputs: in fp32, of one that is reduced
    those to reduce; where an output is an accumulator, that in its own type.

    ``accs``, one for each product, and ``inputs`` are scalars or vectors of one shape, fp32 but for
    ``accs``, which may be INT32; a scalar input may stand beside vectors.
    """
    if len(inputs) != len(epilogue["inputs"]):
        raise ValueError(f"epilogue: got {len(inputs)} inputs, want {len(epilogue['inputs'])}")
    values = [*map(machine.widen, accs), *inputs]
    for name, arguments, attributes in epilogue["nodes"]:
        for index in arguments:
            if not 0 <= index < len(values):
                raise ValueError(f"{name}: got value id {index}, want 0..{len(values) - 1}")
        values.append(apply_op(machine, name, [values[index] for index in arguments], attributes))
    stored = [*accs, *values[len(accs) :]]
    return [
        (values if "reduce" in entry else stored)[entry["value"]] for entry in epilogue["outputs"]
    ]


__all__ = ["DEVICE", "HOST", "OPS", "PointwiseOp", "apply", "apply_op", "instructions"]
