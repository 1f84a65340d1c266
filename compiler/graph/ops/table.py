"""The op table: every row by name, and by the names that the cuDNN frontend's files use."""

from __future__ import annotations

from cudnn_aot.compiler.graph.op import Op
from cudnn_aot.compiler.graph.ops import (
    attention,
    linear_attention,
    matmul,
    norms,
    pointwise,
    structured,
)
from cudnn_aot.errors import InvalidGraphError

OPS: dict[str, Op] = {
    row.name: row
    for module in (matmul, pointwise, norms, structured, attention, linear_attention)
    for row in module.ROWS
}

# The row of every class of node but POINTWISE, whose ``mode`` is the op's name.
BY_NODE_TYPE: dict[str, Op] = {row.node_type: row for row in OPS.values() if not row.is_pointwise}


def op_row(name: str) -> Op:
    """The row of `name`; refuses an op that is not in the table, naming those closest to it."""
    row = OPS.get(name)
    if row is None:
        raise InvalidGraphError(f"unknown op {name!r} ({closest(name)})")
    return row


def closest(name: str) -> str:
    """For messages: which ops `name` may have meant."""
    import difflib  # loaded only to refuse

    known = sorted(OPS)
    near = difflib.get_close_matches(name, known, 3, 0.5) or known[:3]
    return f"known: {', '.join(near)} and {len(known) - len(near)} others, see docs/ops.md"
