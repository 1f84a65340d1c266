"""The plug-in that runs cuDNN's plan blobs. Imported for plans that have one, and for no other.

A blob is deserialized once for each device, when the device is prepared or first used. cuDNN's
handles are for one thread at a time: a call takes one out of its device's pool for as long as it
runs, and the pool grows to the number of calls that ever ran at once. Handles are never destroyed,
which would wait for the device, and a captured CUDA graph may still use what they own.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cudnn_aot.errors import RequirementError, StoreError

INSTALL = "pip install 'cudnn-aot[cudnn]'"
FRONTEND_MIN, FRONTEND_END = (1, 32), (1, 33)  # whose names with an underscore are used here

Plugin = Callable[[int, int, int, int, int], None]


class Frontend:
    """The cuDNN frontend of this process, checked against what a plan requires.

    Raises:
        RequirementError: there is none, or its cuDNN is not the one that the plan was made by.
    """

    def __init__(self, what: str, cudnn: str) -> None:
        if importlib.util.find_spec("cudnn") is None:
            raise RequirementError(
                f"{what} cannot run here: it is a plan of cuDNN {cudnn}, and the cuDNN frontend is "
                f"not installed: {INSTALL}"
            )
        try:
            self.module: Any = importlib.import_module("cudnn")
            found = int(self.module.backend_version())
        except (ImportError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise RequirementError(
                f"{what} cannot run here: cuDNN does not load: {reason}: {INSTALL}"
            ) from None
        version = str(getattr(self.module, "__version__", "0"))
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
        if not FRONTEND_MIN <= numbers < FRONTEND_END:
            raise _unmet(what, "cuDNN frontend", ".".join(map(str, FRONTEND_MIN)), version)
        have = f"{found // 10_000}.{found % 10_000 // 100}.{found % 100}"
        if have != cudnn:
            raise _unmet(what, "cuDNN", f"{cudnn} exactly, which made the plan", have)


class BlobPlan:
    """One plan blob. Calling it runs it; see ``docs/launch-table.md`` for the arguments."""

    def __init__(self, what: str, frontend: Frontend, blob: bytes, uids: Sequence[int]) -> None:
        self._what = what
        self._cudnn = frontend.module
        self._blob = blob
        self._uids = list(uids)
        self._graphs: dict[int, Any] = {}  # by device
        self._lock = threading.Lock()

    def __call__(
        self, device: int, addresses: int, count: int, workspace: int, stream: int
    ) -> None:
        graph = self._graphs.get(device)
        if graph is None:
            graph = self._load(device)
        if not addresses:
            return
        pool = _HANDLES[device]
        handle = _take(self._cudnn, pool)
        try:
            self._cudnn.set_stream(handle, stream)
            graph._execute_with_raw_ptrs(addresses, count, workspace, handle.backend_handle, -1)
        finally:
            pool.append(handle)

    def _load(self, device: int) -> Any:
        """Deserialize the blob for the device, which is the current one."""
        with self._lock:
            if device in self._graphs:
                return self._graphs[device]
            pool = _HANDLES.setdefault(device, [])
            handle = _take(self._cudnn, pool)
            try:
                self._cudnn.set_stream(handle, 0)
                made = self._cudnn.pygraph(handle=handle)
                # This also runs the plan in a capture that is thrown away, which loads its code.
                made.deserialize(handle, self._blob, enforce_precompiled=True)
            finally:
                pool.append(handle)
            graph = made._lowered_graph
            graph._prepare_variant_pack_template()
            uids = list(graph._get_variant_pack_uids_sorted())
            if uids != self._uids:
                raise StoreError(
                    f"{self._what}: its blob takes operands {uids}, its launch table passes "
                    f"{self._uids}"
                )
            self._graphs[device] = graph
            return graph


def plugins(
    what: str, cudnn: str, table: Mapping[str, Any], count: int
) -> Callable[[Sequence[bytes]], list[Plugin]]:
    """What makes the plug-ins of a plan from its blobs, once this process can run them.

    The check comes before the blobs are read.

    Raises:
        RequirementError: this process cannot run plans of that cuDNN.
        StoreError: the table and the blobs do not belong together.
    """
    uids: dict[int, list[int]] = {}
    for branch in table["branches"].values():
        for step in branch["steps"]:
            if step.get("step") == "backend":
                uids.setdefault(step["blob"], list(step["uids"]))
    if sorted(uids) != list(range(count)):
        raise StoreError(f"{what}: its steps name blobs {sorted(uids)}, its record has {count}")
    frontend = Frontend(what, cudnn)

    def make(blobs: Sequence[bytes]) -> list[Plugin]:
        return [
            BlobPlan(what, frontend, blob, uids[index]) for index, blob in enumerate(blobs)
        ]  # fmt: skip

    return make


_HANDLES: dict[int, list[Any]] = {}  # idle ones, by device; list.pop and append are atomic


def _take(cudnn: Any, pool: list[Any]) -> Any:
    """An idle handle of the current device, or a new one."""
    try:
        return pool.pop()
    except IndexError:
        return cudnn.create_handle()


def _unmet(what: str, subject: str, required: str, found: str) -> RequirementError:
    return RequirementError(
        f"{what} cannot run here: {subject}: requires {required}, found {found}"
    )
