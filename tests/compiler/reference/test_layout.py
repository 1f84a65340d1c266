"""The 128x4 tiles of scales and packed ragged batches: where every element lies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_aot.compiler.reference.layout import from_128x4, pack_ragged, to_128x4, unpack_ragged
from cudnn_aot.errors import InvalidGraphError


def address(row: int, scale: int, scales: int) -> int:
    """The offset of one scale, as the tensor cores' layout of block scales states it."""
    tiles_of_a_band = -(-scales // 4)
    tile = (row // 128) * tiles_of_a_band + scale // 4
    return tile * 512 + (row % 32) * 16 + (row % 128) // 32 * 4 + scale % 4


@pytest.mark.parametrize(("rows", "scales"), [(128, 4), (256, 8), (5, 3), (129, 1), (300, 13)])
def test_every_scale_is_at_its_address(rows: int, scales: int) -> None:
    values = np.arange(1, rows * scales + 1, dtype=np.float64).reshape(rows, scales)
    blob = to_128x4(values)
    assert blob.size == -(-rows // 128) * -(-scales // 4) * 512
    for row, scale in np.ndindex(values.shape):
        assert blob[address(row, scale, scales)] == values[row, scale]
    assert np.count_nonzero(blob) == values.size
    assert np.array_equal(from_128x4(blob, values.shape), values)


def test_batches_follow_each_other_and_the_scales_axis_may_be_the_first() -> None:
    values = np.arange(2 * 130 * 6, dtype=np.uint8).reshape(2, 130, 6)
    blob = to_128x4(values)
    assert blob.dtype == np.uint8
    assert np.array_equal(blob, np.concatenate([to_128x4(part) for part in values]))
    turned = values.transpose(0, 2, 1)
    assert np.array_equal(to_128x4(turned, along=-2), blob)
    assert np.array_equal(from_128x4(blob, turned.shape, along=-2), turned)
    assert np.array_equal(from_128x4(blob, turned.shape, along=1), turned)


def test_a_blob_of_another_size_is_refused() -> None:
    with pytest.raises(InvalidGraphError, match="got 10 scales, want 1024"):
        from_128x4(np.zeros(10), (129, 4))


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    heads=st.integers(1, 3),
    width=st.integers(1, 3),
    multiplied=st.booleans(),
    with_end=st.booleans(),
)
def test_ragged_batches_survive_packing(lengths, heads, width, multiplied, with_end) -> None:
    dim = (len(lengths), heads, 6, width)
    values = np.random.default_rng(0).standard_normal(dim)
    for batch, length in enumerate(lengths):
        values[batch, :, length:] = 0
    stride = (6 * heads * width, width, heads * width, 1)  # tokens of all heads: [T, H, D]
    token = heads * width
    tokens = np.concatenate([[0], np.cumsum(lengths)])
    offsets, multiplier = (tokens, token) if multiplied else (tokens * token, 1)
    if not with_end:
        offsets = offsets[:-1]
    buffer = pack_ragged(values, np.array(lengths), offsets, stride, multiplier)
    assert buffer.size == sum(lengths) * token
    rows = buffer.reshape(-1, heads, width)
    for batch, length in enumerate(lengths):
        got = rows[tokens[batch] : tokens[batch] + length]
        assert np.array_equal(got, values[batch, :, :length].transpose(1, 0, 2))
    back = unpack_ragged(buffer, dim, np.array(lengths), offsets, stride, multiplier)
    assert np.array_equal(back, values)


def test_gaps_between_batches_stay() -> None:
    values = np.arange(1.0, 5.0).reshape(2, 1, 2, 1)
    buffer = pack_ragged(values, np.array([2, 1]), np.array([0, 4, 6]), (2, 1, 1, 1))
    assert buffer.tolist() == [1, 2, 0, 0, 3, 0]
