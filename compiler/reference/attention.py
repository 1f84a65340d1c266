"""Scaled dot product attention, one head at a time: scores, masks, softmax, output.

For batch b and head h of q ``[B, H, S_q, D]``, k ``[B, H_k, S_kv, D]``, v ``[B, H_v, S_kv, D_v]``
(head h reads k's head ``h // (H / H_k)``, v's likewise)::

    s = attn_scale * q k^T + bias + alibi        -inf where masked
    stats = log(sum_j exp(s_j) + exp(sink))      p = exp(s - stats)      O = (p * dropout) v

Rules, as the cuDNN frontend's documentation and own test references state them:

- a query row i attends to key j iff ``i + shift - left < j <= i + shift + right``, for the bounds
  that are set; ``shift`` is 0 for TOP_LEFT and ``kv length - q length`` (of the batch, under the
  padding mask) for BOTTOM_RIGHT. The causal flags mean their alignment and, where no right
  bound is given, one of 0.
- alibi adds ``slope_h * (j - i)``, the slopes of Press et al. for H heads.
- padding: keys from the batch's kv length on are masked, query rows from its q length on are not
  there: O 0 and Stats -inf, which the cuDNN frontend leaves unspecified.
- a row without any key, and without a sink, gives O 0 and Stats -inf.
- ``score_max`` is the row's largest score, ``score_sum_exp`` the sum of exponentials relative to
  it, the sink included in both.
- dropout takes an explicit ``(mask, scale)``: p is multiplied by both. From a seed it would need
  the library's own random numbers: refused.
- with ``attn_scale_prefolded`` q holds ``attn_scale * log2(e)``: a score is ``ln(2) * q k^T``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudnn_aot.compiler.reference.call import Array, Call, Reference, Results

_TILE = 128  # of block_mask, in both directions


@dataclass(frozen=True, slots=True)
class Masks:
    """What is added to or taken from the scores of a head.

    Attributes:
        lengths_q, lengths_kv: rows that exist, by batch; all of them without a padding mask.
        left, right: bounds of the diagonal band, None for none.
        is_bottom_right: where the band's diagonal starts.
        bias: added to the scores, broadcast from ``[B, H, S_q, S_kv]``.
        slopes: alibi slope by head.
        tiles: which tiles of 128 x 128 are computed, ``[B, H, rows, columns]``.
        keys: which keys exist, broadcast from ``[B, 1, 1, S_kv]``.
        sink: a score by head that takes weight and gives no value.
        dropout: multiplies the probabilities, broadcast from ``[B, H, S_q, S_kv]``.
    """

    lengths_q: np.ndarray[Any, np.dtype[np.int64]]
    lengths_kv: np.ndarray[Any, np.dtype[np.int64]]
    left: int | None = None
    right: int | None = None
    is_bottom_right: bool = False
    bias: Array | None = None
    slopes: Array | None = None
    tiles: Array | None = None
    keys: Array | None = None
    sink: Array | None = None
    dropout: Array | None = None

    def allowed(self, batch: int, head: int, rows: int, columns: int) -> Array:
        """Which keys each query row attends to, as booleans ``[rows, columns]``."""
        i, j = np.ogrid[:rows, :columns]
        shift = 0
        if self.is_bottom_right:
            shift = int(self.lengths_kv[batch] - self.lengths_q[batch])
        allowed = (i < self.lengths_q[batch]) & (j < self.lengths_kv[batch])
        if self.right is not None:
            allowed = allowed & (j <= i + shift + self.right)
        if self.left is not None:
            allowed = allowed & (j > i + shift - self.left)
        if self.keys is not None:
            allowed = allowed & (part(self.keys, batch, 0) != 0)
        if self.tiles is not None:
            tiles = np.repeat(part(self.tiles, batch, head), _TILE, axis=0)
            allowed = allowed & np.repeat(tiles, _TILE, axis=1)[:rows, :columns]
        return np.asarray(allowed)

    def masked(self, batch: int, head: int, scores: Array) -> Array:
        """The scores of a head with everything added, -inf where masked."""
        if self.bias is not None:
            scores = scores + part(self.bias, batch, head)
        if self.slopes is not None:
            i, j = np.ogrid[: scores.shape[0], : scores.shape[1]]
            scores = scores + self.slopes[head] * (j - i)
        return np.where(self.allowed(batch, head, *scores.shape), scores, -np.inf)


def part(values: Array, batch: int, head: int) -> Array:
    """The last two axes of ``[B, H, ...]`` at a batch and head, where B and H may be 1."""
    return np.asarray(
        values[batch if values.shape[0] > 1 else 0, head if values.shape[1] > 1 else 0]
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """Operands of an attention node, dequantized, and its masks.

    ``scale`` multiplies ``q k^T``; k and v have their own numbers of heads.
    """

    q: Array
    k: Array
    v: Array
    scale: float
    masks: Masks

    @property
    def heads(self) -> list[tuple[int, int]]:
        return [(b, h) for b in range(self.q.shape[0]) for h in range(self.q.shape[1])]

    def of_k(self, head: int) -> int:
        return head * self.k.shape[1] // self.q.shape[1]

    def of_v(self, head: int) -> int:
        return head * self.v.shape[1] // self.q.shape[1]

    def scores(self, batch: int, head: int) -> Array:
        product = self.q[batch, head] @ self.k[batch, self.of_k(head)].T
        return self.masks.masked(batch, head, self.scale * product)

    def dropped(self, batch: int, head: int, probabilities: Array) -> Array:
        dropout = self.masks.dropout
        return probabilities if dropout is None else probabilities * part(dropout, batch, head)


def alibi_slopes(heads: int) -> Array:
    """``2 ** (-8 i / n)`` for the n = largest power of two heads; then of 2n every other one."""
    n = 1 << heads.bit_length() >> 1
    slopes = [2.0 ** (-8.0 * i / n) for i in range(1, n + 1)]
    slopes += [2.0 ** (-4.0 * i / n) for i in range(1, 2 * (heads - n), 2)]
    return np.array(slopes)


_LEFT = ("diagonal_band_left_bound", "left_bound", "sliding_window_length", "sliding_window")
_RIGHT = ("diagonal_band_right_bound", "right_bound")


def _band(call: Call) -> dict[str, Any]:
    """The diagonal band out of the ops' several keywords for it."""
    left = right = None
    for name in _LEFT:
        left = call.attr(name) if left is None else left
    for name in _RIGHT:
        right = call.attr(name) if right is None else right
    is_bottom_right = call.choice("diagonal_alignment", "TOP_LEFT") == "BOTTOM_RIGHT"
    is_causal_bottom_right = call.attr("use_causal_mask_bottom_right", False)
    if is_causal_bottom_right or call.attr("use_causal_mask", False):
        right, is_bottom_right = 0 if right is None else right, is_causal_bottom_right
    return {"left": left, "right": right, "is_bottom_right": is_bottom_right}


def _lengths(call: Call, side: str, batches: int, rows: int) -> np.ndarray[Any, Any]:
    lengths = np.full(batches, rows, np.int64)
    if call.attr("use_padding_mask", False):
        if f"seq_len_{side}" in call.inputs:
            lengths = call.integers(f"seq_len_{side}").reshape(-1)
        elif f"cu_seq_len_{side}" in call.inputs:
            lengths = np.diff(call.integers(f"cu_seq_len_{side}").reshape(-1))
    if lengths.shape != (batches,) or (lengths < 0).any() or (lengths > rows).any():
        raise call.refuse(
            f"sequence lengths of {side}: got {lengths.tolist()}, want {batches} from 0 to {rows}"
        )
    return lengths


def _dropout(call: Call) -> Array | None:
    probability = call.attr("dropout_0")
    if probability is not None:
        if probability == 0:
            return None
        raise call.refuse(
            f"dropout with probability {probability} from a seed, want an explicit (mask, scale)"
        )
    mask = call.get("dropout_0")
    return None if mask is None else mask * call.scalar("dropout_1", 1.0)


def _tiles(call: Call) -> Array | None:
    """``block_mask`` holds bits: bit c % 8 of byte c // 8 says whether tile column c is there."""
    words = call.get("block_mask")
    if words is None:
        return None
    bits = np.unpackbits(words.astype(np.uint8), axis=-1, bitorder="little")
    return np.asarray(bits, bool)


def masks_of(call: Call, batches: int, heads: int, rows: int, columns: int) -> Masks:
    """The masks of a node of any attention op."""
    for callback in ("score_mod", "score_mod_bprop", "fn"):
        if call.attr(callback) is not None:
            raise call.refuse(f"{callback} is a function of the caller, which has no reference")
    sink = call.get("sink_token")
    return Masks(
        _lengths(call, "q", batches, rows),
        _lengths(call, "kv", batches, columns),
        **_band(call),
        bias=call.get("bias"),
        slopes=alibi_slopes(heads) if call.attr("use_alibi_mask", False) else None,
        tiles=_tiles(call),
        keys=call.get("kv_mask"),
        sink=None if sink is None else np.broadcast_to(sink.reshape(-1), (heads,)),
        dropout=_dropout(call),
    )


def scale_of(call: Call) -> float:
    """``attn_scale``, a number or a tensor, 1 without."""
    if call.attr("attn_scale_prefolded", False):
        return math.log(2)
    return call.scalar("attn_scale", call.attr("attn_scale", 1.0))


def gathered(call: Call, side: str, pool: Array) -> Array:
    """K or V ``[B, H, S_kv, D]`` out of a pool of pages ``[pages, H, page size, D]``.

    ``paged_attention_<k|v>_table`` ``[B, 1, n, 1]`` names the pages of each batch in order. A
    number that is no page stands beyond the batch's length; it reads page 0, which the mask hides.
    """
    if f"paged_attention_{side}_table" not in call.inputs:
        return pool
    table = call.integers(f"paged_attention_{side}_table")
    table = table.reshape(table.shape[0], -1)
    table = np.where((table >= 0) & (table < pool.shape[0]), table, 0)
    pages = pool[table]  # [B, n, H, page size, D]
    joined = pages.transpose(0, 2, 1, 3, 4).reshape(
        table.shape[0], pool.shape[1], table.shape[1] * pool.shape[2], pool.shape[3]
    )
    limit = call.attr("paged_attention_max_seq_len_kv")
    return joined if limit is None else joined[:, :, : int(limit)]


def forward(problem: Problem, probability_scale: float = 1.0) -> dict[str, Array]:
    """O, Stats, score_max and score_sum_exp, and the largest probability as ``Amax_S``."""
    q, v, masks = problem.q, problem.v, problem.masks
    result = np.zeros((*q.shape[:-1], v.shape[-1]))
    top, total, stats = (np.full((*q.shape[:-1], 1), -np.inf) for _ in range(3))
    total[...] = 0.0
    largest = 0.0
    for b, h in problem.heads:
        scores = problem.scores(b, h)
        highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        exists = np.arange(q.shape[2])[:, None] < masks.lengths_q[b]
        sink = None if masks.sink is None else np.where(exists, masks.sink[h], -np.inf)
        if sink is not None:
            highest = np.maximum(highest, sink)
        base = np.where(np.isneginf(highest), 0.0, highest)
        exponentials = np.exp(scores - base)
        summed = exponentials.sum(axis=-1, keepdims=True)
        if sink is not None:
            summed = summed + np.exp(sink - base)
        p = problem.dropped(b, h, exponentials / np.where(summed == 0, 1.0, summed))
        largest = max(largest, float(np.abs(p).max(initial=0.0)))
        result[b, h] = probability_scale * (p @ v[b, problem.of_v(h)])
        top[b, h], total[b, h] = highest, summed
        stats[b, h] = base + np.log(summed)
    return {
        "O": result,
        "Stats": stats,
        "score_max": top,
        "score_sum_exp": total,
        "Amax_S": np.full((1, 1, 1, 1), largest),
    }


def stats_base(call: Call, stats: Array) -> Array:
    """Statistics in the base that the node asks for."""
    return stats / math.log(2) if call.attr("stats_use_log2", False) else stats


def problem_of(call: Call, q: Array, k: Array, v: Array) -> Problem:
    """The problem of a node whose q, k and v are these, pages already gathered."""
    for name, x in (("k", k), ("v", v)):
        if q.shape[1] % (x.shape[1] or q.shape[1] + 1):  # no heads divide no heads alone
            raise call.refuse(f"heads of {name}: got {x.shape[1]}, want a divisor of {q.shape[1]}")
    columns = min(k.shape[2], v.shape[2])
    masks = masks_of(call, q.shape[0], q.shape[1], q.shape[2], columns)
    return Problem(q, k[:, :, :columns], v[:, :, :columns], scale_of(call), masks)


def _sdpa(call: Call) -> Results:
    k, v = gathered(call, "k", call["k"]), gathered(call, "v", call["v"])
    results = forward(problem_of(call, call["q"], k, v))
    del results["Amax_S"]
    results["Stats"] = stats_base(call, results["Stats"])
    if call.wants("rng_dump"):
        raise call.refuse("rng_dump shows the library's own random numbers")
    return results


REFERENCES: dict[str, Reference] = {"sdpa": _sdpa}
