"""Gradients of attention: differences of the forward op under every mask, and torch."""

import numpy as np
import pytest
from finite_differences import along

from cudnn_aot.compiler.reference.call import Declared
from cudnn_aot.compiler.reference.ops import apply

RNG = np.random.default_rng(17)
B, H, HK, S, T, D, DV = 2, 4, 2, 4, 5, 3, 2


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


Q, K, V, GRAD = draw(B, H, S, D), draw(B, HK, T, D), draw(B, HK, T, DV), draw(B, H, S, DV)
DROP = {"dropout_0": (RNG.random((B, H, S, T)) > 0.4) * 1.0, "dropout_1": np.array([1 / 0.6])}
LENGTHS = {"use_padding_mask": True, "seq_len_q": np.array([4, 2]), "seq_len_kv": np.array([3, 5])}
CASES: dict[str, dict] = {
    "plain": {},
    "scaled": {"attn_scale": 0.4},
    "causal": {"use_causal_mask": True, "attn_scale": 0.4},
    "rows without keys": {"diagonal_band_right_bound": -1},
    "bottom right padded": {**LENGTHS, "use_causal_mask_bottom_right": True},
    "window": {"diagonal_band_left_bound": 2, "diagonal_band_right_bound": 0},
    "bias": {"bias": draw(B, H, S, T), "attn_scale": 0.4},
    "bias of all batches": {"bias": draw(1, H, 1, T)},
    "bias of all heads": {"bias": draw(1, 1, S, T)},
    "alibi": {"use_alibi_mask": True, "use_causal_mask": True},
    "sink": {"sink_token": draw(1, H, 1, 1), "attn_scale": 0.4},
    "sink padded": {**LENGTHS, "sink_token": draw(1, H, 1, 1)},
    "dropout": {**DROP, "attn_scale": 0.4},
    "dropout and sink": {**DROP, "sink_token": draw(1, H, 1, 1)},
}


def split(keywords: dict) -> tuple[dict, dict]:
    ports = {name: x for name, x in keywords.items() if isinstance(x, np.ndarray)}
    return ports, {name: x for name, x in keywords.items() if name not in ports}


@pytest.mark.parametrize("name", CASES)
def test_gradients_agree_with_differences(name: str) -> None:
    ports, attrs = split(CASES[name])
    operands = {"q": Q, "k": K, "v": V, **ports}
    forward = apply("sdpa", operands, **attrs)
    wanted = {"dBias": Declared(ports["bias"].shape)} if "bias" in ports else {}
    inputs = {**operands, "o": forward["O"], "dO": GRAD, "stats": forward["Stats"]}
    got = apply("sdpa_backward", inputs, wanted=wanted, **attrs)
    gradients = {"q": "dQ", "k": "dK", "v": "dV", "bias": "dBias", "sink_token": "dSink_token"}
    assert set(got) == {gradients[port] for port in operands if port in gradients}
    for port in got.keys() & gradients.values():
        operand = next(key for key, value in gradients.items() if value == port)
        assert got[port].shape == operands[operand].shape
        for _ in range(3):
            direction = draw(*operands[operand].shape)
            want = along(
                lambda at: float((GRAD * apply("sdpa", at, **attrs)["O"]).sum()),
                operands,
                {operand: direction},
            )
            assert (got[port] * direction).sum() == pytest.approx(want, rel=1e-6, abs=1e-8), port


def test_gradients_agree_with_torch(torch_answer) -> None:
    def gradients(torch, q, k, v, grad):
        leaves = tuple(leaf.requires_grad_() for leaf in (q, k, v))
        o = torch.nn.functional.scaled_dot_product_attention(
            *leaves, is_causal=True, scale=0.3, enable_gqa=True
        )
        return torch.autograd.grad((o * grad).sum(), leaves)

    attrs = {"use_causal_mask": True, "attn_scale": 0.3}
    forward = apply("sdpa", {"q": Q, "k": K, "v": V}, **attrs)
    inputs = {"q": Q, "k": K, "v": V, "o": forward["O"], "dO": GRAD, "stats": forward["Stats"]}
    got = apply("sdpa_backward", inputs, **attrs)
    wanted = torch_answer(gradients, Q, K, V, GRAD)
    for port, want in zip(("dQ", "dK", "dV"), wanted, strict=True):
        np.testing.assert_allclose(got[port], want, rtol=1e-11, atol=1e-13)


def test_the_gradient_of_scores_sums_to_zero_over_keys() -> None:
    # Adding a number to all scores of a row changes no output; with a sink, it does.
    bias = draw(B, H, S, T)
    operands = {"q": Q, "k": K, "v": V, "bias": bias}
    forward = apply("sdpa", operands)
    inputs = {**operands, "o": forward["O"], "dO": GRAD, "stats": forward["Stats"]}
    got = apply("sdpa_backward", inputs, wanted={"dBias": Declared(bias.shape)})
    np.testing.assert_allclose(got["dBias"].sum(axis=-1), 0, atol=1e-14)


def test_padded_rows_get_no_gradient() -> None:
    operands = {"q": Q, "k": K, "v": V}
    ports, attrs = split(LENGTHS)
    forward = apply("sdpa", {**operands, **ports}, **attrs)
    inputs = {**operands, **ports, "o": forward["O"], "dO": GRAD, "stats": forward["Stats"]}
    got = apply("sdpa_backward", inputs, **attrs)
    assert not got["dQ"][1, :, 2:].any() and got["dQ"][1, :, :2].all()
    assert not got["dK"][0, :, 3:].any() and not got["dV"][0, :, 3:].any()
