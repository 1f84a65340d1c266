"""Values and their storage: exact rounding to every data type, and the bits a buffer holds.

The reference carries a tensor as *values*: float32 or float64 numbers that the data type represents
exactly (float32 when 24 significant bits are enough). A buffer holds *storage*: numpy's own type
where there is one, else an unsigned integer of the same width (bfloat16 as uint16, fp8 as uint8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.errors import InvalidGraphError

# Types that numpy has, with their limits where they are integers.
_NATIVE: dict[data_type, type[np.generic]] = {
    data_type.FLOAT: np.float32,
    data_type.DOUBLE: np.float64,
    data_type.HALF: np.float16,
    data_type.INT8: np.int8,
    data_type.UINT8: np.uint8,
    data_type.INT32: np.int32,
    data_type.INT64: np.int64,
    data_type.BOOLEAN: np.bool_,
}


@dataclass(frozen=True, slots=True)
class _Minifloat:
    """A float type that numpy lacks. Overflow goes to infinity, or saturates where there is none
    (the GPU's conversions to fp8 saturate in both fp8 types).
    """

    bits: int
    significand: int  # significant bits, the implicit one included
    exponent_min: int  # of the smallest normal number
    largest: float
    saturates: bool
    nan: int
    infinity: int = 0

    @property
    def word(self) -> type[np.unsignedinteger[Any]]:
        return np.uint16 if self.bits == 16 else np.uint8


_MINIFLOAT: dict[data_type, _Minifloat] = {
    data_type.BFLOAT16: _Minifloat(16, 8, -126, 2.0**127 * (2 - 2.0**-7), False, 0x7FC0, 0x7F80),
    data_type.FP8_E4M3: _Minifloat(8, 4, -6, 448.0, True, 0x7F),
    data_type.FP8_E5M2: _Minifloat(8, 3, -14, 57344.0, True, 0x7F, 0x7C),
}


def storage_dtype(dtype: data_type) -> np.dtype[Any]:
    """The numpy dtype of a buffer of `dtype`."""
    if dtype in _NATIVE:
        return np.dtype(_NATIVE[dtype])
    if dtype in _MINIFLOAT:
        return np.dtype(_MINIFLOAT[dtype].word)
    names = ", ".join(known.name for known in (*_NATIVE, *_MINIFLOAT))
    raise InvalidGraphError(f"the reference has no {dtype.name} (it has: {names})")


def round_to(values: Any, dtype: data_type) -> np.ndarray[Any, Any]:
    """`values` rounded once to the nearest of `dtype`, ties to even, as float32 or float64."""
    values = np.asarray(values)
    if dtype in _MINIFLOAT:
        if dtype is data_type.BFLOAT16 and values.dtype == np.float32:
            return _rounded_bits(values).view(np.float32)
        return _round_minifloat(values.astype(np.float64), _MINIFLOAT[dtype]).astype(np.float32)
    native = storage_dtype(dtype)
    if native.kind == "f":
        with np.errstate(over="ignore"):
            rounded = values.astype(native)
        return rounded.astype(np.float32) if native.itemsize < 4 else rounded
    if native.kind == "b":
        return (values != 0).astype(np.float64)
    limits = np.iinfo(native)
    return np.clip(np.rint(values.astype(np.float64)), limits.min, limits.max)


def to_storage(values: Any, dtype: data_type) -> np.ndarray[Any, Any]:
    """The storage of `values`, rounded to `dtype` if they are not yet."""
    values = np.asarray(values)
    if dtype not in _MINIFLOAT:
        return round_to(values, dtype).astype(storage_dtype(dtype))
    if dtype is data_type.BFLOAT16:
        as_float = values if values.dtype == np.float32 else round_to(values, dtype)
        return (_rounded_bits(as_float) >> 16).astype(np.uint16)
    return _minifloat_words(round_to(values, dtype).astype(np.float64), _MINIFLOAT[dtype])


def from_storage(storage: Any, dtype: data_type) -> np.ndarray[Any, Any]:
    """The values of a buffer's storage, as float32 or float64."""
    storage = np.asarray(storage)
    if storage.dtype != storage_dtype(dtype):
        raise InvalidGraphError(
            f"storage of {dtype.name}: got {storage.dtype}, want {storage_dtype(dtype)}"
        )
    if dtype is data_type.BFLOAT16:
        return (storage.astype(np.uint32) << 16).view(np.float32)
    if dtype in _MINIFLOAT:
        return _minifloat_table(_MINIFLOAT[dtype])[storage]
    return storage.astype(np.float32 if storage.dtype == np.float16 else _carrier(storage.dtype))


def _carrier(dtype: np.dtype[Any]) -> type[np.floating[Any]]:
    return np.float32 if dtype == np.float32 else np.float64


def _rounded_bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of float32 `values` rounded to bfloat16, lower halves zero; a NaN stays one."""
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    rounded = bits >> 16  # in place from here: a weight matrix has hundreds of megabytes
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded &= 0xFFFF0000
    nan = np.isnan(values)
    if nan.any():
        rounded[nan] = (bits[nan] | 0x00400000) & 0xFFFF0000
    return rounded


def _round_minifloat(values: np.ndarray[Any, Any], row: _Minifloat) -> np.ndarray[Any, Any]:
    exponent = np.frexp(values)[1]
    quantum = np.maximum(exponent, row.exponent_min + 1) - row.significand
    rounded = np.ldexp(np.rint(np.ldexp(values, -quantum)), quantum)
    over = np.abs(rounded) > row.largest
    beyond = np.copysign(row.largest if row.saturates else np.inf, rounded)
    return np.where(over, beyond, rounded)


def _minifloat_words(values: np.ndarray[Any, Any], row: _Minifloat) -> np.ndarray[Any, Any]:
    """Bits of `values`, which are numbers of the type."""
    mantissa_bits = row.significand - 1
    magnitude = np.where(np.isfinite(values), np.abs(values), 0)
    exponent = np.where(magnitude > 0, np.frexp(magnitude)[1] - 1, row.exponent_min)
    exponent = np.maximum(exponent, row.exponent_min)
    steps = np.ldexp(magnitude, mantissa_bits - exponent).astype(np.int64)
    # A normal number's steps hold the implicit bit, which adds the 1 that its exponent field lacks.
    words = ((exponent - row.exponent_min) << mantissa_bits) + steps
    words = np.where(np.isinf(values), row.infinity, words)
    words = np.where(np.isnan(values), row.nan, words)
    return (words | (np.signbit(values).astype(np.int64) << (row.bits - 1))).astype(row.word)


def _minifloat_table(row: _Minifloat) -> np.ndarray[Any, Any]:
    """The value of every word of an 8-bit type."""
    words = np.arange(256)
    mantissa_bits = row.significand - 1
    field = (words & 0x7F) >> mantissa_bits
    steps = (words & ((1 << mantissa_bits) - 1)) + np.where(field > 0, 1 << mantissa_bits, 0)
    scale = np.maximum(field, 1) - 1 + row.exponent_min - mantissa_bits
    values = np.ldexp(steps.astype(np.float64), scale)
    values = np.where(values > row.largest, np.nan, values)
    if row.infinity:
        values = np.where((words & 0x7F) == row.infinity, np.inf, values)
    return np.copysign(values, np.where(words & 0x80, -1.0, 1.0)).astype(np.float32)
