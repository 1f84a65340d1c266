"""Which tensor goes on which port of a new node: what the row takes, and what it writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.op import Op
from cudnn_aot.errors import InvalidGraphError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph
    from cudnn_aot.compiler.graph.tensor import Tensor

_VIRTUAL = {"is_virtual": True}


def wire_inputs(
    graph: Graph,
    what: str,
    spec: Op,
    name: str,
    given: Mapping[str, Any],
    attrs: Mapping[str, Any],
) -> dict[str, Tensor]:
    """The operands by port in the order of the row; refuses what the row does not take."""
    for port in given:
        row = spec.port(port)
        if row is None or row.is_result:
            known = ", ".join(spec.inputs)
            raise InvalidGraphError(f"{what}: no input port {port!r} (it has: {known})")
    wired: dict[str, Tensor] = {}
    for row in spec.ports:
        if row.is_result:
            continue
        if not row.is_list:
            tensor = given.get(row.name)
            if tensor is not None:
                wired[row.name] = graph._operand(what, name, row.name, tensor)
            elif not row.optional:
                raise InvalidGraphError(f"{what}: input port {row.name} is not wired")
        else:
            count = sum(spec.list_port(n) == row.name for n in (*given, *attrs))
            names = [f"{row.name}_{index}" for index in range(count)]
            missing = [n for n in names if n not in given and n not in attrs]
            if missing or not count and not row.optional:
                raise InvalidGraphError(
                    f"{what}: input port {(missing or [row.name])[0]} is not wired"
                )
            for port in names:
                if port in given:
                    wired[port] = graph._operand(what, name, port, given[port])
    return wired


def wire_results(
    graph: Graph,
    what: str,
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
            raise InvalidGraphError(f"{what}: no output port {port!r} (it has: {known})")
    written: dict[str, Tensor] = {}
    for port in (*ports, *spec.declared):
        tensor = given.get(port)
        if is_made and port in ports:
            written[port] = graph.declare(_VIRTUAL)
        elif tensor is not None:
            written[port] = graph._operand(what, name, port, tensor)
        elif port in ports:
            raise InvalidGraphError(f"{what}: output port {port} is not wired")
    return written
