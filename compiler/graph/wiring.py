"""Which tensor goes on which port of a new node: what the row takes, and what it writes.

There are three ways, by who gives the tensors. Tensors that were made for a node that is refused
are the caller's to take back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_aot.compiler.graph.op import NOTHING, NodeView, Op
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import InvalidGraphError, did_you_mean


def wire_own(view: NodeView) -> None:
    """Wire a node of which every port has a tensor of the graph, as in files."""
    spec, inputs, written = view.spec, view.inputs, view.outputs
    _take_attrs(view)
    if (*inputs,) not in spec.usual_inputs:
        view.inputs = _inputs(view)
    view.outputs = NOTHING
    ports = spec.existing(view)
    _write(view, written if (*written,) == ports else _given(view, ports, written))


def wire_given(view: NodeView) -> None:
    """Wire a node that is given what it writes: tensors of the graph or of other libraries."""
    written = _take(view)
    _write(view, _given(view, view.spec.existing(view), written))


def wire_made(view: NodeView) -> None:
    """Wire a node whose outputs are made here; given are the tensors that the caller declares."""
    declared = _take(view)
    ports = view.spec.existing(view)
    _refuse_unknown(view, declared, ports, view.spec.declared)
    made = {port: view.graph.declare({"is_virtual": True}) for port in ports}
    _write(view, made | _declared(view, declared))


def _take(view: NodeView) -> Mapping[str, Any]:
    """Check attributes and operands, and put them in order; what is given for the node to write."""
    _take_attrs(view)
    view.inputs = _inputs(view)
    written, view.outputs = view.outputs, NOTHING
    return written


def _take_attrs(view: NodeView) -> None:
    if view.attrs or view.spec.required_attrs:
        view.attrs = view.spec.given_attrs(view.attrs)


def _write(view: NodeView, written: Mapping[str, Tensor]) -> None:
    """Let the node write tensors that no node has produced or read."""
    if len(written) > 1 and len(set(written.values())) < len(written):
        raise InvalidGraphError("one tensor is on two of the ports that the node writes")
    producers, read, inputs = view.graph._producers, view.graph._read, view.inputs
    for port, tensor in written.items():
        if tensor in producers:
            raise InvalidGraphError(f"port {port}: {tensor} is already produced")
        if tensor in read or tensor in inputs.values():
            raise InvalidGraphError(f"port {port}: {tensor} is already read")
    view.outputs = written


def _inputs(view: NodeView) -> Mapping[str, Tensor]:
    """The operands by port in the order of the row; refuses what the row does not take."""
    graph, spec, name, given = view.graph, view.spec, view.name, view.inputs
    singles = spec.single_inputs
    for port in given:
        if port not in singles:
            row = spec.port(port)
            if row is None or row.is_result:
                near, known = did_you_mean(port, spec.inputs), ", ".join(spec.inputs)
                raise InvalidGraphError(f"no input port {port!r}{near}; it has: {known}")
    wired: dict[str, Tensor] = {}
    for row in spec.input_ports:
        if row.is_list:
            for port in _items(spec, row.name, row.optional, given, view.attrs):
                wired[port] = graph._operand(name, port, given[port])
        elif given.get(row.name) is not None:
            wired[row.name] = graph._operand(name, row.name, given[row.name])
        elif not row.optional:
            raise InvalidGraphError(f"input port {row.name} is not wired")
    return wired


def _items(
    spec: Op, port: str, is_optional: bool, given: Mapping[str, Any], attrs: Mapping[str, Any]
) -> list[str]:
    """The wired ports of a list; an attribute may stand in the place of one, as in `dropout`."""
    count = sum(spec.list_port(name) == port for name in (*given, *attrs))
    names = [f"{port}_{index}" for index in range(count)]
    missing = [name for name in names if name not in given and name not in attrs]
    if missing or not count and not is_optional:
        raise InvalidGraphError(f"input port {(missing or [port])[0]} is not wired")
    return [name for name in names if name in given]


def _given(
    view: NodeView, ports: tuple[str, ...], given: Mapping[str, Any]
) -> Mapping[str, Tensor]:
    """The tensors given for all outputs, `ports`, and for what the caller declares."""
    _refuse_unknown(view, given, ports, (*ports, *view.spec.declared))
    written: dict[str, Tensor] = {}
    for port in ports:
        if given.get(port) is None:
            raise InvalidGraphError(f"output port {port} is not wired")
        written[port] = view.graph._operand(view.name, port, given[port])
    return written | _declared(view, given)


def _declared(view: NodeView, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that the caller declares and the node writes."""
    return {
        port: view.graph._operand(view.name, port, given[port])
        for port in view.spec.declared
        if given.get(port) is not None
    }


def _refuse_unknown(
    view: NodeView, given: Mapping[str, Any], ports: tuple[str, ...], taken: tuple[str, ...]
) -> None:
    for port in given:
        if port not in taken:
            known = (*ports, *view.spec.declared)
            near = did_you_mean(port, known)
            raise InvalidGraphError(f"no output port {port!r}{near}; it has: {', '.join(known)}")
