"""The delta rules and Mamba-2 against token loops in the published, K-major matrix form."""

import math

import numpy as np
import pytest

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.reference.call import Call, Declared
from cudnn_aot.compiler.reference.linear_gates import guarded
from cudnn_aot.compiler.reference.ops import apply
from cudnn_aot.errors import InvalidGraphError

RNG = np.random.default_rng(23)
BOUNDS = [0, 5, 5, 12]  # an empty sequence in the middle
T, N, K, V = 12, 3, 4, 3
FAMILIES = ["gdn", "kda", "gdn2", "gdp"]


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def operands(family: str, heads: tuple[int, int, int] = (2, 2, 4), updates: int = 1) -> dict:
    """q, k, v at their heads; gates and states at the larger of q's and v's."""
    h_q, h_k, h_v = heads
    h_o, rows = max(h_q, h_v), T * updates
    channels = () if family in ("gdn", "gdp") else (K,)
    result = {
        "q": draw(T, h_q, K),
        "k": draw(rows, h_k, K) / 2,
        "v": draw(rows, h_v, V),
        "g": -np.abs(draw(T, h_o, *channels)) / 3,
        "beta": RNG.uniform(0.1, 0.9, (rows, h_o, K) if family == "gdn2" else (rows, h_o)),
        "cu_seqlens": np.array(BOUNDS),
        "initial_state": draw(N, h_o, V, K),
    }
    if family == "gdn2":
        result["w"] = RNG.uniform(0.1, 0.9, (rows, h_o, V))
    return result


def naive(family: str, x: dict, scale: float, updates: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """``S [K, V]`` by the published update; O and the last states (stored V-major)."""
    h_o = x["g"].shape[1]
    out, final = np.zeros((T, h_o, V)), x["initial_state"].copy()
    identity = np.eye(K)
    for n, h in np.ndindex(N, h_o):
        state = x["initial_state"][n, h].T
        for t in range(BOUNDS[n], BOUNDS[n + 1]):
            alpha = np.exp(x["g"][t, h]) * np.ones(K)
            state = np.diag(alpha) @ state
            for row in range(t * updates, (t + 1) * updates):
                k = x["k"][row, h * x["k"].shape[1] // h_o]
                v = x["v"][row, h * x["v"].shape[1] // h_o]
                beta = x["beta"][row, h]
                if family == "gdn2":
                    erase = identity - np.outer(k, beta * k)
                    state = erase @ state + np.outer(k, x["w"][row, h] * v)
                else:
                    state = (identity - beta * np.outer(k, k)) @ state + beta * np.outer(k, v)
            out[t, h] = scale * x["q"][t, h * x["q"].shape[1] // h_o] @ state
        final[n, h] = state.T
    return out, final


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("heads", [(2, 2, 4), (4, 4, 2), (2, 4, 4), (3, 3, 3)])
def test_forward_agrees_with_the_published_recurrence(family: str, heads: tuple) -> None:
    updates = 3 if family == "gdp" else 1
    attrs = {"num_householder": 3} if family == "gdp" else {}
    x = operands(family, heads, updates)
    got = apply(family, x, output_final_state=True, **attrs)
    out, final = naive(family, x, K**-0.5, updates)
    np.testing.assert_allclose(got["O"], out, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(got["final_state"], final, rtol=1e-12, atol=1e-13)
    assert np.array_equal(got["final_state"][1], x["initial_state"][1])
    scaled = apply(family, x, scale=0.25, **attrs)["O"]
    np.testing.assert_allclose(scaled, 0.25 * K**0.5 * out, rtol=1e-11, atol=1e-12)


def test_one_update_is_gdn_and_token_major_operands_are_the_same() -> None:
    x = operands("gdn")
    assert np.array_equal(apply("gdp", x)["O"], apply("gdn", x)["O"])
    x = operands("gdp", updates=2)
    want = apply("gdp", x, num_householder=2)
    major = {
        p: a.reshape(T, 2, *a.shape[1:]) if p in ("k", "v", "beta") else a for p, a in x.items()
    }
    got = apply("gdp", major, num_householder=2)
    assert all(np.array_equal(got[port], want[port]) for port in want)


def test_equal_gates_make_the_channelwise_rules_gdn() -> None:
    x = operands("gdn")
    want = apply("gdn", x)["O"]
    wide = {**x, "g": np.repeat(x["g"][..., None], K, axis=2)}
    np.testing.assert_allclose(apply("kda", wide)["O"], want, rtol=1e-13)
    wider = {
        **wide,
        "beta": np.repeat(x["beta"][..., None], K, axis=2),
        "w": np.repeat(x["beta"][..., None], V, axis=2),
    }
    np.testing.assert_allclose(apply("gdn2", wider)["O"], want, rtol=1e-13)


@pytest.mark.parametrize("family", FAMILIES)
def test_gates_in_every_form_come_to_the_same(family: str) -> None:
    x = operands(family)
    want = apply(family, x)["O"]
    linear = {**x, "g": np.exp(x["g"]) - 1e-10}
    np.testing.assert_allclose(apply(family, linear, gate_domain="linear")["O"], want, rtol=1e-9)

    logits = {**x, "beta": np.log(x["beta"] / (1 - x["beta"]))}
    got = apply(family, logits, use_beta_sigmoid=True)["O"]
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)
    halved = {**x, "beta": np.log(x["beta"] / (2 - x["beta"]))}
    got = apply(family, halved, use_beta_sigmoid=True, allow_neg_eigval=True)["O"]
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)

    def normal(array: np.ndarray) -> np.ndarray:
        return array / np.sqrt((array**2).sum(-1, keepdims=True) + 1e-6)

    want = apply(family, {**x, "q": normal(x["q"]), "k": normal(x["k"])})["O"]
    got = apply(family, x, use_qk_l2norm=True)["O"]
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("given", [(), ("a_log",), ("dt_bias",), ("a_log", "dt_bias")])
def test_safe_gates(family: str, given: tuple[str, ...]) -> None:
    x = operands(family)
    h_o, wide = 4, family in ("kda", "gdn2")
    raw = draw(*x["g"].shape)
    a_log = draw(h_o) if "a_log" in given else np.zeros(h_o)
    bias = draw(h_o, K) if wide else draw(h_o)
    bias = bias if "dt_bias" in given else 0 * bias
    decay = np.zeros_like(raw)
    for index in np.ndindex(raw.shape):
        amplitude = math.exp(a_log[index[1]])
        z = raw[index] + bias[index[1:]]
        if wide:
            decay[index] = -2.5 / (1 + math.exp(-amplitude * z))
        else:
            decay[index] = -amplitude * math.log1p(math.exp(z))
    want = apply(family, {**x, "g": decay})["O"]
    parameters = {name: {"a_log": a_log, "dt_bias": bias}[name] for name in given}
    attrs = {"gate_lower_bound": -2.5} if wide else {}
    got = apply(family, {**x, "g": raw, **parameters}, safe_gate=True, **attrs)["O"]
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)
    if wide and not given:
        default = apply(family, {**x, "g": raw}, safe_gate=True)["O"]
        want = apply(family, {**x, "g": 2 * decay})["O"]
        np.testing.assert_allclose(default, want, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("family", [*FAMILIES, "mamba2"])
@pytest.mark.parametrize("every", [1, 2, 4, 8])
def test_checkpoints_are_the_states_before_every_nth_token(family: str, every: int) -> None:
    x = mamba_operands() if family == "mamba2" else operands(family)
    got = apply(family, x, checkpoint_every_n_tokens=every, output_final_state=True)
    series = got["state_checkpoints"]
    assert len(series) == T // every + N
    row = 0
    for n, (start, end) in enumerate(zip(BOUNDS, BOUNDS[1:], strict=False)):
        for first in range(start, end, every):
            cut = {
                port: array[start:first]
                if port in ("q", "k", "v", "g", "beta", "w", "z")
                else array
                for port, array in x.items()
            }
            cut["cu_seqlens"] = np.array([0, first - start])
            cut["initial_state"] = x["initial_state"][n : n + 1]
            want = apply(family, cut, output_final_state=True)["final_state"][0]
            np.testing.assert_allclose(series[row], want, rtol=1e-12, atol=1e-13)
            row += 1
    assert not series[row:].any()


@pytest.mark.parametrize("family", [*FAMILIES, "mamba2"])
def test_a_pool_of_states(family: str) -> None:
    x = mamba_operands() if family == "mamba2" else operands(family)
    want = apply(family, x, output_final_state=True)
    pool = draw(7, *x["initial_state"].shape[1:])
    index = np.array([4, 1, 6])
    pool[index] = x["initial_state"]
    pooled = {**x, "initial_state": pool, "state_indices": index}
    got = apply(family, pooled, output_final_state=True)
    assert np.array_equal(got["O"], want["O"])
    assert np.array_equal(got["final_state"][index], want["final_state"])
    others = [0, 2, 3, 5]
    assert np.array_equal(got["final_state"][others], pool[others])


def span(x: dict, start: int, end: int, updates: int = 1) -> dict:
    """One sequence's tokens as a problem of its own."""
    cut = dict(x)
    for port in ("q", "k", "v", "g", "beta", "w", "z", "dO"):
        if port in x:
            rows = updates if port in ("k", "v", "beta") else 1
            cut[port] = x[port][start * rows : end * rows]
    cut["cu_seqlens"] = np.array([0, end - start])
    return cut


@pytest.mark.parametrize("family", FAMILIES)
def test_summaries_of_pieces_compose_to_the_whole(family: str) -> None:
    updates = 2 if family == "gdp" else 1
    attrs = {"num_householder": 2} if family == "gdp" else {}
    x = operands(family, updates=updates)
    seed, d_end = draw(1, 4, V, K), draw(1, 4, V, K)
    x = {**span(x, 0, 12, updates), "initial_state": seed, "dO": draw(12, 4, V)}
    whole = apply(family, x, output_final_state=True, **attrs)
    state, out = seed, []
    ports = ("k", "v", "g", "beta", "w", "cu_seqlens")
    pieces = [span(x, a, b, updates) for a, b in ((0, 5), (5, 6), (6, 12))]
    for piece in pieces:
        out.append(apply(family, {**piece, "initial_state": state}, **attrs)["O"])
        operands_of = {port: piece[port] for port in ports if port in piece}
        got = apply(f"{family}_summary", operands_of, output_transition=True, **attrs)
        seeded = apply(f"{family}_summary", {**operands_of, "initial_state": state}, **attrs)
        state = state @ got["transition"] + got["final_state"]
        np.testing.assert_allclose(seeded["final_state"], state, rtol=1e-12, atol=1e-13)
        assert "transition" not in seeded
    np.testing.assert_allclose(np.concatenate(out), whole["O"], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(state, whole["final_state"], rtol=1e-12, atol=1e-13)

    full = apply(f"{family}_bwd", {**x, "d_final_state": d_end}, **attrs)
    gradient = d_end
    ports = ("q", "k", "g", "beta", "cu_seqlens", "dO")
    for piece in reversed(pieces):
        operands_of = {port: piece[port] for port in ports}
        got = apply(f"{family}_summary_bwd", operands_of, output_transition=True, **attrs)
        seeded = apply(f"{family}_summary_bwd", {**operands_of, "d_final_state": gradient}, **attrs)
        gradient = gradient @ got["transition"] + got["d_initial_state"]
        np.testing.assert_allclose(seeded["d_initial_state"], gradient, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(gradient, full["d_initial_state"], rtol=1e-11, atol=1e-13)


def expansion(beta: np.ndarray, k: np.ndarray, alpha: np.ndarray) -> float:
    """The largest stretch of a state by one decay and erase step."""
    step = (np.eye(K) - np.outer(k, beta * k)) @ np.diag(alpha * np.ones(K))
    return float(np.linalg.norm(step, 2))


def test_the_guard_keeps_the_erase_step_from_expanding_and_leaves_safe_gates_alone() -> None:
    k = draw(40, 2, K)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    beta, decay = RNG.uniform(0, 1.9, (40, 2, K)), -RNG.uniform(0.001, 0.1, (40, 2, 1)) * np.ones(K)
    got = guarded(Call("gdn2", {}), beta, k, decay)
    moved = 0
    for t, h in np.ndindex(40, 2):
        alpha = np.exp(decay[t, h])
        before, after = (expansion(b[t, h], k[t, h], alpha) for b in (beta, got))
        assert after <= 1 + 1e-12
        if before <= 1 - 1e-12:
            assert np.array_equal(got[t, h], beta[t, h])
        else:
            moved += 1
            mean = (beta[t, h] * k[t, h] ** 2).sum()
            np.testing.assert_allclose((got[t, h] * k[t, h] ** 2).sum(), mean)
    assert 15 < moved < 75


def test_the_guard_rounds_to_the_operands_type() -> None:
    x = operands("gdn2")
    declared = {"k": Declared((T, 2, K), data_type.BFLOAT16)}
    k = np.repeat(x["k"], 2, axis=1)
    got = guarded(Call("gdn2", x, declared=declared), x["beta"], k, x["g"])
    assert np.array_equal(got, got.astype(np.float32)) and np.abs(got - x["beta"]).max() < 1
    assert len(np.unique(got * 2**12 % 1)) == 1  # eight bits of significand


def mamba_operands(groups: int = 2) -> dict:
    return {
        "q": draw(T, groups, K),
        "k": draw(T, groups, K),
        "v": draw(T, 4, V),
        "g": draw(T, 4),
        "a": -np.abs(draw(4)),
        "cu_seqlens": np.array(BOUNDS),
        "initial_state": draw(N, 4, V, K),
        "dt_bias": draw(4),
        "d": draw(4),
        "z": draw(T, 4, V),
    }


@pytest.mark.parametrize(
    ("attrs", "without"),
    [
        ({}, ()),
        ({}, ("z", "d", "dt_bias", "initial_state")),
        ({"dt_min": 0.5, "dt_max": 0.9}, ("z",)),
        ({"dt_softplus": False, "dt_max": 2.0}, ("d",)),
        ({"per channel": True}, ()),
    ],
)
def test_mamba2_agrees_with_the_published_recurrence(attrs: dict, without: tuple) -> None:
    x = mamba_operands()
    attrs = dict(attrs)
    if attrs.pop("per channel", False):
        x["d"] = draw(4, V)
    x = {port: array for port, array in x.items() if port not in without}
    got = apply("mamba2", x, output_final_state=True, output_pre_gate=True, **attrs)
    assert ("O_pre" in got) == ("z" in x)
    for n, h in np.ndindex(N, 4):
        state = x["initial_state"][n, h].T if "initial_state" in x else np.zeros((K, V))
        for t in range(BOUNDS[n], BOUNDS[n + 1]):
            raw = x["g"][t, h] + (x["dt_bias"][h] if "dt_bias" in x else 0)
            dt = math.log1p(math.exp(raw)) if attrs.get("dt_softplus", True) else raw
            dt = min(max(dt, attrs.get("dt_min", 0.0)), attrs.get("dt_max", math.inf))
            b, c = x["k"][t, h // 2], x["q"][t, h // 2]
            state = math.exp(x["a"][h] * dt) * state + dt * np.outer(b, x["v"][t, h])
            y = c @ state
            if "d" in x:
                y = y + x["d"][h] * x["v"][t, h]
            if "z" in x:
                np.testing.assert_allclose(got["O_pre"][t, h], y, rtol=1e-12, atol=1e-13)
                y = y * x["z"][t, h] / (1 + np.exp(-x["z"][t, h]))
            np.testing.assert_allclose(got["O"][t, h], y, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(got["final_state"][n, h], state.T, rtol=1e-12, atol=1e-13)


def test_mamba2_summaries_compose() -> None:
    x = {**span(mamba_operands(), 0, 12), "initial_state": draw(1, 4, V, K)}
    x = {port: array for port, array in x.items() if port not in ("d", "z")}
    x["dO"] = draw(12, 4, V)
    whole = apply("mamba2", x, output_final_state=True)["final_state"]
    end = draw(1, 4, V, K)
    full = apply("mamba2_bwd", {**x, "d_final_state": end})["d_initial_state"]
    state, pieces = x["initial_state"], [span(x, 0, 7), span(x, 7, 12)]
    transition_of = []
    for piece in pieces:
        ports = ("k", "v", "g", "a", "cu_seqlens", "dt_bias")
        got = apply("mamba2_summary", {p: piece[p] for p in ports}, output_transition=True)
        assert got["transition"].shape == (1, 4)
        transition_of.append(got["transition"])
        state = np.exp2(got["transition"])[..., None, None] * state + got["final_state"]
    np.testing.assert_allclose(state, whole, rtol=1e-12, atol=1e-13)
    for piece, forward in zip(pieces[::-1], transition_of[::-1], strict=True):
        ports = ("q", "k", "g", "a", "cu_seqlens", "dO", "dt_bias")
        got = apply("mamba2_summary_bwd", {p: piece[p] for p in ports}, output_transition=True)
        np.testing.assert_allclose(got["transition"], forward, rtol=1e-13)
        end = np.exp2(got["transition"])[..., None, None] * end + got["d_initial_state"]
    np.testing.assert_allclose(end, full, rtol=1e-11, atol=1e-13)


def test_refusals() -> None:
    x = operands("gdn")
    with pytest.raises(InvalidGraphError, match=r"cu_seqlens: got \[0, 9, 5\], want ascending"):
        apply("gdn", {**x, "cu_seqlens": np.array([0, 9, 5])})
    with pytest.raises(InvalidGraphError, match="k: got 12 rows, want 12 tokens of 2 updates"):
        apply("gdp", x, num_householder=2)
    with pytest.raises(InvalidGraphError, match="state_checkpoints: got 2 rows, want at least 4"):
        apply("gdn", x, checkpoint_every_n_tokens=4, wanted={"state_checkpoints": (2, 4, V, K)})
