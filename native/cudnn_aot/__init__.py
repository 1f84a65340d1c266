"""cudnn-aot: graphs compiled ahead of time without a GPU, launched without a compiler.

Programs written for the cuDNN frontend build their graphs with ``import cudnn_aot as cudnn``. The
names below are imported when they are first used, so that a serving process, which uses
`cudnn_aot.runtime` alone, loads no part of the compiler.
"""

import sys

TYPE_CHECKING = False  # what `typing` would say, whose loading the serving process need not pay
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_GRAPH = "cudnn_aot.compiler.graph"
_PROGRAM = "cudnn_aot.compiler.program"
_HOME = {
    name: module
    for module, names in {
        f"{_PROGRAM}.pygraph": "pygraph",
        f"{_PROGRAM}.wrapper": "Graph",
        f"{_PROGRAM}.decorators": "graph jit graph_cache",
        f"{_GRAPH}.graph": "GraphContext",
        f"{_GRAPH}.tensor": "Tensor tensor",
        f"{_GRAPH}.node": "Node",
        f"{_GRAPH}.extents": "Symbol",
        f"{_GRAPH}.version": "backend_version backend_version_string",
        f"{_GRAPH}.enums": """
            attention_implementation behavior_note build_plan_policy convolution_mode
            cuda_graph_retention data_type diagonal_alignment heur_mode moe_grouped_matmul_mode
            norm_forward_phase numerical_note reduction_mode reshape_mode scalar_type
            tensor_reordering""",
        "cudnn_aot.compiler.planning.knobs": """
            knob_type FRONTEND_KNOB_TYPE_BASE is_frontend_knob_type""",
        "cudnn_aot.errors": "cudnnGraphNotSupportedError",
        "cudnn_aot.handles": """
            Handle handle create_handle destroy_handle get_stream set_stream""",
        "cudnn_aot.compiler.recorder.session": "record",
        "cudnn_aot.compiler.formats.load": "load_graphs",
        "cudnn_aot.compiler.formats.graph_json": "dumps loads",
    }.items()
    for name in names.split()
}
_MODULES = {
    "datatypes": "cudnn_aot.datatypes",
    "wrapper": f"{_PROGRAM}.wrapper",
}


def _module(name: str) -> "Any":
    __import__(name)
    return sys.modules[name]


def __getattr__(name: str) -> "Any":
    if name in _MODULES:
        value = _module(_MODULES[name])
    elif name in _HOME:
        value = getattr(_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'cudnn_aot' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
