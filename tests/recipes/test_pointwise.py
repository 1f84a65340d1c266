"""The op table, run on numpy as a third machine: the same rows that kernels trace."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cudnn_aot.recipes.trace import pointwise


class Numpy:
    """The machine interface of pointwise.py on float32 arrays."""

    def select(self, condition, a, b):
        return np.where(condition, a, b).astype(np.float32)

    exp = staticmethod(np.exp)
    tanh = staticmethod(np.tanh)

    def reciprocal(self, x):
        return 1 / x

    def half_erfc(self, x):
        return np.array([0.5 * math.erfc(v) for v in x], np.float32)

    def round_to(self, x, dtype):
        assert dtype == "HALF"
        return x.astype(np.float16).astype(np.float32)


X = np.array([-30, -3, -1.5, -0.0, 0.0, 0.25, 2, 8, 30, np.inf, -np.inf, np.nan], np.float32)


def gelu(x):
    return np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.astype(np.float64)])


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


REFERENCES = {
    "identity": lambda x: x,
    "relu": lambda x: np.where(np.isnan(x), x, np.maximum(x, 0)),
    "gelu": gelu,
    "gelu_approx_tanh": gelu_tanh,
    "swish": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


@pytest.mark.parametrize("name", REFERENCES)
@np.errstate(all="ignore")
def test_unary_ops(name):
    got = pointwise.apply_op(Numpy(), name, [X], {})
    want = REFERENCES[name](X.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert np.isnan(got[-1])  # NaN in, NaN out


@pytest.mark.parametrize("name", ["bias", "add", "mul", "scale"])
def test_binary_ops(name):
    got = pointwise.apply_op(Numpy(), name, [X[:9], X[:9] + 1], {})
    want = X[:9] * (X[:9] + 1) if name in ("mul", "scale") else X[:9] + (X[:9] + 1)
    np.testing.assert_array_equal(got, want)


@np.errstate(all="ignore")
def test_relu_attributes():
    clipped = {"negative_slope": 0.5, "lower_clip": -1.0, "upper_clip": 4.0}
    got = pointwise.apply_op(Numpy(), "relu", [X], clipped)
    x = X.astype(np.float64)
    want = np.where(x < -1, -1 + 0.5 * (x + 1), np.where(x > 4, 4, x))
    np.testing.assert_allclose(got, want)
    unset = {"negative_slope": None, "lower_clip": None, "upper_clip": None}
    np.testing.assert_array_equal(
        pointwise.apply_op(Numpy(), "relu", [X], unset),
        pointwise.apply_op(Numpy(), "relu", [X], {}),
    )


@np.errstate(all="ignore")
def test_swish_beta():
    got = pointwise.apply_op(Numpy(), "swish", [X[:9]], {"swish_beta": 2.0})
    np.testing.assert_allclose(got, X[:9] / (1 + np.exp(-2.0 * X[:9])), rtol=1e-5)


def test_apply_walks_the_dag():
    """Every value is usable more than once; outputs may name inputs, nodes or the accumulator."""
    epilogue = {
        "inputs": [{"dtype": "FLOAT", "kind": "full"}],
        "nodes": [["add", [0, 1], {}], ["mul", [2, 2], {}], ["cast", [3], {"dtype": "HALF"}]],
        "outputs": [{"value": v, "dtype": "FLOAT"} for v in (4, 0, 1, 2)],
    }
    acc, other = np.float32([1.0, 2.0]), np.float32([0.1, 3.0])
    got = pointwise.apply(epilogue, acc, [other], Numpy())
    total = acc + other
    want = [(total * total).astype(np.float16).astype(np.float32), acc, other, total]
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize(
    ("name", "values", "attributes", "message"),
    [
        ("frobnicate", 1, {}, "pointwise op: got 'frobnicate', want one of identity, bias"),
        ("add", 1, {}, "add: got 1 values, want 2"),
        ("tanh", 1, {"beta": 1.0}, "tanh: got attribute 'beta', want none"),
        ("swish", 1, {"beta": 1.0}, "swish: got attribute 'beta', want swish_beta"),
        ("cast", 1, {}, "cast: attribute 'dtype' is missing"),
        ("cast", 1, {"dtype": "INT7"}, "cast: got dtype 'INT7', want one of FLOAT, HALF, BFLOAT16"),
    ],
)
def test_refusals(name, values, attributes, message):
    with pytest.raises(ValueError) as caught:
        pointwise.apply_op(Numpy(), name, [X] * values, attributes)
    assert str(caught.value).startswith(message)


def test_value_ids_are_checked():
    epilogue = {
        "inputs": [],
        "nodes": [["add", [0, 1], {}]],
        "outputs": [{"value": 1, "dtype": "FLOAT"}],
    }
    with pytest.raises(ValueError, match=r"add: got value id 1, want 0\.\.0"):
        pointwise.apply(epilogue, X, [], Numpy())
    with pytest.raises(ValueError, match="epilogue: got 1 inputs, want 0"):
        pointwise.apply(epilogue, X, [X], Numpy())
