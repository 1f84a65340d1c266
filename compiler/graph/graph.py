"""The graph: tensors and nodes in the order they were built, one method per row of the op table.

Methods, keywords, automatic names and uids follow the cuDNN frontend; the public `pygraph` adds the
plans.
A graph can be changed until `freeze`, which validates it and seals the whole surface; a change
after `validate` undoes the validation. uids belong to this class: a uid that the caller asks for
takes it from an automatic holder, which is renumbered, and two callers' claims on one uid collide.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.builders import Builders
from cudnn_aot.compiler.graph.dtypes import as_data_type
from cudnn_aot.compiler.graph.enums import data_type, scalar_type
from cudnn_aot.compiler.graph.extents import Symbol, is_symbol_name, row_major
from cudnn_aot.compiler.graph.infer import infer_inputs, infer_nodes
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.op import NOTHING, NodeView, Op
from cudnn_aot.compiler.graph.ops.table import op_row
from cudnn_aot.compiler.graph.tensor import DATA_TYPE, NORMAL_FORMS, STRIDE, Tensor, as_uid, fill
from cudnn_aot.compiler.graph.text import as_name
from cudnn_aot.compiler.graph.validate import (
    check_layouts,
    check_rules,
    check_structure,
    check_symbols,
)
from cudnn_aot.compiler.graph.wiring import wire_given, wire_made, wire_own
from cudnn_aot.errors import FrozenGraphError, InvalidGraphError, cudnnGraphNotSupportedError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.bucket import GraphClass


class Stage(enum.IntEnum):
    """How far a graph has come. Only a mutation leads back, from ``VALID`` to ``OPEN``."""

    OPEN = 0
    VALID = 1
    FROZEN = 2
    PLANNED = 3


_OPEN, _VALID = Stage.OPEN, Stage.VALID  # looked up at every step of building


class GraphContext:
    """What a graph's tensors and nodes take when they set no type; fixed with the graph.

    Of a context that names an io type alone, that type is the others' too.
    """

    __slots__ = ("io_data_type", "intermediate_data_type", "compute_data_type")
    io_data_type: data_type | None
    intermediate_data_type: data_type | None
    compute_data_type: data_type | None

    def __init__(self, io: Any, intermediate: Any, compute: Any) -> None:
        put = object.__setattr__
        put(self, "io_data_type", as_data_type(io))
        put(self, "intermediate_data_type", as_data_type(intermediate) or self.io_data_type)
        put(self, "compute_data_type", as_data_type(compute) or self.io_data_type)

    def __setattr__(self, field: str, value: Any) -> None:
        raise FrozenGraphError(f"cannot set {field}: give it to the graph when it is made")

    def __delattr__(self, field: str) -> None:
        raise FrozenGraphError(f"cannot delete {field} of a context")


class _Undo:
    """A block that makes tensors of a graph, and leaves none if it raises."""

    __slots__ = ("_graph", "_count", "_next_uid", "_stage")

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        graph = self._graph
        self._count, self._next_uid, self._stage = (
            len(graph._tensors),
            graph._next_uid,
            graph._stage,
        )

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        graph = self._graph
        if kind is None:
            return
        while len(graph._tensors) > self._count:
            graph._bound.pop(id(graph._tensors.popitem()[1]), None)
        graph._by_uid = None
        graph._next_uid, graph._stage = self._next_uid, self._stage


class Graph(metaclass=Builders):
    """A cuDNN-style operation graph.

    Args:
        name: the graph's name; no part of its key.
        io_data_type: type of non-virtual tensors that set none.
        intermediate_data_type: type of virtual tensors that set none; io_data_type unless given,
            FLOAT if neither is.
        compute_data_type: arithmetic of nodes that set none, likewise.
        is_override_shape_enabled: calls override extents; they are symbols in what is keyed,
            written and planned (see `canonical`), and numbers in this graph's tensors.
        symbols: ranges of the symbolic extents, by name: `Symbol` or a mapping of its fields.

    The other parameters exist so that programs written for the cuDNN frontend run: they describe a
    live device or handle, which a build for a named target has no use for.
    """

    def __init__(
        self,
        name: str = "",
        io_data_type: Any = None,
        intermediate_data_type: Any = None,
        compute_data_type: Any = None,
        handle: Any = None,
        sm_count: int | None = None,
        sm_version: int | None = None,
        kernel_cache: Any = None,
        device_property: Any = None,
        is_dynamic_shape_enabled: bool = False,
        is_override_shape_enabled: bool = False,
        cuda_graph_retention: Any = None,
        *,
        is_cuda_graph_replay_expected: bool = False,
        symbols: Mapping[str, Symbol | Mapping[str, Any]] | None = None,
    ) -> None:
        if sm_count is not None or sm_version is not None:
            raise cudnnGraphNotSupportedError(
                "sm_count and sm_version come from the target a graph is built for: leave them out"
            )
        self._stage = Stage.OPEN
        self._key: str | None = None
        self._class: GraphClass | None = None
        self._canonical = self  # what validation finds
        self._tensors: dict[int, Tensor] = {}
        self._by_uid: Mapping[int, Tensor] | None = None  # until a tensor or uid changes
        self._nodes: list[Node] = []
        self._producers: dict[Tensor, Node] = {}
        self._read: set[Tensor] = set()
        self._bound: dict[int, Any] = {}  # by id of the tensor
        self._node_count: dict[str, int] = {}
        self._next_uid = 1
        self._given_up: set[int] = set()  # uids that callers asked for and changed for others
        self._symbols: dict[str, Symbol] = {}
        self._name = as_name(name)
        self._context = GraphContext(io_data_type, intermediate_data_type, compute_data_type)
        self._is_override_shape_enabled = bool(is_override_shape_enabled)
        for symbol_name, symbol in (symbols or {}).items():
            self._declare_symbol(symbol_name, symbol)

    # What the graph holds.

    @property
    def name(self) -> str:
        return self._name

    @name.setter
    def name(self, value: str) -> None:
        self._name = as_name(value)  # no part of the key: a frozen graph may be renamed

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes; every node comes after those whose results it reads."""
        return tuple(self._nodes)

    @property
    def tensors(self) -> Mapping[int, Tensor]:
        """Every tensor by uid, ascending."""
        if self._by_uid is None:
            self._by_uid = MappingProxyType(dict(sorted(self._tensors.items())))
        return self._by_uid

    @property
    def symbols(self) -> Mapping[str, Symbol]:
        return MappingProxyType(self._symbols)

    @property
    def io_data_type(self) -> data_type | None:
        return self._context.io_data_type

    @property
    def intermediate_data_type(self) -> data_type | None:
        return self._context.intermediate_data_type

    @property
    def compute_data_type(self) -> data_type | None:
        return self._context.compute_data_type

    @property
    def stage(self) -> Stage:
        return self._stage

    @property
    def is_frozen(self) -> bool:
        return self._stage >= Stage.FROZEN

    @property
    def bindings(self) -> Mapping[int, Any]:
        """Other libraries' tensors that were passed to ports, by uid: the buffers of a call."""
        tensors = self._tensors.values()
        return {t.uid: self._bound[id(t)] for t in tensors if id(t) in self._bound}

    def producer(self, tensor: Tensor) -> Node | None:
        """The node whose result `tensor` is, or None for a graph input."""
        return self._producers.get(tensor)

    def inputs(self) -> tuple[Tensor, ...]:
        """Non-virtual tensors that no node produces, by ascending uid.

        Pass-by-value tensors and ragged offsets are among them.
        """
        made = self._producers
        return tuple([t for t in self.tensors.values() if t not in made and not t.is_virtual])

    def outputs(self) -> tuple[Tensor, ...]:
        """Non-virtual results, by ascending uid."""
        made = self._producers
        return tuple([t for t in self.tensors.values() if t in made and not t.is_virtual])

    def is_discarded(self, tensor: Tensor) -> bool:
        """Whether `tensor` is a result that nobody asked for: virtual, and read by no node."""
        return tensor.is_virtual and tensor in self._producers and tensor not in self._read

    def uids(self) -> dict[str, int]:
        """uid by name of the non-virtual tensors that a name tells apart."""
        named = [t for t in self.tensors.values() if t.name and not t.is_virtual]
        by_name: dict[str, list[int]] = {}
        for tensor in named:
            by_name.setdefault(tensor.name, []).append(tensor.uid)
        return {name: uids[0] for name, uids in by_name.items() if len(uids) == 1}

    def find_tensor(self, name_or_uid: str | int) -> Tensor | None:
        """The tensor of that uid or name, or None; refuses a name that several have."""
        if isinstance(name_or_uid, int):
            return self._tensors.get(name_or_uid)
        found = [tensor for tensor in self._tensors.values() if tensor.name == name_or_uid]
        if len(found) > 1:
            raise InvalidGraphError(
                f"{name_or_uid!r} names {len(found)} tensors: look one up by its uid"
            )
        return found[0] if found else None

    def get_node(self, name: str) -> Node | None:
        """The first node of that name, or None."""
        return next((node for node in self._nodes if node.name == name), None)

    # The same as programs written for the cuDNN frontend ask for it.

    @property
    def context(self) -> GraphContext:
        """The io, intermediate and compute data types."""
        return self._context

    def get_inputs(self) -> list[Tensor]:
        return list(self.inputs())

    def get_outputs(self) -> list[Tensor]:
        return list(self.outputs())

    def inspect(self) -> dict[str, Any]:
        """What the graph holds as plain values: the context, the nodes, the tensors by uid."""

        def named(value: data_type | None) -> str | None:
            return None if value is None else value.name

        return {
            "context": {
                field: named(getattr(self._context, field)) for field in self._context.__slots__
            },
            "nodes": [
                {
                    "name": node.name,
                    "type": node.spec.node_type,
                    "op": node.op,
                    "inputs": {port: tensor.uid for port, tensor in node.inputs.items()},
                    "outputs": {port: tensor.uid for port, tensor in node.outputs.items()},
                    "params": dict(node.attrs),
                }
                for node in self._nodes
            ],
            "tensors": {
                uid: {
                    "name": tensor.name,
                    "dim": list(tensor.dim),
                    "stride": list(tensor.stride),
                    "data_type": named(tensor.data_type),
                    "is_virtual": tensor.is_virtual,
                }
                for uid, tensor in self.tensors.items()
            },
        }

    # Building.

    def tensor(
        self,
        dim: Any,
        stride: Any = None,
        data_type: Any = None,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        ragged_offset: Tensor | None = None,
        reordering_type: Any = None,
        name: str = "",
        uid: int | None = None,
        ragged_offset_multiplier: int = 1,
        alignment_value: int = 1,
        *,
        pass_by_value: int | float | None = None,
        scalar_type: Any = None,
    ) -> Tensor:
        """Declare a tensor; strides are row-major unless given, in elements.

        Extents and strides are integers, or text such as ``"4096*M"`` over the graph's symbols.
        """
        fields: dict[str, Any] = {"dim": NORMAL_FORMS["dim"](dim)}
        for field, value, default in (
            ("stride", stride, None),
            ("data_type", data_type, None),
            ("is_virtual", is_virtual, False),
            ("is_pass_by_value", is_pass_by_value, False),
            ("reordering_type", reordering_type, None),
            ("name", name, ""),
            ("ragged_offset_multiplier", ragged_offset_multiplier, 1),
            ("alignment_value", alignment_value, 1),
            ("pass_by_value", pass_by_value, None),
            ("scalar_type", scalar_type, None),
        ):
            if value is not default:
                fields[field] = NORMAL_FORMS[field](value)
        # -1 is how the cuDNN frontend spells a uid that is not set
        uid = None if uid is None or uid == -1 else as_uid(uid)
        with _Undo(self):
            tensor = self.declare(fields, uid, ragged_offset)
        if tensor.data_type is None:  # what inference will find, unless it is set until then
            context = self._context
            inferred = context.intermediate_data_type if is_virtual else context.io_data_type
            fill(tensor, DATA_TYPE, data_type=inferred)
        if not tensor.stride and tensor.dim:  # likewise
            fill(tensor, STRIDE, stride=row_major(tensor.dim))
        return tensor

    def declare(
        self, fields: dict[str, Any], uid: int | None = None, ragged_offset: Any = None
    ) -> Tensor:
        """Declare a tensor by its other fields (see `Tensor`), which are in their normal forms.

        For readers of files and for builders; `fields` become the tensor's own.
        """
        if self._stage is not _OPEN:
            self._check_open("add a tensor")
        tensor = Tensor(self, fields)
        if ragged_offset is not None:
            tensor._write("ragged_offset", ragged_offset)
        if uid is None:
            uid = fields["uid"] = self._take_uid()
            fields["uid_assigned"] = False
        else:
            if uid in self._tensors:
                self._vacate(uid, tensor)
            fields["uid"] = uid
        self._tensors[uid] = tensor
        self._by_uid = None
        return tensor

    def tensor_like(self, template: Any, name: str = "", is_virtual: bool = False) -> Tensor:
        """Declare a tensor like another: of this package, torch, numpy, or anything shaped so.

        One element in host memory becomes pass-by-value.
        """
        if isinstance(template, Tensor):
            return self.tensor(
                template.dim,
                template.stride or None,
                template.data_type,
                is_virtual,
                template.is_pass_by_value,
                name=name,
                alignment_value=template.alignment_value,
            )
        from cudnn_aot.compiler.graph.describe import describe  # of use to other libraries' tensors

        found = describe(template)
        return self.tensor(
            found.dim,
            found.stride,
            found.data_type,
            is_virtual,
            found.is_host_number,
            name=name,
        )

    def tensor_scalar(
        self, value: int | float, scalar_type: Any = scalar_type.RUNTIME_PARAM, name: str = ""
    ) -> Tensor:
        """Declare a one-element pass-by-value tensor with a value: INT32 for an int, else FLOAT."""
        dtype = data_type.INT32 if type(value) is int else data_type.FLOAT
        return self.tensor(
            [1],
            [1],
            dtype,
            is_pass_by_value=True,
            name=name,
            pass_by_value=value,
            scalar_type=scalar_type,
        )

    def add_node(
        self,
        op: str | Op,
        inputs: Mapping[str, Tensor],
        attrs: Mapping[str, Any] | None = None,
        *,
        outputs: Mapping[str, Tensor] | None = None,
        results: Mapping[str, Tensor] | None = None,
        compute_data_type: Any = None,
        name: str = "",
        out_dims: Mapping[str, Any] | None = None,
    ) -> Node:
        """Add a node by its row; the builder methods and the file readers end here.

        A node that is refused leaves the graph as it was.

        Args:
            inputs: tensor by port, those of a list port as ``<port>_0``, ``<port>_1``, ...
            attrs: attributes; None and the default are the same as not given.
            outputs: existing tensors for every port that the node writes; its outputs are made
                when None.
            results: with made outputs, the tensors for the ports that the caller declares
                (``rng_dump``, ``score_max``, ...).
            out_dims: the extents of outputs that the caller gives; what can be is then inferred at
                once. None leaves all to validation.
        """
        view = NodeView(
            self,
            op_row(op) if isinstance(op, str) else op,
            name,
            dict(inputs),
            dict(outputs or results or {}),
            attrs or NOTHING,
            compute_data_type,
        )
        with _Undo(self):
            return self._add(view, wire_made if outputs is None else wire_given, out_dims)

    def add_view(self, view: NodeView) -> Node:
        """Add the node that `view` becomes, whose fields are what `add_node` takes.

        Its dictionaries become the node's own. Every port has a tensor of this graph, as in files.
        """
        return self._add(view, wire_own)

    def _add(
        self,
        view: NodeView,
        wire: Callable[[NodeView], None],
        out_dims: Mapping[str, Any] | None = None,
    ) -> Node:
        if self._stage is not _OPEN:
            self._check_open("add a node")
        spec, counts = view.spec, self._node_count
        count = -1
        if view.name:
            view.name = as_name(view.name)
        else:
            count = counts.get(spec.name, 0)
            view.name = f"{spec.name}.{count}"
        if view.compute_data_type is not None:
            dtype = as_data_type(view.compute_data_type) if spec.has_compute_data_type else None
            view.compute_data_type = dtype
            view.compute_data_type_assigned = dtype is not None
        try:
            wire(view)
        except InvalidGraphError as error:
            raise InvalidGraphError(f"{view}: {error}") from None
        node = Node(view)
        if out_dims is not None:
            node.infer_early(out_dims)
        # Nothing is refused from here on.
        if count >= 0:
            counts[spec.name] = count + 1
        self._nodes.append(node)
        for port, tensor in view.outputs.items():
            self._producers[tensor] = node
            if not tensor.name:
                tensor.__dict__["name"] = f"{view.name}::{spec.suffix(port)}"
        self._read.update(view.inputs.values())
        return node

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The builder of an op: matmul, relu, bias, ... (found here once, then in the class)."""
        try:
            return getattr(type(self), name).__get__(self)
        except AttributeError:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}") from None

    def __delattr__(self, field: str) -> None:
        raise AttributeError(f"cannot delete {field!r} of a graph")

    def __dir__(self) -> list[str]:
        return dir(type(self)) + list(self.__dict__)

    # Checking and sealing.

    def validate(self) -> None:
        """Infer what is not set and check every rule; a no-op if nothing changed since.

        Raises `InvalidGraphError` for a graph that is wrong, and `cudnnGraphNotSupportedError` for
        one that asks for what no op means.
        """
        if self._stage >= Stage.VALID:
            return
        check_structure(self)
        made = self._producers
        inputs = [tensor for tensor in self.tensors.values() if tensor not in made]
        infer_inputs(self, inputs)
        check_layouts(self, inputs)
        infer_nodes(self)
        check_layouts(self, [tensor for tensor in self.tensors.values() if tensor in made])
        check_symbols(self)
        check_rules(self)
        self._canonical = self
        if self._is_override_shape_enabled and not self._symbols:
            from cudnn_aot.compiler.graph.override import symbolic  # few graphs need it

            self._canonical = symbolic(self)
        self._stage = Stage.VALID

    def canonical(self) -> Graph:
        """The graph as it is keyed, written and planned, validated.

        Itself, or of a graph with override shapes a frozen copy in which the extents that calls
        override are symbols (see `override`).
        """
        self.validate()
        if self._canonical is not self:
            self._canonical.name = self._name  # which may change any time
        return self._canonical

    def freeze(self) -> Graph:
        """Validate and seal: after this every write raises `FrozenGraphError`. Idempotent."""
        if not self.is_frozen:
            self.validate()
            self._stage = Stage.FROZEN
        return self

    def begin_planning(self) -> Graph:
        """Freeze the graph for the one time that it is planned.

        Planning a second time would make two plan lists of one graph: it raises. Plan otherwise by
        building a new graph, and change between the plans of a list by selecting one.
        """
        if self._stage is Stage.PLANNED:
            raise FrozenGraphError(
                "the graph is planned already: planning is one-shot; build a new graph"
            )
        self.freeze()
        self._stage = Stage.PLANNED
        return self

    def key(self) -> str:
        """64 hex digits that identify what the graph computes and its caller's ABI; freezes it."""
        self.freeze()
        if self._key is None:
            from cudnn_aot.compiler.graph.key import graph_key  # building a graph needs none

            self._key = graph_key(self.canonical(), self.graph_class())
        return self._key

    def graph_class(self) -> GraphClass:
        """The graph but for extents, strides and scalars that no kernel bakes; freezes it."""
        self.freeze()
        if self._class is None:
            from cudnn_aot.compiler.graph.bucket import graph_class

            self._class = graph_class(self)
        return self._class

    def __repr__(self) -> str:
        return f"<Graph {self._name!r}: {len(self._nodes)} nodes, {len(self._tensors)} tensors>"

    # Inside the package.

    def _check_open(self, what: str) -> None:
        if self._stage is not _OPEN:
            if self._stage is not _VALID:
                raise FrozenGraphError(f"cannot {what}: the graph is frozen; build a new graph")
            self._stage = _OPEN

    def _operand(self, owner: str, port: str, value: Any) -> Tensor:
        """A tensor of this graph; another library's tensor is described and remembered.

        It is then named ``<owner>::<port>``.
        """
        if isinstance(value, Tensor):
            if value._graph is not self:
                raise InvalidGraphError(f"port {port}: {value} belongs to another graph")
            return value
        from cudnn_aot.compiler.graph.describe import is_describable

        if is_describable(value):
            tensor = self.tensor_like(value, f"{owner}::{port}" if owner else "")
            self._bound[id(tensor)] = value
            return tensor
        raise InvalidGraphError(
            f"port {port}: got {type(value).__name__}, want a tensor of the graph "
            "(declare one with tensor, tensor_like or tensor_scalar)"
        )

    def _declare_symbol(self, name: str, symbol: Symbol | Mapping[str, Any]) -> None:
        self._check_open("declare a symbol")
        if not is_symbol_name(name):
            raise InvalidGraphError(f"bad symbol name: got {name!r}, want a word such as 'M'")
        if not isinstance(symbol, Symbol):
            try:
                symbol = Symbol(**symbol)
            except TypeError:
                raise InvalidGraphError(
                    f"symbol {name!r}: got {symbol!r}, want min, max, hint, multiple_of"
                ) from None
        reason = symbol.why_not()
        if reason:
            raise InvalidGraphError(f"symbol {name!r}: {reason}")
        self._symbols[name] = symbol

    def _take_uid(self) -> int:
        """The next uid that no caller has ever asked for, as in the cuDNN frontend."""
        while self._next_uid in self._given_up or self._next_uid in self._tensors:
            self._next_uid += 1
        self._next_uid += 1
        return self._next_uid - 1

    def _claim_uid(self, tensor: Tensor, uid: int) -> None:
        """Give `tensor` the caller's uid; an automatic holder moves, another caller's one stays."""
        if self._tensors.get(uid, tensor) is not tensor:
            self._vacate(uid, tensor)
        del self._tensors[tensor.uid]
        if tensor.uid_assigned:
            self._given_up.add(tensor.uid)
        fill(tensor, uid=uid, uid_assigned=True)
        self._tensors[uid] = tensor
        self._by_uid = None

    def _vacate(self, uid: int, tensor: Tensor) -> None:
        """Make the holder of `uid` give it to `tensor`."""
        holder = self._tensors[uid]
        if holder.uid_assigned:
            raise InvalidGraphError(
                f"uid {uid} is used twice: by {holder} and tensor {tensor.name!r}"
            )
        del self._tensors[uid]
        fill(holder, uid=self._take_uid())  # above every uid given so far
        self._tensors[holder.uid] = holder
