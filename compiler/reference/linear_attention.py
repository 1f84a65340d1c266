"""The gated delta rules, forward: `gdn`, `kda`, `gdn2`, `gdp`, and their piece summaries.

Per token (`linear_scan` has the recurrence, `linear_gates` what becomes of the operands)::

    gdn   S = alpha S (I - beta k k^T) + beta v k^T                 alpha, beta: a number for a head
    kda   S = S diag(alpha) (I - beta k k^T) + beta v k^T           alpha: one for each key channel
    gdn2  S = S diag(alpha) (I - (beta * k) k^T) + (w * v) k^T      beta by key, w by value channel
    gdp   num_householder updates of gdn for one token: the decay before the first, o after the last
    o = scale * S q, where scale is 1 / sqrt(K) unless given

with q, k ``[T, H, K]``, v ``[T, HV, V]``, results and states at ``HO = max(H, HV)`` heads, states
``[N, HO, V, K]`` from ``initial_state`` or 0. ``state_checkpoints`` has, for each sequence in
order, the state before every token whose number is a multiple of ``checkpoint_every_n_tokens`` (the
first of them, then, is the initial state; `gdp` counts updates), and zeros in the rows that are
left.
``state_indices`` makes ``initial_state`` a pool: sequence i reads and leaves row
``state_indices[i]``, and ``final_state`` is the whole pool with the other rows as they were.

A summary is what a piece of a sequence does to the state: its last state, and the ``transition``
``M [N, HO, K, K]`` for which a state X becomes ``X @ M`` plus the last state from 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cudnn_aot.compiler.reference.call import Array, Call, Reference, Results, in_rows
from cudnn_aot.compiler.reference.linear_gates import (
    Gate,
    gate,
    guarded,
    normalised,
    strength,
    to_heads,
)
from cudnn_aot.compiler.reference.linear_scan import Rows, scan, sequences, transition


@dataclass(frozen=True, slots=True)
class Prepared:
    """A node's operands as rows of the recurrence, and what its gradients need of the way there.

    Attributes:
        rows: one for each update (a token has `updates` of them).
        k, beta, write: normalised key, effective erase gate, write gate, at every head.
        v: values at every head.
        by_beta: derivative of the effective gate by the given one.
    """

    rows: Rows
    gate: Gate
    updates: int
    heads: int
    scale: float
    k: Array
    beta: Array
    by_beta: Array
    write: Array
    v: Array


def family_of(call: Call) -> str:
    """``gdn`` for ``gdn_summary_bwd``, and so on."""
    return call.op.split("_")[0]


def updates_of(call: Call) -> int:
    return int(call.attr("num_householder", 1)) if family_of(call) == "gdp" else 1


def flat(x: Array, trailing: int) -> Array:
    """Rows of updates from either form: ``[T * n, ...]`` or token-major ``[T, n, ...]``."""
    if x.ndim == trailing + 2:
        return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
    return x


def _columns(x: Array) -> Array:
    """A number for a head as one channel."""
    return x[..., None] if x.ndim == 2 else x


def prepare(call: Call) -> Prepared:
    """Operands of a node of any delta rule; ports that a summary lacks count as 0."""
    family, updates = family_of(call), updates_of(call)
    k = flat(call["k"], 2)
    gates = gate(call, family)
    heads = gates.decay.shape[1]
    tokens, total = len(gates.decay), len(k)
    if total != tokens * updates:
        raise call.refuse(f"k: got {total} rows, want {tokens} tokens of {updates} updates")
    beta, by_beta = strength(call, _columns(flat(call["beta"], 2 if family == "gdn2" else 1)))
    keys = to_heads(normalised(call, k), heads)
    decay = _columns(gates.decay)
    if family == "gdn2" and call.attr("beta_guard", False):
        beta = guarded(call, beta, keys, decay)
    v = call.get("v")
    values = np.zeros((total, heads, 0)) if v is None else to_heads(flat(v, 2), heads)
    write = call["w"] if "w" in call.inputs else beta
    if family == "gdn2" and "w" not in call.inputs:
        write = np.zeros((total, heads, values.shape[-1]))
    q, scale = call.get("q"), 0.0
    read = np.zeros((tokens, heads, keys.shape[-1]))
    if q is not None:
        scale = float(call.attr("scale", max(1, q.shape[-1]) ** -0.5))
        read = scale * to_heads(normalised(call, q), heads)
    rows = Rows(
        _spread(read, updates, updates - 1),
        keys,
        beta * keys,
        write * values,
        _spread(decay, updates, 0),
    )
    return Prepared(rows, gates, updates, heads, scale, keys, beta, by_beta, write, values)


def _spread(x: Array, updates: int, place: int) -> Array:
    """Rows of tokens among rows of updates, 0 at the other places."""
    if updates == 1:
        return x
    spread = np.zeros((len(x), updates, *x.shape[1:]))
    spread[:, place] = x
    return in_rows(spread, x.ndim - 1)


def first_states(call: Call, count: int, shape: tuple[int, ...], port: str) -> Array:
    """A state for each sequence ``[N, HO, V, K]`` from the port, or zeros."""
    given = call.get(port)
    if given is None:
        return np.zeros((count, *shape))
    if "state_indices" in call.inputs:
        return given[call.integers("state_indices").reshape(-1)]
    return given


def last_states(call: Call, states: Array) -> Array:
    """``final_state`` from a state for each sequence: themselves, or the pool that holds them."""
    if "state_indices" not in call.inputs:
        return states
    pool = call["initial_state"].copy()
    pool[call.integers("state_indices").reshape(-1)] = states
    return pool


def checkpoint_rows(call: Call, kept: list[Array], rows: int, count: int, every: int) -> Array:
    """The kept states as ``state_checkpoints``, zeros after them."""
    wanted = call.wanted.get("state_checkpoints")
    size = max(rows // every + count, 1)
    if wanted is not None and wanted.dim:
        size = wanted.dim[0]
    if len(kept) > size:
        raise call.refuse(f"state_checkpoints: got {size} rows, want at least {len(kept)}")
    result = np.zeros((size, *kept[0].shape)) if kept else np.zeros((size,))
    for row, state in enumerate(kept):
        result[row] = state
    return result


def run(call: Call, rows: Rows, updates: int) -> dict[str, Array]:
    """O, final_state and state_checkpoints of rows that are ready."""
    count = call["cu_seqlens"].size - 1
    shape = (rows.k.shape[1], rows.u.shape[-1], rows.k.shape[-1])
    states = first_states(call, count, shape, "initial_state").copy()
    every = int(call.attr("checkpoint_every_n_tokens", 0))
    out, kept = np.zeros(rows.u.shape), []
    for number, start, end in sequences(call, len(rows), updates):
        result = scan(rows.between(start, end), states[number], every)
        out[start:end], states[number] = result[0], result[1]
        kept += result[2]
    results = {"O": out[updates - 1 :: updates], "final_state": last_states(call, states)}
    if every:
        checkpoints = checkpoint_rows(call, kept, len(rows), count, every)
        results["state_checkpoints"] = checkpoints.reshape(len(checkpoints), *shape)
    return results


def _forward(call: Call) -> Results:
    prepared = prepare(call)
    return run(call, prepared.rows, prepared.updates)


def transitions(call: Call, rows: Rows, updates: int) -> Array:
    """``M`` of every sequence, ``[N, HO, K, K]``."""
    return np.stack(
        [
            transition(rows.between(start, end))
            for _, start, end in sequences(call, len(rows), updates)
        ]
    )


def _summary(call: Call) -> Results:
    prepared = prepare(call)
    results = {"final_state": run(call, prepared.rows, prepared.updates)["final_state"]}
    if call.attr("output_transition", False):
        results["transition"] = transitions(call, prepared.rows, prepared.updates)
    return results


REFERENCES: dict[str, Reference] = {
    name: reference
    for family in ("gdn", "kda", "gdn2", "gdp")
    for name, reference in ((family, _forward), (f"{family}_summary", _summary))
}
