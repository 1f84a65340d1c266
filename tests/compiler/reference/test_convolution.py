"""Convolutions against torch and a direct loop, and the transposes against the forward op."""

import itertools

import numpy as np
import pytest

from cudnn_aot.compiler.reference.ops import apply
from cudnn_aot.errors import InvalidGraphError

RNG = np.random.default_rng(7)

# image, filter, attributes: what each covers
CASES = {
    "1x1": ((2, 3, 4, 5), (6, 3, 1, 1), {}),
    "3x3": ((2, 3, 6, 5), (4, 3, 3, 3), {"padding": [1, 1]}),
    "strided": ((1, 2, 9, 8), (3, 2, 3, 2), {"stride": [2, 3], "padding": [1, 0]}),
    "dilated": ((1, 2, 9, 10), (3, 2, 3, 3), {"dilation": [2, 3], "padding": [2, 3]}),
    "asymmetric": ((1, 2, 5, 6), (2, 2, 3, 2), {"pre_padding": [2, 0], "post_padding": [0, 3]}),
    "groups": ((2, 6, 5, 5), (4, 3, 3, 3), {"padding": [1, 1], "stride": [2, 2]}),
    "depthwise": ((1, 4, 5, 4), (8, 1, 2, 3), {}),
    "1d": ((2, 3, 11), (4, 3, 4), {"stride": [3], "padding": [2]}),
    "3d": ((1, 2, 3, 4, 5), (2, 2, 2, 3, 2), {"padding": [1, 1, 0]}),
    "wide padding": ((1, 1, 2, 2), (1, 1, 2, 2), {"padding": [3, 3], "stride": [4, 1]}),
    "no batch": ((0, 2, 4, 4), (3, 2, 3, 3), {}),
}


def of(name: str) -> tuple[np.ndarray, np.ndarray, dict]:
    image, filters, attrs = CASES[name]
    return RNG.standard_normal(image), RNG.standard_normal(filters), attrs


def fprop(x: np.ndarray, w: np.ndarray, attrs: dict) -> np.ndarray:
    return apply("conv_fprop", {"image": x, "weight": w}, **attrs)["Y"]


@pytest.mark.parametrize("name", CASES)
def test_forward_agrees_with_torch(torch_answer, name: str) -> None:
    x, w, attrs = of(name)
    rank = x.ndim - 2
    pre = attrs.get("pre_padding", attrs.get("padding", [0] * rank))
    post = attrs.get("post_padding", attrs.get("padding", [0] * rank))
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pre, post, strict=True)])
    keywords = {
        "stride": attrs.get("stride", 1),
        "dilation": attrs.get("dilation", 1),
        "groups": x.shape[1] // w.shape[1],
    }
    [want] = torch_answer(
        lambda torch, x, w: getattr(torch.nn.functional, f"conv{rank}d")(x, w, **keywords),
        padded,
        w,
    )
    np.testing.assert_allclose(fprop(x, w, attrs), want, rtol=1e-12, atol=1e-12)


def test_forward_agrees_with_the_definition() -> None:
    x, w, attrs = of("asymmetric")
    y = fprop(x, w, attrs)
    assert y.shape == (1, 2, 5, 8)
    for k, p, q in itertools.product(range(2), range(5), range(8)):
        want = 0.0
        for c, r, s in itertools.product(range(2), range(3), range(2)):
            i, j = p + r - 2, q + s - 0
            if 0 <= i < 5 and 0 <= j < 6:
                want += x[0, c, i, j] * w[k, c, r, s]
        assert y[0, k, p, q] == pytest.approx(want, abs=1e-13)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["CROSS_CORRELATION", "CONVOLUTION"])
def test_gradients_are_the_transposes_of_the_forward_op(name: str, mode: str) -> None:
    x, w, attrs = of(name)
    attrs = {**attrs, "convolution_mode": mode}
    y = fprop(x, w, attrs)
    dy = RNG.standard_normal(y.shape)
    dx = apply("conv_dgrad", {"loss": dy, "filter": w}, wanted={"DX": x.shape}, **attrs)["DX"]
    dw = apply("conv_wgrad", {"image": x, "loss": dy}, wanted={"DW": w.shape}, **attrs)["DW"]
    value = pytest.approx((dy * y).sum(), rel=1e-11, abs=1e-11)
    assert (dx * x).sum() == value and (dw * w).sum() == value
    assert dx.shape == x.shape and dw.shape == w.shape


def test_convolution_mode_reverses_the_filter() -> None:
    x, w, attrs = of("3x3")
    flipped = fprop(x, w[:, :, ::-1, ::-1], attrs)
    got = fprop(x, w, {**attrs, "convolution_mode": "CONVOLUTION"})
    np.testing.assert_allclose(got, flipped, atol=1e-13)


def test_a_strided_image_may_have_several_extents() -> None:
    # 7 and 8 rows both give 3 outputs under stride 3; the declaration decides.
    loss, w = np.ones((1, 1, 3)), np.ones((1, 1, 1))
    for rows in (7, 8, 9):
        got = apply(
            "conv_dgrad", {"loss": loss, "filter": w}, stride=[3], wanted={"DX": (1, 1, rows)}
        )
        assert got["DX"][0, 0].tolist() == [1, 0, 0, 1, 0, 0, 1, 0, 0][:rows]


def test_refusals() -> None:
    x, w, _ = of("3x3")
    with pytest.raises(InvalidGraphError, match=r"output positions: got \(9, 9\), want \(4, 3\)"):
        apply("conv_wgrad", {"image": x, "loss": np.ones((2, 4, 9, 9))}, wanted={"DW": w.shape})
    with pytest.raises(InvalidGraphError, match="want groups that divide both"):
        fprop(x, np.ones((4, 2, 1, 1)), {})
    with pytest.raises(InvalidGraphError, match="conv_dgrad: output DX has no dim"):
        apply("conv_dgrad", {"loss": x, "filter": w})
