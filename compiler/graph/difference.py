"""How two graphs differ, in words: between classes one sentence, within a class every field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.attr import plain
from cudnn_aot.compiler.graph.bucket import graph_class
from cudnn_aot.compiler.graph.enums import scalar_type
from cudnn_aot.compiler.graph.tensor import Tensor

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that two graphs have different values of; without values, what it is in words."""

    field: str
    here: str = ""
    there: str = ""

    def in_words(self, here: str = "got", there: str = "want") -> str:
        """``dim[2] of 'B': got 4096, want 4095``, with other words for the two sides if given."""
        if not self.here and not self.there:
            return self.field
        return f"{self.field}: {here} {self.here}, {there} {self.there}"


def differences(graph: Graph, other: Graph) -> list[Difference]:
    """Every field in which two graphs of one bucket differ; extents come first.

    Empty for graphs of equal key.
    """
    found: dict[str, list[Difference]] = {"dim": [], "symbols": [], "stride": [], "scalars": []}
    ours, theirs = graph_class(graph), graph_class(other)
    for place, tensor in ours.tensors.items():
        twin = theirs.tensors[place]
        for field in ("dim", "stride"):
            pairs = zip(getattr(tensor, field), getattr(twin, field), strict=True)
            found[field] += [
                Difference(f"{field}[{axis}] of {_called(tensor)}", str(here), str(there))
                for axis, (here, there) in enumerate(pairs)
                if here != there
            ]
        here, there = str(tensor.pass_by_value), str(twin.pass_by_value)
        if here != there:  # as text, in which 0.0 and -0.0 differ too
            found["scalars"].append(Difference(f"value of {_called(tensor)}", here, there))
    found["symbols"] += _symbol_differences(graph, other)
    for place, node in ours.nodes.items():
        twins = theirs.nodes[place].said
        found["scalars"] += [
            Difference(f"{name} of node {node.name!r}", str(value), str(twins.get(name)))
            for name, value in node.said.items()
            if value != twins.get(name)
        ]
    return [difference for kind in found.values() for difference in kind]


def _called(tensor: Tensor) -> str:
    return repr(tensor.name) if tensor.name else f"uid {tensor.uid}"


def _symbol_differences(graph: Graph, other: Graph) -> Iterator[Difference]:
    for name in sorted({*graph.symbols, *other.symbols}):
        here, there = graph.symbols.get(name), other.symbols.get(name)
        if here is None or there is None:
            declared = ("not declared" if side is None else "declared" for side in (here, there))
            yield Difference(f"symbol {name}", *declared)
            continue
        for field in ("min", "max", "multiple_of"):
            values = getattr(here, field), getattr(there, field)
            if values[0] != values[1]:
                yield Difference(f"{field} of symbol {name}", *map(str, values))


def class_difference(graph: Graph, other: Graph) -> Difference:
    """The first thing in which two graphs of different buckets differ."""
    ours, theirs = Counter(n.op for n in graph.nodes), Counter(n.op for n in other.nodes)
    if ours != theirs:
        return Difference("ops", _counted(ours), _counted(theirs))
    for role, mine, yours in (
        ("inputs", graph.inputs(), other.inputs()),
        ("outputs", graph.outputs(), other.outputs()),
    ):
        uids = [[tensor.uid for tensor in tensors] for tensors in (mine, yours)]
        if uids[0] != uids[1]:
            return Difference(f"uids of the {role}", *map(str, uids))
        for tensor, twin in zip(mine, yours, strict=True):
            for field in _FIELDS:
                values = _shown(tensor, field), _shown(twin, field)
                if values[0] != values[1]:
                    return Difference(f"{tensor}: {field}", *map(str, values))
    for one, another in zip(sorted(_settings(graph)), sorted(_settings(other)), strict=True):
        if one != another:
            return Difference(f"a node {one[0]}", one[1], another[1])
    return Difference("the nodes are wired differently, or differ in the type of a virtual tensor")


_FIELDS = (
    "data_type",
    "rank",
    "alignment_value",
    "is_optional",
    "is_pass_by_value",
    "pass_by_value",
    "ragged_offset",
    "ragged_offset_multiplier",
    "reordering_type",
)


def _shown(tensor: Tensor, field: str) -> Any:
    if field == "rank":
        return len(tensor.dim)
    value = getattr(tensor, field)
    if field == "pass_by_value":
        if tensor.scalar_type is scalar_type.COMPILE_TIME_CONST:
            return f"the constant {value}"
        return "no value" if value is None else "a value"
    return value.uid if isinstance(value, Tensor) else getattr(value, "name", value)


def _settings(graph: Graph) -> Iterable[tuple[str, str]]:
    for node in graph.nodes:
        compute = node.compute_data_type
        attrs = [
            f"{name}={plain(value) if node.spec.attr(name).is_baked else 'given'}"
            for name, value in node.said.items()
        ]
        given = [f"compute_data_type={None if compute is None else compute.name}", *sorted(attrs)]
        yield node.op, ", ".join(given)


def _counted(ops: Counter[str]) -> str:
    return " ".join(f"{count}x{op}" if count > 1 else op for op, count in sorted(ops.items()))
