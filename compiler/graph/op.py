"""What a row of the op tables says. Builders, files, inference, validation, keys and documents read it.

A row names the ports in positional order, the attributes, the outputs (when they exist, their data
type, shape and layout), and the semantic rules. A rule sees a node through `NodeView` and answers
None or a `Refusal`. There is one row per op and it is compared by identity.
"""  # noqa: E501

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from cudnn_aot.compiler.graph.attr import Attr
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.extents import Extent, Symbol, evaluate, row_major
from cudnn_aot.compiler.graph.record import Record
from cudnn_aot.errors import InvalidGraphError, cudnnGraphNotSupportedError, did_you_mean

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph
    from cudnn_aot.compiler.graph.node import Node
    from cudnn_aot.compiler.graph.tensor import Tensor

Dim: TypeAlias = tuple[Extent, ...]

NOTHING: Mapping[str, Any] = MappingProxyType({})


class ShapeError(InvalidGraphError):
    """A shape rule's refusal: the port at fault, what it has and what is wanted."""

    def __init__(self, port: str, got: str, want: str) -> None:
        super().__init__(f"port {port}: got {got}, want {want}")


class Refusal(Record):
    """A rule's answer: one sentence without the node, and the error it becomes.

    ``unsupported`` says that the graph is well-formed but beyond what the op means anywhere, which
    programs catch as `cudnnGraphNotSupportedError`; otherwise it is wrong (`InvalidGraphError`, a
    `ValueError`).
    """

    text: str
    unsupported: bool = False

    def error(self, node: str) -> Exception:
        kind = cudnnGraphNotSupportedError if self.unsupported else InvalidGraphError
        return kind(f"{node}: {self.text}")


def wrong(port: str, got: Any, want: str) -> Refusal:
    """``port q: got ..., want ...`` for a graph that is wrong."""
    return Refusal(f"port {port}: got {got}, want {want}")


def unsupported(port: str, got: Any, want: str) -> Refusal:
    """``port q: got ..., want ...`` for a graph that nothing supports."""
    return Refusal(f"port {port}: got {got}, want {want}", unsupported=True)


class NodeView:
    """A node as shape rules, conditions and semantic rules read it.

    Rules run after inference: every tensor that is used then has its dim, stride and data type.
    Conditions and shape rules run before the outputs are complete.

    Attributes:
        spec: the op's row.
        name: the node's name.
        inputs: tensor by input port; an optional port that is not wired is absent.
        outputs: tensor by output port.
        attrs: the attributes that differ from their defaults.
        compute_data_type: type of the arithmetic, or None until inferred.
        compute_data_type_assigned: whether the caller set it.
        symbols: the graph's symbols with their ranges.
        graph: the graph, for rules that look at what produces an operand.
    """

    __slots__ = (
        "graph",
        "spec",
        "name",
        "inputs",
        "outputs",
        "attrs",
        "compute_data_type",
        "compute_data_type_assigned",
    )

    def __init__(
        self,
        graph: Graph,
        spec: Op,
        name: str,
        inputs: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
        attrs: Mapping[str, Any],
        compute_data_type: data_type | None = None,
    ) -> None:
        self.graph = graph
        self.spec = spec
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self.attrs = attrs
        self.compute_data_type = compute_data_type
        self.compute_data_type_assigned = compute_data_type is not None

    def __str__(self) -> str:
        return f"node {self.name!r} ({self.op})"

    @property
    def op(self) -> str:
        return self.spec.name

    @property
    def symbols(self) -> Mapping[str, Symbol]:
        return self.graph.symbols

    def has(self, port: str) -> bool:
        """Whether the port is wired."""
        return port in self.inputs or port in self.outputs

    def tensor(self, port: str) -> Tensor | None:
        """The tensor on the port, of either direction, or None."""
        return self.inputs.get(port) or self.outputs.get(port)

    def dim(self, port: str) -> Dim:
        """The extents on the port; ``()`` while they are open."""
        tensor = self.inputs.get(port) or self.outputs.get(port)
        return () if tensor is None else tensor.dim

    def many(self, port: str) -> tuple[Tensor, ...]:
        """The tensors of a list port, in order."""
        return tuple(self.inputs[name] for name in self.many_names(port))

    def many_names(self, port: str) -> tuple[str, ...]:
        """The names under which the tensors of a list port are wired, in order."""
        return tuple(name for name in self.inputs if self.spec.list_port(name) == port)

    def attr(self, name: str) -> Any:
        """The attribute's value, its default included."""
        value = self.attrs.get(name)
        return self.spec.attr(name).default if value is None else value

    @property
    def said(self) -> Mapping[str, Any]:
        """`attrs` in one spelling each (`Op.spellings`): what the key has and engines read."""
        if not self.spec.spellings or not self.attrs:
            return self.attrs
        replaced = {name for spelling in self.spec.spellings for name in spelling.attrs}
        said = {name: value for name, value in self.attrs.items() if name not in replaced}
        for spelling in self.spec.spellings:
            for name, value in spelling.rule(self).items():
                if value is not None and value != self.spec.attr(name).default:
                    said[name] = value
        return said

    def producer(self, port: str) -> Node | None:
        """The node whose result is on the input port, or None for a graph input."""
        return self.graph.producer(self.inputs[port])

    def range(self, extent: Extent) -> tuple[int, int]:
        """The least and the largest value of an extent over the declared symbols."""
        symbols = self.symbols
        return (
            evaluate(extent, {name: symbol.min for name, symbol in symbols.items()}),
            evaluate(extent, {name: symbol.max for name, symbol in symbols.items()}),
        )


class SealedView(NodeView):
    """A node as anyone may read it, now and after later changes; nothing can be set through it."""

    __slots__ = ()

    def __init__(self, view: NodeView) -> None:
        for field in NodeView.__slots__:
            value = getattr(view, field)
            if field in ("inputs", "outputs", "attrs"):
                value = MappingProxyType(value)
            object.__setattr__(self, field, value)

    def __setattr__(self, field: str, value: Any) -> None:
        raise AttributeError(f"cannot set {field!r}: a view is for reading; use the node's setters")

    def __delattr__(self, field: str) -> None:
        raise AttributeError(f"cannot delete {field!r} of a view")


Rule: TypeAlias = Callable[[NodeView], "Refusal | None"]


class Shape(Record):
    """How an output's extents follow; ``rule`` gives None where the caller has to say.

    ``is_exact`` False lets the caller declare others, for an op whose inputs leave them open.
    """

    text: str
    rule: Callable[[NodeView], Dim | None]
    is_exact: bool = True


class When(Record):
    """The condition under which an output exists."""

    text: str
    rule: Callable[[NodeView], bool]


class Layout(Record):
    """The strides of an output whose caller sets none."""

    text: str
    rule: Callable[[NodeView, Dim], Dim]


ROW_MAJOR = Layout("row-major", lambda view, dim: row_major(dim))
GIVEN = Shape("the caller gives out_dims", lambda view: None)


class Port(Record):
    """An input port, or with ``is_result`` a tensor argument that the node writes.

    Attributes:
        name: the builder's keyword, and the port's name in files.
        optional: the port may be left open.
        is_list: the argument is a list; its tensors are ports ``<name>_0``, ``<name>_1``, ...
        is_keyword_only: not among the positional parameters.
        is_result: the caller declares the tensor and passes it, and the node writes it.
        is_python_only: the cuDNN backend has no field for it.
    """

    name: str
    optional: bool = False
    is_list: bool = False
    is_keyword_only: bool = False
    is_result: bool = False
    is_python_only: bool = False


class Output(Record):
    """A result of the node.

    Attributes:
        name: port name.
        shape: its extents.
        when: the condition under which it exists; None for always.
        data_type: the type when the caller sets none; a port's name for the type of that port's
            tensor; None for the graph's io or intermediate type.
        layout: its strides when the caller sets none.
        suffix: what the automatic name ``<node>::<suffix>`` ends in; None for the port's name.
    """

    name: str
    shape: Shape = GIVEN
    when: When | None = None
    data_type: data_type | str | None = None
    layout: Layout = ROW_MAJOR
    suffix: str | None = None


class Spelling(Record):
    """Attributes that say one thing in several ways, and the one way that counts.

    The way does not depend on extents, so that a graph with symbols and its instances say the same.

    Attributes:
        text: what is said how, for the documentation.
        attrs: the attributes.
        rule: their values in the one way; None and a default are the same as not given.
    """

    text: str
    attrs: tuple[str, ...]
    rule: Callable[[NodeView], Mapping[str, Any]]


class Style(enum.Enum):
    """How the builder's parameters stand, as programs for the cuDNN frontend call it.

    ``MATMUL``: ports, compute_data_type, attributes, name. ``POINTWISE``: ports, attributes, name,
    compute_data_type, the last two by keyword only if there are no attributes. ``STRUCTURED``:
    ports, attributes, then by keyword name, compute_data_type, out_dims. ``CAPTURED``: required
    ports, everything else by keyword; always a list of results.
    """

    MATMUL = "matmul"
    POINTWISE = "pointwise"
    STRUCTURED = "structured"
    CAPTURED = "captured"


class Op(Record):
    """One row.

    Attributes:
        name: method name, and the op's name in files.
        ports: input ports in positional order, then those by keyword.
        outputs: results in the order in which the builder returns them.
        attrs: attributes in positional order.
        node_type: the op's class in the cuDNN frontend's files.
        style: how the builder is called.
        rules: semantic rules, in the order in which they are checked.
        has_compute_data_type: whether the node does arithmetic.
        is_python_only: the cuDNN backend has no such op.
        spellings: attributes that say one thing in several ways; no two share one.
    """

    name: str
    ports: tuple[Port, ...]
    outputs: tuple[Output, ...]
    attrs: tuple[Attr, ...] = ()
    node_type: str = "POINTWISE"
    style: Style = Style.POINTWISE
    rules: tuple[Rule, ...] = ()
    has_compute_data_type: bool = True
    is_python_only: bool = False
    spellings: tuple[Spelling, ...] = ()

    @cached_property
    def _ports(self) -> dict[str, Port]:
        return {port.name: port for port in self.ports}

    @cached_property
    def _outputs(self) -> dict[str, Output]:
        return {output.name: output for output in self.outputs}

    @cached_property
    def attr_rows(self) -> Mapping[str, Attr]:
        """The attributes by name."""
        return MappingProxyType({attr.name: attr for attr in self.attrs})

    def __repr__(self) -> str:
        return f"<Op {self.name}>"

    @property
    def is_pointwise(self) -> bool:
        return self.node_type == "POINTWISE"

    @cached_property
    def input_ports(self) -> tuple[Port, ...]:
        return tuple(port for port in self.ports if not port.is_result)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input ports in order; a list port under its own name."""
        return tuple(port.name for port in self.input_ports)

    @cached_property
    def single_inputs(self) -> frozenset[str]:
        """Names of the input ports that are no lists."""
        return frozenset(port.name for port in self.input_ports if not port.is_list)

    @cached_property
    def usual_inputs(self) -> frozenset[tuple[str, ...]]:
        """The input ports of a node in order, for every choice of those that may be left open.

        Empty for a row with a list, or with many such ports.
        """
        ways: list[tuple[str, ...]] = [()]
        for port in self.input_ports:
            if port.is_list or len(ways) > 16:
                return frozenset()
            ways = [*(ways if port.optional else ()), *((*way, port.name) for way in ways)]
        return frozenset(ways)

    @cached_property
    def declared(self) -> tuple[str, ...]:
        """Names of the ports whose tensors the caller declares and the node writes."""
        return tuple(port.name for port in self.ports if port.is_result)

    @property
    def results(self) -> tuple[str, ...]:
        """Names of every port that the node writes: its outputs, then those given as arguments."""
        return (*(output.name for output in self.outputs), *self.declared)

    @cached_property
    def required_attrs(self) -> tuple[Attr, ...]:
        return tuple(attr for attr in self.attrs if attr.required)

    def attr(self, name: str) -> Attr:
        """The attribute's row; refuses a name that the op does not have."""
        row = self.attr_rows.get(name)
        if row is not None:
            return row
        known = [attr.name for attr in self.attrs]
        raise InvalidGraphError(
            f"{self.name} has no attribute {name!r}{did_you_mean(name, known)}; it has: "
            f"{', '.join(known) or 'none'}"
        )

    def has_attr(self, name: str) -> bool:
        return name in self.attr_rows

    def port(self, name: str) -> Port | None:
        """The row of a port, of the list for ``<list>_<n>``, or None."""
        row = self._ports.get(name)
        if row is not None:
            return None if row.is_list else row
        return self._ports.get(self.list_port(name) or "")

    def output(self, name: str) -> Output | None:
        """The row of an output, or None for a port that the caller gives the tensor of."""
        return self._outputs.get(name)

    def suffix(self, port: str) -> str:
        """What the automatic name of the tensor that the node writes on `port` ends in."""
        output = self._outputs.get(port)
        return port if output is None else output.suffix or port

    def list_port(self, name: str) -> str | None:
        """The list that ``<list>_<n>`` is an item of, or None."""
        stem, _, index = name.rpartition("_")
        row = self._ports.get(stem)
        if row is None or not row.is_list or not index.isdecimal() or len(index) > 9:
            return None
        if str(int(index)) != index:
            return None
        return stem

    def given_attrs(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """`values` by attribute name, normalised, without those at their default."""
        given: dict[str, Any] = {}
        for name, value in sorted(values.items()):
            row = self.attr(name)
            if value is not None:
                value = row.normalise(value)
                if value != row.default or row.required:
                    given[name] = value
        for row in self.required_attrs:
            if row.name not in given:
                raise InvalidGraphError(f"attribute {row.name} is not given, want {row.type.word}")
        return given

    def existing(self, view: NodeView) -> tuple[str, ...]:
        """The names of the outputs that the node has."""
        if self._always is not None:
            return self._always
        exist = [each for each in self.outputs if each.when is None or each.when.rule(view)]
        return tuple([output.name for output in exist])

    @cached_property
    def _always(self) -> tuple[str, ...] | None:
        """The names of the outputs, if none has a condition."""
        if any(output.when is not None for output in self.outputs):
            return None
        return tuple(output.name for output in self.outputs)


def ports(*names: str, **flags: bool) -> tuple[Port, ...]:
    """One port per name, each with `flags`; a name that ends in ``?`` is optional."""
    return tuple(
        Port(name.removesuffix("?"), optional=name.endswith("?"), **flags) for name in names
    )


def structured(
    name: str,
    node_type: str,
    inputs: tuple[Port, ...],
    outputs: tuple[Output, ...],
    *attrs: Attr,
    rules: tuple[Rule, ...] = (),
    has_compute_data_type: bool = True,
    spellings: tuple[Spelling, ...] = (),
) -> Op:
    """A row of `Style.STRUCTURED`."""
    return Op(
        name,
        inputs,
        outputs,
        attrs,
        node_type,
        Style.STRUCTURED,
        rules,
        has_compute_data_type=has_compute_data_type,
        spellings=spellings,
    )
