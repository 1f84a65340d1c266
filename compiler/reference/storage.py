"""Values and their storage: exact rounding to every data type, and the bits a buffer holds.

The reference carries a tensor as *values*: float32 or float64 numbers that the data type represents
exactly (float32 when 24 significant bits are enough, int64 for INT64, which no float holds). A
buffer holds *storage*: numpy's own type where there is one, else an unsigned integer of the same
width (bfloat16 as uint16, fp8 as uint8).
Four-bit types are stored two to a byte along one axis, the element of lower index in the low bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.errors import InvalidGraphError

# Types that numpy has. A vector type (INT8x4 ...) is a layout of its elements, which numpy has.
_NATIVE: dict[data_type, type[np.generic]] = {
    data_type.FLOAT: np.float32,
    data_type.DOUBLE: np.float64,
    data_type.HALF: np.float16,
    data_type.INT8: np.int8,
    data_type.UINT8: np.uint8,
    data_type.INT32: np.int32,
    data_type.INT64: np.int64,
    data_type.BOOLEAN: np.bool_,
    data_type.INT8x4: np.int8,
    data_type.UINT8x4: np.uint8,
    data_type.INT8x32: np.int8,
    data_type.FAST_FLOAT_FOR_FP8: np.float32,
}


@dataclass(frozen=True, slots=True)
class _Minifloat:
    """A float type that numpy lacks.

    Overflow goes to infinity; or saturates, as the GPU's conversions to every 8- and 4-bit type do;
    or to NaN in E8M0, which has powers of two alone: there a number too small, zero included,
    becomes the smallest one. A type without NaN takes its largest number instead (PTX
    ``cvt.rn.satfinite``), a type without a sign has NaN for negative numbers.
    """

    bits: int
    significand: int  # significant bits, the implicit one included
    exponent_min: int  # of the smallest normal number
    largest: float
    overflow: Literal["infinity", "saturates", "nan"]
    nan: int | None
    infinity: int = 0
    signed: bool = True
    subnormal: bool = True

    @property
    def word(self) -> type[np.unsignedinteger[Any]]:
        return np.uint16 if self.bits == 16 else np.uint8


_MINIFLOAT: dict[data_type, _Minifloat] = {
    data_type.BFLOAT16: _Minifloat(
        16, 8, -126, 2.0**127 * (2 - 2.0**-7), "infinity", 0x7FC0, 0x7F80
    ),
    data_type.FP8_E4M3: _Minifloat(8, 4, -6, 448.0, "saturates", 0x7F),
    data_type.FP8_E5M2: _Minifloat(8, 3, -14, 57344.0, "saturates", 0x7F, 0x7C),
    data_type.FP8_E5M3: _Minifloat(8, 4, -14, 114688.0, "saturates", 0xFF, signed=False),
    data_type.FP8_E8M0: _Minifloat(
        8, 1, -127, 2.0**127, "nan", 0xFF, signed=False, subnormal=False
    ),
    data_type.FP4_E2M1: _Minifloat(4, 2, 0, 6.0, "saturates", None),
}

_BLOCK = 1 << 16  # elements whose temporaries stay in cache

_NIBBLES = (data_type.FP4_E2M1, data_type.INT4)


def largest(dtype: data_type) -> float:
    """The largest finite number of a type."""
    if dtype in _MINIFLOAT:
        return _MINIFLOAT[dtype].largest
    if dtype is data_type.INT4:
        return 7.0
    native = storage_dtype(dtype)
    if native.kind == "b":
        return 1.0
    return float(np.finfo(native).max if native.kind == "f" else np.iinfo(native).max)


def storage_dtype(dtype: data_type) -> np.dtype[Any]:
    """The numpy dtype of a buffer of `dtype`."""
    if dtype in _NATIVE:
        return np.dtype(_NATIVE[dtype])
    if dtype in _MINIFLOAT:
        return np.dtype(_MINIFLOAT[dtype].word)
    if dtype is data_type.INT4:
        return np.dtype(np.uint8)
    names = ", ".join(known.name for known in (*_NATIVE, *_MINIFLOAT, data_type.INT4))
    raise InvalidGraphError(f"the reference has no {dtype.name} (it has: {names})")


def round_to(values: Any, dtype: data_type) -> np.ndarray[Any, Any]:
    """`values` rounded once to the nearest of `dtype`, ties to even, as float32 or float64; those
    of INT64 as int64."""
    values = np.asarray(values)
    if dtype in _MINIFLOAT:
        if dtype is data_type.BFLOAT16 and values.dtype == np.float32:
            return _rounded_bits(values).view(np.float32)
        row = _MINIFLOAT[dtype]
        return _by_blocks(lambda block: _round_minifloat(block, row), values, np.float32)
    if dtype is data_type.INT4:
        return np.clip(_integral(values), -8, 7)
    native = storage_dtype(dtype)
    if native.kind == "f":
        with np.errstate(over="ignore"):
            rounded = values.astype(native)
        return rounded.astype(np.float32) if native.itemsize < 4 else rounded
    if native.kind == "b":
        return (values != 0).astype(np.float64)
    limits = np.iinfo(native)
    if native != np.int64:
        return np.clip(_integral(values), limits.min, limits.max)
    if values.dtype.kind in "iu":
        return np.minimum(values, limits.max).astype(np.int64)
    rounded = _integral(values)
    with np.errstate(invalid="ignore"):  # 2**63 has no int64; the comparison replaces it
        return np.where(rounded >= 2.0**63, limits.max, rounded.astype(np.int64))


def _integral(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The nearest integers; 0 for a NaN, as the GPU converts one."""
    rounded = np.rint(values.astype(np.float64))
    return np.where(np.isnan(rounded), 0.0, rounded)


def round_up_to(values: Any, dtype: data_type) -> np.ndarray[Any, Any]:
    """The least number of `dtype` that is not below `values`, which are not negative.

    Beyond the largest number it stays there: a block's scale saturates.
    """
    values = np.asarray(values, np.float64)
    if dtype not in _MINIFLOAT:
        nearest = np.asarray(round_to(values, dtype), np.float64)
        native = np.dtype(_NATIVE[dtype])
        above = np.nextafter(nearest.astype(native), native.type(np.inf)).astype(np.float64)
        return np.where(nearest < values, above, nearest)
    row = _MINIFLOAT[dtype]
    quantum = _quantum(values, row)
    with np.errstate(invalid="ignore"):
        rounded = np.ldexp(np.ceil(np.ldexp(values, -quantum)), quantum)
    rounded = np.minimum(rounded, row.largest)  # which keeps a NaN
    return rounded if row.subnormal else np.maximum(rounded, 2.0**row.exponent_min)


def to_storage(values: Any, dtype: data_type, axis: int = -1) -> np.ndarray[Any, Any]:
    """The storage of `values`, rounded to `dtype` if they are not yet.

    Args:
        axis: the axis along which a four-bit type has two elements a byte; its extent, which must
            be even, halves.
    """
    values = np.asarray(values)
    if dtype in _NIBBLES:
        return _pack_nibbles(_nibbles(values, dtype), axis)
    if dtype not in _MINIFLOAT:
        return round_to(values, dtype).astype(storage_dtype(dtype))
    if dtype is data_type.BFLOAT16:
        as_float = values if values.dtype == np.float32 else round_to(values, dtype)
        words = _rounded_bits(as_float)
        words >>= 16
        return words.astype(np.uint16)
    row = _MINIFLOAT[dtype]
    return _by_blocks(
        lambda block: _minifloat_words(_round_minifloat(block, row), row), values, row.word
    )


def from_storage(storage: Any, dtype: data_type, axis: int = -1) -> np.ndarray[Any, Any]:
    """The values of a buffer's storage, as float32 or float64; those of INT64 as int64."""
    storage = np.asarray(storage)
    if storage.dtype != storage_dtype(dtype):
        raise InvalidGraphError(
            f"storage of {dtype.name}: got {storage.dtype}, want {storage_dtype(dtype)}"
        )
    if dtype in _NIBBLES:
        words = _unpack_nibbles(storage, axis)
        if dtype is data_type.INT4:
            return ((words.astype(np.int64) ^ 8) - 8).astype(np.float64)
        return _minifloat_table(_MINIFLOAT[dtype])[words]
    if dtype is data_type.BFLOAT16:
        return (storage.astype(np.uint32) << 16).view(np.float32)
    if dtype in _MINIFLOAT:
        return _minifloat_table(_MINIFLOAT[dtype])[storage]
    return storage.astype(np.float32 if storage.dtype == np.float16 else _carrier(storage.dtype))


def _by_blocks(
    function: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]], values: Any, dtype: Any
) -> np.ndarray[Any, Any]:
    """An elementwise function of float64, whose temporaries a weight matrix would multiply."""
    flat, result = values.reshape(-1), np.empty(values.size, dtype)
    for start in range(0, values.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        result[block] = function(flat[block].astype(np.float64))
    return result.reshape(values.shape)


def _nibbles(values: np.ndarray[Any, Any], dtype: data_type) -> np.ndarray[Any, Any]:
    rounded = round_to(values, dtype)
    if dtype is data_type.INT4:
        return (rounded.astype(np.int64) & 15).astype(np.uint8)
    return _minifloat_words(rounded.astype(np.float64), _MINIFLOAT[dtype])


def _pack_nibbles(words: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    if words.shape[axis] % 2:
        raise InvalidGraphError(
            f"packed axis: got extent {words.shape[axis]}, want an even one (two elements a byte)"
        )
    pairs = np.moveaxis(words, axis, -1)
    packed = pairs[..., 0::2] | (pairs[..., 1::2] << 4)
    return np.ascontiguousarray(np.moveaxis(packed, -1, axis))


def _unpack_nibbles(storage: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    packed = np.moveaxis(storage, axis, -1)
    words = np.stack([packed & 15, packed >> 4], axis=-1)
    return np.moveaxis(words.reshape(*packed.shape[:-1], 2 * packed.shape[-1]), -1, axis)


def _carrier(dtype: np.dtype[Any]) -> type[np.number[Any]]:
    if dtype == np.int64:
        return np.int64
    return np.float32 if dtype == np.float32 else np.float64


def _rounded_bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of float32 `values` rounded to bfloat16, lower halves zero; a NaN stays one."""
    every = np.ascontiguousarray(values).view(np.uint32).reshape(-1)
    result = np.empty(every.size, np.uint32)
    for start in range(0, every.size, _BLOCK):  # a weight matrix has hundreds of megabytes
        bits, rounded = every[start : start + _BLOCK], result[start : start + _BLOCK]
        np.right_shift(bits, 16, out=rounded)
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits
        rounded &= 0xFFFF0000
        nan = np.isnan(bits.view(np.float32))
        if nan.any():
            rounded[nan] = (bits[nan] | 0x00400000) & 0xFFFF0000
    return result.reshape(values.shape)


def _quantum(values: np.ndarray[Any, Any], row: _Minifloat) -> np.ndarray[Any, Any]:
    """The exponent of the distance of two neighbours around each value."""
    exponent = np.frexp(values)[1]
    return np.maximum(exponent, row.exponent_min + 1) - row.significand


def _round_minifloat(values: np.ndarray[Any, Any], row: _Minifloat) -> np.ndarray[Any, Any]:
    quantum = _quantum(values, row)
    with np.errstate(invalid="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(values, -quantum)), quantum)
        over = np.abs(rounded) > row.largest
    limit = {"infinity": np.inf, "saturates": row.largest, "nan": np.nan}[row.overflow]
    rounded = np.where(over, np.copysign(limit, rounded), rounded)
    if row.nan is None:
        rounded = np.where(np.isnan(rounded), row.largest, rounded)
    if not row.signed:
        rounded = np.where(values < 0, np.nan, np.abs(rounded))
    if not row.subnormal:
        rounded = np.maximum(rounded, 2.0**row.exponent_min)
    return rounded


def _minifloat_words(values: np.ndarray[Any, Any], row: _Minifloat) -> np.ndarray[Any, Any]:
    """Bits of `values`, which are numbers of the type."""
    mantissa_bits = row.significand - 1
    magnitude = np.where(np.isfinite(values), np.abs(values), 0)
    exponent = np.where(magnitude > 0, np.frexp(magnitude)[1] - 1, row.exponent_min)
    exponent = np.maximum(exponent, row.exponent_min)
    steps = np.ldexp(magnitude, mantissa_bits - exponent).astype(np.int64)
    # A normal number's steps hold the implicit bit, which adds the 1 that its exponent field lacks
    # (and has too much where no number is subnormal).
    words = ((exponent - row.exponent_min) << mantissa_bits) + steps - (not row.subnormal)
    words = np.where(np.isinf(values), row.infinity, words)
    if row.nan is not None:
        words = np.where(np.isnan(values), row.nan, words)
    if row.signed:
        words = words | (np.signbit(values).astype(np.int64) << (row.bits - 1))
    return words.astype(row.word)


def _minifloat_table(row: _Minifloat) -> np.ndarray[Any, Any]:
    """The value of every word of a type of 8 bits or fewer."""
    words = np.arange(1 << row.bits)
    magnitude = words & ((1 << (row.bits - row.signed)) - 1)
    mantissa_bits = row.significand - 1
    field = magnitude >> mantissa_bits
    steps = magnitude & ((1 << mantissa_bits) - 1)
    normal = field > 0 if row.subnormal else np.ones_like(words, bool)
    steps = steps + np.where(normal, 1 << mantissa_bits, 0)
    first = 1 if row.subnormal else 0  # the exponent field of the smallest normal numbers
    scale = np.maximum(field, first) - first + row.exponent_min - mantissa_bits
    values = np.ldexp(steps.astype(np.float64), scale)
    values = np.where(values > row.largest, np.nan, values)
    if row.infinity:
        values = np.where(magnitude == row.infinity, np.inf, values)
    if row.signed:
        values = np.copysign(values, np.where(words >> (row.bits - 1), -1.0, 1.0))
    return values.astype(np.float32)
