"""Fits of extents and strides, on numbers alone."""

import pytest

from cudnn_aot.compiler.graph.extents import format_extents
from cudnn_aot.compiler.recorder.symbolize import Geometry, LayoutError, Samples, fit


def samples(
    rows: list[list[tuple[tuple[int, ...], tuple[int, ...]]]],
    is_result: tuple[bool, ...],
    weights: tuple[int, ...] = (),
) -> Samples:
    return Samples(
        tuple(tuple(Geometry(*tensor) for tensor in row) for row in rows),
        weights or (1,) * len(rows),
        is_result,
        tuple(tuple(f"X{axis}" for axis in range(len(dim))) for dim, _ in rows[0]),
    )


def test_the_rows_of_a_reshape_are_a_product() -> None:
    """[B, S, 8] becomes [B*S, 8]; the product is a result's, so it is no third symbol."""
    rows = [[((b, s, 8), (8 * s, 8, 1)), ((b * s, 8), (8, 1))] for b, s in ((2, 3), (4, 5), (1, 7))]
    found = fit(samples(rows, (False, True)))
    assert [format_extents(dim) for dim in found.dims] == ["[X0, X1, 8]", "[X0*X1, 8]"]
    assert [format_extents(stride) for stride in found.strides] == ["[8*X1, 8, 1]", "[8, 1]"]


def test_proportional_inputs_are_two_symbols() -> None:
    """Two samples prove no law: only what a node computes may follow from a product."""
    rows = [[((m,), (1,)), ((4 * m,), (1,))] for m in (2, 5)]
    found = fit(samples(rows, (False, False)))
    assert [format_extents(dim) for dim in found.dims] == ["[X0]", "[X02]"]


def test_interleaved_pages_have_a_constant_factor() -> None:
    """K and V of one pool: the page stride is twice the page."""
    rows = [[((p, 4, s, 8), (2 * 4 * s * 8, s * 8, 8, 1))] for p, s in ((3, 16), (9, 32))]
    found = fit(samples(rows, (False,)))
    assert format_extents(found.strides[0]) == "[64*X2, 8*X2, 8, 1]"


def test_a_slice_of_a_fused_buffer_keeps_its_stride() -> None:
    rows = [[((1, 4, s, 8), (s * 96, 8, 96, 1))] for s in (10, 77)]
    found = fit(samples(rows, (False,)))
    assert format_extents(found.strides[0]) == "[96*X2, 8, 96, 1]"


def test_the_hint_is_the_most_frequent_and_the_larger_of_two() -> None:
    rows = [[((m,), (1,))] for m in (1, 64, 8192)]
    assert fit(samples(rows, (False,), (5, 9, 0))).symbols["X0"].hint == 64
    assert fit(samples(rows, (False,), (5, 5, 0))).symbols["X0"].hint == 64
    symbol = fit(samples(rows, (False,), (5, 9, 0))).symbols["X0"]
    assert (symbol.min, symbol.max) == (1, 8192)


def test_zero_extents() -> None:
    rows = [[((m, 4), (4, 1))] for m in (0, 3)]
    assert fit(samples(rows, (False,))).symbols["X0"].min == 0


def test_an_unrelated_stride_says_where() -> None:
    rows = [[((m, 8), (step, 1))] for m, step in ((2, 8), (3, 24), (4, 9))]
    with pytest.raises(LayoutError) as caught:
        fit(samples(rows, (False,)))
    assert (caught.value.tensor, caught.value.axis) == (0, 0)
