"""Which part of a build one of several machines does: ``--shard i/N``.

Every machine plans every graph and divides them the same way, from keys and estimates alone, so
they agree without talking. Graphs that share kernels stay together, so that no kernel is compiled
twice, unless together they are more than a machine's share; then each goes where it adds least.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cudnn_aot.errors import UsageError

_MAX_COUNT = 9999


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``index`` of ``count``, counted from 1."""

    index: int
    count: int


def parse_shard(text: str) -> Shard:
    """``"2/8"``; raises UsageError for anything that is no part of a whole."""
    match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    index, count = (int(part) for part in match.groups()) if match else (0, 0)
    if not 1 <= index <= count:
        raise UsageError(
            f"--shard: got {text[:20]!r}, want i/N with 1 <= i <= N <= {_MAX_COUNT}, as in 2/8"
        )
    return Shard(index, count)


def partition(
    graphs: Mapping[str, Sequence[str]], seconds: Mapping[str, float], count: int
) -> dict[str, int]:
    """The part, from 1 to ``count``, of each graph.

    Args:
        graphs: the kernels of each graph; the order does not matter.
        seconds: what each kernel takes to compile.
    """
    share = sum(seconds[kernel] for kernel in _kernels(graphs.values())) / count
    pieces: list[list[str]] = []
    for group in _groups(graphs):
        whole = sum(seconds[kernel] for kernel in _kernels(graphs[graph] for graph in group))
        pieces += [group] if whole <= share else [[graph] for graph in group]

    def cost(piece: list[str], held: set[str]) -> float:
        new = _kernels(graphs[graph] for graph in piece) - held
        return sum(seconds[kernel] for kernel in sorted(new))

    held: list[set[str]] = [set() for _ in range(count)]
    load, members = [0.0] * count, [0] * count
    parts: dict[str, int] = {}
    for piece in sorted(pieces, key=lambda piece: (-cost(piece, set()), piece)):
        # Of equal parts the one with fewer graphs: what needs no compile is spread as well.
        best = min(
            range(count), key=lambda part: (load[part] + cost(piece, held[part]), members[part])
        )
        load[best] += cost(piece, held[best])
        members[best] += len(piece)
        held[best] |= _kernels(graphs[graph] for graph in piece)
        parts.update(dict.fromkeys(piece, best + 1))
    return parts


def _kernels(of_graphs: Iterable[Sequence[str]]) -> set[str]:
    return {kernel for kernels in of_graphs for kernel in kernels}


def _groups(graphs: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Graphs that are connected by kernels they share, each group sorted."""
    group_of: dict[str, list[str]] = {}  # by kernel
    groups: dict[int, list[str]] = {}
    for graph in sorted(graphs):
        joined = {id(group_of[k]): group_of[k] for k in graphs[graph] if k in group_of}
        merged = sorted([graph, *(member for group in joined.values() for member in group)])
        for place in joined:
            del groups[place]
        groups[id(merged)] = merged
        for member in merged:
            group_of.update(dict.fromkeys(graphs[member], merged))
    return sorted(groups.values())
