"""Gradients of scaled dot product attention, one head at a time, from the forward op's statistics.

The masks and conventions are those of `attention`. Probabilities are computed again from q, k and
the given Stats, and ``rowsum(dO * o)`` from the given o: a backward op is a function of what it is
given, whether or not its forward op gave it.
"""

from __future__ import annotations

import numpy as np

from cudnn_aot.compiler.reference.attention import Problem, part, problem_of
from cudnn_aot.compiler.reference.call import Array, Call, Declared, Reference, Results, summed_to


def _sdpa_backward(call: Call) -> Results:
    problem = problem_of(call, call["q"], call["k"], call["v"])
    bias_dim = call.wanted.get("dBias", Declared()).dim
    if call.wants("rng_dump"):
        raise call.refuse("rng_dump shows the library's own random numbers")
    rows = (call["o"] * call["dO"]).sum(axis=-1, keepdims=True)
    results, _ = backward(problem, rows, call["dO"], call["stats"], bias_dim)
    return results


def backward(
    problem: Problem,
    rows: Array,
    grad: Array,
    stats: Array,
    bias_dim: tuple[int, ...] = (),
    factors: tuple[float, float] = (1.0, 1.0),
    others: tuple[Array, Array, Array] | None = None,
) -> tuple[dict[str, Array], float]:
    """dQ, dK, dV, dBias and dSink_token; and the largest ``|dS|``.

    The probabilities come from the given `stats` (natural), which hold the sink::

        p = exp(s - stats)      dV = (p * dropout)^T dO     dP = (dO v^T) * dropout
        dS = p * (dP - rows)       dBias = sum dS          dSink = -sum exp(sink - stats) * rows
        dQ = attn_scale dS k    dK = attn_scale dS^T q

    Args:
        rows: ``rowsum(dO * o)``, ``[B, H, S_q, 1]``.
        grad: dO.
        bias_dim: extents of the bias gradient, which is summed to them; () for none.
        factors: what p and dS are multiplied by before the products (an 8-bit kernel's scale times
            descale, 1 unless they are not each other's inverse).
        others: q, k and dO as the products dS^T q, dS k and p^T dO take them (an MXFP8 node has
            them quantized along the other axis); the operands themselves by default.
    """
    q, k, v, masks = problem.q, problem.k, problem.v, problem.masks
    other_q, other_k, other_grad = others or (q, k, grad)
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    dbias = np.zeros(bias_dim) if bias_dim else None
    dsink = np.zeros((1, q.shape[1], 1, 1))
    largest = 0.0
    for b, h in problem.heads:
        base = np.where(np.isneginf(stats[b, h]), np.inf, stats[b, h])  # exp(s - inf) is 0
        p = np.exp(problem.scores(b, h) - base)
        row = rows[b, h]
        dp = problem.dropped(b, h, grad[b, h] @ v[b, problem.of_v(h)].T)
        ds = p * (dp - row)
        if dbias is not None:
            target = part(dbias, b, h)
            target += summed_to(ds, target.shape)
        if masks.sink is not None:
            exists = np.arange(q.shape[2])[:, None] < masks.lengths_q[b]
            dsink[0, h] -= (np.exp(masks.sink[h] - base) * row * exists).sum()
        ds = problem.scale * ds
        largest = max(largest, float(np.abs(ds).max(initial=0.0)))
        dv[b, problem.of_v(h)] += factors[0] * problem.dropped(b, h, p).T @ other_grad[b, h]
        dq[b, h] = factors[1] * ds @ other_k[b, problem.of_k(h)]
        dk[b, problem.of_k(h)] += factors[1] * ds.T @ other_q[b, h]
    results: dict[str, Array] = {"dQ": dq, "dK": dk, "dV": dv}
    if dbias is not None:
        results["dBias"] = dbias
    if masks.sink is not None:
        results["dSink_token"] = dsink
    return results, largest


REFERENCES: dict[str, Reference] = {"sdpa_backward": _sdpa_backward}
