"""Rows in groups: what an offset tensor of starts or of boundaries says."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnn_aot.errors import InvalidGraphError


def boundaries(
    offsets: np.ndarray[Any, Any], groups: int, rows: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """``groups + 1`` row numbers; group g holds rows ``[g]`` up to ``[g + 1]``.

    Args:
        offsets: the groups' starts, the last group then ending at `rows`; or starts and the end.
        rows: the number of rows there are.
    """
    edges = np.asarray(offsets, np.int64).reshape(-1)
    if len(edges) == groups:
        edges = np.append(edges, rows)
    if len(edges) != groups + 1:
        raise InvalidGraphError(
            f"group offsets: got {len(edges)}, want {groups} starts or {groups + 1} boundaries"
        )
    if (np.diff(edges) < 0).any() or edges[0] < 0 or edges[-1] > rows:
        raise InvalidGraphError(
            f"group offsets: got {edges.tolist()}, want ascending row numbers of at most {rows}"
        )
    return edges


def group_count(offsets: int, experts: int) -> int:
    """How many groups that many offsets mean: a positive multiple of the number of experts.

    Starts alone are not told from boundaries when there is one expert, and count as boundaries
    there, as in the cuDNN frontend (a single offset is a start).
    """
    if offsets % experts == 0 and (experts > 1 or offsets == 1):
        return offsets
    if offsets > 1 and (offsets - 1) % experts == 0:
        return offsets - 1
    raise InvalidGraphError(
        f"group offsets: got {offsets}, want a multiple of {experts} experts, or one more"
    )
