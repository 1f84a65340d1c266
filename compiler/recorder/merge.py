"""Merges graphs by class, and writes the extents that vary within a class as symbols.

A class is a graph's structure: ops, attributes, data types, wiring, the uids of its operands, and
nothing of names, order, extents and strides. The graphs of one class become one graph with symbols
where one can be found of which every one of them is a case, which is checked by putting the numbers
back; where layouts differ, one graph per layout.

Extents along which a tensor is contiguous, such as features and head dimensions, are mostly a
model's configuration, and kernels are chosen by them. Where other extents vary as well and only a
few combinations of these occur, each combination is a graph of its own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.attr import plain
from cudnn_aot.compiler.graph.bucket import graph_class
from cudnn_aot.compiler.graph.extents import Extent, evaluate, extent_json
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.compiler.recorder.convert import Use
from cudnn_aot.compiler.recorder.symbolize import (
    Fit,
    Geometry,
    LayoutError,
    Samples,
    contiguous_extent,
    fit,
    layout_signature,
)
from cudnn_aot.errors import Error

# What programs call the axes of an operand, by op and port; any other axis is named by its place.
_AXES = {
    ("matmul", "A"): "BMK",
    ("matmul", "B"): "BKN",
    ("matmul", "C"): "BMN",
    ("sdpa", "q"): ("B", "H", "S_q", "D"),
    ("sdpa", "k"): ("B", "H_kv", "S_kv", "D"),
    ("sdpa", "v"): ("B", "H_kv", "S_kv", "D_v"),
    ("conv_fprop", "image"): ("N", "C", "H", "W"),
}
_MAX_NAME = 80
_MAX_CONFIGURATIONS = 16  # beyond it, contiguous extents are symbols like any other


@dataclass(frozen=True, slots=True)
class Shape:
    """One set of extents: symbol values (none for a graph without symbols) and its uses."""

    symbols: Mapping[str, int]
    built: int
    executed: int


@dataclass(frozen=True, slots=True)
class MergedGraph:
    """A graph to write, and what it stands for. `digest` identifies its class."""

    name: str
    digest: str
    graph: Graph
    shapes: tuple[Shape, ...]

    @property
    def built(self) -> int:
        return sum(shape.built for shape in self.shapes)

    @property
    def executed(self) -> int:
        return sum(shape.executed for shape in self.shapes)


def merge(uses: Iterable[Use], *, symbolize: bool = True) -> list[MergedGraph]:
    """The graphs of `uses`, most used first; names are unique and equal from run to run."""
    classes: dict[str, dict[str, list[Use]]] = {}
    for use in uses:
        by_key = classes.setdefault(class_digest(use.graph), {})
        by_key.setdefault(use.graph.key(), []).append(use)
    merged: list[MergedGraph] = []
    for digest, by_key in classes.items():
        merged += _merge_class(digest, list(by_key.values()), symbolize)
    return sorted(merged, key=lambda item: (-item.executed, -item.built, item.name))


def class_digest(graph: Graph) -> str:
    """Digest of a graph's structure: its class bucket, and the scalars that the bucket leaves open.

    Symbols count, so a graph that has any is a class of its own.
    """
    found = graph_class(graph)
    attributes = [
        [place, name, plain(value)]
        for place, node in found.nodes.items()
        for name, value in sorted(node.attrs.items())
        if not node.spec.attr(name).is_baked
    ]
    scalars = [[tensor.uid, tensor.pass_by_value] for tensor in graph.inputs()]
    whole = [found.bucket, attributes, scalars, graph.key() if graph.symbols else None]
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def canonical_tensors(graph: Graph) -> list[Tensor]:
    """Every tensor, in an order that graphs of one class share: the caller's by uid come first."""
    found = graph_class(graph)
    counted = list(found.tensors.values())
    discarded = [
        tensor
        for node in found.nodes.values()
        for _, tensor in sorted(node.outputs.items())
        if graph.is_discarded(tensor)
    ]
    return [*counted, *discarded]


def _merge_class(digest: str, same: list[list[Use]], symbolize: bool) -> list[MergedGraph]:
    """The graphs of one class; `same` holds uses of equal graphs together."""
    graphs = [uses[0].graph for uses in same]
    if symbolize and not graphs[0].symbols:
        groups = _Class(graphs, [_weight(uses, same) for uses in same]).groups()
    else:
        groups = [_Group((index,), graph, ({},)) for index, graph in enumerate(graphs)]
    stem = f"{_stem(graphs[0])}-{digest[:8]}"
    merged = []
    for group in groups:
        name = stem if len(groups) == 1 else f"{stem}-{_layout_digest(group.graph)}"
        shapes = [
            Shape(
                values,
                sum(use.built for use in same[index]),
                sum(use.executed for use in same[index]),
            )
            for index, values in zip(group.indices, group.values, strict=True)
        ]
        shapes.sort(
            key=lambda shape: (-shape.executed, -shape.built, sorted(shape.symbols.items()))
        )
        merged.append(MergedGraph(name, digest, _named(group.graph, name), tuple(shapes)))
    return merged


def _weight(uses: list[Use], same: list[list[Use]]) -> int:
    """How often a shape was executed; where nothing was, how often it was built."""
    if any(use.executed for others in same for use in others):
        return sum(use.executed for use in uses)
    return sum(use.built for use in uses)


def _stem(graph: Graph) -> str:
    """The graph's name, or its ops."""
    name = graph.name
    if not name:
        ops = list(dict.fromkeys(node.op for node in graph.nodes))
        name = "_".join(ops[:4]) + (f"_and_{len(ops) - 4}" if len(ops) > 4 else "")
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name).strip("._")[:_MAX_NAME] or "graph"


def _layout_digest(graph: Graph) -> str:
    """Tells the graphs of one class apart; a symbol's range is no part of it."""
    geometry = [
        [[extent_json(extent) for extent in (*tensor.dim, *tensor.stride)]]
        for tensor in canonical_tensors(graph)
    ]
    return hashlib.sha256(json.dumps(geometry).encode()).hexdigest()[:6]


def _named(graph: Graph, name: str) -> Graph:
    graph.name = name
    return graph


@dataclass(frozen=True, slots=True)
class _Group:
    """Graphs of a class (by index) that are cases of `graph`, with each one's symbol values."""

    indices: tuple[int, ...]
    graph: Graph
    values: tuple[Mapping[str, int], ...]


class _Class:
    """The distinct concrete graphs of one class."""

    def __init__(self, graphs: Sequence[Graph], weights: Sequence[int]) -> None:
        self.graphs = graphs
        tensors = [canonical_tensors(graph) for graph in graphs]
        first = graphs[0]
        # What each graph's file says of each tensor: the rest follows.
        self.written = [
            _written_fields(graph, row) for graph, row in zip(graphs, tensors, strict=True)
        ]
        self.uids = [[tensor.uid for tensor in row] for row in tensors]
        self.samples = Samples(
            tuple(tuple(_geometry(tensor) for tensor in row) for row in tensors),
            tuple(weights),
            tuple(first.producer(tensor) is not None for tensor in tensors[0]),
            tuple(_axis_names(first, tensor) for tensor in tensors[0]),
        )

    def groups(self) -> list[_Group]:
        """As few groups as were found, heaviest first."""
        return [group for part in self._configurations() for group in self._by_layout(part)]

    def _configurations(self) -> list[list[int]]:
        """The samples by their contiguous extents, or all together (see the module)."""
        rows = self.samples.rows
        everything = list(range(len(rows)))
        columns = zip(*(tuple(e for g in row for e in g.dim) for row in rows), strict=True)
        varying = {column for column in columns if len(set(column)) > 1}
        parts: dict[Any, list[int]] = {}
        for index, row in enumerate(rows):
            key = tuple(contiguous_extent(geometry) for geometry in row)
            parts.setdefault(key, []).append(index)
        if len(varying) < 2 or len(parts) > _MAX_CONFIGURATIONS:
            return [everything]
        return list(parts.values())

    def _by_layout(self, indices: Sequence[int]) -> list[_Group]:
        by_signature: dict[Any, list[int]] = {}
        for index in indices:
            signature = layout_signature(self.samples.rows[index])
            by_signature.setdefault(signature, []).append(index)
        weight = self.samples.weights
        parts = sorted(
            by_signature.values(), key=lambda part: (-sum(weight[i] for i in part), part)
        )
        groups: list[_Group] = []
        for part in parts:
            for place, group in enumerate(groups):
                joined = self._fit([*group.indices, *part])
                if isinstance(joined, _Group):
                    groups[place] = joined
                    break
            else:
                groups += self._fit_or_part(part)
        return groups

    def _fit_or_part(self, indices: list[int]) -> list[_Group]:
        found = self._fit(indices)
        if isinstance(found, _Group):
            return [found]
        parts: dict[Any, list[int]] = {}
        for index in indices:
            row = self.samples.rows[index]
            key = (
                row[found.tensor].stride[found.axis]
                if isinstance(found, LayoutError)
                else tuple(extent == 1 for geometry in row for extent in geometry.dim)
            )
            parts.setdefault(key, []).append(index)
        if len(parts) == 1:  # parting says no more: every graph for itself
            return [self._alone(index) for index in indices]
        return [group for part in parts.values() for group in self._fit_or_part(part)]

    def _alone(self, index: int) -> _Group:
        return _Group((index,), self.graphs[index], ({},))

    def _fit(self, indices: Sequence[int]) -> _Group | LayoutError | None:
        """The graph that all of `indices` are cases of, or what stands in its way."""
        if len(indices) == 1:
            return self._alone(indices[0])
        samples = self.samples.pick(indices)
        try:
            found = fit(samples)
            graph = self._graph(indices, found)
        except LayoutError as error:
            return error
        except Error:  # legal with these numbers, not for every value: a broadcast, a range
            return None
        uids = self.uids[indices[0]]
        tensors = graph.tensors
        for row, values in zip(samples.rows, found.values, strict=True):
            for uid, geometry in zip(uids, row, strict=True):
                tensor = tensors[uid]
                if _values(tensor.dim, values) != geometry.dim:
                    return None
                if _values(tensor.stride, values) != geometry.stride:
                    return None
        return _Group(tuple(indices), graph, found.values)

    def _graph(self, indices: Sequence[int], found: Fit) -> Graph:
        """The symbolic graph, written as the first of `indices` with other extents."""
        document = json.loads(graph_json.dumps(self.graphs[indices[0]]))
        places = {uid: place for place, uid in enumerate(self.uids[indices[0]])}
        for row in document["tensors"]:
            place = places[row["uid"]]
            written = set().union(*(self.written[index][place] for index in indices))
            if "dim" in written:
                row["dim"] = [extent_json(extent) for extent in found.dims[place]]
            if "stride" in written:
                row["stride"] = [extent_json(extent) for extent in found.strides[place]]
        document["symbols"] = {
            name: {"min": symbol.min, "max": symbol.max, "hint": symbol.hint}
            for name, symbol in found.symbols.items()
        }
        return graph_json.loads(json.dumps(document))


def _written_fields(graph: Graph, tensors: Sequence[Tensor]) -> list[set[str]]:
    document = json.loads(graph_json.dumps(graph))
    rows = {row["uid"]: row for row in document["tensors"]}
    return [{"dim", "stride"} & rows[tensor.uid].keys() for tensor in tensors]


def _geometry(tensor: Tensor) -> Geometry:
    return Geometry(_numbers(tensor.dim), _numbers(tensor.stride))


def _numbers(extents: Sequence[Extent]) -> tuple[int, ...]:
    return tuple(extent for extent in extents if isinstance(extent, int))


def _values(extents: Sequence[Extent], values: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(extent, values) for extent in extents)


def _axis_names(graph: Graph, tensor: Tensor) -> tuple[str, ...]:
    for node in graph.nodes:
        for ports in (node.inputs, node.outputs):
            for port, other in ports.items():
                axes = _AXES.get((node.op, port))
                if other is tensor and axes and len(axes) == len(tensor.dim):
                    return tuple(axes)
    return tuple(f"X{axis}" for axis in range(len(tensor.dim)))
