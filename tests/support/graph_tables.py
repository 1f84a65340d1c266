"""The peer's graph files: those of families that have engines, and the operands of one as a launch
table that runs nothing, for packs of host buffers.

``python tests/support/graph_tables.py`` prints the files of matmuls, for ``cudnn-aot build``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tables import Json, operand, table

from cudnn_aot.compiler.formats.load import load_graphs
from cudnn_aot.compiler.graph.extents import extent_expr

PEER = Path(__file__).parents[1] / "data" / "peer_graphs"
# Plain, fused, batched, quantized and grouped.
MATMULS = (
    "cudnn_frontend_1_32/gemm_*",
    "cudnn_frontend_1_32/bmm_*",
    "real_programs/fi_mm_*",
    "real_programs/fi_bmm_fp8*",
    "real_programs/fi_grouped_mm*",
)


def peer_matmuls() -> list[Path]:
    """The graph files of matmuls; their stems are names of one plan each."""
    return sorted(path for pattern in MATMULS for path in PEER.glob(f"{pattern}.json"))


def pack_table(name: str) -> Json:
    """The table of ``real_programs/NAME.json``; a graph with override shapes is symbolic."""
    (graph,) = load_graphs(PEER / "real_programs" / f"{name}.json")
    graph = graph.canonical()
    written = {id(tensor) for node in graph.nodes for tensor in node.outputs.values()}
    operands: list[Any] = []
    for tensor in sorted(graph.tensors.values(), key=lambda tensor: tensor.uid):
        if tensor.is_virtual:
            continue
        assert tensor.data_type is not None
        entry: Json = {"name": tensor.name, "dtype": tensor.data_type.name}
        if tensor.is_pass_by_value:
            entry |= {"uid": tensor.uid, "kind": "scalar", "value": tensor.pass_by_value}
            operands.append(entry)
            continue
        entry["kind"] = "output" if id(tensor) in written else "input"
        if tensor.ragged_offset is not None:
            entry["ragged"] = True
        if tensor.reordering_type.name != "NONE":
            entry["reordering_type"] = tensor.reordering_type.name
        dim, stride = map(extent_expr, tensor.dim), map(extent_expr, tensor.stride)
        operands.append(operand(tensor.uid, list(dim), list(stride), **entry))
    symbols = {
        name: {"min": symbol.min, "max": symbol.max, "multiple_of": symbol.multiple_of}
        for name, symbol in graph.symbols.items()
    }
    return table(operands, symbols=symbols)


if __name__ == "__main__":
    print(*peer_matmuls(), sep="\n")
