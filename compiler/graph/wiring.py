"""Which tensor goes on which port of a new node: what the row takes, and what it writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.op import Op
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import InvalidGraphError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph

_VIRTUAL = {"is_virtual": True}


def wire_inputs(
    graph: Graph, spec: Op, name: str, given: Mapping[str, Any], attrs: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The operands by port in the order of the row; refuses what the row does not take."""
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
            for port in _items(spec, row.name, row.optional, given, attrs):
                wired[port] = graph._operand(name, port, given[port])
            continue
        port = row.name
        tensor = given.get(port)
        if type(tensor) is Tensor and tensor._graph is graph:  # mostly
            wired[port] = tensor
        elif tensor is not None:
            wired[port] = graph._operand(name, port, tensor)
        elif not row.optional:
            raise InvalidGraphError(f"input port {port} is not wired")
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


def wire_results(
    graph: Graph,
    spec: Op,
    name: str,
    ports: tuple[str, ...],
    given: Mapping[str, Any],
    is_made: bool,
) -> dict[str, Tensor]:
    """The tensors that the node writes, by port; with `is_made`, its outputs are new."""
    for port in given:
        if port not in spec.declared and (is_made or port not in ports):
            known = ", ".join((*ports, *spec.declared))
            raise InvalidGraphError(f"no output port {port!r} (it has: {known})")
    written: dict[str, Tensor] = {}
    for port in ports:
        tensor = given.get(port)
        if is_made:
            written[port] = graph.declare(_VIRTUAL)
        elif type(tensor) is Tensor and tensor._graph is graph:  # mostly
            written[port] = tensor
        elif tensor is not None:
            written[port] = graph._operand(name, port, tensor)
        else:
            raise InvalidGraphError(f"output port {port} is not wired")
    for port in spec.declared:
        tensor = given.get(port)
        if tensor is not None:
            written[port] = graph._operand(name, port, tensor)
    return written
