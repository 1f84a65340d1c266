"""Rules made from tables: extents by letter, data types by port, what excludes or needs what.

Each function here makes a rule, with the one line that documents it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from cudnn_aot.compiler.graph.dtypes import DTYPES
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.extents import Extent, format_extents
from cudnn_aot.compiler.graph.op import NodeView, Refusal, Rule
from cudnn_aot.compiler.graph.record import Record
from cudnn_aot.compiler.graph.rules.domain import may_equal

Find: TypeAlias = Callable[[NodeView], "Extent | None"]

INTEGERS = (data_type.INT32, data_type.INT64)
# Floats that are numbers by themselves: an E8M0 is a scale.
ANY_FLOATS = tuple(dtype for dtype, row in DTYPES.items() if row.is_float)
FLOATS = tuple(dtype for dtype in ANY_FLOATS if dtype is not data_type.FP8_E8M0)
WIDE_FLOATS = tuple(dtype for dtype in FLOATS if DTYPES[dtype].bits >= 16)
NO_NUMBERS = (data_type.BOOLEAN, data_type.FP8_E8M0)


def documented(text: str, rule: Rule) -> Rule:
    """`rule` with its one-line description."""
    rule.__doc__ = text
    return rule


_SETS = {
    ANY_FLOATS: "a float",
    FLOATS: "a float other than FP8_E8M0",
    WIDE_FLOATS: "a float of at least 16 bits",
}


def listed(names: Iterable[Any]) -> str:
    """``a, b or c``, for messages."""
    *first, last = [str(name) for name in names]
    return f"{', '.join(first)} or {last}" if first else last


def given(view: NodeView, *names: str) -> Any:
    """The value of the first of these attributes that the op has and the node sets, or None.

    For what ops call by different names, as ``left_bound`` and ``diagonal_band_left_bound``.
    """
    for name in names:
        if view.spec.has_attr(name):
            value = view.attr(name)
            if value is not None:
                return value
    return None


class _Axis(Record):
    """One axis of a pattern: a number, or a letter; ``may_be_one`` if it may also be 1."""

    name: str
    number: int | None
    may_be_one: bool

    def __str__(self) -> str:
        return f"{self.name} or 1" if self.may_be_one else self.name


def _axes(pattern: str) -> tuple[_Axis, ...]:
    axes = []
    for word in pattern.split():
        name = word.removesuffix("?")
        axes.append(_Axis(name, int(name) if name.isdecimal() else None, word.endswith("?")))
    return tuple(axes)


def _shown(axes: Iterable[_Axis]) -> str:
    return f"[{', '.join(map(str, axes))}]"


def extents(table: Mapping[str, str], **known: Find) -> Rule:
    """The extents of ports agree with patterns and with each other.

    A pattern is one word for each axis: a number, or a letter that stands for one extent on every
    port of the rule; ``B?`` may also be 1; ``"B 1 n 1 | B n"`` has alternatives by rank. A letter
    is what `known` finds, if that is not None, else what the first port with it has. Ports that are
    not wired, or have no extents yet, are left out.
    """
    ports = {port: tuple(map(_axes, text.split("|"))) for port, text in table.items()}

    def rule(view: NodeView) -> Refusal | None:
        bound = {letter: (find(view), "") for letter, find in known.items()}
        for port, patterns in ports.items():
            dim = view.dim(port)
            if not dim:
                continue
            axes = next((axes for axes in patterns if len(axes) == len(dim)), None)
            if axes is None:
                want = listed(map(_shown, patterns))
                return Refusal(f"port {port}: got dim {format_extents(dim)}, want {want}")
            for number, (axis, extent) in enumerate(zip(axes, dim, strict=True)):
                if axis.may_be_one and extent == 1:
                    continue
                value, source = bound.get(axis.name, (axis.number, ""))
                if value is None:
                    bound[axis.name] = (extent, f", as {port} has")
                elif extent != value and not may_equal(view, extent, value):
                    what = f"{value}" if axis.number is not None else f"{axis.name} = {value}"
                    one = " or 1" if axis.may_be_one else ""
                    return Refusal(
                        f"port {port}: got dim {format_extents(dim)}, want {_shown(axes)} with "
                        f"{what}{one} on axis {number}{source}"
                    )
        return None

    shown = [f"{port} {listed(map(_shown, patterns))}" for port, patterns in ports.items()]
    return documented(f"extents: {', '.join(shown)}", rule)


def types(
    *ports: str,
    allowed: tuple[data_type, ...] = (),
    refused: tuple[data_type, ...] = (),
    unsupported: bool = False,
) -> Rule:
    """The data types that ports may have; a tensor by value or buffer alike."""
    want = listed(dtype.name for dtype in allowed) if allowed else ""
    want = _SETS.get(allowed, want)
    want = want or f"not {listed(dtype.name for dtype in refused)}"

    names = frozenset(ports)
    bad = frozenset(d for d in data_type if d in refused or allowed and d not in allowed)

    def rule(view: NodeView) -> Refusal | None:
        for wired in (view.inputs, view.outputs):  # mostly fewer than the ports
            for port, tensor in wired.items():
                dtype = tensor.data_type
                if dtype in bad and port in names and dtype is not None:
                    return Refusal(f"port {port}: got {dtype.name}, want {want}", unsupported)
        return None

    return documented(f"type of {', '.join(ports)}: {want}", rule)


def floats(*ports: str) -> Rule:
    """Ports hold floats."""
    return types(*ports, allowed=FLOATS)


def numbers(*ports: str) -> Rule:
    """Ports hold integers or floats."""
    return types(*ports, refused=NO_NUMBERS)


def same_type(*ports: str) -> Rule:
    """Ports have one data type; a list port stands for all of its tensors."""

    def rule(view: NodeView) -> Refusal | None:
        names = [name for port in ports for name in view.many_names(port) or (port,)]
        types = [(name, tensor.data_type) for name in names if (tensor := view.tensor(name))]
        for name, dtype in types:
            source, want = types[0]
            if dtype is not want and dtype and want:
                return Refusal(f"port {name}: got {dtype.name}, want {want.name}, as {source}")
        return None

    return documented(f"{' and '.join(ports)} have one type", rule)


def one_element(*ports: str) -> Rule:
    """Ports hold one number."""

    def rule(view: NodeView) -> Refusal | None:
        for port in ports:
            dim = view.dim(port)
            if any(not may_equal(view, extent, 1) for extent in dim):
                return Refusal(f"port {port}: got dim {format_extents(dim)}, want one element")
        return None

    return documented(f"{', '.join(ports)}: one element", rule)


class Fact(Record):
    """Something that holds of a node or not.

    Attributes:
        text: what holds, as a noun: "a padding mask".
        holds: whether it does.
        port: the port or attribute that a refusal names.
    """

    text: str
    holds: Callable[[NodeView], bool]
    port: str = ""


def wired(*ports: str) -> Fact:
    """All of these ports are wired."""
    return Fact(
        " and ".join(ports), lambda view: all(view.has(port) for port in ports), f"port {ports[0]}"
    )


def on(name: str, *others: str) -> Fact:
    """The attribute is set: true, or a number or function is given. `others`: its other names."""
    names = (name, *others)

    def holds(view: NodeView) -> bool:
        value = given(view, *names)
        return value is not None and value is not False

    return Fact(name, holds, f"attribute {name}")


def _refuse(fact: Fact, got: str, want: str, unsupported: bool) -> Refusal:
    return Refusal(f"{fact.port}: got {got}, want {want}", unsupported)


def excludes(first: Fact, *others: Fact, unsupported: bool = False) -> Rule:
    """`first` does not go with any of `others`."""

    def rule(view: NodeView) -> Refusal | None:
        if first.holds(view):
            for other in others:
                if other.holds(view):
                    return _refuse(first, f"{first.text} with {other.text}", "one", unsupported)
        return None

    return documented(f"{first.text} excludes {listed(o.text for o in others)}", rule)


def needs(first: Fact, *others: Fact, unsupported: bool = False) -> Rule:
    """`first` needs one of `others`."""
    want = listed(other.text for other in others)

    def rule(view: NodeView) -> Refusal | None:
        if first.holds(view) and not any(other.holds(view) for other in others):
            return _refuse(first, f"{first.text} alone", f"it with {want}", unsupported)
        return None

    return documented(f"{first.text} needs {want}", rule)


def at_least(name: str, least: int, *others: str) -> Rule:
    """The integer attribute is at least `least`. `others`: its other names."""

    def rule(view: NodeView) -> Refusal | None:
        for attr in (name, *others):
            value = given(view, attr)
            if value is not None and value < least:
                return Refusal(f"attribute {attr}: got {value}, want at least {least}")
        return None

    return documented(f"{name} is at least {least}", rule)
