"""cudnn-aot: graphs compiled ahead of time without a GPU, launched without a compiler.

Programs written for the cuDNN frontend build their graphs with ``import cudnn_aot as cudnn``. The
names below are imported when they are first used, so that a serving process, which uses
`cudnn_aot.runtime` alone, loads no part of the compiler.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "pygraph": "cudnn_aot.compiler.graph.graph",
    "Symbol": "cudnn_aot.compiler.graph.extents",
    "data_type": "cudnn_aot.compiler.graph.enums",
    "scalar_type": "cudnn_aot.compiler.graph.enums",
    "heur_mode": "cudnn_aot.compiler.graph.enums",
    "build_plan_policy": "cudnn_aot.compiler.graph.enums",
    "tensor_reordering": "cudnn_aot.compiler.graph.enums",
    "cudnnGraphNotSupportedError": "cudnn_aot.errors",
    "record": "cudnn_aot.compiler.recorder.session",
    "load_graphs": "cudnn_aot.compiler.formats.load",
    "dumps": "cudnn_aot.compiler.formats.graph_json",
    "loads": "cudnn_aot.compiler.formats.graph_json",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'cudnn_aot' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
