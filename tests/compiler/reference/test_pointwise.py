"""Every pointwise op: against torch, closed forms of the math module, and differences."""

import math

import numpy as np
import pytest
from finite_differences import slopes

from cudnn_aot.compiler.reference.call import Call
from cudnn_aot.compiler.reference.ops import apply
from cudnn_aot.compiler.reference.pointwise import REFERENCES

X = np.array([-30.0, -3.0, -1.0, -1e-3, 0.0, 1e-3, 0.5, 1.0, 4.0, 30.0])
POSITIVE = np.array([1e-9, 0.25, 1.0, 2.0, 1e9])
Y = np.linspace(-2.0, 3.0, len(X))

UNARY = (
    "abs ceil cos elu erf exp floor gelu gelu_approx_tanh identity log logical_not neg reciprocal "
    "rsqrt sigmoid sin softplus sqrt tan tanh"
).split()
BINARY = "add add_square div logical_and logical_or mul sub".split()
PAIR = "max min mod pow".split()
COMPARE = "cmp_eq cmp_ge cmp_gt cmp_le cmp_lt cmp_neq".split()
BACKWARD = "elu gelu_approx_tanh gelu sigmoid softplus tanh relu leaky_relu swish".split()


def unary(name: str, x: np.ndarray, **attrs: object) -> np.ndarray:
    return apply(name, {"input": x}, **attrs)["OUT_0"]


def test_the_table_has_the_54_ops() -> None:
    attributed = "relu leaky_relu swish gen_index bias scale binary_select".split()
    backward = [f"{name}_backward" for name in BACKWARD]
    assert {*UNARY, *BINARY, *PAIR, *COMPARE, *attributed, *backward} == set(REFERENCES)
    assert len(REFERENCES) == 54


@pytest.mark.parametrize("name", UNARY)
def test_unary_agrees_with_torch(torch_answer, name: str) -> None:
    def function(torch, x):
        functional = torch.nn.functional
        others = {
            "gelu": functional.gelu,
            "gelu_approx_tanh": lambda x: functional.gelu(x, approximate="tanh"),
            "identity": lambda x: x,
            "elu": functional.elu,
            "softplus": lambda x: functional.softplus(x, threshold=1000.0),
        }
        return others.get(name, getattr(torch, name, None))(x)

    x = POSITIVE if name in ("log", "rsqrt", "sqrt", "reciprocal") else X
    [want] = torch_answer(function, x)
    # float64 on both sides: a few of its steps, and torch's erf-based gelu loses the far tail
    np.testing.assert_allclose(
        unary(name, x),
        want.astype(np.float64),
        rtol=1e-13,
        atol=1e-300 if name != "gelu" else 1e-16,
    )


@pytest.mark.parametrize("name", [*BINARY, *PAIR, *COMPARE])
def test_binary_agrees_with_torch(torch_answer, name: str) -> None:
    def function(torch, a, b):
        if name == "add_square":
            return a + b.square()
        others = {"max": "maximum", "min": "minimum", "mod": "fmod", "cmp_neq": "ne"}
        return getattr(torch, others.get(name, name.removeprefix("cmp_")))(a, b)

    ports = ("a", "b") if name in BINARY else ("input0", "input1")
    if name in COMPARE:
        ports = ("input", "comparison")
    a, b = np.meshgrid(X, np.concatenate([Y, X[:3]]))
    a = np.abs(a) if name == "pow" else a
    [want] = torch_answer(function, a, b)
    got = apply(name, {ports[0]: a, ports[1]: b})["OUT_0"]
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want.astype(np.float64), rtol=1e-14)


def test_closed_forms() -> None:
    x = np.array([2.0, -0.5])
    assert apply("add_square", {"a": [1.0], "b": [-3.0]})["OUT_0"].tolist() == [10.0]
    assert apply("mod", {"input0": [-7.0, 7.0], "input1": [3.0, -3.0]})["OUT_0"].tolist() == [-1, 1]
    assert apply("pow", {"input0": [-2.0, 2.0], "input1": [3.0, -1.0]})["OUT_0"].tolist() == [
        -8,
        0.5,
    ]
    assert np.isnan(apply("pow", {"input0": [-2.0], "input1": [0.5]})["OUT_0"][0])
    assert unary("elu", np.array([-math.inf, -1.0, 2.0])).tolist() == [-1, math.expm1(-1), 2]
    assert unary("logical_not", np.array([0.0, -2.0, 1.0])).tolist() == [1, 0, 0]
    got = apply("binary_select", {"input0": x, "input1": -x, "mask": [0.0, 3.0]})["OUT_0"]
    assert got.tolist() == [-2.0, -0.5]
    assert apply("bias", {"input": x, "bias": [1.0]})["OUT_0"].tolist() == [3.0, 0.5]
    assert apply("scale", {"input": x, "scale": [[2.0]]})["OUT_0"].tolist() == [[4.0, -1.0]]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gen_index(axis: int) -> None:
    got = unary("gen_index", np.zeros((2, 3, 4)), axis=axis)
    assert np.array_equal(got, np.indices((2, 3, 4))[axis])


@pytest.mark.parametrize(
    ("attrs", "wanted"),
    [
        ({}, [0, 0, 2, 6, 8]),
        ({"upper_clip": 6.0}, [0, 0, 2, 6, 6]),
        ({"negative_slope": 0.1}, [-0.8, -0.1, 2, 6, 8]),
        ({"lower_clip": -4.0}, [-4, -1, 2, 6, 8]),
        ({"lower_clip": -4.0, "negative_slope": 0.5}, [-6, -1, 2, 6, 8]),
        ({"lower_clip": 1.0, "upper_clip": 7.0}, [1, 1, 2, 6, 7]),
    ],
)
def test_relu_with_clips(attrs: dict[str, float], wanted: list[float]) -> None:
    x = np.array([-8.0, -1.0, 2.0, 6.0, 8.0])
    np.testing.assert_allclose(unary("relu", x, **attrs), wanted)


@pytest.mark.parametrize("name", BACKWARD)
@pytest.mark.parametrize("variant", [0, 1])
def test_a_backward_op_is_the_slope_of_its_forward_op(name: str, variant: int) -> None:
    attrs: dict[str, float] = {}
    if name == "relu" and variant:
        attrs = {"negative_slope": 0.2, "lower_clip": -1.5, "upper_clip": 2.5}
    elif name == "leaky_relu":
        attrs = {"negative_slope": 0.01 + variant}
    elif name == "swish" and variant:
        attrs = {"swish_beta": 1.7}
    x = np.linspace(-4.03, 4.01, 41)  # no kink lies within a step of a point
    loss = np.cos(np.arange(41.0))
    got = apply(f"{name}_backward", {"loss": loss, "input": x}, **attrs)["OUT_0"]
    want = slopes(lambda point: float((loss * unary(name, point, **attrs)).sum()), x)
    np.testing.assert_allclose(got, want, atol=1e-8)


@pytest.mark.parametrize("name", ["relu", "tanh", "sigmoid", "softplus", "gelu"])
def test_gradients_agree_with_torch_at_the_kinks_and_far_out(torch_answer, name: str) -> None:
    def gradient(torch, x):
        getattr(torch.nn.functional, name)(x.requires_grad_()).sum().backward()
        return x.grad

    x = np.array([-40.0, -1.0, 0.0, 1.0, 40.0])
    [want] = torch_answer(gradient, x)
    got = apply(f"{name}_backward", {"loss": np.ones(5), "input": x})["OUT_0"]
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-17)


def test_gelu_keeps_the_digits_of_its_tail() -> None:
    # x * Phi(x) at -10: the value is 1e-22, which 1 + erf(x) would lose to cancellation.
    assert unary("gelu", np.array([-10.0]))[0] == pytest.approx(-7.619853024160527e-23, rel=1e-9)


def test_saturating_ops_do_not_overflow() -> None:
    far = np.array([-1000.0, 1000.0])
    wanted = {
        "sigmoid": [0.0, 1.0],
        "swish": [0.0, 1000.0],
        "softplus": [0.0, 1000.0],
        "elu": [-1.0, 1000.0],
        "tanh": [-1.0, 1.0],
    }
    for name, want in wanted.items():
        with np.errstate(over="raise", invalid="raise"):
            got = REFERENCES[name](Call(name, {"input": far}))["OUT_0"]
            assert got.tolist() == want, name
            slope = REFERENCES[f"{name}_backward"](Call(name, {"input": far, "loss": np.ones(2)}))[
                "OUT_0"
            ]
        assert slope.tolist() == pytest.approx([0.0, 0.0 if name in ("sigmoid", "tanh") else 1.0])


def test_nan_propagates() -> None:
    nan, one = np.array([math.nan]), np.ones(1)
    for name in {*UNARY, "relu", "leaky_relu", "swish"} - {"logical_not"}:
        assert np.isnan(unary(name, nan)).all(), name
    for name in BACKWARD:
        got = apply(f"{name}_backward", {"loss": one, "input": nan})["OUT_0"]
        assert np.isnan(got).all(), name
    for name in ("max", "min", "mod", "pow"):
        assert np.isnan(apply(name, {"input0": nan, "input1": 2 * one})["OUT_0"]).all(), name
    for name in COMPARE:
        got = apply(name, {"input": nan, "comparison": one})["OUT_0"]
        assert got.tolist() == [float(name == "cmp_neq")], name


def test_operands_broadcast() -> None:
    got = apply("sub", {"a": np.ones((2, 1, 3)), "b": np.ones((4, 1))})["OUT_0"]
    assert got.shape == (2, 4, 3)


@pytest.mark.parametrize(("x", "wanted"), [(-math.inf, 0.0), (math.inf, math.inf)])
def test_relu_of_an_infinity_is_the_clip_not_zero_times_infinity(x: float, wanted: float) -> None:
    assert unary("relu", np.array([x])).tolist() == [wanted]


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("gelu_backward", {}),
        ("gelu_approx_tanh_backward", {}),
        ("swish_backward", {}),
        ("swish_backward", {"swish_beta": 0.5}),
    ],
)
def test_slopes_at_infinity_are_those_of_the_asymptotes(op: str, attrs: dict[str, float]) -> None:
    x = np.array([math.inf, -math.inf])
    assert apply(op, {"loss": np.ones(2), "input": x}, **attrs)["OUT_0"].tolist() == [1.0, 0.0]


def test_the_slope_of_swish_without_a_gate_is_a_half() -> None:
    x = np.array([math.inf, -math.inf, 0.0, 3.0])
    got = apply("swish_backward", {"loss": np.ones(4), "input": x}, swish_beta=0.0)["OUT_0"]
    assert got.tolist() == [0.5] * 4
    got = apply("swish_backward", {"loss": np.ones(2), "input": x[:2]}, swish_beta=-1.0)["OUT_0"]
    assert got.tolist() == [0.0, 1.0]
