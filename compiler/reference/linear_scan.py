"""The recurrence behind every linear-attention op, and its transpose, one token at a time.

For one head, with the state as it is stored, ``S [V, K]``::

    S' = S * alpha            alpha a number or one for each key channel
    S  = S' + (u - S' e) k^T  erase along e, write u
    o  = S q

The delta rules have ``e = beta k`` and ``u = beta v``; Mamba-2 erases nothing. Sequences are packed
along the first axis, ``cu_seqlens`` being their boundaries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cudnn_aot.compiler.reference.call import Array, Call

_KEPT = 64  # tokens between the states that the transpose keeps; it computes the others again


@dataclass(frozen=True, slots=True)
class Rows:
    """What the recurrence reads of every token: arrays ``[rows, heads, ...]``.

    Attributes:
        q: read key ``[.., K]``, 0 where nothing is read.
        k: write key ``[.., K]``.
        e: erase key ``[.., K]``, or None for a rule that erases nothing.
        u: written value ``[.., V]``.
        decay: the natural logarithm of alpha, ``[.., K]`` or ``[.., 1]``.
    """

    q: Array
    k: Array
    e: Array | None
    u: Array
    decay: Array

    def between(self, start: int, end: int) -> Rows:
        part = slice(start, end)
        e = None if self.e is None else self.e[part]
        return Rows(self.q[part], self.k[part], e, self.u[part], self.decay[part])

    def __len__(self) -> int:
        return len(self.k)


def _times(matrix: Array, vector: Array) -> Array:
    """``[H, A, B] @ [H, B]``."""
    return np.asarray((matrix @ vector[..., None])[..., 0])


def _outer(left: Array, right: Array) -> Array:
    return left[..., :, None] * right[..., None, :]


def _step(rows: Rows, t: int, state: Array) -> Array:
    decayed = state * np.exp(rows.decay[t])[:, None, :]
    written = rows.u[t]
    if rows.e is not None:
        written = written - _times(decayed, rows.e[t])
    return decayed + _outer(written, rows.k[t])


def scan(rows: Rows, state: Array, every: int = 0) -> tuple[Array, Array, list[Array]]:
    """Outputs ``[rows, H, V]``, the last state, and with `every` the states before each token whose
    number in the sequence is a multiple of it.
    """
    out = np.zeros((len(rows), *state.shape[:2]))
    kept = []
    for t in range(len(rows)):
        if every and t % every == 0:
            kept.append(state.copy())  # the first is the caller's
        state = _step(rows, t, state)
        out[t] = _times(state, rows.q[t])
    return out, state, kept


def scan_backward(rows: Rows, state: Array, d_out: Array, d_state: Array) -> tuple[Rows, Array]:
    """The gradients of the rows and of the first state.

    Args:
        state: the first state.
        d_out: gradient of the outputs.
        d_state: gradient of the last state.
    """
    grads = Rows(
        np.zeros_like(rows.q),
        np.zeros_like(rows.k),
        None if rows.e is None else np.zeros_like(rows.e),
        np.zeros_like(rows.u),
        np.zeros_like(rows.decay),
    )
    _, _, kept = scan(rows, state, _KEPT)
    for start in reversed(range(0, len(rows), _KEPT)):
        states = [kept[start // _KEPT]]
        for t in range(start, min(start + _KEPT, len(rows))):
            states.append(_step(rows, t, states[-1]))
        for t in reversed(range(start, min(start + _KEPT, len(rows)))):
            before, after = states[t - start], states[t - start + 1]
            d_state = d_state + _outer(d_out[t], rows.q[t])
            grads.q[t] = _times(after.swapaxes(-1, -2), d_out[t])
            alpha = np.exp(rows.decay[t])
            decayed = before * alpha[:, None, :]
            written = rows.u[t]
            d_written = _times(d_state, rows.k[t])
            d_decayed = d_state
            if rows.e is not None and grads.e is not None:
                written = written - _times(decayed, rows.e[t])
                grads.e[t] = -_times(decayed.swapaxes(-1, -2), d_written)
                d_decayed = d_state - _outer(d_written, rows.e[t])
            grads.k[t] = _times(d_state.swapaxes(-1, -2), written)
            grads.u[t] = d_written
            by_channel = (d_decayed * decayed).sum(axis=-2)
            narrow = rows.decay.shape[-1] == 1
            grads.decay[t] = by_channel.sum(axis=-1, keepdims=True) if narrow else by_channel
            d_state = d_decayed * alpha[:, None, :]
    return grads, d_state


def scan_state_backward(rows: Rows, d_out: Array, d_state: Array) -> Array:
    """The gradient of the first state alone, which needs neither states nor what was written."""
    for t in reversed(range(len(rows))):
        d_state = d_state + _outer(d_out[t], rows.q[t])
        if rows.e is not None:
            d_state = d_state - _outer(_times(d_state, rows.k[t]), rows.e[t])
        d_state = d_state * np.exp(rows.decay[t])[:, None, :]
    return d_state


def transition(rows: Rows) -> Array:
    """``M [H, K, K]`` of a sequence: it takes a state X to ``X @ M`` plus what it writes."""
    heads, width = rows.k.shape[1:]
    silent = Rows(rows.q, rows.k, rows.e, np.zeros((len(rows), heads, width)), rows.decay)
    identity = np.broadcast_to(np.eye(width), (heads, width, width))
    return scan(silent, identity)[1]


def sequences(call: Call, rows: int, of_token: int = 1) -> Iterator[tuple[int, int, int]]:
    """(number, first row, end row) of every sequence; `of_token` rows make a token."""
    bounds = call.integers("cu_seqlens").reshape(-1) * of_token
    if len(bounds) < 1 or (np.diff(bounds) < 0).any() or bounds[0] < 0 or bounds[-1] > rows:
        raise call.refuse(
            f"cu_seqlens: got {(bounds // of_token).tolist()}, "
            f"want ascending token numbers of at most {rows // of_token}"
        )
    for number, (start, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        yield number, int(start), int(end)
