"""Attention: every mask against a loop over query rows; torch's own op, pages, dropout."""

import math

import numpy as np
import pytest

from cudnn_aot.compiler.reference.attention import alibi_slopes
from cudnn_aot.compiler.reference.ops import apply
from cudnn_aot.errors import InvalidGraphError

RNG = np.random.default_rng(13)
B, H, HK, S, T, D, DV = 2, 4, 2, 5, 7, 6, 3


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


Q, K, V = draw(B, H, S, D), draw(B, HK, T, D), draw(B, HK, T, DV)
BIAS, SINK = draw(1, H, S, T), draw(1, H, 1, 1)
KEYS = (RNG.random((B, 1, 1, T)) > 0.3).astype(float)
DROP = (RNG.random((B, H, S, T)) > 0.4).astype(float)
LENGTHS = {"use_padding_mask": True, "seq_len_q": np.array([5, 2]), "seq_len_kv": np.array([4, 6])}

# name: keywords; tensors among them are ports
CASES: dict[str, dict] = {
    "plain": {},
    "scale": {"attn_scale": 0.37},
    "scale tensor": {"attn_scale": np.full((1, 1, 1, 1), 0.37)},
    "bias": {"bias": BIAS},
    "bias row": {"bias": BIAS[:, :1, :1]},
    "causal": {"use_causal_mask": True},
    "bottom right": {"use_causal_mask_bottom_right": True},
    "band": {"diagonal_band_left_bound": 2, "diagonal_band_right_bound": 1},
    "band bottom right": {
        "diagonal_band_left_bound": 3,
        "diagonal_band_right_bound": 0,
        "diagonal_alignment": "BOTTOM_RIGHT",
    },
    "window": {"sliding_window_length": 2, "use_causal_mask": True},
    "window of another keyword": {"left_bound": 2, "right_bound": 0},
    "alibi": {"use_alibi_mask": True, "diagonal_band_right_bound": 0},
    "padding": LENGTHS,
    "padding bottom right": {**LENGTHS, "use_causal_mask_bottom_right": True},
    "padding window": {
        **LENGTHS,
        "diagonal_alignment": "BOTTOM_RIGHT",
        "diagonal_band_left_bound": 2,
        "diagonal_band_right_bound": 0,
    },
    "cumulative lengths": {
        "use_padding_mask": True,
        "cu_seq_len_q": np.array([0, 5, 7]),
        "cu_seq_len_kv": np.array([0, 4, 10]),
    },
    "sink": {"sink_token": SINK},
    "sink padding": {**LENGTHS, "sink_token": SINK},
    "keys": {"kv_mask": KEYS},
    "dropout": {"dropout_0": DROP, "dropout_1": np.array([1 / 0.6])},
}


def run(op: str = "sdpa", q=Q, k=K, v=V, **keywords):
    ports = {name: x for name, x in keywords.items() if isinstance(x, np.ndarray)}
    attrs = {name: x for name, x in keywords.items() if not isinstance(x, np.ndarray)}
    return apply(op, {"q": q, "k": k, "v": v, **ports}, **attrs)


def naive(keywords: dict, q=Q, k=K, v=V) -> tuple[np.ndarray, ...]:
    """Row by row, from the definition; O, Stats, score_max, score_sum_exp."""
    rows, keys = q.shape[2], k.shape[2]
    o, stats = np.zeros((B, H, rows, v.shape[3])), np.full((B, H, rows, 1), -np.inf)
    top, total = stats.copy(), np.zeros_like(stats)
    lengths_q, lengths_kv = [rows] * B, [keys] * B
    if "seq_len_q" in keywords:
        lengths_q, lengths_kv = keywords["seq_len_q"], keywords["seq_len_kv"]
    if "cu_seq_len_q" in keywords:
        lengths_q = np.diff(keywords["cu_seq_len_q"])
        lengths_kv = np.diff(keywords["cu_seq_len_kv"])
    scale = float(np.asarray(keywords.get("attn_scale", 1.0)).reshape(-1)[0])
    names = ("diagonal_band_left_bound", "sliding_window_length", "left_bound")
    left = next((keywords[name] for name in names if name in keywords), None)
    right = keywords.get("diagonal_band_right_bound", keywords.get("right_bound"))
    if any("causal" in name for name in keywords):
        right = 0
    is_bottom_right = "use_causal_mask_bottom_right" in keywords or (
        keywords.get("diagonal_alignment") == "BOTTOM_RIGHT"
    )
    bias = np.broadcast_to(keywords.get("bias", np.zeros((1, 1, 1, 1))), (B, H, rows, keys))
    for b, h, i in np.ndindex(B, H, rows):
        if i >= lengths_q[b]:
            continue
        diagonal = i + (lengths_kv[b] - lengths_q[b] if is_bottom_right else 0)
        weights: dict[int, float] = {}
        for j in range(lengths_kv[b]):
            if right is not None and j > diagonal + right:
                continue
            if left is not None and j <= diagonal - left:
                continue
            if "kv_mask" in keywords and not keywords["kv_mask"][b, 0, 0, j]:
                continue
            score = scale * float(q[b, h, i] @ k[b, h // (H // HK), j]) + bias[b, h, i, j]
            if "use_alibi_mask" in keywords:
                score += 2.0 ** (-8 * (h + 1) / H) * (j - i)
            weights[j] = score
        pool = [*weights.values()]
        if "sink_token" in keywords:
            pool.append(float(keywords["sink_token"][0, h, 0, 0]))
        if not pool:
            continue
        top[b, h, i] = max(pool)
        total[b, h, i] = math.fsum(math.exp(score - max(pool)) for score in pool)
        stats[b, h, i] = math.log(math.fsum(math.exp(score) for score in pool))
        for j, score in weights.items():
            p = math.exp(score - stats[b, h, i, 0])
            if "dropout_0" in keywords:
                p *= keywords["dropout_0"][b, h, i, j] * keywords["dropout_1"][0]
            o[b, h, i] += p * v[b, h // (H // HK), j]
    return o, stats, top, total


@pytest.mark.parametrize("name", CASES)
def test_forward_agrees_with_the_definition(name: str) -> None:
    got = run(**CASES[name])
    for port, want in zip(
        ("O", "Stats", "score_max", "score_sum_exp"), naive(CASES[name]), strict=True
    ):
        np.testing.assert_allclose(got[port], want, rtol=1e-12, atol=1e-13, err_msg=port)


@pytest.mark.parametrize("causal", [False, True])
def test_forward_agrees_with_torch(torch_answer, causal: bool) -> None:
    def attention(torch, q, k, v, bias=None):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, bias, is_causal=causal and bias is None, scale=0.5, enable_gqa=True
        )

    [want] = torch_answer(attention, Q, K, V)
    got = run(attn_scale=0.5, use_causal_mask=causal)["O"]
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
    [want] = torch_answer(attention, Q, K, V, np.broadcast_to(BIAS, (B, H, S, T)))
    np.testing.assert_allclose(run(attn_scale=0.5, bias=BIAS)["O"], want, atol=1e-13)


def test_a_row_without_keys_gives_zeros() -> None:
    got = run(diagonal_band_right_bound=-2)
    assert not got["O"][:, :, :2].any() and np.isneginf(got["Stats"][:, :, :2]).all()
    assert got["O"][:, :, 2:].all()


@pytest.mark.parametrize("heads", [0, 2])  # of k and v
def test_no_heads_give_empty_results(heads: int) -> None:
    q, kv = np.zeros((B, 0, S, D)), draw(B, heads, S, D)
    masks = {"use_alibi_mask": True, "use_causal_mask": True}
    got = apply("sdpa", {"q": q, "k": kv, "v": kv}, **masks)
    assert (got["O"].shape, got["Stats"].shape) == ((B, 0, S, D), (B, 0, S, 1))
    operands = {"q": q, "k": kv, "v": kv, "o": q, "dO": q, "stats": q[..., :1]}
    grads = apply("sdpa_backward", operands, **masks)
    assert grads["dQ"].shape == q.shape and not grads["dK"].any() and not grads["dV"].any()
    assert apply("sdpa_fp8", {"q": q, "k": kv, "v": kv})["O"].shape == q.shape
    with pytest.raises(InvalidGraphError, match="heads of k: got 0, want a divisor of 4"):
        apply("sdpa", {"q": Q, "k": q, "v": q})


def test_statistics_in_base_2_and_a_prefolded_scale() -> None:
    want = run(attn_scale=0.3)
    got = run(attn_scale=0.3, stats_use_log2=True)
    np.testing.assert_allclose(got["Stats"] * math.log(2), want["Stats"])
    assert np.array_equal(got["score_max"], want["score_max"])
    folded = run(q=Q * 0.3 * math.log2(math.e), attn_scale_prefolded=True)
    np.testing.assert_allclose(folded["O"], want["O"], rtol=1e-12)


def test_adding_a_number_to_all_scores_of_a_row_changes_the_statistics_alone() -> None:
    base, shifted = run(bias=BIAS), run(bias=BIAS + 11.0)
    np.testing.assert_allclose(shifted["O"], base["O"])
    np.testing.assert_allclose(shifted["Stats"], base["Stats"] + 11.0)
    assert np.isfinite(run(bias=BIAS + 5000.0)["O"]).all()


@pytest.mark.parametrize(
    ("heads", "wanted"),
    [
        (0, []),
        (1, [2.0**-8]),
        (4, [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]),
        (6, [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]),
    ],
)
def test_alibi_slopes(heads: int, wanted: list[float]) -> None:
    assert alibi_slopes(heads).tolist() == wanted


@pytest.mark.parametrize("page", [1, 2, 4])
def test_pages_are_read_through_the_tables(page: int) -> None:
    count = -(-T // page)
    k_pool, v_pool = draw(2 * B * count, HK, page, D), draw(2 * B * count, HK, page, DV)
    tables = [RNG.permutation(2 * B * count)[: B * count].reshape(B, 1, count, 1) for _ in "kv"]
    for b, s in np.ndindex(B, T):
        k_pool[tables[0][b, 0, s // page, 0], :, s % page] = K[b, :, s]
        v_pool[tables[1][b, 0, s // page, 0], :, s % page] = V[b, :, s]
    pages = {"paged_attention_k_table": tables[0], "paged_attention_v_table": tables[1]}
    got = run(k=k_pool, v=v_pool, paged_attention_max_seq_len_kv=T, **pages, **LENGTHS)
    want = run(**LENGTHS)
    assert np.array_equal(got["O"], want["O"])
    tables[0][0, 0, -1] = -1  # beyond the 4 keys of batch 0, whatever the page size
    tables[1][0, 0, -1] = 10**6
    got = run(k=k_pool, v=v_pool, paged_attention_max_seq_len_kv=T, **pages, **LENGTHS)
    assert np.array_equal(got["O"], want["O"])


def test_block_mask_hides_tiles_of_128() -> None:
    q, k, v = draw(1, 1, 130, 2), draw(1, 1, 300, 2), draw(1, 1, 300, 2)
    words = np.array([0b101, 0b010], np.uint8).reshape(1, 1, 2, 1)
    got = run(q=q, k=k, v=v, block_mask=words)["O"]
    keys = np.r_[0:128, 256:300]
    want = run(q=q[:, :, :128], k=k[:, :, keys], v=v[:, :, keys])["O"]
    np.testing.assert_allclose(got[:, :, :128], want)
    want = run(q=q[:, :, 128:], k=k[:, :, 128:256], v=v[:, :, 128:256])["O"]
    np.testing.assert_allclose(got[:, :, 128:], want)


def test_refusals() -> None:
    with pytest.raises(InvalidGraphError, match="dropout with probability 0.1 from a seed"):
        run(dropout_0=0.1, dropout_1=np.ones(1), dropout_2=np.ones(1))
    assert np.array_equal(run(dropout_0=0.0)["O"], run()["O"])
    with pytest.raises(InvalidGraphError, match="score_mod is a function of the caller"):
        run(score_mod=lambda graph, score: score)
    with pytest.raises(InvalidGraphError, match=r"lengths of kv: got \[4, 8\], want 2 from 0 to 7"):
        run(**{**LENGTHS, "seq_len_kv": np.array([4, 8])})
    with pytest.raises(InvalidGraphError, match="heads of k: got 3, want a divisor of 4"):
        run(k=draw(B, 3, T, D))
