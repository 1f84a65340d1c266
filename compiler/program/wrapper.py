"""`Graph` of programs that build with ``with cudnn.Graph(...) as g``: a graph with named ends.

::

    with cudnn.Graph(io_data_type=dt.HALF, compute_data_type=dt.FLOAT,
                     inputs=["fc::A", "fc::B"], outputs=["fc::C"]) as g:
        c = g.matmul(A=x, B=w, name="fc")
        c.set_output(True)

On exit the graph is sealed and built, and its inputs and outputs are looked up; then ``g`` is
called with buffers. On a machine without a target to build for it is built at the first call. A
tensor is named by itself, its uid, its name, another library's tensor that was passed,
``<node>::<keyword>`` or ``<node>::<position>`` of an argument, or ``<node>::<PORT>`` of a result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any

from cudnn_aot.compiler.graph.builders import is_tensor
from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.compiler.program.buffers import current_stream, empty_bytes, empty_like
from cudnn_aot.compiler.program.pygraph import pygraph
from cudnn_aot.errors import InvalidGraphError, UsageError


class Graph:
    """Builds one graph inside ``with``.

    Args:
        handle: names the stream of calls that are given none; ``"auto"`` is torch's current stream.
        heuristics: modes of the plans; A, then FALLBACK, unless given.
        workspace_alloc: False if every call brings its workspace.
        inputs, outputs: order of the tensors in `inputs` and `outputs`.
        kwargs: arguments of `pygraph`.
    """

    def __init__(
        self,
        *,
        handle: Any = None,
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
        heuristics: Sequence[Any] | None = None,
        workspace_alloc: bool = True,
        **kwargs: Any,
    ) -> None:
        for what, value in (("inputs", inputs), ("outputs", outputs), ("heuristics", heuristics)):
            if value is not None and not isinstance(value, list | tuple):
                raise UsageError(f"{what}: got {type(value).__name__}, want a list or tuple")
        self._handle = handle
        self._heuristics = list(heuristics or ()) or None
        self._allocates = workspace_alloc
        self._workspace: Any = None
        self._kwargs = kwargs
        self._wanted = (list(inputs or ()), list(outputs or ()))
        self._graph: pygraph | None = None
        self._arguments: dict[str, Tensor] = {}  # "<node>::<keyword>" or "<node>::<position>"
        self._results: dict[str, Tensor] = {}  # "<node>::<PORT>"
        self._foreign: dict[int, tuple[Any, Tensor]] = {}  # by id of what was passed
        self._ends: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] = ((), ())

    def __enter__(self) -> Graph:
        if self._graph is not None:
            raise UsageError("the graph is built already: make another Graph")
        handle = None if self._handle == "auto" else self._handle
        self._graph = pygraph(handle=handle, **self._kwargs)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._graph = None
            return
        self.graph.build_if_possible(self._heuristics)
        if any(self._wanted):
            self.set_io_tuples(*self._wanted)

    @property
    def graph(self) -> pygraph:
        """The graph that is built."""
        if self._graph is None:
            raise UsageError("no graph yet: build it inside `with Graph(...) as g`")
        return self._graph

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs in the order that was asked for."""
        return self._ends[0]

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs in the order that was asked for."""
        return self._ends[1]

    @property
    def arguments(self) -> Mapping[str, Tensor]:
        """Every argument of a node by its names."""
        return MappingProxyType(self._arguments)

    def set_io_tuples(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Say in which order inputs and outputs come; every one of them has to be named."""
        if not self.graph.is_frozen:
            self._wanted = (list(inputs), list(outputs))
            return
        ends = (
            self._named("input", inputs, self._arguments),
            self._named("output", outputs, self._results),
        )
        for what, found, all_of_them in (
            ("input", ends[0], self.graph.inputs()),
            ("output", ends[1], self.graph.outputs()),
        ):
            missing = [tensor for tensor in all_of_them if not any(tensor is t for t in found)]
            if missing:
                raise InvalidGraphError(f"{what}s: {missing[0]} is not among them: name it too")
        self._ends = ends

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Execute on a dict of buffers, which is returned with the outputs that it lacked; or on
        the buffers of `inputs` in order, which returns those of `outputs`.

        Buffers are named as in `set_io_tuples`. What is allocated is of the library of the given
        ones. ``handle`` and ``workspace`` are those of `pygraph.execute`.
        """
        if len(args) == 1 and isinstance(args[0], dict):
            return self._call_by_name(args[0], **kwargs)
        inputs, outputs = self._ends
        if not outputs:
            raise UsageError("the order of inputs and outputs is not set: call set_io_tuples()")
        if len(args) != len(inputs):
            raise UsageError(f"got {len(args)} buffers, want {len(inputs)}, one of each input")
        pack = dict(zip((tensor.uid for tensor in inputs), args, strict=True))
        like = next(iter(args), None)
        results = tuple(empty_like(tensor, like) for tensor in outputs)
        pack.update(zip((tensor.uid for tensor in outputs), results, strict=True))
        self._execute(pack, like, **kwargs)
        return results[0] if len(results) == 1 else results

    def _call_by_name(self, given: dict[Any, Any], **kwargs: Any) -> dict[Any, Any]:
        known = {**self._arguments, **self._results}
        pack: dict[int, Any] = {}
        for key, buffer in given.items():
            tensor = self._find(key, known)
            if tensor is None:
                raise UsageError(f"got a buffer for {key!r}, want one of {', '.join(known)}")
            pack[tensor.uid] = buffer
        like = next(iter(pack.values()), None)
        for name, tensor in self._results.items():
            if not tensor.is_virtual and tensor.uid not in pack:
                pack[tensor.uid] = given[name] = empty_like(tensor, like)
        self._execute(pack, like, **kwargs)
        return given

    def _execute(
        self, pack: dict[int, Any], like: Any, *, handle: Any = None, workspace: Any = None
    ) -> None:
        graph = self.graph
        graph.build()
        if workspace is None:
            needed = graph.get_workspace_size()
            if needed and not self._allocates:
                raise UsageError(f"got no workspace, want {needed} bytes: pass workspace=")
            if needed and self._workspace is None:
                self._workspace = empty_bytes(needed, like)
            workspace = self._workspace
        if handle is None and self._handle == "auto":
            handle = current_stream()
        graph.execute(pack, workspace, handle)

    def _named(
        self, what: str, wanted: Sequence[Any], known: Mapping[str, Tensor]
    ) -> tuple[Tensor, ...]:
        found: list[Tensor] = []
        for index, name in enumerate(wanted):
            tensor = self._find(name, known)
            if tensor is None:
                shown = name if isinstance(name, str | int) else type(name).__name__
                raise InvalidGraphError(
                    f"{what}s[{index}]: got {shown!r}, want one of {', '.join(known) or 'none'}"
                )
            if any(tensor is other for other in found):
                raise InvalidGraphError(f"{what}s[{index}]: {tensor} is there twice")
            if tensor.is_virtual:
                raise InvalidGraphError(f"{what}s[{index}]: {tensor} is virtual, want an {what}")
            found.append(tensor)
        return tuple(found)

    def _find(self, name: Any, known: Mapping[str, Tensor]) -> Tensor | None:
        if isinstance(name, Tensor):
            return name if name in self.graph.tensors.values() else None
        if isinstance(name, str) and name in known:
            return known[name]
        if isinstance(name, str | int):
            return self.graph.find_tensor(name)
        passed = self._foreign.get(id(name))
        return None if passed is None else passed[1]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self.graph, name)
        if name not in OPS:
            return found
        return functools.partial(self._call, name, found)

    def _call(self, op: str, builder: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a builder, remembering what its arguments and results were called."""
        count = sum(node.op == op for node in self.graph.nodes)
        node = kwargs["name"] = kwargs.get("name") or f"{op}.{count}"
        if self.graph.get_node(node) is not None:
            raise InvalidGraphError(f"node name {node!r} is used already: give another")
        given = [self._argument(f"{node}::{index}", value) for index, value in enumerate(args)]
        named = {key: self._argument(f"{node}::{key}", value) for key, value in kwargs.items()}
        returned = builder(*given, **named)
        for tensor in returned if isinstance(returned, list) else [returned]:
            if tensor is not None:
                self._results[tensor.name] = tensor
        return returned

    def _argument(self, name: str, value: Any) -> Any:
        """`value` with other libraries' tensors declared, one tensor however often it is passed."""
        if isinstance(value, tuple | list):
            return [self._argument(f"{name}::{i}", item) for i, item in enumerate(value)]
        if not is_tensor(value):
            return value
        if not isinstance(value, Tensor):
            kept = self._foreign.get(id(value))
            if kept is None:
                node, _, argument = name.rpartition("::")
                tensor = self.graph._operand(node, argument, value)
                kept = self._foreign[id(value)] = (value, tensor)
            value = kept[1]
        self._arguments[name] = value
        return value
