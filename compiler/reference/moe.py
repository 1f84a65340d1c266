"""Grouped matrix products of a mixture of experts.

Rows of ``token`` ``[1, rows, K]`` lie in groups that ``first_token_offset`` delimits (starts, or
starts and the end), and group g multiplies by ``weight[g % experts]`` ``[K, N]``:

- ``NONE``: output row r is routed row r;
- ``GATHER``: routed row r reads token ``token_index[r]``;
- ``SCATTER``: routed row r goes to output row ``token_index[r] * top_k + token_ks[r]``;
- ``COMBINE``: output row t is the sum over the routed rows r of token t (``token_index[r] == t``)
  of ``top_k_scores[t, token_ks[r]]`` times r's product.

An output row that no routed row reaches is unspecified in the cuDNN frontend; here it is 0.
"""

from __future__ import annotations

import numpy as np

from cudnn_aot.compiler.reference.call import Array, Call, Reference, Results, in_rows
from cudnn_aot.compiler.reference.groups import boundaries, group_count
from cudnn_aot.compiler.reference.matmul import matmul


def _rows(call: Call, port: str, rows: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    index = call.integers(port).reshape(-1)
    if len(index) != rows:
        raise call.refuse(f"{port}: got {len(index)} rows, want {rows}")
    return index


def _in_range(call: Call, port: str, index: Array, limit: int) -> None:
    if index.size and (index.min() < 0 or index.max() >= limit):
        raise call.refuse(
            f"{port}: got {index.min()} to {index.max()}, want row numbers below {limit}"
        )


def _grouped_matmul(call: Call) -> Results:
    mode, weight = call.choice("mode", "NONE"), np.asarray(call.inputs["weight"])
    token = in_rows(call["token"])
    offsets = call.integers("first_token_offset").reshape(-1)
    if mode == "GATHER":
        index = call.integers("token_index").reshape(-1)
        capacity = len(index)
    else:
        index, capacity = np.arange(len(token)), len(token)
    groups = group_count(len(offsets), weight.shape[0])
    edges = boundaries(offsets, groups, capacity)
    product = np.zeros((capacity, weight.shape[-1]))
    if mode == "GATHER" and not len(token):  # there is nothing that an index could name
        return {"OUT_0": product[None]}
    _in_range(call, "token_index", index[edges[0] : edges[-1]], len(token))
    for group, (start, end) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        if end > start:
            product[start:end] = matmul(token[index[start:end]], weight[group % weight.shape[0]])
    if mode in ("NONE", "GATHER"):
        return {"OUT_0": product[None]}
    if mode not in ("SCATTER", "COMBINE"):
        raise call.refuse(f"mode: got {mode}, want NONE, GATHER, SCATTER or COMBINE")
    routed = slice(int(edges[0]), int(edges[-1]))
    to = _rows(call, "token_index", capacity)[routed]
    slot = _rows(call, "token_ks", capacity)[routed]
    if mode == "SCATTER":
        target = to * int(call.attr("top_k", 1)) + slot
        _in_range(call, "token_index * top_k + token_ks", target, capacity)
        out = np.zeros_like(product)
        out[target] = product[routed]
        return {"OUT_0": out[None]}
    scores = in_rows(call["top_k_scores"])
    _in_range(call, "token_index", to, len(scores))
    _in_range(call, "token_ks", slot, scores.shape[1])
    out = np.zeros((len(scores), weight.shape[-1]))
    np.add.at(out, to, scores[to, slot][:, None] * product[routed])
    return {"OUT_0": out[None]}


def _grouped_matmul_bwd(call: Call) -> Results:
    """``dweight[e]``: token rows, transposed, times the gradient rows, over the groups of expert e.

    The number of experts is the declared output's first extent, or else that of the offsets.
    """
    token = in_rows(call["token"])
    grad = in_rows(call["doutput"])
    offsets = call.integers("first_token_offset").reshape(-1)
    wanted = call.wanted.get("dweight")
    experts = wanted.dim[0] if wanted is not None and wanted.dim else len(offsets)
    edges = boundaries(offsets, group_count(len(offsets), experts), len(token))
    dweight = np.zeros((experts, token.shape[1], grad.shape[1]))
    for group, (start, end) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        dweight[group % experts] += token[start:end].T @ grad[start:end]
    return {"dweight": dweight}


REFERENCES: dict[str, Reference] = {
    "moe_grouped_matmul": _grouped_matmul,
    "moe_grouped_matmul_bwd": _grouped_matmul_bwd,
}
