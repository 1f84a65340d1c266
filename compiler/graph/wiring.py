"""Which tensor goes on which port of a new node: what the row takes, and what it writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_aot.compiler.graph.op import NOTHING, NodeView, Op
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import InvalidGraphError


def wire(view: NodeView, is_made: bool, is_own: bool) -> None:
    """Check what is given to a new node, and put it in order; with `is_made` make its outputs.

    With `is_own` every port has a tensor of the graph. Tensors that were made for a node that is
    refused are the caller's to take back.
    """
    graph, spec = view.graph, view.spec
    if view.attrs or spec.required_attrs:
        view.attrs = spec.given_attrs(view.attrs)
    inputs, written = view.inputs, view.outputs
    if not (is_own and (*inputs,) in spec.usual_inputs):
        view.inputs = inputs = _inputs(view)
    view.outputs = NOTHING
    ports = spec.existing(view)
    if not (is_own and (*written,) == ports):
        written = _results(view, ports, written, is_made)
    if len(written) > 1 and len(set(written.values())) < len(written):
        raise InvalidGraphError("one tensor is on two of the ports that the node writes")
    producers, read = graph._producers, graph._read
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
                known = ", ".join(spec.inputs)
                raise InvalidGraphError(f"no input port {port!r} (it has: {known})")
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


def _results(
    view: NodeView, ports: tuple[str, ...], given: Mapping[str, Any], is_made: bool
) -> Mapping[str, Tensor]:
    """The tensors that the node writes, by port; with `is_made`, its outputs `ports` are new."""
    graph, spec, name = view.graph, view.spec, view.name
    for port in given:
        if port not in spec.declared and (is_made or port not in ports):
            known = ", ".join((*ports, *spec.declared))
            raise InvalidGraphError(f"no output port {port!r} (it has: {known})")
    written: dict[str, Tensor] = {}
    for port in ports:
        if is_made:
            written[port] = graph.declare({"is_virtual": True})
        elif given.get(port) is not None:
            written[port] = graph._operand(name, port, given[port])
        else:
            raise InvalidGraphError(f"output port {port} is not wired")
    for port in spec.declared:
        if given.get(port) is not None:
            written[port] = graph._operand(name, port, given[port])
    return written
