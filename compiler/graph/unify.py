"""Unification: whether a concrete graph is a case of a symbolic one, and for which symbol values.

Both must share a bucket (`compiler.graph.bucket`), so they differ in nothing but extents, strides
and scalars that no kernel bakes. Then every extent and stride of the symbolic graph is an equation
``coefficient * symbols = number``: symbols are solved for one at a time, every equation is checked
with the values found, and every value against its symbol's domain. Strides count on every axis,
those of extent 1 too, except of tensors without elements. Nothing is guessed: a symbol that no
equation settles is a mismatch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cudnn_aot.compiler.graph.attr import plain
from cudnn_aot.compiler.graph.bucket import GraphClass, graph_class
from cudnn_aot.compiler.graph.enums import scalar_type
from cudnn_aot.compiler.graph.extents import Extent, SymExpr, evaluate
from cudnn_aot.compiler.graph.tensor import Tensor

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Match:
    """How a concrete graph is a case of a symbolic one.

    Attributes:
        symbols: the value of every symbol.
        attributes: by name of the symbolic graph's node, the values that the concrete graph has of
            attributes that no kernel bakes: a launch passes these, not the symbolic graph's.
        scalars: by uid, the values that the concrete graph gives its pass-by-value tensors.
    """

    symbols: Mapping[str, int]
    attributes: Mapping[str, Mapping[str, Any]]
    scalars: Mapping[int, int | float]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why a graph is no case of another, in one sentence; false."""

    reason: str

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _Equation:
    """``extent = value``, and where it stands."""

    extent: Extent
    value: int
    place: str


Values: TypeAlias = "dict[str, int]"


def unify(concrete: Graph, symbolic: Graph) -> Match | Mismatch:
    """The symbol values for which `symbolic` is `concrete`, or the reason why there are none.

    Either graph may be frozen or not; both are validated.
    """
    concrete, symbolic = concrete.canonical(), symbolic.canonical()
    if concrete.symbols:
        return Mismatch(f"the graph is not concrete: it has symbols {', '.join(concrete.symbols)}")
    ours, theirs = graph_class(concrete), graph_class(symbolic)
    if ours.bucket != theirs.bucket:
        return Mismatch(_difference(concrete, symbolic))
    equations = _equations(ours, theirs)
    values = _solve(equations)
    for equation in equations:
        if isinstance(equation.extent, int):
            got: int | None = equation.extent
        else:
            is_known = all(name in values for name in equation.extent.symbols)
            got = evaluate(equation.extent, values) if is_known else None
        if got is not None and got != equation.value:
            return Mismatch(_wrong(equation, got, values))
    for name, symbol in symbolic.symbols.items():
        if name not in values:
            return Mismatch(f"symbol {name!r}: no extent or stride settles its value")
        reason = symbol.refuse(values[name])
        if reason:
            return Mismatch(f"symbol {name!r}: {reason}")
    return Match(values, _unbaked(ours, theirs), _scalars(ours))


def _equations(ours: GraphClass, theirs: GraphClass) -> list[_Equation]:
    equations = []
    for place, symbolic in theirs.tensors.items():
        tensor = ours.tensors[place]
        # Of no elements, no stride moves any; other libraries count an extent of 0 as 1 in them.
        for field in ("dim",) if 0 in tensor.dim else ("dim", "stride"):
            pairs = zip(getattr(symbolic, field), getattr(tensor, field), strict=True)
            for axis, (extent, value) in enumerate(pairs):
                equations.append(_Equation(extent, value, f"{tensor}: {field}[{axis}]"))
    return equations


def _solve(equations: Iterable[_Equation]) -> Values:
    """Values of as many symbols as the equations settle one at a time; nothing is checked."""
    values: Values = {}
    symbolic = ((e.extent, e.value) for e in equations if isinstance(e.extent, SymExpr))
    # The plainest first, so that a wrong number is blamed on the stride rather than on the extent.
    waiting = sorted(symbolic, key=lambda pair: (len(pair[0].symbols), pair[0].coef))
    while True:
        left = [pair for pair in waiting if not _settle(*pair, values)]
        if len(left) == len(waiting):
            return values
        waiting = left


def _settle(extent: SymExpr, value: int, values: Values) -> bool:
    """Whether ``extent = value`` has nothing more to say; notes the value that settles a symbol."""
    open_powers = Counter(name for name in extent.symbols if name not in values)
    if not open_powers:
        return True
    if len(open_powers) > 1:
        return False
    ((name, power),) = open_powers.items()
    factor = extent.coef * math.prod(values.get(symbol, 1) for symbol in extent.symbols)
    if factor:  # 0 times the symbol says nothing of it
        values[name] = _root(value // factor, power)
    return True


def _root(value: int, power: int) -> int:
    """The integer whose power is the largest that is not above `value`."""
    if power == 1 or value < 2:
        return value
    root = 1 << -(-value.bit_length() // power)  # not below the root: Newton's steps fall to it
    while True:
        step = ((power - 1) * root + value // root ** (power - 1)) // power
        if step >= root:
            return root
        root = step


def _wrong(equation: _Equation, want: int, values: Values) -> str:
    extent = equation.extent
    if isinstance(extent, int):
        return f"{equation.place}: got {equation.value}, want {want}"
    known = ", ".join(f"{name} = {values[name]}" for name in dict.fromkeys(extent.symbols))
    return f"{equation.place}: got {equation.value}, want {extent} = {want} ({known})"


def _unbaked(ours: GraphClass, theirs: GraphClass) -> dict[str, dict[str, Any]]:
    found = {}
    for place, node in theirs.nodes.items():
        attrs = {
            name: value
            for name, value in ours.nodes[place].attrs.items()
            if not node.spec.attr(name).is_baked
        }
        if attrs:
            found[node.name] = attrs
    return found


def _scalars(ours: GraphClass) -> dict[int, int | float]:
    return {
        tensor.uid: tensor.pass_by_value
        for tensor in ours.tensors.values()
        if tensor.pass_by_value is not None
    }


# The reason for different buckets.


def _difference(concrete: Graph, symbolic: Graph) -> str:
    """What of two graphs is different apart from extents, strides and scalars."""
    ours, theirs = Counter(n.op for n in concrete.nodes), Counter(n.op for n in symbolic.nodes)
    if ours != theirs:
        return f"ops: got {_counted(ours)}, want {_counted(theirs)}"
    for role, got, want in (
        ("inputs", concrete.inputs(), symbolic.inputs()),
        ("outputs", concrete.outputs(), symbolic.outputs()),
    ):
        uids = [[tensor.uid for tensor in tensors] for tensors in (got, want)]
        if uids[0] != uids[1]:
            return f"{role}: got uids {uids[0]}, want {uids[1]}"
        for tensor, twin in zip(got, want, strict=True):
            for field in _FIELDS:
                values = _shown(tensor, field), _shown(twin, field)
                if values[0] != values[1]:
                    return f"{tensor}: {field}: got {values[0]}, want {values[1]}"
    settings = [sorted(_settings(graph)) for graph in (concrete, symbolic)]
    for one, other in zip(*settings, strict=True):
        if one != other:
            return f"a node {one[0]}: got {one[1]}, want {other[1]}"
    return "the nodes are wired differently, or differ in the type of a virtual tensor"


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
            for name, value in node.view.said.items()
        ]
        given = [f"compute_data_type={None if compute is None else compute.name}", *sorted(attrs)]
        yield node.op, ", ".join(given)


def _counted(ops: Counter[str]) -> str:
    return " ".join(f"{count}x{op}" if count > 1 else op for op, count in sorted(ops.items()))
