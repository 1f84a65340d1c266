"""Rounding and storage, against exact fractions and against words spelt out by hand."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_aot.compiler.graph.dtypes import DTYPES
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.reference.storage import (
    from_storage,
    largest,
    round_to,
    round_up_to,
    storage_dtype,
    to_storage,
)
from cudnn_aot.errors import InvalidGraphError

BF16, FP16 = data_type.BFLOAT16, data_type.HALF
E4M3, E5M2 = data_type.FP8_E4M3, data_type.FP8_E5M2

# type: stored mantissa bits, smallest normal exponent, largest number
FORMATS = {
    BF16: (7, -126, 3.3895313892515355e38),
    FP16: (10, -14, 65504.0),
    E4M3: (3, -6, 448.0),
    E5M2: (2, -14, 57344.0),
}


def nearest(value: float, dtype: data_type) -> float:
    """Round to nearest, ties to even, in exact arithmetic; the result may exceed the largest."""
    mantissa, lowest, _ = FORMATS[dtype]
    exact = Fraction(value)
    exponent = lowest
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    quantum = Fraction(2) ** (exponent - mantissa)
    return float(round(exact / quantum) * quantum)  # Fraction rounds half to even


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: d.name)
@given(value=st.floats(-1e5, 1e5) | st.floats(-1e-6, 1e-6) | st.integers(-512, 512).map(float))
def test_rounding_is_exact(dtype: data_type, value: float) -> None:
    want = nearest(value, dtype)
    largest = FORMATS[dtype][2]
    if abs(want) > largest:
        want = np.copysign(largest if dtype in (E4M3, E5M2) else np.inf, want)
    got = round_to(value, dtype)
    assert got == want and np.signbit(got) == np.signbit(value)
    assert round_to(got, dtype) == got
    assert from_storage(to_storage(value, dtype), dtype) == got


def test_rounding_from_float64_is_one_rounding() -> None:
    # Just above the middle of 1 and 1 + 2**-7: through float32 it would tie and go down to 1.
    value = 1 + 2.0**-8 + 2.0**-40
    assert round_to(value, BF16) == 1 + 2.0**-7
    assert round_to(np.float32(value), BF16) == 1.0


@pytest.mark.parametrize(
    ("dtype", "value", "word"),
    [
        (BF16, 1.0, 0x3F80),
        (BF16, -2.5, 0xC020),
        (BF16, 1 + 2.0**-8, 0x3F80),  # a tie goes to the even neighbour below
        (BF16, 1 + 3 * 2.0**-8, 0x3F82),  # and here above
        (BF16, np.inf, 0x7F80),
        (BF16, 3.4e38, 0x7F80),
        (BF16, -0.0, 0x8000),
        (BF16, 2.0**-133, 0x0001),
        (E4M3, 1.0, 0x38),
        (E4M3, 448.0, 0x7E),
        (E4M3, 1e9, 0x7E),
        (E4M3, -np.inf, 0xFE),
        (E4M3, 2.0**-9, 0x01),
        (E4M3, 2.0**-6, 0x08),
        (E5M2, 1.0, 0x3C),
        (E5M2, -57344.0, 0xFB),
        (E5M2, 2.0**-16, 0x01),
        (FP16, 1.5, 0x3E00),
    ],
)
def test_words(dtype: data_type, value: float, word: int) -> None:
    for given_as in (np.float64, np.float32):
        stored = to_storage(np.full((1,), value, given_as), dtype)
        assert int(stored.view(f"u{stored.itemsize}")[0]) == word


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=lambda d: d.name)
def test_every_fp8_word_survives_unless_it_is_nan(dtype: data_type) -> None:
    words = np.arange(256, dtype=np.uint8)
    values = from_storage(words, dtype)
    numbers = np.isfinite(values)
    assert np.array_equal(to_storage(values[numbers], dtype), words[numbers])
    nans = {E4M3: [0x7F, 0xFF], E5M2: [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]}[dtype]
    assert np.flatnonzero(np.isnan(values)).tolist() == nans


def test_every_bfloat16_word_survives() -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    values = from_storage(words, BF16)
    nan = np.isnan(values)
    assert np.array_equal(to_storage(values[~nan], BF16), words[~nan])
    assert np.isnan(from_storage(to_storage(values[nan], BF16), BF16)).all()
    assert nan.sum() == 2 * 127


def test_native_types() -> None:
    assert np.array_equal(to_storage([-3.5, 2.5, 300], data_type.INT8), np.int8([-4, 2, 127]))
    assert np.array_equal(to_storage([0, 0.1, -2], data_type.BOOLEAN), [False, True, True])
    assert to_storage([1.0], data_type.FLOAT).dtype == np.float32
    assert to_storage([1.0], data_type.DOUBLE).dtype == np.float64
    assert round_to(0.1, data_type.FLOAT) == np.float32(0.1)
    assert round_to(0.1, data_type.DOUBLE) == 0.1
    assert round_to(1e9, FP16) == np.inf


def test_shape_is_kept_whatever_the_layout() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)
    stored = to_storage(values, BF16)
    assert stored.shape == (4, 2, 3)
    assert np.array_equal(from_storage(stored, BF16), values)
    assert to_storage(np.zeros((2, 0, 3)), BF16).shape == (2, 0, 3)
    assert round_to(np.float32(1.0), BF16).shape == ()


def test_refusals() -> None:
    with pytest.raises(InvalidGraphError, match="the reference has no NOT_SET"):
        storage_dtype(data_type.NOT_SET)
    with pytest.raises(InvalidGraphError, match="packed axis: got extent 3, want an even one"):
        to_storage(np.zeros(3), data_type.INT4)
    with pytest.raises(InvalidGraphError, match="storage of HALF: got float32, want float16"):
        from_storage(np.zeros(1, np.float32), FP16)


# The independent implementation: the same types of another library.
PEERS = {
    BF16: ml_dtypes.bfloat16,
    E4M3: ml_dtypes.float8_e4m3fn,
    E5M2: ml_dtypes.float8_e5m2,
    data_type.FP8_E8M0: ml_dtypes.float8_e8m0fnu,
    data_type.FP4_E2M1: ml_dtypes.float4_e2m1fn,
}


def peer_values(dtype: data_type) -> np.ndarray:
    bits = {BF16: 16, data_type.FP4_E2M1: 4}.get(dtype, 8)
    words = np.arange(1 << bits).astype(np.uint16 if bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):
        return words.view(PEERS[dtype]).astype(np.float64)


@pytest.mark.parametrize("dtype", PEERS, ids=lambda d: d.name)
def test_every_word_has_the_value_that_ml_dtypes_gives_it(dtype: data_type) -> None:
    want = peer_values(dtype)
    words = np.arange(len(want)).astype(storage_dtype(dtype))
    if dtype is data_type.FP4_E2M1:
        words = words | (words[::-1] << 4)
        got = from_storage(words[:, None], dtype)
        assert np.array_equal(got[:, 1], want[::-1])
        got = got[:, 0]
    else:
        got = from_storage(words, dtype)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(want)) or np.isnan(want).any()
    assert largest(dtype) == np.nanmax(np.where(np.isinf(want), np.nan, want))


@pytest.mark.parametrize("dtype", PEERS, ids=lambda d: d.name)
def test_rounding_agrees_with_ml_dtypes_at_every_number_tie_and_beside_it(dtype: data_type) -> None:
    numbers = np.unique(peer_values(dtype)[np.isfinite(peer_values(dtype))]).astype(np.float32)
    middles = ((numbers[1:].astype(np.float64) + numbers[:-1]) / 2).astype(np.float32)
    points = np.concatenate([numbers, middles])
    with np.errstate(over="ignore"):
        points = np.concatenate(
            [points, np.nextafter(points, np.inf), np.nextafter(points, -np.inf)]
        )
    # ml_dtypes takes every subnormal float32 above 2**-127 up to 2**-126 in E8M0: leave those out.
    least = 2.0**-126 if dtype is data_type.FP8_E8M0 else -np.inf
    points = points[(np.abs(points) <= largest(dtype)) & (points >= least)]
    want = points.astype(PEERS[dtype]).astype(np.float64)
    got = round_to(points.astype(np.float64), dtype)
    assert np.array_equal(got, want)
    assert np.array_equal(round_to(points, dtype), want)


def test_numbers_that_a_type_has_no_room_for() -> None:
    e8m0, e2m1 = data_type.FP8_E8M0, data_type.FP4_E2M1
    assert round_to([0.0, 1e-300, 2.0**-127], e8m0).tolist() == [2.0**-127] * 3
    assert np.isnan(round_to([-1.0, np.nan, np.inf, 1e300], e8m0)).all()
    assert to_storage([2.0**-127, 1.0, 2.0**127, np.nan], e8m0).tolist() == [0, 127, 254, 255]
    assert round_to([1e9, -np.inf, np.nan], e2m1).tolist() == [6.0, -6.0, 6.0]
    e5m3 = data_type.FP8_E5M3  # unsigned: four significant bits, the exponents of E5M2
    assert round_to([1.0625, 1.1875, 1e9], e5m3).tolist() == [1.0, 1.25, 114688.0]
    words = np.arange(255, dtype=np.uint8)
    values = from_storage(words, e5m3)
    assert np.array_equal(to_storage(values, e5m3), words) and (np.diff(values) > 0).all()
    assert values[:9].tolist() == [steps * 2.0**-17 for steps in range(9)]
    assert np.isnan(from_storage(np.uint8([255]), e5m3))


@pytest.mark.parametrize("dtype", [data_type.INT4, data_type.FP4_E2M1], ids=lambda d: d.name)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_two_elements_a_byte_along_any_axis(dtype: data_type, axis: int) -> None:
    values = from_storage(np.arange(256, dtype=np.uint8), dtype)[:512].reshape(4, 8, 16)
    stored = to_storage(values, dtype, axis)
    assert stored.shape[axis] == values.shape[axis] // 2 and stored.size == values.size // 2
    assert np.array_equal(from_storage(stored, dtype, axis), values)


def test_int4_words() -> None:
    assert to_storage([1, -1, -8, 7], data_type.INT4).tolist() == [0xF1, 0x78]
    assert round_to([-9.0, 7.6, 2.5, 3.5], data_type.INT4).tolist() == [-8, 7, 2, 4]
    want = np.arange(-8, 8).astype(ml_dtypes.int4).view(np.uint8) & 15
    got = to_storage(np.arange(-8, 8)[:, None].repeat(2, 1), data_type.INT4)[:, 0] & 15
    assert np.array_equal(got, want)


@pytest.mark.parametrize("dtype", [*PEERS, FP16, data_type.FLOAT], ids=lambda d: d.name)
def test_rounding_up_gives_the_least_number_not_below(dtype: data_type) -> None:
    rng = np.random.default_rng(0)
    values = np.exp2(rng.uniform(-20, 5, 500)) % largest(dtype)
    up = round_up_to(values, dtype)
    assert (up >= values).all() and np.array_equal(round_to(up, dtype), up)
    down = round_to(values, dtype)
    assert ((down == up) | (down < values)).all()
    assert np.array_equal(round_up_to(up, dtype), up)
    if dtype in PEERS and dtype is not BF16:
        numbers = np.unique(peer_values(dtype)[peer_values(dtype) >= 0])
        assert np.array_equal(up, numbers[np.searchsorted(numbers, values)])


def test_rounding_up_saturates() -> None:
    assert round_up_to([1e9, np.inf], E4M3).tolist() == [448.0, 448.0]
    assert round_up_to([0.0, 3.0, 1e300], data_type.FP8_E8M0).tolist() == [2.0**-127, 4.0, 2.0**127]


def test_integers_of_64_bits_keep_all_of_them() -> None:
    large = np.array([2**53 + 1, -(2**62) - 1, 2**63 - 1], np.int64)
    rounded = round_to(large, data_type.INT64)
    assert rounded.dtype == np.int64 and rounded.tolist() == large.tolist()
    assert from_storage(to_storage(large, data_type.INT64), data_type.INT64).tolist() == (
        large.tolist()
    )


@pytest.mark.parametrize(
    "dtype", [data_type.INT64, data_type.INT32, data_type.INT8, data_type.INT4]
)
def test_what_no_integer_is_becomes_one(dtype: data_type) -> None:
    got = round_to(np.array([np.nan, np.inf, -np.inf, 2.0**63, 1.5]), dtype)
    low, high = DTYPES[dtype].range
    assert got.tolist() == [0, high, low, high, 2]
    stored = to_storage(np.array([np.nan, 2.0**63]), dtype)
    assert from_storage(stored, dtype).tolist() == [0, high]


def test_many_numbers_are_rounded_as_one() -> None:
    """They are rounded a block at a time."""
    values = np.random.default_rng(0).standard_normal((3, 70_001), np.float32)
    values[0, 65_535:65_537] = np.nan
    values[2, -1] = -np.nan
    want = values.astype(ml_dtypes.bfloat16)
    for laid in (values, values[::-1], values.T, np.asfortranarray(values)):
        expected = laid.astype(ml_dtypes.bfloat16).astype(np.float32)
        assert np.array_equal(round_to(laid, BF16), expected, equal_nan=True)
    numbers = ~np.isnan(values)
    assert np.array_equal(to_storage(values, BF16)[numbers], want.view(np.uint16)[numbers])
    assert np.isnan(from_storage(to_storage(values, BF16), BF16)[~numbers]).all()
    assert round_to(np.zeros((0, 4), np.float32), BF16).shape == (0, 4)
    assert round_to(np.float32(1.00390625), BF16).shape == ()
