"""Stores that lie in layers, read as one; the first before the others.

Names, pointers and kernel records are those of the first layer that has them whole, blobs those of
any, and a class has the members of all. A layer whose entry is damaged or unreadable is passed over
where another has a good one; where none has, the fault of the first that has one is raised.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cudnn_aot.cache.place import is_url
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.transfer import redacted
from cudnn_aot.errors import DamagedError, NotInStoreError, RemoteError, StoreError

if TYPE_CHECKING:
    from cudnn_aot.cache.trust import PublicKey

_T = TypeVar("_T")
_Item = TypeVar("_Item", str, tuple[str, str])

# What another layer may make good. Not that a layer is not what it is pinned to.
_FALLS_THROUGH = (StoreError, DamagedError, NotInStoreError, RemoteError)

Note = Callable[[StoreError], None]


class StoreLayers:
    """Readers of stores, asked in their order as one `StoreReader` is; at least one.

    ``note`` is told of each fault that another layer made good.
    """

    def __init__(self, readers: Sequence[StoreReader], note: Note | None = None) -> None:
        self.readers = tuple(readers)
        self._note = note or (lambda fault: None)

    @property
    def path(self) -> Path:
        """The paths of all, as ``CUDNN_AOT_STORE`` has them."""
        return Path(os.pathsep.join(str(reader.path) for reader in self.readers))

    @property
    def where(self) -> str:
        return self.readers[0].where

    def kernel(self, key: str) -> dict[str, Any]:
        return self._first_good(lambda reader: reader.kernel(key))

    def blob(self, digest: str) -> bytes:
        return self._first_good(lambda reader: reader.blob(digest))

    def blob_size(self, digest: str) -> int | None:
        sizes = (reader.blob_size(digest) for reader in self.readers)
        return next((size for size in sizes if size is not None), None)

    def pointer(self, target: str, graph_key: str) -> dict[str, Any]:
        return self._first_good(lambda reader: reader.pointer(target, graph_key))

    def name(self, target: str, name: str) -> dict[str, Any]:
        return self._first_good(lambda reader: reader.name(target, name))

    def class_members(self, target: str, bucket: str) -> list[str]:
        return self._union(lambda reader: reader.class_members(target, bucket))

    def build(self, digest: str) -> dict[str, Any]:
        return self._first_good(lambda reader: reader.build(digest))

    def builds(self) -> list[str]:
        return self._union(StoreReader.builds)

    def names(self) -> list[tuple[str, str]]:
        return self._union(StoreReader.names)

    def pointers(self) -> list[tuple[str, str]]:
        return self._union(StoreReader.pointers)

    def classes(self) -> list[tuple[str, str]]:
        return self._union(StoreReader.classes)

    def kernels(self) -> list[str]:
        return self._union(StoreReader.kernels)

    def targets(self) -> list[str]:
        return self._union(StoreReader.targets)

    def has_target(self, target: str) -> bool:
        return target in self.targets()

    def holders(self, name: str) -> list[str]:
        return self._union(lambda reader: reader.holders(name))

    # What follows is not part of the interface.

    def _first_good(self, read: Callable[[StoreReader], _T]) -> _T:
        faults: list[StoreError] = []
        for reader in self.readers:
            try:
                found = read(reader)
            except StoreError as error:
                _need_fall_through(error)
                faults.append(error)
                continue
            self._pass(faults)
            return found
        raise _first(faults)

    def _union(self, items: Callable[[StoreReader], list[_Item]]) -> list[_Item]:
        faults: list[StoreError] = []
        found: set[_Item] = set()
        for reader in self.readers:
            try:
                found.update(items(reader))
            except StoreError as error:
                _need_fall_through(error)
                faults.append(error)
        if len(faults) == len(self.readers):
            raise _first(faults)
        self._pass(faults)
        return sorted(found)

    def _pass(self, faults: Sequence[StoreError]) -> None:
        for fault in faults:
            if not isinstance(fault, NotInStoreError):  # that another layer has it is no fault
                self._note(fault)


AnyReader = StoreReader | StoreLayers


def open_store(
    place: str | os.PathLike[str],
    digest: str = "",
    keys: Sequence[PublicKey] = (),
    whole: str = "",
) -> StoreReader:
    """The store at a path or a URL.

    Args:
        digest: the root digest that it must have; any where that is empty.
        keys: keys of which one must have signed it, which pins it; none where there are none.
        whole: what messages call all that is looked in.

    Raises:
        NotAStoreError, DamagedError, PinError: as of `StoreReader`.
        TrustError: none of the keys has signed it.
        RemoteError: it cannot be reached.
    """
    if is_url(place):
        from cudnn_aot.cache.remote import remote_reader

        return remote_reader(os.fspath(place), digest=digest, keys=keys, whole=whole)
    reader = StoreReader(place, digest, whole)
    if keys:
        from cudnn_aot.cache.trust import need_signed

        signed = need_signed(reader.signature, keys, reader.root_digest(), f"store {str(place)!r}")
        reader = reader if digest else StoreReader(place, signed, whole)
    return reader


def open_layers(
    layers: Sequence[tuple[str | os.PathLike[str], str]],
    note: Note | None = None,
    keys: Sequence[PublicKey] = (),
) -> AnyReader:
    """The stores at these (path or URL, root digest or ""), which are at least one.

    Raises:
        StoreError: as of `open_store`, of the first that has it.
    """
    whole = os.pathsep.join(redacted(str(place)) for place, _ in layers)
    readers = [open_store(place, digest, keys, whole) for place, digest in layers]
    return readers[0] if len(readers) == 1 else StoreLayers(readers, note)


def _need_fall_through(error: StoreError) -> None:
    if type(error) not in _FALLS_THROUGH:
        raise error


def _first(faults: Sequence[StoreError]) -> StoreError:
    return next((fault for fault in faults if not isinstance(fault, NotInStoreError)), faults[0])


__all__ = ["AnyReader", "StoreLayers", "open_layers", "open_store"]
