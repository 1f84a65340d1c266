"""Rope against complex rotation, and the properties of rotations."""

import numpy as np
import pytest

from cudnn_aot.compiler.reference.ops import apply
from cudnn_aot.errors import InvalidGraphError

RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 3, 5, 8))
ANGLES = RNG.standard_normal((5, 4))


def freqs(width: int) -> np.ndarray:
    half = ANGLES[:, : width // 2]
    return np.concatenate([half, half], axis=1).reshape(5, 1, 1, width)


@pytest.mark.parametrize("rope_dim", [0, 8, 4])
def test_pairs_turn_as_complex_numbers_do(rope_dim: int) -> None:
    width = rope_dim or 8
    got = apply("rope", {"input": X, "freqs": freqs(width)}, rope_dim=rope_dim, output_scale=0.5)
    low, high = X[..., 8 - width : 8 - width // 2], X[..., 8 - width // 2 :]
    turned = (low + 1j * high) * np.exp(1j * ANGLES[:, : width // 2])
    want = 0.5 * np.concatenate([X[..., : 8 - width], turned.real, turned.imag], axis=-1)
    np.testing.assert_allclose(got["OUT_0"], want, rtol=1e-13, atol=1e-14)


def test_the_second_half_of_the_angles_is_not_read() -> None:
    want = apply("rope", {"input": X, "freqs": freqs(8)})["OUT_0"]
    short = apply("rope", {"input": X, "freqs": ANGLES.reshape(5, 1, 1, 4)})["OUT_0"]
    assert np.array_equal(short, want)


@pytest.mark.parametrize("attrs", [{}, {"rope_dim": 6, "output_scale": 1.75}])
def test_backward_is_the_transpose_and_undoes_the_rotation(attrs: dict) -> None:
    angles = freqs(attrs.get("rope_dim", 8))
    grad = RNG.standard_normal(X.shape)
    y = apply("rope", {"input": X, "freqs": angles}, **attrs)["OUT_0"]
    dx = apply("rope_backward", {"dY": grad, "freqs": angles}, **attrs)["OUT_0"]
    assert (grad * y).sum() == pytest.approx((dx * X).sum(), rel=1e-12)
    back = apply("rope_backward", {"dY": y, "freqs": angles}, **attrs)["OUT_0"]
    np.testing.assert_allclose(back, X * attrs.get("output_scale", 1.0) ** 2, atol=1e-14)


def test_scores_depend_on_the_distance_alone() -> None:
    q, k = (
        np.broadcast_to(X[:1, :1, :1], (1, 1, 5, 8)),
        np.broadcast_to(X[1:, :1, :1], (1, 1, 5, 8)),
    )
    angles = (np.arange(5)[:, None] * np.array([0.3, 0.7, 1.1, 0.01])).reshape(5, 1, 1, 4)
    rotated = [apply("rope", {"input": x, "freqs": angles})["OUT_0"][0, 0] for x in (q, k)]
    scores = rotated[0] @ rotated[1].T
    for distance in range(-4, 5):
        assert np.ptp(np.diagonal(scores, distance)) < 1e-13


def test_refusals() -> None:
    with pytest.raises(
        InvalidGraphError, match="got 5 positions of 2 angles, want at least 5 of 4"
    ):
        apply("rope", {"input": X, "freqs": ANGLES[:, :2]})
    with pytest.raises(
        InvalidGraphError, match="rope_dim: got 3, want an even number of at most 8"
    ):
        apply("rope", {"input": X, "freqs": freqs(8)}, rope_dim=3)
