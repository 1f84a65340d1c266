"""The stores that a process looks in: one that it is given, and one that it may add to.

``CUDNN_AOT_STORE`` is read and never written. What is compiled in this process goes to the store
at ``CUDNN_AOT_CACHE``, by default in the user's cache folder. Whatever is absent or damaged in one
of them is looked for in the next. The first is whoever set it's word on which plan is best, as with
measured plans, so a plan key is compared in the second alone.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudnn_aot import _native
from cudnn_aot.cache.layout import providers_of
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.source import source_closure
from cudnn_aot.compiler.program.built import Bound, StoredPlan, planned_of
from cudnn_aot.errors import CompileError, NotInStoreError, StoreError, UsageError
from cudnn_aot.runtime.plan import FORMAT

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph
    from cudnn_aot.runtime.classes import ClassIndex, Found

BASE_VARIABLE = "CUDNN_AOT_STORE"
OVERLAY_VARIABLE = "CUDNN_AOT_CACHE"


@dataclass(frozen=True, slots=True)
class Layers:
    """The store to read first, if any, and the store to add to, which need not exist yet."""

    base: Path | None
    overlay: Path

    def __str__(self) -> str:
        base = f"{BASE_VARIABLE}={str(self.base)!r}" if self.base else f"{BASE_VARIABLE} unset"
        return f"{base}, {OVERLAY_VARIABLE} {str(self.overlay)!r}"

    def readers(self) -> Iterator[StoreReader]:
        """Those that exist, in the order in which they are asked.

        Raises:
            NotAStoreError: the base, or what there is of the overlay, is no store.
        """
        if self.base is not None:
            yield _reader(self.base)
        if self.overlay.exists():
            yield _reader(self.overlay)

    def hold(self, store: Path, target: str, graph_key: str) -> None:
        """Keep ``prune`` off what one of them has of a graph, as long as this process lives."""
        _held(store).take(target, graph_key)

    def blob(self, digest: str) -> bytes:
        """The bytes named by a digest, from any layer that has them whole.

        Raises:
            NotInStoreError: none has.
        """
        for reader in self.readers():
            try:
                return reader.blob(digest)
            except StoreError:
                continue
        raise NotInStoreError(f"blob {digest} is in no store ({self})")

    def find(
        self,
        graph: Graph,
        target: str,
        plan_key: Callable[[Graph], str],
        provider: str = "native",
    ) -> StoredPlan | None:
        """The best stored plan of a provider for a graph, else of a symbolic graph of which it is a
        case.

        In the overlay it must have been made under a plan key, ``plan_key`` of the stored graph.
        Its kernels' sources must be today's. The tools that compiled them need not be here.
        """
        for reader in self.readers():
            stored = self._plan(reader, target, graph, plan_key, provider)
            if stored is not None:
                return stored
        if provider != "native" or graph.canonical().symbols:
            return None
        for reader in self.readers():
            stored = self._class_plan(reader, target, graph, plan_key)
            if stored is not None:
                return stored
        return None

    def _class_plan(
        self, reader: StoreReader, target: str, graph: Graph, plan_key: Callable[[Graph], str]
    ) -> StoredPlan | None:
        """What one store has for the narrowest symbolic graph that stands for a concrete one."""
        try:
            found = _class_index(reader.path).find(graph, target)
        except StoreError:
            return None
        if isinstance(found, list):
            return None
        return self._plan(reader, target, found.member.pattern.graph, plan_key, "native", found)

    def _plan(
        self,
        reader: StoreReader,
        target: str,
        graph: Graph,
        plan_key: Callable[[Graph], str],
        provider: str,
        found: Found | None = None,
    ) -> StoredPlan | None:
        """What one store has for a graph, if it can be used as it is; bound to what was found."""
        try:
            key = graph.key()
            self.hold(reader.path, target, key)
            held = providers_of(reader.pointer(target, key))[provider]
            if reader.path != self.base and held["plan_key"] != plan_key(graph):
                return None
            record = json.loads(self.blob(held["records"][0]))
            if (record["format"], record["graph_key"], record["target"]) != (FORMAT, key, target):
                return None
            specs = [self._spec(kernel) for kernel in record["kernels"]]
            for blob in record.get("blobs", ()):
                self.blob(blob["blob"])  # there and whole
            bound = None if found is None else _values(found, record["table"])
            return StoredPlan(record, planned_of(record, specs, bound), self.blob, bound)
        except (StoreError, CompileError, LookupError, TypeError, ValueError):
            return None

    def _spec(self, kernel: dict[str, Any]) -> dict[str, Any]:
        """What a kernel of a plan record was compiled from; its bytes are there and whole."""
        self.blob(kernel["blob"])
        for reader in self.readers():
            try:
                stored = reader.kernel(kernel["key"])
            except StoreError:
                continue
            if stored["object"]["sha256"] == kernel["object"]:  # however it was linked
                spec: dict[str, Any] = stored["spec"]
                if source_closure(spec["template"]).digest != spec["source_digest"]:
                    raise NotInStoreError(f"kernel {kernel['key']} is of other sources")
                return spec
        raise NotInStoreError(f"kernel {kernel['key']} is in no store ({self})")


def layers() -> Layers:
    """Those of the environment.

    Raises:
        UsageError: there is no place for the overlay.
    """
    base, overlay = os.environ.get(BASE_VARIABLE), os.environ.get(OVERLAY_VARIABLE)
    return Layers(Path(base) if base else None, Path(overlay) if overlay else _user_cache())


_reader = functools.lru_cache(maxsize=16)(StoreReader)  # which reads what kind of store it is


@functools.cache  # none is given up
def _held(store: Path) -> _native.HeldGraphs:
    return _native.HeldGraphs(os.fsencode(store))


@functools.lru_cache(maxsize=16)
def _class_index(store: Path) -> ClassIndex:
    """The classes of a store, as far as this process has read them."""
    from cudnn_aot.runtime.classes import ClassIndex

    return ClassIndex(_reader(store))


# It has a lock, which another thread may hold during a fork.
os.register_at_fork(after_in_child=_class_index.cache_clear)


def _values(found: Found, table: Mapping[str, Any]) -> Bound:
    """What binds a plan of a class to the graph that was found in it.

    Raises:
        NotInStoreError: the plan has no place for a scalar.
    """
    from cudnn_aot.runtime.classes import passed_scalars

    scalars = passed_scalars(found, table)
    if isinstance(scalars, str):
        raise NotInStoreError(scalars)
    used = table["symbols"]  # what only virtual tensors mention is no part of a table
    symbols = {name: value for name, value in found.match.symbols.items() if name in used}
    return Bound(symbols, scalars)


def _user_cache() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not Path(folder).is_absolute():  # as that standard says of a relative one
        try:
            folder = str(Path.home() / ".cache")
        except RuntimeError:
            raise UsageError(
                f"no place for compiled plans: there is no home folder; set {OVERLAY_VARIABLE}"
            ) from None
    # Locks and staging of a build lie beside the store, so it has a folder around it.
    return Path(folder) / "cudnn-aot" / "store"
