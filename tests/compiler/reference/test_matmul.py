"""Matrix products: batches, blocks of columns, empty sums."""

import numpy as np
import pytest

from cudnn_aot.compiler.reference.ops import apply
from cudnn_aot.errors import InvalidGraphError


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return apply("matmul", {"A": left, "B": right})["C"]


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((2, 3, 4), (1, 4, 5)), ((4, 1, 3, 4), (2, 4, 5)), ((2, 0, 4), (4, 5))],
)
def test_batches_broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    left, right = rng.integers(-9, 9, a).astype(float), rng.integers(-9, 9, b).astype(float)
    want = np.einsum("...mk,...kn->...mn", left, right)
    assert np.array_equal(product(left, right), want)


def test_a_large_b_is_widened_a_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnn_aot.compiler.reference.matmul._BLOCK_BYTES", 8 * 7 * 3)
    rng = np.random.default_rng(0)
    left, right = rng.integers(-9, 9, (5, 7)), rng.integers(-9, 9, (7, 10)).astype(np.float32)
    assert np.array_equal(product(left.astype(float), right), left @ right)


def test_an_empty_sum_is_zero() -> None:
    assert np.array_equal(product(np.empty((1, 3, 0)), np.empty((1, 0, 4))), np.zeros((1, 3, 4)))


def test_padding_is_refused() -> None:
    with pytest.raises(
        InvalidGraphError, match="the reference of matmul: padding: got 1.0, want 0"
    ):
        apply("matmul", {"A": np.ones((1, 1)), "B": np.ones((1, 1))}, padding=1.0)
