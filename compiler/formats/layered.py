"""Places the boxes of a directed acyclic graph in layers, top to bottom.

The usual three steps: layers by longest path, order within layers by barycentres, and positions
that bring boxes under their neighbours as far as no two overlap. An edge over several layers is led
through a free place in each of them, which all edges of one box share. Deterministic, and linear in
boxes, edges and shared places for each sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

GAP_X = 28.0
GAP_Y = 56.0
MARGIN = 16.0
_LANE = 12.0  # width that an edge takes where it passes through a layer
_ORDER_SWEEPS = 8
_PLACE_SWEEPS = 12


@dataclass(frozen=True, slots=True)
class Placed:
    """Where things are: centres of boxes, the points of every edge, and the size of it all.

    An edge starts at its box, or where it leaves an earlier edge of the same box.
    """

    boxes: Mapping[str, tuple[float, float]]
    edges: Sequence[tuple[tuple[float, float], ...]]
    width: float
    height: float


@dataclass(slots=True)
class _Slot:
    """A box, or a place that an edge passes through."""

    width: float
    height: float = 0.0
    layer: int = 0
    above: list[_Slot] = field(default_factory=list)
    below: list[_Slot] = field(default_factory=list)
    lane: list[_Slot] = field(default_factory=list)
    order: float = 0.0
    x: float = 0.0
    y: float = 0.0


def place(sizes: Mapping[str, tuple[float, float]], edges: Sequence[tuple[str, str]]) -> Placed:
    """Positions for boxes of these (width, height); `sizes` lists every box after those it follows.

    The edges of the answer go from the lower side of a box to the upper side of another, in order.
    """
    slots = {name: _Slot(width, height) for name, (width, height) in sizes.items()}
    for source, target in edges:
        slots[source].below.append(slots[target])
        slots[target].above.append(slots[source])
    _set_layers(list(slots.values()))
    for slot in slots.values():
        slot.above, slot.below = [], []
    paths = [_lead(slots[source], slots[target]) for source, target in edges]
    layers: list[list[_Slot]] = []
    for slot in [s for box in slots.values() for s in (box, *box.lane)]:
        layers += [[] for _ in range(slot.layer + 1 - len(layers))]
        layers[slot.layer].append(slot)
    _set_order(layers)
    _set_places(layers)
    return _measure(slots, paths, layers)


def _set_layers(slots: Sequence[_Slot]) -> None:
    for slot in slots:
        slot.layer = max((other.layer + 1 for other in slot.above), default=0)
    for slot in reversed(slots):  # what nothing leads to stands close to what it leads to
        if not slot.above and slot.below:
            slot.layer = min(other.layer for other in slot.below) - 1


def _lead(source: _Slot, target: _Slot) -> list[_Slot]:
    """The slots from source to target, one in each layer between; links those that are new."""
    between = target.layer - source.layer - 1
    while len(source.lane) < between:
        last = source.lane[-1] if source.lane else source
        source.lane.append(_Slot(_LANE, 0.0, last.layer + 1))
        _link(last, source.lane[-1])
    path = [source, *source.lane[:between], target]
    _link(path[-2], target)
    return path


def _link(upper: _Slot, lower: _Slot) -> None:
    upper.below.append(lower)
    lower.above.append(upper)


def _set_order(layers: list[list[_Slot]]) -> None:
    for layer in layers:
        for index, slot in enumerate(layer):
            slot.order = index
    for sweep in range(_ORDER_SWEEPS):
        downwards = sweep % 2 == 0
        for layer in layers if downwards else reversed(layers):
            centres = {}
            for slot in layer:
                near = slot.above if downwards else slot.below
                orders = [other.order for other in near]
                centres[id(slot)] = sum(orders) / len(orders) if orders else slot.order
            layer.sort(key=lambda slot, centres=centres: centres[id(slot)])  # type: ignore[misc]
            for index, slot in enumerate(layer):
                slot.order = index


def _set_places(layers: list[list[_Slot]]) -> None:
    for layer in layers:
        _spread(layer, [0.0] * len(layer))
    for sweep in range(_PLACE_SWEEPS):
        downwards = sweep % 2 == 0
        for layer in layers if downwards else reversed(layers):
            wanted = []
            for slot in layer:
                near = (slot.above if downwards else slot.below) or slot.above or slot.below
                wanted.append(sum(n.x for n in near) / len(near) if near else slot.x)
            _spread(layer, wanted)


def _spread(layer: Sequence[_Slot], wanted: Sequence[float]) -> None:
    """Centres closest to `wanted` (least squares) that keep the order and do not overlap."""
    offsets = [0.0]
    for left, right in zip(layer, layer[1:], strict=False):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + GAP_X)
    groups: list[list[float]] = []  # [sum, count] of boxes that touch
    for want, offset in zip(wanted, offsets, strict=True):
        groups.append([want - offset, 1.0])
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] > groups[-1][0] / groups[-1][1]:
            total, count = groups.pop()
            groups[-1][0] += total
            groups[-1][1] += count
    index = 0
    for total, count in groups:
        for _ in range(int(count)):
            layer[index].x = total / count + offsets[index]
            index += 1


def _measure(
    slots: Mapping[str, _Slot], paths: Sequence[Sequence[_Slot]], layers: Sequence[Sequence[_Slot]]
) -> Placed:
    everything = [slot for layer in layers for slot in layer]
    left = min((slot.x - slot.width / 2 for slot in everything), default=0.0) - MARGIN
    right = max((slot.x + slot.width / 2 for slot in everything), default=0.0) + MARGIN
    y = MARGIN
    for layer in layers:
        height = max((slot.height for slot in layer), default=0.0)
        for slot in layer:
            slot.x -= left
            slot.y = y + height / 2
        y += height + GAP_Y
    ends = _ends(paths)
    edges = []
    drawn: dict[int, int] = {}  # by id of a box: how many slots of its lane have an edge
    for index, (first, *between, last) in enumerate(paths):
        points = [(first.x, first.y + first.height / 2)]
        points += [(slot.x, slot.y) for slot in between]
        shared = min(drawn.get(id(first), 0), len(between))
        points = points[shared:]
        drawn[id(first)] = max(drawn.get(id(first), 0), len(between))
        points.append((ends[index], last.y - last.height / 2))
        edges.append(tuple(points))
    boxes = {name: (slot.x, slot.y) for name, slot in slots.items()}
    return Placed(boxes, edges, right - left, y - GAP_Y + MARGIN)


def _ends(paths: Sequence[Sequence[_Slot]]) -> dict[int, float]:
    """Where on the upper side of its box each edge ends: side by side, in the order they come."""
    arriving: dict[int, list[int]] = {}
    for index, path in enumerate(paths):
        arriving.setdefault(id(path[-1]), []).append(index)
    ends = {}
    for indices in arriving.values():
        indices.sort(key=lambda index: paths[index][-2].x)
        for rank, index in enumerate(indices):
            box = paths[index][-1]
            ends[index] = box.x + box.width * ((rank + 0.5) / len(indices) - 0.5)
    return ends
