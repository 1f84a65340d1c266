"""A cuDNN that answers what planning asks of the frontend as it is told, without either.

Its plans are bytes that nothing runs; that real ones run is seen in tests/gpu.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.instantiate import instantiate
from cudnn_aot.compiler.planning import backend as planning
from cudnn_aot.compiler.planning import cudnn
from cudnn_aot.compiler.planning.backend import Backend, BackendEntry, BackendPlan, Device
from cudnn_aot.compiler.planning.engine import Refusal

FOUND = Backend(SimpleNamespace(), None, "9.19.0", "1.32.0", Device((9, 0), 132, 13010))
ABSENT = Refusal("cuDNN makes plans on a GPU host only: this one has no libcuda.so.1")
NOTE = "RUNTIME_COMPILATION"


def concrete(graph: Graph) -> Graph:
    """Of a symbolic graph, which cuDNN itself would decline."""
    return instantiate(graph, {name: symbol.planned for name, symbol in graph.symbols.items()})


class CudnnStandIn:
    """What is found, listed and declined; engine 3 is declined unless a test says otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: Backend | Refusal = FOUND
        self.entries: list[BackendEntry] | Refusal = [
            BackendEntry(3, (), "A", "eng3", 0),
            BackendEntry(4, (("KERNEL_CFG", 3),), "A", "eng4_k24=3", 1, (NOTE,)),
        ]
        self.declines = {3}
        self.workspace_bytes = 0
        self.asked: list[tuple[str, ...]] = []  # the modes of each question
        self.made: list[int] = []  # engines of the plans that were made
        monkeypatch.setattr(planning, "find_backend", lambda target: self.found)
        monkeypatch.setattr(planning, "entries_of", self._entries)
        monkeypatch.setattr(planning, "plan_of", self._plan)
        table = planning.backend_table
        monkeypatch.setattr(planning, "backend_table", lambda g, p: table(concrete(g), p))
        cudnn.this_process.cache_clear()

    def _entries(self, found: Any, graph: Any, modes: Any) -> Any:
        self.asked.append(tuple(modes))
        if isinstance(self.entries, Refusal):
            return self.entries
        return [entry for entry in self.entries if entry.mode in modes]

    def _plan(self, found: Any, graph: Any, engine: int, knobs: dict[str, int]) -> Any:
        if engine in self.declines:
            return Refusal("not for this graph")
        self.made.append(engine)
        uids = tuple(sorted(t.uid for t in graph.tensors.values() if not t.is_virtual))
        items, notes = tuple(knobs.items()), (NOTE,) if engine == 4 else ()
        blob = f"engine {engine} {dict(knobs)}".encode()
        return BackendPlan(engine, items, f"eng{engine}", blob, uids, self.workspace_bytes, notes)
