"""The gated delta rules, backward: the transposed recurrence, then every gate's derivative.

Gradients are of the operands as given: of raw gates under ``safe_gate`` and ``use_beta_sigmoid``,
of alpha in the linear domain, of q and k before ``use_qk_l2norm``. ``state_checkpoints`` only saves
a kernel work, and is not read. A backward summary is the gradient of a piece's first state, from
``d_final_state`` or 0, and the transposed ``transition``: ``dX @ M^T`` plus that from 0.
"""

from __future__ import annotations

import numpy as np

from cudnn_aot.compiler.reference.call import Array, Call, Reference, Results, in_rows
from cudnn_aot.compiler.reference.linear_attention import (
    Prepared,
    family_of,
    first_states,
    prepare,
    transitions,
)
from cudnn_aot.compiler.reference.linear_gates import from_heads, normalised_backward
from cudnn_aot.compiler.reference.linear_scan import (
    Rows,
    scan_backward,
    scan_state_backward,
    sequences,
)


def spread_gradient(call: Call, rows: int, updates: int) -> Array:
    """dO as rows of updates: it is of the last one of each token."""
    d_o = call["dO"]
    spread = np.zeros((rows, *d_o.shape[1:]))
    spread[updates - 1 :: updates] = d_o
    return spread


def run_backward(call: Call, rows: Rows, updates: int) -> tuple[Rows, Array]:
    """Gradients of all rows, and of the first state of each sequence."""
    count = call["cu_seqlens"].size - 1
    shape = (rows.k.shape[1], rows.u.shape[-1], rows.k.shape[-1])
    states = first_states(call, count, shape, "initial_state")
    d_states = first_states(call, count, shape, "d_final_state").copy()
    d_out = spread_gradient(call, len(rows), updates)
    grads = Rows(
        np.zeros_like(rows.q),
        np.zeros_like(rows.k),
        None if rows.e is None else np.zeros_like(rows.e),
        np.zeros_like(rows.u),
        np.zeros_like(rows.decay),
    )
    for number, start, end in sequences(call, len(rows), updates):
        part, d_states[number] = scan_backward(
            rows.between(start, end), states[number], d_out[start:end], d_states[number]
        )
        grads.q[start:end], grads.k[start:end], grads.u[start:end] = part.q, part.k, part.u
        grads.decay[start:end] = part.decay
        if grads.e is not None and part.e is not None:
            grads.e[start:end] = part.e
    return grads, d_states


def _like(call: Call, port: str, grad: Array) -> Array:
    """A gradient in the operand's own form (token-major, or a number for a head)."""
    return grad.reshape(call[port].shape)


def _backward(call: Call) -> Results:
    prepared = prepare(call)
    grads, d_states = run_backward(call, prepared.rows, prepared.updates)
    assert grads.e is not None
    updates = prepared.updates
    results = {"dQ": _query_gradient(call, prepared, grads.q[updates - 1 :: updates])}
    results |= _write_gradients(call, prepared, grads)
    d_decay = grads.decay[::updates]
    results |= prepared.gate.gradients(call, d_decay.reshape(prepared.gate.decay.shape))
    if "initial_state" in call.inputs:
        results["d_initial_state"] = d_states
    return results


def _query_gradient(call: Call, prepared: Prepared, grad: Array) -> Array:
    q = call["q"]
    return normalised_backward(call, q, prepared.scale * from_heads(grad, q.shape[1]))


def _write_gradients(call: Call, prepared: Prepared, grads: Rows) -> dict[str, Array]:
    """dK, dV, dBeta and dW from those of the erase key ``beta k`` and of the written value."""
    assert grads.e is not None
    k, v = call["k"], call["v"]
    d_beta, d_write = grads.e * prepared.k, grads.u * prepared.v
    d_key = from_heads(grads.k + grads.e * prepared.beta, k.shape[-2])
    d_value = from_heads(grads.u * prepared.write, v.shape[-2])
    results = {}
    if family_of(call) == "gdn2":
        results["dW"] = d_write
    else:
        d_beta = (d_beta.sum(axis=-1) + d_write.sum(axis=-1))[..., None]
    rows = in_rows(k, 2)
    results["dK"] = _like(call, "k", normalised_backward(call, rows, d_key))
    results["dV"] = _like(call, "v", d_value)
    results["dBeta"] = _like(call, "beta", d_beta * prepared.by_beta)
    return results


def _summary_backward(call: Call) -> Results:
    prepared = prepare(call)
    rows, updates = prepared.rows, prepared.updates
    results = {"d_initial_state": state_gradients(call, rows, updates)}
    if call.attr("output_transition", False):
        results["transition"] = transitions(call, rows, updates).swapaxes(-1, -2)
    return results


def state_gradients(call: Call, rows: Rows, updates: int) -> Array:
    """The gradient of every sequence's first state."""
    count = call["cu_seqlens"].size - 1
    shape = (rows.k.shape[1], call["dO"].shape[-1], rows.k.shape[-1])
    d_states = first_states(call, count, shape, "d_final_state").copy()
    d_out = spread_gradient(call, len(rows), updates)
    for number, start, end in sequences(call, len(rows), updates):
        d_states[number] = scan_state_backward(
            rows.between(start, end), d_out[start:end], d_states[number]
        )
    return d_states


REFERENCES: dict[str, Reference] = {
    name: reference
    for family in ("gdn", "kda", "gdn2", "gdp")
    for name, reference in (
        (f"{family}_bwd", _backward),
        (f"{family}_summary_bwd", _summary_backward),
    )
}
