"""Fixtures of the GPU tests: a store built elsewhere, one device, one run at a time on it.

The store comes from ``CUDNN_AOT_TEST_STORE``; nothing is compiled here.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from cudnn_aot import runtime
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph

TARGET = "h200"


def _store_path() -> Path | None:
    path = os.environ.get("CUDNN_AOT_TEST_STORE")
    return Path(path) if path else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``graph_name`` runs over every plan of the store."""
    if "graph_name" in metafunc.fixturenames:
        path = _store_path()
        names = [name for t, name in StoreReader(path).names() if t == TARGET] if path else []
        metafunc.parametrize("graph_name", names)


@dataclass(frozen=True)
class Stored:
    """The store under test, and the graphs that its plans were built from."""

    path: Path
    store: Any
    reader: StoreReader

    def graph(self, name: str) -> Graph:
        pointer = self.reader.pointer(TARGET, self.reader.name(TARGET, name)["graph_key"])
        return graph_json.loads(self.reader.blob(pointer["graph"]).decode())

    def plan(self, name: str) -> Any:
        return self.store.plan(name)

    def is_declined(self, name: str) -> bool:
        key = self.reader.name(TARGET, name)["graph_key"]
        return bool(self.reader.pointer(TARGET, key)["status"] == "declined")


@pytest.fixture(scope="session")
def stored() -> Stored:
    torch = pytest.importorskip("torch", reason="buffers and references come from torch")
    path = _store_path()
    if path is None or not torch.cuda.is_available():
        pytest.fail("needs a CUDA device, and CUDNN_AOT_TEST_STORE naming a store for h200")
    return Stored(path, runtime.open(path, target=TARGET), StoreReader(path))


@pytest.fixture(scope="session", autouse=True)
def one_user_of_the_gpu():
    # Longer than all of them take: who holds it then hangs.
    with FileLock(Path(tempfile.gettempdir()) / "cudnn_aot_gpu_tests.lock", timeout=1800):
        yield
