"""The plug-in of cuDNN's plan blobs: what it requires, and how it keeps handles and plans.

A stand-in takes the place of the frontend; cuDNN itself runs in tests/gpu.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from cudnn_aot.errors import RequirementError, StoreError
from cudnn_aot.runtime import cudnn_backend
from cudnn_aot.runtime.cudnn_backend import plugins


class Graph:
    def __init__(self, log: list[Any]) -> None:
        self._lowered_graph = self
        self._log = log

    def deserialize(self, handle: Any, blob: bytes, enforce_precompiled: bool) -> None:
        self._log.append(("deserialize", blob, handle.stream, enforce_precompiled))

    def _prepare_variant_pack_template(self) -> None:
        pass

    def _get_variant_pack_uids_sorted(self) -> list[int]:
        return [1, 2, 9]

    def _execute_with_raw_ptrs(self, *arguments: int) -> None:
        self._log.append(("execute", *arguments))


class Frontend(SimpleNamespace):
    """Records what it is asked for."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(__version__="1.32.0", log=[], handles=0, **fields)

    def backend_version(self) -> int:
        return 91900

    def create_handle(self) -> Any:
        self.handles += 1
        return SimpleNamespace(backend_handle=0x1000 + self.handles, stream=0)

    def set_stream(self, handle: Any, stream: int) -> None:
        handle.stream = stream

    def pygraph(self, handle: Any) -> Graph:
        return Graph(self.log)


@pytest.fixture
def frontend(monkeypatch: pytest.MonkeyPatch) -> Frontend:
    made = Frontend()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: made)
    monkeypatch.setattr("importlib.import_module", lambda name: made)
    monkeypatch.setattr(cudnn_backend, "_HANDLES", {})
    return made


def table(uids: list[int], blob: int = 0) -> dict[str, Any]:
    step = {"step": "backend", "blob": blob, "uids": uids}
    return {"branches": {"cudnn": {"workspace": [], "steps": [step]}}}


def test_a_blob_is_loaded_once_for_each_device(frontend: Frontend) -> None:
    (plugin,) = plugins("plan 'x'", "9.19.0", table([1, 2, 9]), 1)([b"blob"])
    plugin(0, 0, 0, 0, 0)  # prepare
    assert frontend.log == [("deserialize", b"blob", 0, True)]
    plugin(0, 0x10, 3, 0x20, 0xABC)
    plugin(0, 0x11, 3, 0x21, 0xABC)
    plugin(1, 0x12, 3, 0x22, 0)
    assert frontend.log[1:] == [
        ("execute", 0x10, 3, 0x20, 0x1001, -1),
        ("execute", 0x11, 3, 0x21, 0x1001, -1),
        ("deserialize", b"blob", 0, True),
        ("execute", 0x12, 3, 0x22, 0x1002, -1),  # a handle belongs to one device
    ]


def test_calls_at_the_same_time_have_handles_of_their_own(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(4)
    seen: list[int] = []

    def execute(self: Graph, addresses: int, count: int, workspace: int, handle: int, plan: int):
        seen.append(handle)
        together.wait(10)

    monkeypatch.setattr(Graph, "_execute_with_raw_ptrs", execute)
    (plugin,) = plugins("plan 'x'", "9.19.0", table([1, 2, 9]), 1)([b"blob"])
    for _ in range(3):
        threads = [threading.Thread(target=plugin, args=(0, 16, 3, 0, 0)) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert len(frontend.log) == 1 and len(seen) == 12
    assert all(len(set(seen[i : i + 4])) == 4 for i in (0, 4, 8))
    assert frontend.handles == 4


def test_a_handle_comes_back_from_a_call_that_failed(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(self: Graph, *arguments: int) -> None:
        raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")

    monkeypatch.setattr(Graph, "_execute_with_raw_ptrs", execute)
    (plugin,) = plugins("plan 'x'", "9.19.0", table([1, 2, 9]), 1)([b"blob"])
    for _ in range(3):
        with pytest.raises(RuntimeError):
            plugin(0, 16, 3, 0, 0)
    assert frontend.handles == 1


def test_a_blob_that_takes_other_operands_than_the_table_passes(frontend: Frontend) -> None:
    (plugin,) = plugins("plan 'x'", "9.19.0", table([1, 2]), 1)([b"blob"])
    with pytest.raises(StoreError, match=r"takes operands \[1, 2, 9\], .* passes \[1, 2\]"):
        plugin(0, 0, 0, 0, 0)


@pytest.mark.parametrize("count", [0, 2])
def test_blobs_that_no_step_names(frontend: Frontend, count: int) -> None:
    with pytest.raises(StoreError, match=rf"its steps name blobs \[0\], its record has {count}"):
        plugins("plan 'x'", "9.19.0", table([1]), count)


def test_another_cudnn(frontend: Frontend) -> None:
    with pytest.raises(RequirementError, match="requires 9.19.1 exactly, .*, found 9.19.0"):
        plugins("plan 'x'", "9.19.1", table([1]), 1)
    frontend.__version__ = "1.40.0"
    with pytest.raises(RequirementError, match="frontend: requires 1.32, found 1.40.0"):
        plugins("plan 'x'", "9.19.0", table([1]), 1)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RequirementError, match=r"pip install 'cudnn-aot\[cudnn\]'"):
        plugins("plan 'x'", "9.19.0", table([1]), 1)
