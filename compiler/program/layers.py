"""The stores that a process looks in: those that it is given, and one that it may add to.

``CUDNN_AOT_STORE``, which may name several in layers, is read and never written. What is compiled
in this process goes to the store at ``CUDNN_AOT_CACHE``, by default in the user's cache folder.
Whatever is absent or damaged in one of them is looked for in the next. The former are whoever set
it's word on which plan is best, as with measured plans, so a plan key is compared in the cache
alone. With ``CUDNN_AOT_PIN`` only what is pinned is read: the cache is not, and nothing is
compiled.
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
from cudnn_aot.cache.layers import StoreLayers, open_store
from cudnn_aot.cache.layout import providers_of
from cudnn_aot.cache.place import CACHE_VARIABLE, Place, cache_store, split_places
from cudnn_aot.cache.plan_record import FORMAT
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.source import source_closure
from cudnn_aot.cache.trust import VARIABLE as TRUST_VARIABLE
from cudnn_aot.cache.trust import PublicKey, environment_keys
from cudnn_aot.compiler.program.built import Bound, StoredPlan, planned_of
from cudnn_aot.compiler.program.targets import nearest_targets
from cudnn_aot.errors import (
    CompileError,
    NotInStoreError,
    RequirementError,
    StoreError,
    UsageError,
)
from cudnn_aot.runtime.requirements import Requirements
from cudnn_aot.runtime.store import PIN_VARIABLE

if TYPE_CHECKING:
    from cudnn_aot.compiler.graph.graph import Graph
    from cudnn_aot.runtime.classes import ClassIndex, Found

BASE_VARIABLE = "CUDNN_AOT_STORE"
OVERLAY_VARIABLE = "CUDNN_AOT_CACHE"


@dataclass(frozen=True, slots=True)
class Layers:
    """The stores to read first, if any, and the store to add to, which need not exist yet.

    Attributes:
        pins: the root digest of each of the former, or none.
        keys: those of which one must have signed each of the former, or none.
    """

    base: tuple[Place, ...]
    overlay: Path
    pins: tuple[str, ...] = ()
    keys: tuple[PublicKey, ...] = ()

    def __str__(self) -> str:
        base = os.pathsep.join(map(str, self.base))
        named = f"{BASE_VARIABLE}={base!r}" if base else f"{BASE_VARIABLE} unset"
        return f"{named}, {CACHE_VARIABLE} {str(self.overlay)!r}"

    @property
    def fixed_by(self) -> list[str]:
        """The settings by which the former alone are read, and nothing is compiled."""
        return [PIN_VARIABLE] * bool(self.pins) + [TRUST_VARIABLE] * bool(self.keys)

    def readers(self) -> Iterator[StoreReader]:
        """Those that exist, in the order in which they are asked.

        Raises:
            NotAStoreError: one of the base, or what there is of the overlay, is no store.
            PinError: one of the base has another root digest.
        """
        for path, pin in zip(self.base, self.pins or [""] * len(self.base), strict=True):
            yield _reader(path, pin, self.keys)
        if not self.fixed_by and os.path.exists(self.overlay):
            yield _reader(self.overlay)

    def hold(self, store: Path, target: str, graph_key: str) -> None:
        """Keep ``prune`` off what one of them has of a graph, as long as this process lives."""
        _held(store).take(target, graph_key)

    def blob(self, digest: str) -> bytes:
        """The bytes named by a digest, from any layer that has them whole.

        Raises:
            NotInStoreError: none has.
        """
        readers = list(self.readers())
        if not readers:
            raise NotInStoreError(f"blob {digest} is in no store ({self})")
        return StoreLayers(readers).blob(digest)

    def find(
        self,
        graph: Graph,
        target: str,
        plan_key: Callable[[Graph], str],
        provider: str = "native",
        device: Mapping[str, Any] | None = None,
    ) -> StoredPlan | None:
        """The best stored plan of a provider for a graph, else of a symbolic graph of which it is a
        case.

        With the attributes of a device, a plan of the first store for another target will do where
        it has none for this one, if it is one for GPUs, and device and host meet what it requires.
        In the overlay it must have been made under a plan key, ``plan_key`` of the stored graph.
        Its kernels' sources must be today's. The tools that compiled them need not be here.
        """
        places = [
            (reader, holder)
            for reader in self.readers()
            for holder in self._holders(reader, target, device)
        ]
        for reader, holder in places:
            meets = None if holder == target else device
            stored = self._plan(reader, holder, graph, plan_key, provider, meets)
            if stored is not None:
                return stored
        if provider != "native" or graph.canonical().symbols:
            return None
        for reader, holder in places:
            meets = None if holder == target else device
            stored = self._class_plan(reader, holder, graph, plan_key, meets)
            if stored is not None:
                return stored
        return None

    def _adds_to(self, reader: StoreReader) -> bool:
        return reader.path == self.overlay and self.overlay not in self.base

    def _holders(
        self, reader: StoreReader, target: str, device: Mapping[str, Any] | None
    ) -> list[str]:
        """Whose plans are looked at in a store: those of the target, then of the nearest others."""
        if device is None or self._adds_to(reader):
            return [target]
        nearest = [other.name for other in nearest_targets(device)]
        held = set(reader.targets()) - {target}
        known = [name for name in nearest if name in held]
        return [target, *known, *sorted(held - set(known))]

    def _class_plan(
        self,
        reader: StoreReader,
        target: str,
        graph: Graph,
        plan_key: Callable[[Graph], str],
        meets: Mapping[str, Any] | None,
    ) -> StoredPlan | None:
        """What one store has for the narrowest symbolic graph that stands for a concrete one."""
        try:
            found = _class_index(reader).find(graph, target)
        except StoreError:
            return None
        if isinstance(found, list):
            return None
        stored_graph = found.member.pattern.graph
        return self._plan(reader, target, stored_graph, plan_key, "native", meets, found)

    def _plan(
        self,
        reader: StoreReader,
        target: str,
        graph: Graph,
        plan_key: Callable[[Graph], str],
        provider: str,
        meets: Mapping[str, Any] | None,
        found: Found | None = None,
    ) -> StoredPlan | None:
        """What one store has for a graph, if it can be used as it is, on the device ``meets`` if
        that is given; bound to what was found.
        """
        try:
            key = graph.key()
            self.hold(reader.path, target, key)
            held = providers_of(reader.pointer(target, key))[provider]
            if self._adds_to(reader) and held["plan_key"] != plan_key(graph):
                return None
            record = json.loads(self.blob(held["records"][0]))
            if (record["format"], record["graph_key"], record["target"]) != (FORMAT, key, target):
                return None
            if meets is not None:
                needed = Requirements.from_record(record["requirements"])
                if not needed.gpu_arch:
                    return None  # of a CPU, which would read the device's addresses
                needed.check_host(key)
                needed.check_device(key, 0, meets)
            specs = [self._spec(kernel) for kernel in record["kernels"]]
            for blob in record.get("blobs", ()):
                self.blob(blob["blob"])  # there and whole
            bound = None if found is None else _values(found, record["table"])
            return StoredPlan(record, planned_of(record, specs, bound), self.blob, bound)
        except (StoreError, CompileError, RequirementError, LookupError, TypeError, ValueError):
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
        UsageError: there is no place for the overlay, or a pin is missing.
    """
    named = os.environ.get(BASE_VARIABLE)
    base = split_places(named, BASE_VARIABLE) if named else ()
    text = os.environ.get(PIN_VARIABLE)
    pins = tuple(text.split(os.pathsep)) if text else ()
    if pins and len(pins) != len(base):
        raise UsageError(
            f"bad {PIN_VARIABLE}: got {len(pins)} root digests, want {len(base)}, one of each "
            f"layer of {BASE_VARIABLE}"
        )
    return Layers(base, cache_store(), pins, tuple(environment_keys()))


_reader = functools.lru_cache(maxsize=16)(open_store)  # which reads what kind of store it is


@functools.cache  # none is given up
def _held(store: Path) -> _native.HeldGraphs:
    return _native.HeldGraphs(os.fsencode(store))


@functools.lru_cache(maxsize=16)
def _class_index(reader: StoreReader) -> ClassIndex:
    """The classes of a store, as far as this process has read them."""
    from cudnn_aot.runtime.classes import ClassIndex

    return ClassIndex(reader)


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
