"""Grouped products against a loop over tokens, in every mode."""

import moe_graphs
import numpy as np
import pytest

from cudnn_aot.compiler.reference.execute import execute, random_operands
from cudnn_aot.compiler.reference.ops import apply
from cudnn_aot.errors import InvalidGraphError

RNG = np.random.default_rng(11)
EXPERTS, K, N = 3, 4, 5
WEIGHT = RNG.standard_normal((EXPERTS, K, N))


def expert_of(row: int, edges: list[int]) -> int | None:
    for group, (start, end) in enumerate(zip(edges, edges[1:], strict=False)):
        if start <= row < end:
            return group % EXPERTS
    return None


def column(values: object) -> np.ndarray:
    return np.asarray(values).reshape(-1, 1, 1)


@pytest.mark.parametrize(
    ("offsets", "edges"),
    [
        ([0, 2, 2], [0, 2, 2, 7]),
        ([0, 2, 5, 6], [0, 2, 5, 6]),  # an explicit end leaves row 6 in no group
        ([0, 1, 2, 3, 5, 5], [0, 1, 2, 3, 5, 5, 7]),  # two rounds over the experts
        ([0, 1, 2, 3, 5, 5, 7], [0, 1, 2, 3, 5, 5, 7]),
    ],
)
def test_rows_multiply_by_the_expert_of_their_group(offsets, edges) -> None:
    token = RNG.standard_normal((1, 7, K))
    got = apply(
        "moe_grouped_matmul",
        {"token": token, "weight": WEIGHT, "first_token_offset": column(offsets)},
    )["OUT_0"]
    assert got.shape == (1, 7, N)
    for row in range(7):
        expert = expert_of(row, edges)
        want = np.zeros(N) if expert is None else token[0, row] @ WEIGHT[expert]
        np.testing.assert_allclose(got[0, row], want, atol=1e-14)


def routing(tokens: int, top_k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A router's choice: the expert of each (token, slot), and the rows sorted by expert."""
    chosen = np.array([RNG.permutation(EXPERTS)[:top_k] for _ in range(tokens)])
    order = np.argsort(chosen.ravel(), kind="stable")
    offsets = np.searchsorted(chosen.ravel()[order], np.arange(EXPERTS))
    return chosen, order // top_k, order % top_k, offsets


def test_a_router_gathers_scatters_and_combines() -> None:
    tokens, top_k = 6, 2
    x, scores = RNG.standard_normal((1, tokens, K)), RNG.standard_normal((1, tokens, top_k))
    chosen, index, slot, offsets = routing(tokens, top_k)
    want = np.array([[x[0, t] @ WEIGHT[e] for e in chosen[t]] for t in range(tokens)])
    routed = {"weight": WEIGHT, "first_token_offset": column(offsets)}
    gathered = apply(
        "moe_grouped_matmul",
        {"token": x, "token_index": index.reshape(1, -1, 1), **routed},
        mode="GATHER",
        top_k=top_k,
    )["OUT_0"]
    np.testing.assert_allclose(gathered[0], want[index, slot], atol=1e-14)

    places = {"token_index": index.reshape(1, -1, 1), "token_ks": slot.reshape(1, -1, 1)}
    sorted_rows = {"token": x[:, index], **routed, **places}
    scattered = apply("moe_grouped_matmul", sorted_rows, mode="SCATTER", top_k=top_k)["OUT_0"]
    np.testing.assert_allclose(scattered[0].reshape(tokens, top_k, N), want, atol=1e-14)

    combined = apply(
        "moe_grouped_matmul", {**sorted_rows, "top_k_scores": scores}, mode="COMBINE", top_k=top_k
    )["OUT_0"]
    assert combined.shape == (1, tokens, N)
    np.testing.assert_allclose(combined[0], (scores[0][..., None] * want).sum(axis=1), atol=1e-13)


@pytest.mark.parametrize("with_end", [False, True])
def test_the_weights_gradient_is_the_transpose(with_end: bool) -> None:
    offsets = [0, 3, 3] + [8] * with_end
    token, grad = RNG.standard_normal((1, 8, K)), RNG.standard_normal((1, 8, N))
    inputs = {"token": token, "first_token_offset": column(offsets)}
    y = apply("moe_grouped_matmul", {**inputs, "weight": WEIGHT})["OUT_0"]
    wanted = {"dweight": (EXPERTS, K, N)}
    dweight = apply("moe_grouped_matmul_bwd", {**inputs, "doutput": grad}, wanted=wanted)["dweight"]
    assert (dweight * WEIGHT).sum() == pytest.approx((grad * y).sum(), rel=1e-12)
    assert not dweight[1].any()
    if not with_end:
        same = apply("moe_grouped_matmul_bwd", {**inputs, "doutput": grad})["dweight"]
        assert np.array_equal(same, dweight)


def test_refusals() -> None:
    token = np.ones((1, 4, K))
    inputs = {"token": token, "weight": WEIGHT, "first_token_offset": column([0, 1, 2])}
    with pytest.raises(
        InvalidGraphError, match="token_index: got 0 to 9, want row numbers below 4"
    ):
        apply("moe_grouped_matmul", {**inputs, "token_index": [0, 9, 1]}, mode="GATHER")
    with pytest.raises(InvalidGraphError, match="token_ks: got 2 rows, want 4"):
        apply(
            "moe_grouped_matmul",
            {**inputs, "token_index": [0, 1, 2, 3], "token_ks": [0, 0]},
            mode="SCATTER",
        )
    with pytest.raises(InvalidGraphError, match="mode: got TWIST, want NONE, GATHER"):
        apply("moe_grouped_matmul", inputs, mode="TWIST")


def test_rows_that_gather_of_no_tokens_are_zero() -> None:
    """And operands are made for such a call, whose indices name nothing."""
    g = moe_graphs.grouped("GATHER", rows=5, tokens=0)
    values = random_operands(g.freeze(), seed=0)
    (out,) = execute(g, values).values()
    assert out.shape == (1, 5, 20) and not out.any()
