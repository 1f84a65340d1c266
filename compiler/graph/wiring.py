"""Which tensor goes on which port of a new node: what the row takes, and what it writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cudnn_aot.compiler.graph.op import Op
from cudnn_aot.errors import InvalidGraphError

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph
    from cudnn_aot.compiler.graph.tensor import Tensor


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
        if row.is_list:
            count = sum(spec.list_port(n) == row.name for n in (*given, *attrs))
            names = [f"{row.name}_{index}" for index in range(count)]
            missing = [n for n in names if n not in given and n not in attrs]
            if missing or not count and not row.optional:
                raise InvalidGraphError(
                    f"{what}: input port {(missing or [row.name])[0]} is not wired"
                )
            names = [n for n in names if n in given]
        else:
            names = [row.name] if given.get(row.name) is not None else []
            if not names and not row.optional:
                raise InvalidGraphError(f"{what}: input port {row.name} is not wired")
        for port in names:
            wired[port] = graph._operand(what, f"{name}::{port}", port, given[port])
    return wired


def wire_results(
    graph: Graph,
    what: str,
    spec: Op,
    name: str,
    ports: tuple[str, ...],
    given: Mapping[str, Any],
    made: list[str],
) -> dict[str, Tensor]:
    """The tensors that the node writes, by port; those of `made` are new."""
    declared = tuple(row.name for row in spec.ports if row.is_result)
    for port in given:
        if port not in declared and (port in made or port not in ports):
            known = ", ".join((*ports, *declared))
            raise InvalidGraphError(f"{what}: no output port {port!r} (it has: {known})")
    written: dict[str, Tensor] = {}
    for port in (*ports, *declared):
        tensor = given.get(port)
        if port in made:
            written[port] = graph._new_tensor(None, is_virtual=True)
        elif tensor is not None:
            written[port] = graph._operand(what, f"{name}::{port}", port, tensor)
        elif port not in declared:
            raise InvalidGraphError(f"{what}: output port {port} is not wired")
    return written
