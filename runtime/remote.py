"""Stores at URLs and signed stores, opened for serving. Imported only where somebody asks for one.

A store at a URL is served from its mirror, a folder in the user's cache (`cache.remote`): before
anything is loaded from it, the files that a plan needs are there and compared with the index. What
loads and launches knows of folders alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from cudnn_aot import _native
from cudnn_aot.cache import layout
from cudnn_aot.cache.contents import plan_record, record_paths
from cudnn_aot.cache.layers import AnyReader, Note, StoreLayers, open_store
from cudnn_aot.cache.place import is_url, split_places
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.remote import RemoteFiles, open_remote
from cudnn_aot.cache.transfer import redacted
from cudnn_aot.cache.trust import PublicKey, environment_keys, public_keys
from cudnn_aot.errors import NotInStoreError, RemoteError, StoreError, UsageError

PIN_VARIABLE = "CUDNN_AOT_PIN"

_Request = tuple[str, str, str]


def open_native(
    places: Sequence[str], target: str, digests: Sequence[str], keys: Any, variable: str
) -> _native.Store | FetchingStore:
    """The stores at paths and URLs, by default those of the environment, as `_native.Store` is.

    Args:
        digests: root digests, by default those of ``CUDNN_AOT_PIN``.
        keys: keys to trust, as `public_keys` takes them; None is those of ``CUDNN_AOT_TRUST``.
        variable: where the places are, if there are none here.

    Raises:
        StoreError: as of `open_store`, of the first that has it.
        UsageError: as of `runtime.open`.
    """
    trusted = environment_keys() if keys is None else public_keys(keys)
    if not places:
        named = os.environ.get(variable)
        if not named:
            raise UsageError(f"no store: pass a path or set {variable}")
        places = [str(place) for place in split_places(named, variable)]
    pinned = os.environ.get(PIN_VARIABLE)
    if not digests and pinned:
        digests = pinned.split(os.pathsep)
    if digests and len(digests) != len(places):
        raise UsageError(
            f"bad pins: got {len(digests)} root digests, want {len(places)}, one of each layer"
        )
    pins = list(digests) or [""] * len(places)
    layers = [_Layer(place, pin, trusted) for place, pin in zip(places, pins, strict=True)]
    fetches = any(map(is_url, places))
    native = _native.Store(
        [os.fsencode(layer.reader.path) for layer in layers],
        "" if fetches else target,  # of which a mirror may have nothing yet
        [layer.pin for layer in layers if layer.pin],  # all or none
    )
    return FetchingStore(layers, native, target) if fetches else native


class _Layer:
    """One store: its reader, and what is fetched of it if it lies at a URL.

    Attributes:
        pin: the root digest that it was compared with, "" for none.
    """

    def __init__(self, place: str, digest: str, keys: Sequence[PublicKey]) -> None:
        self.name = redacted(place)
        self.files: RemoteFiles | None = None
        if not is_url(place):
            self.reader = open_store(place, digest, keys)
            self.pin = digest or (self.reader.root_digest() if keys else "")
            return
        self.files = open_remote(place, digest=digest, keys=keys)
        self.reader = StoreReader(self.files.mirror, whole=self.files.url, files=self.files)
        self.pin = self.files.index.root_digest if digest or keys else ""
        if self.pin:  # which is compared with the documents that are in the mirror
            self.files.need(self.files.index.documents)

    def root_digest(self) -> str:
        return self.files.index.root_digest if self.files else self.reader.root_digest()

    def fetch(self, name: str, target: str, provider: str, with_blobs: bool) -> bool:
        """Have the files of a plan here, and whole; False where the store has no such graph.

        Raises:
            StoreError: a file cannot be had, or is not what it should be.
        """
        holders = self.reader.holders(name)
        chosen = [target] if target else holders
        found = [holder for holder in chosen if holder in holders]
        for holder in found:
            key = name if layout.is_digest(name) else self.reader.name(holder, name)["graph_key"]
            pointer = self.reader.pointer(holder, key)
            held = layout.providers_of(pointer).get(provider, {}) if provider else pointer
            for digest in held.get("records", [])[:1]:
                record = plan_record(self.reader, digest)
                paths = [path for path in record_paths(record) if path.startswith("blobs/")]
                if with_blobs and self.files is not None:
                    self.files.need(paths)  # at once
                elif with_blobs:
                    for path in paths:
                        self.reader.blob(path[-64:])
        return bool(found)


class FetchingStore:
    """What `runtime.Store` asks of `_native.Store`, for layers of which some lie at URLs."""

    def __init__(self, layers: Sequence[_Layer], native: _native.Store, target: str) -> None:
        self._layers = layers
        self._native = native
        self._target = target
        self._faults: list[Exception] = []
        if target:
            self.need_target(target)

    @property
    def path(self) -> str:
        return os.pathsep.join(layer.name for layer in self._layers)

    def reader(self, note: Note) -> AnyReader:
        readers = [layer.reader for layer in self._layers]
        return readers[0] if len(readers) == 1 else StoreLayers(readers, note)

    def root_digests(self) -> list[str]:
        return [layer.root_digest() for layer in self._layers]

    def take_faults(self) -> list[Exception]:
        faults, self._faults = self._faults, []
        return [*faults, *self._native.take_faults()]

    def names(self) -> list[tuple[str, str]]:
        return self.reader(self._faults.append).names()

    def targets(self) -> list[str]:
        return self.reader(self._faults.append).targets()

    def need_target(self, target: str) -> None:
        held = self.targets()
        if target not in held:
            raise NotInStoreError(
                f"store {self.path!r} holds nothing for target {target!r}; it has: "
                f"{', '.join(held) or 'no target at all'}"
            )

    def holds(self, target: str, name: str) -> bool:
        return target in self.reader(self._faults.append).holders(name)

    def blob(self, digest: str) -> bytes:
        return self.reader(self._faults.append).blob(digest)

    def find(self, name: str, target: str = "") -> tuple[str, str, dict[str, int], list[str]]:
        fault = self._fetch(name, target, "", with_blobs=False)
        try:
            return self._native.find(name, target or self._target)
        except StoreError:
            if fault is not None:
                raise fault from None
            raise

    def load(
        self,
        requests: Sequence[_Request],
        provider: str = "",
        host: _native.Host | None = None,
        hook: Any = None,
        refusals: dict[str, int] | None = None,
    ) -> list[tuple[_native.PlanRecord, _native.Plan | None] | Exception]:
        faults = [
            self._fetch(name, target, provider, with_blobs=hook is not None)
            for name, target, _ in requests
        ]
        counted = {} if refusals is None else refusals
        chosen = [(name, target or self._target, label) for name, target, label in requests]
        answers = self._native.load(chosen, provider, host, hook, counted)
        return [
            fault if fault is not None and isinstance(answer, StoreError) else answer
            for fault, answer in zip(faults, answers, strict=True)
        ]

    # What follows is not part of the interface.

    def _fetch(self, name: str, target: str, provider: str, with_blobs: bool) -> StoreError | None:
        """Have here what loading a plan reads, from the first layer that has it whole.

        Returns why no layer has it, or None.
        """
        faults: list[StoreError] = []
        for layer in self._layers:
            try:
                if layer.fetch(name, target or self._target, provider, with_blobs):
                    # Of the other faults what is loaded tells: they lie in folders.
                    self._faults += [each for each in faults if isinstance(each, RemoteError)]
                    return None
            except StoreError as error:
                faults.append(error)
        return faults[0] if faults else self._absent(name, target)

    def _absent(self, name: str, target: str) -> NotInStoreError:
        message = f"no graph named {name!r}" + (f" for {target}" if target else "")
        message += f" in store {self.path!r}"
        names = self.names()
        elsewhere = [holder for holder, known in names if known == name]
        if elsewhere:
            return NotInStoreError(f"{message}; it is there for {', '.join(elsewhere)}")
        known = sorted({known for holder, known in names if target in ("", holder)})
        near = ", ".join(map(repr, get_close_matches(name, known)))
        held = f"the nearest are {near}" if near else f"it holds {len(known)} names"
        return NotInStoreError(f"{message}; {held}")
