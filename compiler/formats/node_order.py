"""The order in which the nodes of a file become nodes of a graph; files have them in any order."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping
from typing import Protocol, TypeVar

from cudnn_aot.compiler.formats.json_reader import Value


class NodeRecord(Protocol):
    """A node of a file: where it stands, and by port what names a tensor."""

    @property
    def value(self) -> Value: ...
    @property
    def inputs(self) -> Mapping[str, Hashable]: ...
    @property
    def outputs(self) -> Mapping[str, Hashable]: ...


_R = TypeVar("_R", bound=NodeRecord)


def in_order(records: list[_R]) -> list[_R]:
    """`records` with every node after those it reads from, else in file order.

    Raises `InvalidGraphError`, at a node of the cycle, if there is no such order.
    """
    producer: dict[Hashable, int] = {
        tensor: place for place, record in enumerate(records) for tensor in record.outputs.values()
    }
    if all(
        producer.get(tensor, -1) < place
        for place, record in enumerate(records)
        for tensor in record.inputs.values()
    ):
        return records  # as files mostly are
    needs = [{producer[t] for t in r.inputs.values() if t in producer} for r in records]
    readers: list[list[int]] = [[] for _ in records]
    for place, needed in enumerate(needs):
        for other in needed:
            readers[other].append(place)
    waits = [len(needed) for needed in needs]
    ready = [place for place, count in enumerate(waits) if not count]
    ordered: list[_R] = []
    while ready:
        place = heapq.heappop(ready)
        ordered.append(records[place])
        for reader in readers[place]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    if len(ordered) < len(records):
        place = next(place for place, count in enumerate(waits) if count)
        seen: set[int] = set()
        while place not in seen:  # back along nodes that wait, until one comes again
            seen.add(place)
            place = next(other for other in needs[place] if waits[other])
        records[place].value.fail("the node depends on its own result")
    return ordered
