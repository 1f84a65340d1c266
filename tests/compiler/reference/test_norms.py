"""Norms against torch where it has them, closed forms, differences and invariances."""

import numpy as np
import pytest
from finite_differences import slopes

from cudnn_aot.compiler.reference.ops import apply
from cudnn_aot.errors import InvalidGraphError

RNG = np.random.default_rng(3)
EPS = 1e-3


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


# kind: input, scale, the shape of the statistics
CASES = {
    "rmsnorm": ((4, 5, 6), (1, 1, 6), (4, 5, 1)),
    "layernorm": ((4, 6, 2, 3), (1, 6, 2, 3), (4, 1, 1, 1)),
    "adalayernorm": ((3, 4, 6), (3, 1, 6), (3, 4, 1)),
    "instancenorm": ((2, 3, 4, 5), (1, 3, 1, 1), (2, 3, 1, 1)),
    "batchnorm": ((4, 3, 2, 5), (1, 3, 1, 1), (1, 3, 1, 1)),
}


def forward(kind: str, x: np.ndarray, scale: np.ndarray, bias: np.ndarray | None) -> dict:
    return apply(
        kind, {"input": x, "scale": scale, "bias": bias, "epsilon": np.full((1,) * x.ndim, EPS)}
    )


@pytest.mark.parametrize("kind", CASES)
def test_forward_agrees_with_torch(torch_answer, kind: str) -> None:
    shape, scale_shape, statistics = CASES[kind]
    x, scale, bias = draw(*shape), draw(*scale_shape), draw(*scale_shape)
    axes = tuple(i for i, (a, b) in enumerate(zip(shape, statistics, strict=True)) if b == 1 != a)
    function, *arguments = {
        "rmsnorm": ("rms_norm", (6,)),
        "layernorm": ("layer_norm", (6, 2, 3)),
        "adalayernorm": ("layer_norm", (6,)),
        "instancenorm": ("instance_norm",),
        "batchnorm": ("batch_norm", None, None, None, None, True),
    }[kind]
    [normal] = torch_answer(
        lambda torch, x: getattr(torch.nn.functional, function)(x, *arguments, eps=EPS), x
    )
    got = forward(kind, x, scale, bias)
    np.testing.assert_allclose(got["Y"], normal * scale + bias, rtol=1e-11, atol=1e-12)
    assert got["inv_var"].shape == statistics
    if kind != "rmsnorm":
        np.testing.assert_allclose(got["mean"], x.mean(axis=axes, keepdims=True))
        np.testing.assert_allclose(got["inv_var"], (x.var(axis=axes, keepdims=True) + EPS) ** -0.5)


@pytest.mark.parametrize(
    ("kind", "with_scale"),
    [*((kind, True) for kind in CASES), ("rmsnorm", False), ("layernorm", False)],
)
def test_backward_is_the_gradient_of_forward(kind: str, with_scale: bool) -> None:
    shape, scale_shape, _ = CASES[kind]
    if not with_scale:
        shape = (4, 6)
    x, bias = draw(*shape), draw(*scale_shape) if with_scale else None
    scale = draw(*scale_shape) if with_scale else None
    grad = draw(*shape)
    saved = forward(kind, x, scale, bias)
    got = apply(
        f"{kind}_backward",
        {
            "grad": grad,
            "input": x,
            "scale": scale,
            "mean": saved.get("mean"),
            "inv_variance": saved["inv_var"],
        },
    )

    def loss(x_, scale_, bias_):
        return float((grad * forward(kind, x_, scale_, bias_)["Y"]).sum())

    np.testing.assert_allclose(got["DX"], slopes(lambda v: loss(v, scale, bias), x), atol=1e-8)
    if with_scale:
        by_scale = slopes(lambda v: loss(x, v, bias), scale)
        by_bias = slopes(lambda v: loss(x, scale, v), bias)
        np.testing.assert_allclose(got["DScale"], by_scale, atol=1e-8)
        np.testing.assert_allclose(got["DBias"], by_bias, atol=1e-8)
        assert got["DScale"].shape == scale_shape
    else:
        assert set(got) == {"DX"}


def test_without_scale_every_axis_but_the_batch_is_normalised_unless_a_statistic_says_otherwise():
    x = draw(2, 3, 4)
    whole = apply("rmsnorm", {"input": x, "epsilon": [0.0]})
    np.testing.assert_allclose((whole["Y"] ** 2).mean(axis=(1, 2)), 1.0)
    rows = apply("rmsnorm", {"input": x, "epsilon": [0.0]}, wanted={"inv_var": (2, 3, 1)})
    np.testing.assert_allclose((rows["Y"] ** 2).mean(axis=2), 1.0)


def test_instancenorm_backward_computes_the_statistics_that_it_is_not_given() -> None:
    x, scale, grad = draw(2, 3, 4, 5), draw(1, 3, 1, 1), draw(2, 3, 4, 5)
    saved = apply("instancenorm", {"input": x, "scale": scale, "epsilon": [0.0]})
    inputs = {"grad": grad, "input": x, "scale": scale}
    given = {"mean": saved["mean"], "inv_variance": saved["inv_var"]}
    want = apply("instancenorm_backward", {**inputs, **given})
    for port, got in apply("instancenorm_backward", inputs).items():
        np.testing.assert_allclose(got, want[port], atol=1e-12)


def test_shift_and_scale_invariances() -> None:
    x, ones = draw(3, 8), np.ones((1, 8))
    base = apply("layernorm", {"input": x, "scale": ones, "epsilon": [0.0]})["Y"]
    moved = apply("layernorm", {"input": 3 * x + 7, "scale": ones, "epsilon": [0.0]})["Y"]
    np.testing.assert_allclose(moved, base)
    scaled = apply("rmsnorm", {"input": 5 * x, "scale": ones, "epsilon": [0.0]})["Y"]
    np.testing.assert_allclose(scaled, apply("rmsnorm", {"input": x, "scale": ones})["Y"])


def test_batchnorm_moves_the_running_statistics_as_torch_does(torch_answer) -> None:
    x, mean, var = draw(4, 3, 5), draw(3), np.abs(draw(3)) + 0.1
    got = apply(
        "batchnorm",
        {
            "input": x,
            "scale": np.ones((1, 3, 1)),
            "bias": np.zeros((1, 3, 1)),
            "in_running_mean": mean.reshape(1, 3, 1),
            "in_running_var": var.reshape(1, 3, 1),
            "epsilon": [EPS],
            "momentum": [0.3],
            "peer_stats_0": np.full((1, 3, 1), np.nan),
        },
    )

    def moved(torch, x, mean, var):
        y = torch.nn.functional.batch_norm(x, mean, var, training=True, momentum=0.3, eps=EPS)
        return y, mean, var

    y, new_mean, new_var = torch_answer(moved, x, mean, var)
    np.testing.assert_allclose(got["Y"], y, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(got["next_running_mean"].reshape(3), new_mean)
    np.testing.assert_allclose(got["next_running_var"].reshape(3), new_var)


def test_batchnorm_inference_and_training_agree_on_the_same_statistics() -> None:
    x, scale, bias = draw(4, 3, 5), draw(1, 3, 1), draw(1, 3, 1)
    trained = forward("batchnorm", x, scale, bias)
    got = apply(
        "batchnorm_inference",
        {
            "input": x,
            "mean": trained["mean"],
            "inv_variance": trained["inv_var"],
            "scale": scale,
            "bias": bias,
        },
    )
    np.testing.assert_allclose(got["Y"], trained["Y"])
    assert "next_running_mean" not in trained


def test_genstats() -> None:
    x = np.arange(12.0).reshape(2, 2, 3)
    got = apply("genstats", {"input": x})
    assert got["SUM"].tolist() == [[[24.0], [42.0]]]
    assert got["SQ_SUM"].tolist() == [
        [[0 + 1 + 4 + 36 + 49 + 64.0], [9 + 16 + 25 + 81 + 100 + 121.0]]
    ]


def test_refusals() -> None:
    with pytest.raises(InvalidGraphError, match="rmsnorm: scale: got rank 1, want the input's 2"):
        apply("rmsnorm", {"input": np.ones((2, 3)), "scale": np.ones(3)})
    with pytest.raises(InvalidGraphError, match="layernorm_backward: port inv_variance is open"):
        apply("layernorm_backward", {"input": np.ones((2, 3)), "grad": np.ones((2, 3))})
    with pytest.raises(InvalidGraphError, match="port epsilon: got 2 elements, want 1"):
        apply("rmsnorm", {"input": np.ones((2, 3)), "epsilon": [0.0, 1.0]})
