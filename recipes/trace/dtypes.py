"""Data types of kernels: what the DSL calls them, what products of them are summed in, and how
their values become fp32 and come back.

The DSL converts HALF, BFLOAT16 and integers, and on the GPU vectors to 8-bit floats. What it does
not: 8-bit floats one at a time on the GPU, and at all on the host CPU; and fp32 to BFLOAT16 on the
host, which would need a compiler-rt symbol. Those are integer arithmetic. So is BFLOAT16 to fp32 on
the host, where LLVM may round a BFLOAT16 value once more, by that symbol, before a branch on it.
Conversions from fp32 round to nearest, ties to even; to 8-bit types they saturate, as the GPU's own
do, infinity included. They give the same on both machines, but for the sign of a NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import (
    BFloat16,
    Float8E4M3FN,
    Float8E5M2,
    Float16,
    Float32,
    Int8,
    Int32,
    Uint8,
    Uint16,
    Uint32,
)

DTYPES = {
    "FLOAT": Float32,
    "HALF": Float16,
    "BFLOAT16": BFloat16,
    "FP8_E4M3": Float8E4M3FN,
    "FP8_E5M2": Float8E5M2,
    "INT8": Int8,
    "INT32": Int32,
}


@dataclass(frozen=True, slots=True)
class _Fp8:
    """An 8-bit float: bits of its significand beside the implicit one, exponent bias, and the bits
    of its largest number.
    """

    mantissa_bits: int
    bias: int
    largest: int


_FP8 = {Float8E4M3FN: _Fp8(3, 7, 0x7E), Float8E5M2: _Fp8(2, 15, 0x7B)}
_FP8_NAN = 0x7F


def is_vector(value: Any) -> bool:
    return hasattr(value, "reduce")


def type_of(value: Any) -> type:
    """The DSL type of a scalar, or of a vector's elements."""
    return value.dtype if is_vector(value) else type(value)


def accumulator(dtype: type) -> type:
    """The type that products of ``dtype`` are summed in."""
    return Int32 if dtype is Int8 else Float32


def multiply_add(x: Any, y: Any, total: Any) -> Any:
    """``x y + total``, all of one type: INT32, or fp32, which rounds once."""
    return x * y + total if type_of(total) is Int32 else cute.math.fma(x, y, total)


def widen(value: Any, dtype: type = Float32, on_gpu: bool = True) -> Any:
    """A scalar or vector of any of the types in ``dtype``, which holds its values.

    Args:
        on_gpu: whether the machine has values of BFLOAT16, and not their bits alone.
    """
    if type_of(value) is BFloat16 and not on_gpu:
        bits = value.bitcast(Uint16).to(Uint32)
        return (bits * _like(bits, 1 << 16)).bitcast(Float32).to(dtype)
    if type_of(value) in _FP8:
        return _fp8_value(value, _FP8[type_of(value)]).to(dtype)
    return value.to(dtype)


def narrow(value: Any, dtype: type, on_gpu: bool) -> Any:
    """A scalar or vector of fp32 or INT32 rounded to ``dtype``; INT32 of INT32 alone.

    Args:
        on_gpu: whether the machine has instructions for BFLOAT16, and for vectors of 8-bit floats.
    """
    if type_of(value) is Int32 and dtype is not Int32:
        value = value.to(Float32)
    if dtype is Int32 and type_of(value) is not Int32:
        raise ValueError("narrow: got fp32 for INT32, want an INT32 value")
    if dtype in _FP8 and on_gpu and is_vector(value) and cute.size(value.shape) % 4 == 0:
        return value.to(dtype)
    if dtype in _FP8:
        row = _FP8[dtype]
        return _each(lambda x: _fp8_bits(x, row), value, Uint8).bitcast(dtype)
    if dtype is Int8:
        return _each(_saturated, value, Int8)
    if dtype is BFloat16 and not on_gpu:
        return _each(_bfloat16_bits, value, Uint16).bitcast(BFloat16)
    return value.to(dtype)


def _like(value: Any, constant: float) -> Any:
    return cute.full_like(value, constant) if is_vector(value) else type(value)(constant)


def _select(condition: Any, a: Any, b: Any) -> Any:
    if is_vector(condition):
        return cute.where(condition, a, b)
    return type(b)(cutlass.select_(condition, a, b))


def _each(function: Callable[[Any], Any], value: Any, dtype: type) -> Any:
    """A function of scalars on every element: vectors have no shifts."""
    if not is_vector(value):
        return function(value)
    elements = cute.make_rmem_tensor(value.shape, type_of(value))
    elements.store(value)
    result = cute.make_rmem_tensor(value.shape, dtype)
    for i in range(cute.size(value.shape)):
        result[i] = function(elements[i])
    return result.load()


def _bfloat16_bits(x: Float32) -> Uint16:
    u = x.bitcast(Uint32)
    rounded = (u + Uint32(0x7FFF) + ((u >> 16) & Uint32(1))) >> 16
    is_nan = (u & Uint32(0x7FFFFFFF)) > Uint32(0x7F800000)
    return _select(is_nan, (u >> 16) | Uint32(0x40), rounded).to(Uint16)


def _fp8_value(x: Any, row: _Fp8) -> Any:
    """``x`` in fp32, without subnormal numbers of fp32, which a process may have switched off."""
    bits = x.bitcast(Uint8).to(Uint32)
    magnitude = bits & _like(bits, 0x7F)
    # The exponent's field grows by the difference of the biases; that of what is no number, to 255.
    # A subnormal number is read as the normal one of its fraction, less the smallest normal one.
    is_subnormal = magnitude < _like(bits, 1 << row.mantissa_bits)
    is_special = magnitude > _like(bits, row.largest)
    rebias = [127 - row.bias, 128 - row.bias, 255 - (_FP8_NAN >> row.mantissa_bits)]
    normal, subnormal, special = (_like(bits, growth << 23) for growth in rebias)
    growth = _select(is_special, special, _select(is_subnormal, subnormal, normal))
    fields = magnitude * _like(bits, 1 << (23 - row.mantissa_bits)) + growth
    wide = fields.bitcast(Float32)
    smallest = _like(wide, 2.0 ** (1 - row.bias))
    wide = wide - _select(is_subnormal, smallest, _like(wide, 0.0))
    sign = (bits & _like(bits, 0x80)) * _like(bits, 1 << 24)
    return (wide.bitcast(Uint32) | sign).bitcast(Float32)


def _fp8_bits(x: Float32, row: _Fp8) -> Uint8:
    u = x.bitcast(Uint32)
    sign, magnitude = (u >> 24) & Uint32(0x80), u & Uint32(0x7FFFFFFF)
    dropped = 23 - row.mantissa_bits
    half_less_one = Uint32((1 << (dropped - 1)) - 1)
    rebiased = magnitude - Uint32((127 - row.bias) << 23)
    bits = (rebiased + half_less_one + ((magnitude >> dropped) & Uint32(1))) >> dropped
    bits = _select(bits > Uint32(row.largest), Uint32(row.largest), bits)
    # Below the smallest normal number, a sum with a number whose last digit is the step of the
    # subnormal ones rounds to them.
    step = Float32(2.0 ** (24 - row.bias - row.mantissa_bits))
    subnormal = (magnitude.bitcast(Float32) + step).bitcast(Uint32) - step.bitcast(Uint32)
    bits = _select(magnitude < Uint32((128 - row.bias) << 23), subnormal, bits)
    bits = _select(magnitude > Uint32(0x7F800000), Uint32(_FP8_NAN), bits)
    return (bits | sign).to(Uint8)


def _saturated(x: Float32) -> Int8:
    """The nearest INT8; 0 for a NaN."""
    x = _select(x == x, x, Float32(0.0))
    x = _select(x > Float32(127.0), Float32(127.0), x)
    x = _select(x < Float32(-128.0), Float32(-128.0), x)
    whole = Float32(1.5 * 2.0**23)  # beyond it fp32 has integers alone
    return ((x + whole) - whole).to(Int32).to(Int8)
