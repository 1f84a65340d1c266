"""Mamba-2 (state space duality): the recurrence without erasing, all four ops.

In the vocabulary of the node q is C, k is B, v is x, g is the raw dt, a is A (negative)::

    dt = clamp(softplus(g + dt_bias), dt_min, dt_max)    without softplus: g + dt_bias
    S  = exp(a dt) S + dt x B^T        O_pre = S C + d x        O = O_pre * z sigmoid(z)

``d`` is a number for a head or one for each of its channels; without z, O is O_pre. No scale is
applied. Where the clamp is active, dt passes no gradient. A summary's ``transition`` ``[N, HO]`` is
the logarithm to base 2 of the product of a piece's decays, in both directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cudnn_aot.compiler.reference.call import (
    Array,
    Call,
    Reference,
    Results,
    sigmoid,
    softplus,
    summed_to,
)
from cudnn_aot.compiler.reference.linear_attention import run
from cudnn_aot.compiler.reference.linear_attention_backward import (
    run_backward,
    state_gradients,
)
from cudnn_aot.compiler.reference.linear_gates import from_heads, to_heads
from cudnn_aot.compiler.reference.linear_scan import Rows, sequences


@dataclass(frozen=True, slots=True)
class _Prepared:
    rows: Rows
    dt: Array  # [T, HO], after softplus and clamp
    by_g: Array


def _step(call: Call) -> tuple[Array, Array]:
    """dt and its derivative by the raw one."""
    g, bias = call["g"], call.get("dt_bias")
    raw = g if bias is None else g + bias
    dt, slope = raw, np.ones_like(raw)
    if call.attr("dt_softplus", True):
        dt, slope = softplus(raw), sigmoid(raw)
    low, high = call.attr("dt_min", 0.0), call.attr("dt_max", math.inf)
    return np.clip(dt, low, high), np.where((dt < low) | (dt > high), 0.0, slope)


def _prepare(call: Call) -> _Prepared:
    dt, by_g = _step(call)
    tokens, heads = dt.shape
    k = to_heads(call["k"], heads)
    q, x = call.get("q"), call.get("v")
    rows = Rows(
        np.zeros_like(k) if q is None else to_heads(q, heads),
        k,
        None,
        np.zeros((tokens, heads, 0)) if x is None else dt[..., None] * to_heads(x, heads),
        (dt * call["a"])[..., None],
    )
    return _Prepared(rows, dt, by_g)


def _skip(call: Call) -> Array | None:
    """d as ``[HO, 1]`` or ``[HO, V]``."""
    d = call.get("d")
    return d if d is None or d.ndim == 2 else d[:, None]


def _forward(call: Call) -> Results:
    prepared = _prepare(call)
    results = run(call, prepared.rows, 1)
    d, z = _skip(call), call.get("z")
    if d is not None:
        results["O"] = results["O"] + d * to_heads(call["v"], prepared.dt.shape[1])
    if z is not None:
        results["O_pre"] = results["O"]
        results["O"] = results["O_pre"] * z * sigmoid(z)
    return results


def _backward(call: Call) -> Results:
    """From the given O_pre where z is: a kernel does not compute it again."""
    prepared = _prepare(call)
    heads = prepared.dt.shape[1]
    d, z, d_pre = _skip(call), call.get("z"), call["dO"]
    results: dict[str, Array] = {}
    if z is not None:
        gate = sigmoid(z)
        results["dZ"] = d_pre * call["O_pre"] * gate * (1 + z * (1 - gate))
        d_pre = d_pre * z * gate
    inner = Call(call.op, {**call.inputs, "dO": d_pre}, call.attrs, call.wanted, call.declared)
    grads, d_states = run_backward(inner, prepared.rows, 1)
    x = to_heads(call["v"], heads)
    d_decay = grads.decay[..., 0]
    d_dt = (grads.u * x).sum(axis=-1) + d_decay * call["a"]
    d_x = grads.u * prepared.dt[..., None]
    if d is not None:
        d_x = d_x + d * d_pre
        results["dD"] = summed_to(d_pre * x, d.shape).reshape(call["d"].shape)
    results["dQ"] = from_heads(grads.q, call["q"].shape[1])
    results["dK"] = from_heads(grads.k, call["k"].shape[1])
    results["dV"] = from_heads(d_x, call["v"].shape[1])
    results["dG"] = d_dt * prepared.by_g
    results["dA"] = (d_decay * prepared.dt).sum(axis=0)
    if "dt_bias" in call.inputs:
        results["d_dt_bias"] = results["dG"].sum(axis=0)
    if "initial_state" in call.inputs:
        results["d_initial_state"] = d_states
    return results


def _transition(call: Call, prepared: _Prepared) -> Array:
    decay = prepared.rows.decay[..., 0]
    parts = [decay[start:end].sum(axis=0) for _, start, end in sequences(call, len(decay))]
    return np.stack(parts) / math.log(2)


def _summary(call: Call) -> Results:
    prepared = _prepare(call)
    results = {"final_state": run(call, prepared.rows, 1)["final_state"]}
    if call.attr("output_transition", False):
        results["transition"] = _transition(call, prepared)
    return results


def _summary_backward(call: Call) -> Results:
    prepared = _prepare(call)
    results = {"d_initial_state": state_gradients(call, prepared.rows, 1)}
    if call.attr("output_transition", False):
        results["transition"] = _transition(call, prepared)
    return results


REFERENCES: dict[str, Reference] = {
    "mamba2": _forward,
    "mamba2_bwd": _backward,
    "mamba2_summary": _summary,
    "mamba2_summary_bwd": _summary_backward,
}
