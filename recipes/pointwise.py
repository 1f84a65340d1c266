"""Which pointwise ops kernels trace: those of the graph's op table, but for the exceptions here.

What an op computes in a kernel is its row in ``trace/pointwise.py``, which imports the DSL; this
module does not, so that planning can ask.
"""

from __future__ import annotations

from cudnn_aot.compiler.graph.ops.pointwise import ROWS

# Op to the reason why no kernel traces it.
UNTRACED = {
    "gen_index": "its values are positions, and a traced op sees only the values at one position",
}

TRACED = frozenset(row.name for row in ROWS) - UNTRACED.keys()

# Ops that give 1 or 0 and compute nothing else: programs declare them to compute in BOOLEAN.
TRUTH = frozenset(name for name in TRACED if name.startswith(("cmp_", "logical_")))
