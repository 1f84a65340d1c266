"""Every op with several choices of its ports and attributes, semantic rules left aside."""

from collections.abc import Iterator
from typing import Any

import pytest
from op_graphs import example, value_of

from cudnn_aot.compiler.formats.attributes import is_writable
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.op import Op
from cudnn_aot.compiler.graph.ops.table import OPS

KINDS = ("required", "ports", "attributes", "everything")


def attributes(spec: Op, wired: tuple[str, ...] = ()) -> dict[str, Any]:
    """A value other than the default for every attribute that no port of `wired` stands for."""
    taken = {*wired, *(f"{port}_0" for port in wired)}
    return {
        attr.name: value_of(attr)
        for attr in spec.attrs
        if is_writable(attr) and attr.name not in taken
    }


def graph_of(op: str, kind: str) -> Graph:
    """A validated graph of one node with the ports and attributes of one of `KINDS`."""
    spec = OPS[op]
    ports = tuple(port.name for port in spec.ports if port.optional)
    given = ports if kind in ("ports", "everything") else ()
    attrs = attributes(spec, given) if kind in ("attributes", "everything") else {}
    graph = example(spec, given, attrs)
    graph.validate()
    return graph


def without_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Semantic rules have tests of their own; forms and keys hold for what they refuse too."""
    monkeypatch.setattr("cudnn_aot.compiler.graph.graph.check_rules", lambda graph: None)
    yield
