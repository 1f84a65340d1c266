"""Which reductions kernels fold: the graph's modes, but for the exceptions here.

What a mode computes in a kernel is its row in ``trace/reductions.py``, which imports the DSL; this
module does not, so that planning can ask.
"""

from __future__ import annotations

from cudnn_aot.compiler.graph.enums import reduction_mode

_RANGE = "the product of a tile's values may leave the range of fp32 where the whole does not"

# Mode to the reason why no kernel folds it.
UNFOLDED = {"NOT_SET": "it names no fold", "MUL": _RANGE, "MUL_NO_ZEROS": _RANGE}

FOLDED = tuple(mode.name for mode in reduction_mode if mode.name not in UNFOLDED)
