"""Every op against values from elsewhere: closed forms and scalar arithmetic of the math module."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.compiler.reference.ops import REFERENCES

X = np.array([-30.0, -3.0, -1.0, -1e-3, 0.0, 1e-3, 0.5, 1.0, 4.0, 30.0])
Y = np.linspace(-2.0, 3.0, len(X))


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


UNARY: dict[str, tuple[dict[str, object], Callable[[float], float]]] = {
    "identity": ({}, lambda x: x),
    "relu": ({}, lambda x: max(x, 0.0)),
    "gelu": ({}, lambda x: x * normal_cdf(x)),
    "gelu_approx_tanh": (
        {},
        lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
    ),
    "swish": ({"swish_beta": 1.5}, lambda x: x * logistic(1.5 * x)),
    "sigmoid": ({}, logistic),
    "tanh": ({}, lambda x: (math.exp(2 * x) - 1) / (math.exp(2 * x) + 1)),
}
BINARY = {
    "add": lambda x, y: x + y,
    "bias": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "scale": lambda x, y: x * y,
}


def defaults(name: str) -> dict[str, object]:
    return {attr.name: attr.default for attr in OPS[name].attrs}


def test_every_op_is_tested_here() -> None:
    assert {*UNARY, *BINARY, "matmul"} == set(OPS)


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    attrs, formula = UNARY[name]
    got = REFERENCES[name](X, **{**defaults(name), **attrs})
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, [formula(x) for x in X], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    got = REFERENCES[name](X, Y, **defaults(name))
    np.testing.assert_allclose(got, [BINARY[name](x, y) for x, y in zip(X, Y, strict=True)])


@pytest.mark.parametrize(
    ("attrs", "wanted"),
    [
        ({"upper_clip": 6.0}, [0, 0, 2, 6, 6]),
        ({"negative_slope": 0.1}, [-0.8, -0.1, 2, 6, 8]),
        ({"lower_clip": -4.0}, [-4, -1, 2, 6, 8]),
        ({"lower_clip": -4.0, "negative_slope": 0.5}, [-6, -1, 2, 6, 8]),
        ({"lower_clip": 1.0, "upper_clip": 7.0}, [1, 1, 2, 6, 7]),
    ],
)
def test_relu_with_clips(attrs: dict[str, float], wanted: list[float]) -> None:
    x = np.array([-8.0, -1.0, 2.0, 6.0, 8.0])
    np.testing.assert_allclose(REFERENCES["relu"](x, **{**defaults("relu"), **attrs}), wanted)


def test_gelu_keeps_the_digits_of_its_tail() -> None:
    # x * Phi(x) at -10: the value is 1e-22, which 1 + erf(x) would lose to cancellation.
    assert REFERENCES["gelu"](np.array([-10.0]))[0] == pytest.approx(
        -7.619853024160527e-23, rel=1e-9
    )


def test_saturating_ops_do_not_overflow() -> None:
    far = np.array([-1000.0, 1000.0])
    with np.errstate(over="raise", invalid="raise"):
        assert REFERENCES["sigmoid"](far).tolist() == [0.0, 1.0]
        assert REFERENCES["swish"](far, swish_beta=1.0).tolist() == [0.0, 1000.0]


def test_nan_propagates() -> None:
    for name in UNARY:
        assert np.isnan(REFERENCES[name](np.array([math.nan]), **defaults(name))).all(), name


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((2, 3, 4), (1, 4, 5)), ((4, 1, 3, 4), (2, 4, 5)), ((2, 0, 4), (4, 5))],
)
def test_matmul_sums_products_and_broadcasts_batches(
    a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    left, right = rng.integers(-9, 9, a).astype(float), rng.integers(-9, 9, b).astype(float)
    want = np.einsum("...mk,...kn->...mn", left, right)
    assert np.array_equal(REFERENCES["matmul"](left, right, padding=0.0), want)


def test_matmul_in_blocks_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnn_aot.compiler.reference.ops._BLOCK_BYTES", 8 * 7 * 3)
    rng = np.random.default_rng(0)
    left, right = rng.integers(-9, 9, (5, 7)), rng.integers(-9, 9, (7, 11))
    assert np.array_equal(REFERENCES["matmul"](left, right, padding=0.0), left @ right)


def test_an_empty_k_sums_to_zero() -> None:
    got = REFERENCES["matmul"](np.empty((1, 3, 0)), np.empty((1, 0, 4)), padding=0.0)
    assert got.tolist() == np.zeros((1, 3, 4)).tolist()
