"""The order in which the nodes of a file become nodes of a graph; files have them in any order."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

from cudnn_aot.compiler.formats.json_reader import Value


class Wired(Protocol):
    """A node: what names a tensor, by port."""

    @property
    def inputs(self) -> Mapping[str, Hashable]: ...
    @property
    def outputs(self) -> Mapping[str, Hashable]: ...


def in_order(nodes: Sequence[Wired], rows: Value) -> Sequence[int]:
    """The places of the nodes of `rows`, each after those it reads from, else in file order.

    Raises `InvalidGraphError`, at a node of the cycle, if there is no such order.
    """
    if _is_ordered(nodes):  # as files mostly are
        return range(len(nodes))
    producer: dict[Hashable, int] = {
        tensor: place for place, node in enumerate(nodes) for tensor in node.outputs.values()
    }
    needs = [{producer[t] for t in r.inputs.values() if t in producer} for r in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for place, needed in enumerate(needs):
        for other in needed:
            readers[other].append(place)
    waits = [len(needed) for needed in needs]
    ready = [place for place, count in enumerate(waits) if not count]
    ordered: list[int] = []
    while ready:
        place = heapq.heappop(ready)
        ordered.append(place)
        for reader in readers[place]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    if len(ordered) < len(nodes):
        place = next(place for place, count in enumerate(waits) if count)
        seen: set[int] = set()
        while place not in seen:  # back along nodes that wait, until one comes again
            seen.add(place)
            place = next(other for other in needs[place] if waits[other])
        rows.at(place).fail("the node depends on its own result")
    return ordered


def _is_ordered(nodes: Sequence[Wired]) -> bool:
    """Whether every node comes after those it reads from."""
    read: set[Hashable] = set()
    for node in nodes:
        read.update(node.inputs.values())
        if not read.isdisjoint(node.outputs.values()):
            return False
    return True
