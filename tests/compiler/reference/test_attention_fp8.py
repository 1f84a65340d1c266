"""8-bit attention is attention on dequantized operands; scales, magnitudes, block-scaled O."""

import numpy as np
import pytest

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.reference.call import Declared
from cudnn_aot.compiler.reference.ops import apply
from cudnn_aot.compiler.reference.quantize import quantize
from cudnn_aot.compiler.reference.storage import round_to
from cudnn_aot.errors import InvalidGraphError

E4M3, E8M0, E2M1 = data_type.FP8_E4M3, data_type.FP8_E8M0, data_type.FP4_E2M1
RNG = np.random.default_rng(19)
B, H, HK, S, T, D = 2, 4, 2, 40, 70, 64
ATTRS = {"attn_scale": 0.125, "use_causal_mask_bottom_right": True}


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def fp8(*shape: int) -> np.ndarray:
    return round_to(16 * draw(*shape), E4M3).astype(np.float64)


def one(value: float) -> np.ndarray:
    return np.full((1, 1, 1, 1), value)


Q, K, V = fp8(B, H, S, D), fp8(B, HK, T, D), fp8(B, HK, T, D)
DESCALES = {"descale_q": one(1 / 16), "descale_k": one(1 / 8), "descale_v": one(0.05)}


def test_fp8_forward_is_attention_on_dequantized_operands() -> None:
    scales = {"descale_s": one(1 / 448), "scale_s": one(448.0), "scale_o": one(3.0)}
    got = apply("sdpa_fp8", {"q": Q, "k": K, "v": V, **DESCALES, **scales}, **ATTRS)
    want = apply("sdpa", {"q": Q / 16, "k": K / 8, "v": V * 0.05}, **ATTRS)
    np.testing.assert_allclose(got["O"], 3 * want["O"], rtol=1e-12)
    np.testing.assert_allclose(got["Stats"], want["Stats"], rtol=1e-12)
    assert got["Amax_O"] == pytest.approx(np.abs(want["O"]).max())
    assert 0 < got["Amax_S"] <= 1 and got["Amax_S"].shape == (1, 1, 1, 1)
    doubled = {**scales, "scale_s": one(896.0)}
    again = apply("sdpa_fp8", {"q": Q, "k": K, "v": V, **DESCALES, **doubled}, **ATTRS)
    np.testing.assert_allclose(again["O"], 2 * got["O"])
    assert np.array_equal(again["Amax_S"], got["Amax_S"])


def test_fp8_backward_is_the_backward_of_dequantized_operands() -> None:
    o, grad = fp8(B, H, S, D), fp8(B, H, S, D)
    stats = apply("sdpa", {"q": Q / 16, "k": K / 8, "v": V * 0.05}, **ATTRS)["Stats"]
    scales = {
        "descale_o": one(0.1),
        "descale_dO": one(0.2),
        "descale_s": one(1 / 448),
        "scale_s": one(448.0),
        "descale_dP": one(0.25),
        "scale_dP": one(4.0),
        "scale_dQ": one(2.0),
        "scale_dK": one(3.0),
        "scale_dV": one(5.0),
    }
    inputs = {"q": Q, "k": K, "v": V, "o": o, "dO": grad, "stats": stats}
    got = apply("sdpa_fp8_backward", {**inputs, **DESCALES, **scales}, **ATTRS)
    plain = {"q": Q / 16, "k": K / 8, "v": V * 0.05, "o": o * 0.1, "dO": grad * 0.2}
    want = apply("sdpa_backward", {**plain, "stats": stats}, **ATTRS)
    for port, scale in (("dQ", 2.0), ("dK", 3.0), ("dV", 5.0)):
        np.testing.assert_allclose(got[port], scale * want[port], rtol=1e-11, atol=1e-11)
        assert got[f"amax_{port}"] == pytest.approx(np.abs(want[port]).max())
    # the largest |dS|, from the score gradients of the same problem with a bias
    bias = np.zeros((B, H, S, T))
    by_bias = apply(
        "sdpa_backward",
        {**plain, "stats": stats, "bias": bias},
        wanted={"dBias": Declared(bias.shape)},
        **ATTRS,
    )["dBias"]
    assert got["amax_dP"] == pytest.approx(np.abs(by_bias).max() * 0.125)


def mx(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Quantized values, their scales padded to whole 128x4 tiles, and what both stand for."""
    values, scale = quantize(x, 32, axis, E4M3, E8M0)
    tile = (4, 128) if axis == 2 else (128, 4)
    pads = [(0, 0), (0, 0), *((0, -n % t) for n, t in zip(scale.shape[2:], tile, strict=True))]
    blocks = np.repeat(scale, 32, axis=axis)[tuple(slice(0, n) for n in x.shape)]
    return values, np.pad(scale, pads, constant_values=7.0), values * blocks


def test_mxfp8_forward() -> None:
    q, sf_q, plain_q = mx(draw(B, H, S, D), 3)
    k, sf_k, plain_k = mx(draw(B, HK, T, D), 3)
    v, sf_v, plain_v = mx(draw(B, HK, T, D), 2)
    assert sf_q.shape == (B, H, 128, 4) and sf_v.shape == (B, HK, 4, 128)
    inputs = {"q": q, "k": k, "v": v, "descale_q": sf_q, "descale_k": sf_k, "descale_v": sf_v}
    got = apply("sdpa_mxfp8", inputs, **ATTRS)
    want = apply("sdpa", {"q": plain_q, "k": plain_k, "v": plain_v}, **ATTRS)
    np.testing.assert_allclose(got["O"], want["O"], rtol=1e-12, atol=1e-14)
    assert got["Amax_O"] == pytest.approx(np.abs(want["O"]).max())
    assert "Amax_S" not in got
    with pytest.raises(InvalidGraphError, match="descale_q axis 3: got 1, want at least 2"):
        apply("sdpa_mxfp8", {**inputs, "descale_q": sf_q[..., :1]}, **ATTRS)


def test_mxfp8_backward_reads_each_quantization_where_its_axis_is_summed() -> None:
    q, k, v, grad = draw(B, H, S, D), draw(B, HK, T, D), draw(B, HK, T, D), draw(B, H, S, D)
    parts = {
        "q": mx(q, 3),
        "q_T": mx(q, 2),
        "k": mx(k, 3),
        "k_T": mx(k, 2),
        "v": mx(v, 3),
        "dO": mx(grad, 3),
        "dO_T": mx(grad, 2),
    }
    forward = apply("sdpa", {"q": q, "k": k, "v": v}, **ATTRS)
    inputs = {port: part[0] for port, part in parts.items()}
    inputs |= {f"descale_{port}": part[1] for port, part in parts.items()}
    inputs |= {"o_f16": forward["O"], "dO_f16": grad, "stats": forward["Stats"]}
    got = apply("sdpa_mxfp8_backward", inputs, **ATTRS)
    group = H // HK
    plain = {
        port: part[2] if port in ("q", "q_T", "dO", "dO_T") else part[2].repeat(group, axis=1)
        for port, part in parts.items()
    }
    i, j = np.ogrid[:S, :T]
    scores = 0.125 * np.einsum("bhid,bhjd->bhij", plain["q"], plain["k"])
    p = np.where(j <= i + T - S, np.exp(scores - forward["Stats"]), 0.0)
    rows = (forward["O"] * grad).sum(axis=-1, keepdims=True)
    ds = 0.125 * p * (np.einsum("bhid,bhjd->bhij", plain["dO"], plain["v"]) - rows)
    want = {
        "dQ": np.einsum("bhij,bhjd->bhid", ds, plain["k_T"]),
        "dK": np.einsum("bhij,bhid->bhjd", ds, plain["q_T"]),
        "dV": np.einsum("bhij,bhid->bhjd", p, plain["dO_T"]),
    }
    for port in ("dK", "dV"):
        want[port] = want[port].reshape(B, HK, group, T, D).sum(axis=2)
    for port in ("dQ", "dK", "dV"):
        np.testing.assert_allclose(got[port], want[port], rtol=1e-11, atol=1e-13)
        assert got[f"amax_{port}"] == np.abs(got[port]).max()
    for port, other in (("dV", "dO_T"), ("dQ", "k_T"), ("dK", "q_T")):
        zeroed = apply("sdpa_mxfp8_backward", {**inputs, other: 0 * inputs[other]}, **ATTRS)
        assert not zeroed[port].any()
        kept = {"dV", "dQ", "dK"} - {port}
        assert all(np.array_equal(zeroed[name], got[name]) for name in kept)


@pytest.mark.parametrize(
    ("dtype", "scales", "block"), [(E2M1, E4M3, 16), (E4M3, E8M0, 32)], ids=["nvfp4", "mxfp8"]
)
def test_block_scaled_results(dtype: data_type, scales: data_type, block: int) -> None:
    wanted = {"O": Declared((B, H, S, D), dtype), "sf_o": Declared((B, H, 128, 4), scales)}
    inputs = {"q": Q, "k": K, "v": V, **DESCALES, "scale_o": one(2.0)}
    got = apply("sdpa_fp8", inputs, wanted=wanted, **ATTRS)
    plain = apply("sdpa_fp8", inputs, **ATTRS)["O"]
    values, sf = quantize(plain, block, -1, dtype, scales)
    assert np.array_equal(got["O"], values)
    assert got["sf_o"].shape == (B, H, 128, 4)
    assert np.array_equal(got["sf_o"][:, :, :S, : D // block], sf)
