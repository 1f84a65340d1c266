"""Gradients of the linear-attention ops: differences of their forward ops, and torch."""

import numpy as np
import pytest
from finite_differences import along

from cudnn_aot.compiler.reference import linear_scan
from cudnn_aot.compiler.reference.call import Call
from cudnn_aot.compiler.reference.linear_attention import prepare
from cudnn_aot.compiler.reference.ops import apply

RNG = np.random.default_rng(29)
BOUNDS, T, N, K, V = [0, 4, 4, 9], 10, 3, 3, 2  # an empty sequence, and a token beyond the last


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def operands(family: str, updates: int = 1) -> dict[str, np.ndarray]:
    h_o, rows = 4, T * updates
    channels = () if family in ("gdn", "gdp") else (K,)
    result = {
        "q": draw(T, 2, K),
        "k": draw(rows, 2, K) / 2,
        "v": draw(rows, 4, V),
        "g": -np.abs(draw(T, h_o, *channels)) / 3 - 0.1,
        "beta": RNG.uniform(0.1, 0.9, (rows, h_o, K) if family == "gdn2" else (rows, h_o)),
        "cu_seqlens": np.array(BOUNDS),
        "initial_state": draw(N, h_o, V, K),
    }
    if family == "gdn2":
        result["w"] = RNG.uniform(0.1, 0.9, (rows, h_o, V))
    return result


SAFE = {"a_log": draw(4) / 2, "dt_bias": draw(4)}
SAFE_CHANNELS = {"a_log": draw(4) / 2, "dt_bias": draw(4, K)}

# family, extra operands, attributes
CASES = {
    "gdn": ("gdn", {}, {}),
    "gdn from zero": ("gdn", {"initial_state": None}, {"scale": 0.7}),
    "gdn normalised": ("gdn", {}, {"use_qk_l2norm": True}),
    "gdn linear": ("gdn", {}, {"gate_domain": "linear"}),
    "gdn safe": ("gdn", SAFE, {"safe_gate": True, "use_beta_sigmoid": True}),
    "gdn safe without parameters": ("gdn", {}, {"safe_gate": True}),
    "gdn reflecting": ("gdn", {}, {"use_beta_sigmoid": True, "allow_neg_eigval": True}),
    "kda": ("kda", {}, {}),
    "kda linear": ("kda", {}, {"gate_domain": "linear", "use_qk_l2norm": True}),
    "kda safe": ("kda", SAFE_CHANNELS, {"safe_gate": True}),
    "kda bounded": ("kda", SAFE_CHANNELS, {"safe_gate": True, "gate_lower_bound": -1.0}),
    "gdn2": ("gdn2", {}, {}),
    "gdn2 all": (
        "gdn2",
        SAFE_CHANNELS,
        {"safe_gate": True, "use_beta_sigmoid": True, "use_qk_l2norm": True},
    ),
    "gdp": ("gdp", {}, {"num_householder": 2}),
    "gdp safe": (
        "gdp",
        SAFE,
        {"num_householder": 3, "safe_gate": True, "use_beta_sigmoid": True, "use_qk_l2norm": True},
    ),
}

GRADIENTS = {
    "q": "dQ",
    "k": "dK",
    "v": "dV",
    "g": "dG",
    "beta": "dBeta",
    "w": "dW",
    "a": "dA",
    "d": "dD",
    "z": "dZ",
    "initial_state": "d_initial_state",
    "a_log": "d_a_log",
    "dt_bias": "d_dt_bias",
}


def check(family: str, x: dict, attrs: dict, saved: tuple[str, ...] = ()) -> None:
    """Every gradient of ``<dO, O> + <d_final_state, final_state>`` against differences."""
    forward = apply(family, x, **attrs)
    d_o, d_state = draw(*forward["O"].shape), draw(*forward["final_state"].shape)
    d_o[BOUNDS[-1] :] = 0  # outputs beyond the last sequence are nobody's

    def loss(at: dict) -> float:
        results = apply(family, at, **attrs)
        return float((d_o * results["O"]).sum() + (d_state * results["final_state"]).sum())

    inputs = {**x, "dO": d_o, "d_final_state": d_state, **{port: forward[port] for port in saved}}
    got = apply(f"{family}_bwd", inputs, **attrs)
    assert set(got) == {GRADIENTS[port] for port in x if port in GRADIENTS}
    for port, gradient in GRADIENTS.items():
        if port not in x:
            continue
        assert got[gradient].shape == x[port].shape, gradient
        for _ in range(2):
            direction = draw(*x[port].shape)
            want = along(loss, x, {port: direction})
            value = (got[gradient] * direction).sum()
            assert value == pytest.approx(want, rel=2e-7, abs=1e-8), gradient


@pytest.mark.parametrize("name", CASES)
def test_gradients_agree_with_differences(name: str) -> None:
    family, extra, attrs = CASES[name]
    x = {**operands(family, attrs.get("num_householder", 1)), **extra}
    if attrs.get("gate_domain") == "linear":
        x["g"] = np.exp(x["g"])
    if attrs.get("safe_gate"):
        x["g"] = draw(*x["g"].shape)
    check(family, {port: array for port, array in x.items() if array is not None}, attrs)


def test_gradients_of_token_major_operands() -> None:
    x = operands("gdp", 2)
    major = {
        p: a.reshape(T, 2, *a.shape[1:]) if p in ("k", "v", "beta") else a for p, a in x.items()
    }
    check("gdp", major, {"num_householder": 2})


def test_a_long_sequence_computes_states_again_in_pieces(monkeypatch) -> None:
    x = operands("kda")
    inputs = {**x, "dO": draw(T, 4, V)}
    want = apply("kda_bwd", inputs)
    monkeypatch.setattr(linear_scan, "_KEPT", 3)
    got = apply("kda_bwd", inputs)
    assert all(np.array_equal(got[port], want[port]) for port in want)


def test_the_guard_passes_gradients_straight_through() -> None:
    x = operands("gdn2")
    x["beta"] = RNG.uniform(0, 1.8, x["beta"].shape)
    attrs = {"beta_guard": True, "use_qk_l2norm": True}
    inputs = {**x, "dO": draw(T, 4, V)}
    got = apply("gdn2_bwd", inputs, **attrs)
    # The gradients are those at the guarded gates, taken as given ones.
    beta = prepare(Call("gdn2_bwd", inputs, attrs)).beta
    assert not np.array_equal(beta, x["beta"])
    want = apply("gdn2_bwd", {**inputs, "beta": beta}, use_qk_l2norm=True)
    for port in want:
        np.testing.assert_allclose(got[port], want[port], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("attrs", "without", "per_channel"),
    [
        ({}, (), False),
        ({}, (), True),
        ({}, ("z", "d", "dt_bias", "initial_state"), False),
        ({"dt_min": 0.4, "dt_max": 1.1}, (), False),
        ({"dt_softplus": False}, ("z",), False),
    ],
)
def test_mamba2_gradients_agree_with_differences(attrs, without, per_channel) -> None:
    x = {
        "q": draw(T, 2, K),
        "k": draw(T, 2, K),
        "v": draw(T, 4, V),
        "g": draw(T, 4),
        "a": -np.abs(draw(4)),
        "cu_seqlens": np.array(BOUNDS),
        "initial_state": draw(N, 4, V, K),
        "dt_bias": draw(4),
        "d": draw(4, V) if per_channel else draw(4),
        "z": draw(T, 4, V),
    }
    x = {port: array for port, array in x.items() if port not in without}
    check("mamba2", x, attrs, saved=("O_pre",) if "z" in x else ())


def test_gradients_agree_with_torch(torch_answer) -> None:
    """Another implementation of both passes: torch's autograd through a token loop."""
    x = operands("kda")
    d_o = draw(T, 4, V)
    d_o[BOUNDS[-1] :] = 0
    ports = [port for port in x if port != "cu_seqlens"]

    def gradients(torch, d_o, *arrays):
        leaves = {p: leaf.requires_grad_() for p, leaf in zip(ports, arrays, strict=True)}
        loss = torch.zeros((), dtype=torch.float64)
        for n, (start, end) in enumerate(zip(BOUNDS, BOUNDS[1:], strict=False)):
            state = leaves["initial_state"][n]
            for t in range(start, end):
                k = leaves["k"][t].repeat_interleave(2, 0)
                q = leaves["q"][t].repeat_interleave(2, 0) * K**-0.5
                state = state * leaves["g"][t].exp()[:, None, :]
                delta = leaves["v"][t] - torch.einsum("hvk,hk->hv", state, k)
                state = state + torch.einsum("h,hv,hk->hvk", leaves["beta"][t], delta, k)
                loss = loss + (torch.einsum("hvk,hk->hv", state, q) * d_o[t]).sum()
        return torch.autograd.grad(loss, tuple(leaves.values()))

    got = apply("kda_bwd", {**x, "dO": d_o})
    wanted = torch_answer(gradients, d_o, *(x[port] for port in ports))
    for port, want in zip(ports, wanted, strict=True):
        np.testing.assert_allclose(got[GRADIENTS[port]], want, rtol=1e-11, atol=1e-13)
