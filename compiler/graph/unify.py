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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cudnn_aot.compiler.graph.attr import plain
from cudnn_aot.compiler.graph.bucket import GraphClass, graph_class
from cudnn_aot.compiler.graph.difference import class_difference
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
    return Pattern(symbolic).match(concrete)


class Pattern:
    """A symbolic graph, read once to be compared with any number of concrete ones.

    Attributes:
        graph: the symbolic graph, which must not change any more.
        bucket: its class bucket.
    """

    def __init__(self, symbolic: Graph) -> None:
        self.graph = symbolic.canonical()
        self._class = graph_class(self.graph)
        self.bucket = self._class.bucket
        # Layouts without a symbol are compared as they are; of the others every axis.
        self._fixed: list[tuple[int | str, tuple[Extent, ...], tuple[Extent, ...]]] = []
        self._numbers: list[tuple[int, int | str, bool, int]] = []
        self._open: list[tuple[SymExpr, int | str, bool, int]] = []
        for place, tensor in self._class.tensors.items():
            if all(isinstance(extent, int) for extent in (*tensor.dim, *tensor.stride)):
                self._fixed.append((place, tensor.dim, tensor.stride))
                continue
            for is_stride, extents in ((False, tensor.dim), (True, tensor.stride)):
                for axis, extent in enumerate(extents):
                    if isinstance(extent, int):
                        self._numbers.append((extent, place, is_stride, axis))
                    else:
                        self._open.append((extent, place, is_stride, axis))
        self._open.sort(key=lambda row: _plainness(row[0]))
        self._unbaked = [
            (place, node.name)
            for place, node in self._class.nodes.items()
            if any(not node.spec.attr(name).is_baked for name in node.attrs)
        ]
        self._valued = [
            place
            for place, tensor in self._class.tensors.items()
            if tensor.pass_by_value is not None
        ]

    def match(self, concrete: Graph, known: GraphClass | None = None) -> Match | Mismatch:
        """As `unify`; `known` is the class of `concrete`, if it was asked for before."""
        concrete = concrete.canonical()
        if concrete.symbols:
            names = ", ".join(concrete.symbols)
            return Mismatch(f"the graph is not concrete: it has symbols {names}")
        ours = known or graph_class(concrete)
        if ours.bucket != self.bucket:
            return Mismatch(class_difference(concrete, self.graph).in_words())
        values = self._values(ours.tensors)
        if values is None:
            return self._mismatch(ours)
        return Match(values, self._attributes(ours), self._scalars(ours))

    def attribute_difference(self, known: GraphClass) -> str | None:
        """The first attribute that no kernel bakes whose value is not this graph's, or None.

        `known` is the class of a graph of this bucket.
        """
        for place, _ in self._unbaked:
            theirs, node = self._class.nodes[place], known.nodes[place]
            for attr, value in theirs.attrs.items():
                if node.attrs[attr] != value and not theirs.spec.attr(attr).is_baked:
                    got, want = plain(node.attrs[attr]), plain(value)
                    return f"{node}: {attr}: got {got}, want {want}"
        return None

    def _values(self, tensors: Mapping[int | str, Tensor]) -> Values | None:
        """The value of every symbol, or None if an equation or a domain is broken."""
        for place, dim, stride in self._fixed:
            tensor = tensors[place]
            if tensor.dim != dim or (tensor.stride != stride and 0 not in dim):
                return None
        for number, place, is_stride, axis in self._numbers:
            tensor = tensors[place]
            if (tensor.stride if is_stride else tensor.dim)[axis] != number and not (
                is_stride and 0 in tensor.dim
            ):
                return None
        pairs = []
        for extent, place, is_stride, axis in self._open:
            tensor = tensors[place]
            if is_stride and 0 in tensor.dim:
                continue  # of no elements, no stride moves any
            value = (tensor.stride if is_stride else tensor.dim)[axis]
            assert isinstance(value, int)
            pairs.append((extent, value))
        symbols = self.graph.symbols
        values = _solve(pairs, len(symbols))
        for name, symbol in symbols.items():
            if name not in values or symbol.refuse(values[name]):
                return None
        for extent, value in pairs:
            product = extent.coef
            for name in extent.symbols:
                product *= values[name]
            if product != value:
                return None
        return values

    def _mismatch(self, ours: GraphClass) -> Mismatch:
        """The first equation that is broken, else the first domain."""
        equations = _equations(ours, self._class)
        symbolic = [(e.extent, e.value) for e in equations if isinstance(e.extent, SymExpr)]
        symbolic.sort(key=lambda pair: _plainness(pair[0]))
        values = _solve(symbolic, len(self.graph.symbols))
        for equation in equations:
            if isinstance(equation.extent, int):
                got: int | None = equation.extent
            else:
                is_known = all(name in values for name in equation.extent.symbols)
                got = evaluate(equation.extent, values) if is_known else None
            if got is not None and got != equation.value:
                return Mismatch(_wrong(equation, got, values))
        for name, symbol in self.graph.symbols.items():
            if name not in values:
                return Mismatch(f"symbol {name!r}: no extent or stride settles its value")
            reason = symbol.refuse(values[name])
            if reason:
                return Mismatch(f"symbol {name!r}: {reason}")
        raise AssertionError("no equation and no domain is broken")

    def _attributes(self, ours: GraphClass) -> dict[str, dict[str, Any]]:
        return {
            name: {
                attr: value
                for attr, value in ours.nodes[place].attrs.items()
                if not ours.nodes[place].spec.attr(attr).is_baked
            }
            for place, name in self._unbaked
        }

    def _scalars(self, ours: GraphClass) -> dict[int, int | float]:
        values = {ours.tensors[at].uid: ours.tensors[at].pass_by_value for at in self._valued}
        return {uid: value for uid, value in values.items() if value is not None}


def _plainness(extent: SymExpr) -> tuple[int, int]:
    """The plainest comes first, so that a wrong number is blamed on the stride, not the extent."""
    return len(extent.symbols), extent.coef


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


def _solve(pairs: Sequence[tuple[SymExpr, int]], count: int) -> Values:
    """Values of as many of `count` symbols as the equations, plainest first, settle one at a time.

    Nothing is checked.
    """
    values: Values = {}
    waiting = pairs
    while True:
        left = []
        for pair in waiting:
            if len(values) == count:
                return values
            if not _settle(*pair, values):
                left.append(pair)
        if len(left) == len(waiting):
            return values
        waiting = left


def _settle(extent: SymExpr, value: int, values: Values) -> bool:
    """Whether ``extent = value`` has nothing more to say; notes the value that settles a symbol."""
    if extent.coef == 1 and len(extent.symbols) == 1:  # mostly: the symbol itself
        values.setdefault(extent.symbols[0], value)
        return True
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
