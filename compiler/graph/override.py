"""Graphs with override shapes: the row extent that calls override becomes a symbol.

Such a graph is declared with a stand-in for the rows of A and of everything computed from it, and
each call overrides that extent. Here the rows become a symbol, so one plan serves every call:

- rows of every matmul's A that is a graph input, and of operands and results with the same rows;
- strides that were dense in the stand-in stay dense in the symbol; others stay as they are
  declared;
- an operand with one row keeps it: it broadcasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudnn_aot.compiler.graph.extents import Extent, Symbol, SymExpr, packed
from cudnn_aot.compiler.graph.tensor import Tensor, fill

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph

# Rows are tokens of one step; the bound keeps every packed extent within 32-bit indexing of rows.
MAX_ROWS = 1 << 20


def make_rows_symbolic(graph: Graph) -> None:
    """Replace the row extents of `graph` by symbols, ``M`` for the first (then ``M2``, ...)."""
    names: dict[int, str] = {}
    rows: dict[int, str] = {}  # id of a tensor with symbolic rows -> its symbol
    for node in graph.nodes:
        name: str | None = None
        if node.op == "matmul":
            name = rows.get(id(node.inputs["A"])) or _start(graph, node.inputs["A"], names)
            if name:
                _symbolise(node.inputs["A"], name, rows)
        else:
            name = next((rows[id(t)] for t in node.inputs.values() if id(t) in rows), None)
            extent = next((rows_ for rows_, symbol in names.items() if symbol == name), None)
            for tensor in node.inputs.values():
                if name and len(tensor.dim) >= 2 and tensor.dim[-2] == extent != 1:
                    _symbolise(tensor, name, rows)
        for tensor in node.outputs.values():
            if name:
                _symbolise(tensor, name, rows)


def _start(graph: Graph, a: Tensor, names: dict[int, str]) -> str | None:
    """The symbol for the rows of an input A, declared on first sight of the extent."""
    if len(a.dim) < 2 or not isinstance(a.dim[-2], int) or graph.producer(a) is not None:
        return None
    extent = a.dim[-2]
    if extent not in names:
        names[extent] = "M" if not names else f"M{len(names) + 1}"
        graph._declare_symbol(names[extent], Symbol(0, max(MAX_ROWS, extent), extent))
    return names[extent]


def _symbolise(tensor: Tensor, name: str, rows: dict[int, str]) -> None:
    if id(tensor) in rows:
        return
    rows[id(tensor)] = name
    if len(tensor.dim) < 2:  # to be inferred
        return
    old = tensor.dim
    dim: tuple[Extent, ...] = (*old[:-2], SymExpr(1, (name,)), old[-1])
    fill(tensor, dim=dim)
    if len(tensor.stride) == len(old):  # another number of them is refused later
        # Outermost first; of equal strides, the axis of extent 1 lies outside.
        steps = [step if isinstance(step, int) else 0 for step in tensor.stride]
        order = sorted(range(len(old)), key=lambda axis: (-steps[axis], old[axis] != 1, axis))
        if tensor.stride == packed(old, order):
            fill(tensor, stride=packed(dim, order))
