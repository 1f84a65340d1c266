"""Serving: open a store, load plans, execute them. Standard library, `_native` and nothing else.

>>> from cudnn_aot import runtime
>>> plan = runtime.open("/opt/model-store").plan("llama8b_qkv")
>>> plan.prepare(0)
>>> plan.execute({1: a, 2: b, 3: y}, workspace, stream=stream)
"""

if not __name__.startswith("cudnn_aot."):
    raise ImportError(
        "import cudnn_aot.runtime, not runtime: a second copy of every class would follow"
    )

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cudnn_aot.runtime import cudart
    from cudnn_aot.runtime.plan import Plan
    from cudnn_aot.runtime.store import Store, open

# Public names and the modules that hold them, imported when first asked for.
_HOMES = {"Plan": "plan", "Store": "store", "open": "store"}


def __getattr__(name: str) -> Any:
    if name == "cudart":
        return importlib.import_module("cudnn_aot.runtime.cudart")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"cudnn_aot.runtime.{_HOMES[name]}"), name)


__all__ = ["Plan", "Store", "cudart", "open"]
