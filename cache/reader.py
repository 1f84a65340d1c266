"""Reading a store: the half of the cache that serving uses. Standard library only; never locks.

Every byte handed out was checked: a blob against the digest that names it, a document against its
seal, the place it lies in and, in a store that was opened by its root digest, what lay there then.
What fails raises ``DamagedError`` (``PinError`` in the last case), what is not there raises
``NotInStoreError`` and what the system does not let us read raises a plain ``StoreError``; files
that are not the store's own are left alone. Whether they lie in a folder or in a pack is the matter
of `files`.
"""

from __future__ import annotations

import errno
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudnn_aot.cache import layout, shapes
from cudnn_aot.cache.canonical import plain_bytes, sha256_hex
from cudnn_aot.cache.files import Status, StoreFiles, open_files
from cudnn_aot.cache.index import parse_index
from cudnn_aot.cache.plan_record import need_servable, parse_record
from cudnn_aot.cache.progress import Event, ProgressCallback, Stage, silent
from cudnn_aot.errors import (
    DamagedError,
    NotAStoreError,
    NotInStoreError,
    PinError,
    StoreError,
    UsageError,
)

# What an open says of something that is no file of a store, whoever asks: the store is wrong.
_NO_FILE = {
    errno.ELOOP: "it is a symbolic link",
    errno.EISDIR: "it is not a regular file",
    errno.EINVAL: "it is not a regular file",
    errno.ENXIO: "it is not a regular file",  # a socket
    errno.ENOTDIR: "what should be its folder is none, or a link to one",
    errno.EBADMSG: "the bytes after it are not zero",  # of an entry of a pack
}
_FOLDER_LINK = "it is a symbolic link, and not a folder"
_DOCUMENT_FOLDERS = ("builds", "classes", "kernels", "names", "plans")


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault that ``verify`` found: a path relative to the store, and what is wrong with it.

    ``unreadable``: the system did not let us read it, so nothing is known of its bytes.
    """

    path: str
    what: str
    unreadable: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies in a store, as far as its folders can be listed; nothing was opened.

    Attributes:
        paths: of all files, sorted.
        foreign: of files and links that are not the store's own, sorted.
        problems: the folders that the system does not let us list.
    """

    paths: tuple[str, ...]
    foreign: tuple[str, ...]
    problems: tuple[Problem, ...]

    @property
    def targets(self) -> list[str]:
        """Every target that has a plan or a name, sorted."""
        return sorted({ids[0] for kind in ("pointer", "name") for ids in self.of(kind)})

    def of(self, kind: str) -> list[tuple[str, ...]]:
        """What files of a kind, as `layout.classify` calls it, are named by; sorted."""
        known = filter(None, map(layout.classify, self.paths))
        return sorted(ids for each, ids in known if each == kind)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a verification has read: kernel records, and the digests of blobs that are whole."""

    kernel: Callable[[str], dict[str, Any]]
    blobs: set[str]


class StoreReader:
    """A store, a folder or a pack, opened for reading.

    Args:
        path: where it lies.
        digest: the root digest that it must have; any where that is empty. What is read later is
            compared with what had that digest.
        whole: what messages call all that is looked in, where the store is one of several.
        files: its files, where they are not those at ``path``.

    Raises:
        NotAStoreError: it has no ``store.json`` of a format that this version reads.
        DamagedError: its ``store.json`` or, of a pack, its index is not what was written.
        PinError: it has another root digest.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        digest: str = "",
        whole: str = "",
        files: StoreFiles | None = None,
    ) -> None:
        self.path = Path(path)
        self._whole = whole or str(self.path)
        try:
            self._store_files = files or open_files(self.path)
        except OSError as error:
            raise NotAStoreError(f"cannot read {str(self.path)!r}: {error.strerror}") from None
        self.format = read_format(self.path, self._store_files)
        self._pinned: dict[str, str] | None = None  # the SHA-256 of each document, by its path
        if digest:
            self._pin(digest)

    @property
    def where(self) -> str:
        """What messages call all that is looked in."""
        return self._whole

    @property
    def readers(self) -> tuple[StoreReader, ...]:
        """Itself, as `layers.StoreLayers` has its layers."""
        return (self,)

    def kernel(self, key: str) -> dict[str, Any]:
        """The record of a kernel; its spec was hashed again and gives ``key``."""
        record = self._document(layout.kernel_path(key), f"kernel {key}")
        if record.get("key") != key or sha256_hex(plain_bytes(record.get("spec"))) != key:
            raise self._damaged(layout.kernel_path(key), "the key does not belong to its spec")
        return self._shaped("kernel", layout.kernel_path(key), record)

    def blob(self, digest: str) -> bytes:
        """The bytes named by ``digest``, read once and checked."""
        relative = layout.blob_path(digest)
        data = self._read(relative, f"blob {digest}")
        got = sha256_hex(data)
        if got != digest:
            raise self._damaged(relative, f"its bytes hash to {got}")
        return data

    def blob_size(self, digest: str) -> int | None:
        """The size of a blob's file, None where there is none; nothing is opened."""
        return self.size(layout.blob_path(digest))

    def pointer(self, target: str, graph_key: str) -> dict[str, Any]:
        """What is stored for a graph and a target: plan records in order, or a decline."""
        relative = layout.pointer_path(target, graph_key)
        pointer = self._document(relative, f"plan of graph {graph_key} for target {target!r}")
        if pointer.get("target") != target or pointer.get("graph_key") != graph_key:
            raise self._damaged(relative, "it belongs to another target or graph")
        return self._shaped("pointer", relative, pointer)

    def class_members(self, target: str, bucket: str) -> list[str]:
        """Keys of the symbolic graphs of a class bucket that have plans for a target, sorted."""
        relative = layout.class_path(target, bucket)
        document = self._document(relative, f"class {bucket} for target {target!r}")
        if document.get("target") != target or document.get("bucket") != bucket:
            raise self._damaged(relative, "it belongs to another target or class")
        graphs = self._shaped("class", relative, document)["graphs"]
        if graphs != sorted(set(graphs)):
            raise self._damaged(relative, "its graph keys are not in order")
        return list(graphs)

    def name(self, target: str, name: str) -> dict[str, Any]:
        """The graph key and the uids behind a name."""
        relative = layout.name_path(target, name)
        document = self._document(relative, f"graph named {name!r} for target {target!r}")
        if document.get("name") != name:
            raise self._damaged(relative, f"it belongs to the name {document.get('name')!r}")
        return self._shaped("name", relative, document)

    def signature(self, key_id: str) -> dict[str, Any]:
        """What lies there as the signature of a key; that it is one is not checked."""
        relative = layout.signature_path(key_id)
        document = self._parsed(relative, self._read(relative, f"signature of key {key_id}"))
        if document.get("key_id") != key_id:
            raise self._damaged(relative, "it belongs to another key")
        return document

    def build(self, digest: str) -> dict[str, Any]:
        """What a build was asked to make, and from what; without the fields of every document."""
        relative = layout.build_path(digest)
        document = self._document(relative, f"build {digest}")
        if document.pop("digest") != digest:
            raise self._damaged(relative, "it belongs to another build")
        del document["format"]
        return self._shaped("build", relative, document)

    def builds(self) -> list[str]:
        """Digest of every build that is recorded, sorted; nothing is opened."""
        return sorted(ids[0] for _, ids, _ in self._entries("builds"))

    def names(self) -> list[tuple[str, str]]:
        """(target, name) of every name, sorted; nothing is opened."""
        return sorted((ids[0], ids[1]) for _, ids, _ in self._entries("names"))

    def pointers(self) -> list[tuple[str, str]]:
        """(target, graph key) of every pointer, sorted; nothing is opened."""
        return sorted((ids[0], ids[1]) for _, ids, _ in self._entries("plans"))

    def classes(self) -> list[tuple[str, str]]:
        """(target, bucket) of every class, sorted; nothing is opened."""
        return sorted((ids[0], ids[1]) for _, ids, _ in self._entries("classes"))

    def kernels(self) -> list[str]:
        """Every kernel key, sorted; nothing is opened."""
        return sorted(ids[0] for _, ids, _ in self._entries("kernels"))

    def targets(self) -> list[str]:
        """Every target that has a plan or a name, sorted; of each one folder is listed."""
        coded = {
            relative.split("/")[1]
            for kind in ("plans", "names")
            for relative in self._folders(kind)
        }
        found = {target for target in map(layout.decode_name, coded) if target is not None}
        return sorted(target for target in found if self.has_target(target))

    def has_target(self, target: str) -> bool:
        """Whether there is a plan or a name for a target."""
        try:
            coded = layout.encode_name("target", target)
        except (UsageError, UnicodeError):
            return False
        return any(True for kind in ("plans", "names") for _ in self._entries(f"{kind}/{coded}"))

    def holders(self, name: str) -> list[str]:
        """The targets that hold a graph of this name or key, sorted; no folder of them is read."""
        is_key = layout.is_digest(name)
        path = layout.pointer_path if is_key else layout.name_path
        try:
            return [
                target for target in self.targets() if self._status(path(target, name)) is not None
            ]
        except (UsageError, UnicodeError):
            return []

    def files(self) -> list[str]:
        """Paths of the store's own files, sorted; nothing is opened."""
        return sorted(path for path in self._files() if layout.classify(path) is not None)

    def read(self, relative: str) -> bytes:
        """The bytes of one file of the store, not checked."""
        return self._read(relative, f"file {relative!r}")

    def size(self, relative: str) -> int | None:
        """The size of a file in bytes, None where there is no regular file; nothing is opened."""
        status = self._status(relative)
        return status.size if status is not None and status.is_file else None

    def root_digest(self) -> str:
        """One value that is equal where the same things are stored: 64 hex digits.

        Of all documents as they lie there now: the SHA-256 of a line "<SHA-256 of its bytes>
        <path>", as ``sha256sum`` prints it, for each in ascending order of their paths. They name
        all blobs that anybody loads by digest. Other files and blobs, and the path of the store, do
        not count.

        Raises:
            StoreError: a document cannot be read.
        """
        return layout.root_digest(self.documents())

    def documents(self) -> dict[str, str]:
        """The SHA-256 of each document's bytes, by its path; they are compared with nothing."""
        return {
            relative: sha256_hex(self.read(relative))
            for folder in _DOCUMENT_FOLDERS
            for _, _, relative in self._entries(folder)
        }

    def foreign(self) -> list[str]:
        """Files and links in the store's folder that are not the store's own, sorted."""
        return list(self._foreign(sorted(self._files())))

    def listing(self) -> Listing:
        """All files; a folder that cannot be listed hides what is in it and nothing else."""
        problems: list[Problem] = []
        paths = tuple(sorted(self._files(unlisted=problems)))
        return Listing(paths, tuple(self._foreign(paths)), tuple(problems))

    def _foreign(self, paths: Iterable[str]) -> Iterator[str]:
        return (
            path
            for path in paths
            if layout.classify(path) is None and self._folder_fault(path) is None
        )

    def folder_links(self) -> list[str]:
        """The places of the store's folders at which links lie, sorted.

        Nobody reads what is behind one: who writes must not take for the store what is left of it.
        """
        found = []
        for holder in ("", "plans", "names", "classes", "kernels", "blobs", "blobs/sha256"):
            for name, is_folder in self._list(holder) if self._is_folder(holder) else ():
                relative = f"{holder}/{name}" if holder else name
                if not is_folder and self._folder_fault(relative) == _FOLDER_LINK:
                    found.append(relative)
        return sorted(found)

    def verify(self, progress: ProgressCallback = silent) -> list[Problem]:
        """Every fault of the store: each byte is read, each reference is followed."""
        problems: list[Problem] = []
        # What plans refer to is read for them, or for itself, but not for both.
        seen = _Seen(functools.cache(self.kernel), set())
        files = list(self._files(unlisted=problems))
        for number, relative in enumerate(files):
            progress(Event(Stage.VERIFY, number, len(files), relative))
            if fault := self._folder_fault(relative):
                problems.append(Problem(relative, fault))
            kind, ids = layout.classify(relative) or ("", ())
            try:
                self._verify_entry(kind, ids, relative, seen)
            except DamagedError as error:
                problems.append(Problem(relative, _reason(error)))
            except NotInStoreError as error:
                problems.append(Problem(relative, str(error)))
            except StoreError as error:
                problems.append(Problem(relative, str(error), unreadable=True))
        return sorted(problems, key=lambda problem: problem.path)

    # What follows is not part of the interface.

    def _verify_entry(self, kind: str, ids: tuple[str, ...], relative: str, seen: _Seen) -> None:
        if kind == "blob":
            if ids[0] not in seen.blobs:
                self.blob(ids[0])
        elif kind == "kernel":
            self._need_blob(relative, seen.kernel(ids[0])["blob"])
        elif kind == "build":
            self.build(ids[0])
        elif kind == "name":
            graph_key = self.name(*ids)["graph_key"]
            if not self._exists(layout.pointer_path(ids[0], graph_key)):
                raise self._damaged(relative, f"the plan of its graph {graph_key} is missing")
        elif kind == "class":
            for graph_key in self.class_members(*ids):
                if not self._exists(layout.pointer_path(ids[0], graph_key)):
                    raise self._damaged(relative, f"the plan of its graph {graph_key} is missing")
        elif kind == "signature":
            self.signature(*ids)
        elif kind == "index":
            self._verify_index(relative)
        elif kind == "pointer":
            pointer = self.pointer(*ids)
            for digest in [*pointer["records"], pointer.get("graph")]:
                if digest is not None:
                    self._need_blob(relative, {"sha256": digest})
            for digest in pointer["records"]:
                self._verify_plan_record(relative, ids, digest, seen)
            self._need_coherence(relative, pointer)

    def _folder_fault(self, relative: str) -> str | None:
        """What is wrong with something that lies, and is none, where the store has a folder."""
        is_folder = layout.is_folder(relative)
        if not is_folder and not layout.is_target_folder(relative):
            return None
        status = self._status(relative)
        if status is not None and status.is_link:
            return _FOLDER_LINK
        return "it is not a folder" if is_folder else None

    def _need_coherence(self, relative: str, pointer: Mapping[str, Any]) -> None:
        """That readers who look at providers, and who do not, see the same plans."""
        held = layout.providers_of(pointer).values()
        records = sorted(record for each in held for record in each["records"])
        if sorted(pointer["records"]) != records:
            raise self._damaged(relative, "its records are not those of its providers")
        if pointer["status"] != ("built" if records else "declined"):
            raise self._damaged(relative, f"status {pointer['status']!r} does not fit its records")

    def _verify_index(self, relative: str) -> None:
        try:
            index = parse_index(self.read(relative))
        except ValueError as error:
            raise self._damaged(relative, str(error)) from None
        if {path: part.sha256 for path, part in index.documents.items()} != self.documents():
            raise self._damaged(relative, "the documents are not those that it lists: push again")

    def _verify_plan_record(
        self, relative: str, place: tuple[str, ...], digest: str, seen: _Seen
    ) -> None:
        try:
            data = self.blob(digest)
        except StoreError:
            return  # the blob is reported under its own path
        seen.blobs.add(digest)
        try:
            record = parse_record(data, digest)
            need_servable(record, digest, *place)
        except StoreError as error:
            raise self._damaged(relative, f"its {error}") from None
        kernels = record["kernels"]
        for part in (*kernels, *record.get("blobs", ())):
            self._need_blob(relative, {"sha256": part["blob"], "bytes": part["bytes"]})
        for kernel in kernels:
            try:
                stored = seen.kernel(kernel["key"])
            except NotInStoreError as error:
                raise self._damaged(relative, f"its {error}") from None
            except StoreError:
                continue  # reported under its own path
            if stored["object"]["sha256"] != kernel.get("object", stored["object"]["sha256"]):
                raise self._damaged(relative, f"its kernel {kernel['key']} has another object")
            if stored["symbol"] != kernel["symbol"]:
                raise self._damaged(relative, f"its kernel {kernel['key']} has another symbol")

    def _need_blob(self, relative: str, blob: dict[str, Any]) -> None:
        status = self._status(layout.blob_path(blob["sha256"]))
        if status is None:
            raise self._damaged(relative, f"its blob {blob['sha256']} is missing")
        if not status.is_file:
            raise self._damaged(relative, f"its blob {blob['sha256']} is not a regular file")
        size, want = status.size, blob.get("bytes")
        if want is not None and size != want:
            raise self._damaged(
                relative, f"its blob {blob['sha256']} has {size} bytes, want {want}"
            )

    def _exists(self, relative: str) -> bool:
        return self.size(relative) is not None

    def _status(self, relative: str) -> Status | None:
        """What lies there, a link being a link; None for nothing."""
        try:
            return self._store_files.status(relative)
        except OSError as error:
            raise self._unreadable(relative, error) from None

    def _pin(self, digest: str) -> None:
        if not layout.is_digest(digest):
            raise UsageError(f"bad root digest: got {digest!r}, want 64 hex digits")
        documents = self.documents()
        got = layout.root_digest(documents)
        if got != digest:
            raise PinError(
                f"store {str(self.path)!r} is not the pinned one: got root digest {got}, want "
                f"{digest}"
            )
        self._pinned = documents

    def _check_pinned(self, relative: str, data: bytes | None) -> None:
        """That a document, None for one that is not there, is what was hashed at opening."""
        if self._pinned is None:
            return
        known = self._pinned.get(relative)
        if (None if data is None else sha256_hex(data)) == known:
            return
        change = "removed" if data is None else "added" if known is None else "changed"
        raise PinError(
            f"{self.path / relative} is not what was pinned: it was {change} after the store was "
            "opened; open it anew"
        )

    def _document(self, relative: str, what: str) -> dict[str, Any]:
        try:
            data = self._read(relative, what)
        except NotInStoreError:
            self._check_pinned(relative, None)
            raise
        self._check_pinned(relative, data)
        return self._parsed(relative, data)

    def _parsed(self, relative: str, data: bytes) -> dict[str, Any]:
        try:
            return layout.parse_document(data)
        except ValueError as error:
            raise self._damaged(relative, str(error)) from None

    def _shaped(self, kind: str, relative: str, document: dict[str, Any]) -> dict[str, Any]:
        """The document, if it has the shape of its kind."""
        fault = shapes.fault_of(kind, document)
        if fault is not None:
            raise self._damaged(relative, fault)
        return document

    def _read(self, relative: str, what: str) -> bytes:
        try:
            return self._store_files.read(relative)
        except FileNotFoundError:
            raise NotInStoreError(f"{what} is not in the store {self._whole!r}") from None
        except OSError as error:
            if error.errno in _NO_FILE:
                raise self._damaged(relative, _NO_FILE[error.errno]) from None
            raise self._unreadable(relative, error) from None

    def _damaged(self, relative: str, what: str) -> DamagedError:
        return DamagedError(f"{self.path / relative} is damaged: {what}")

    def _unreadable(self, relative: str, error: OSError) -> StoreError:
        reason = (error.strerror or str(error)).lower()
        return StoreError(f"cannot read {str(self.path / relative)!r}: {reason}")

    def _folders(self, relative: str) -> list[str]:
        """The folders in a folder of the store, none if it is none."""
        if not self._is_folder(relative):
            return []
        return [f"{relative}/{name}" for name, is_folder in self._list(relative) if is_folder]

    def _is_folder(self, relative: str) -> bool:
        status = self._status(relative)
        return status is not None and status.is_folder

    def _files(self, start: str = "", unlisted: list[Problem] | None = None) -> Iterator[str]:
        """Paths of all files, relative and with forward slashes; staging and the like are left out.

        A folder where the store has a file counts as that file. With ``start``, those below that
        folder, which itself may be none. With ``unlisted``, folders that cannot be listed go there.
        """
        if start and not self._is_folder(start):
            return
        pending = [start]
        while pending:
            folder = pending.pop()
            for name, is_folder in self._list(folder, unlisted):
                relative = f"{folder}/{name}" if folder else name
                if not is_folder:
                    yield relative
                elif relative not in layout.NOT_SHIPPED:
                    pending.append(relative)
                    if layout.classify(relative) is not None:
                        yield relative

    def _list(
        self, folder: str, unlisted: list[Problem] | None = None
    ) -> Sequence[tuple[str, bool]]:
        """What lies in a folder, sorted; nothing of one that went away."""
        try:
            return self._store_files.entries(folder)
        except FileNotFoundError:
            return ()
        except OSError as error:
            fault = f"cannot list {self.path / folder}: {error.strerror}"
            if unlisted is None:
                raise StoreError(fault) from None
            unlisted.append(Problem(folder or ".", fault, unreadable=True))
            return ()

    def _entries(self, start: str = "") -> Iterator[tuple[str, tuple[str, ...], str]]:
        for relative in self._files(start):
            known = layout.classify(relative)
            if known is not None:
                yield (*known, relative)


def read_format(path: Path, files: StoreFiles) -> int:
    """The format number of the store at ``path``; raises NotAStoreError with the reason."""
    file = path / layout.STORE_FILE
    try:
        data = files.read(layout.STORE_FILE)
        document = json.loads(data)
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.exists(path):
            raise NotAStoreError(
                f"no store at {str(path)!r}: there is no such folder, want one that "
                "`cudnn-aot build --store` made"
            ) from None
        raise NotAStoreError(
            f"{str(path)!r} is not a store: it has no {layout.STORE_FILE}"
        ) from None
    except OSError as error:
        raise NotAStoreError(f"cannot read {str(file)!r}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise NotAStoreError(
            f"{str(path)!r} is not a store: {layout.STORE_FILE} is no JSON"
        ) from None
    version = document.get("format") if isinstance(document, dict) else None
    if type(version) is not int or version < 1:
        raise NotAStoreError(
            f"{str(path)!r} is not a store: {layout.STORE_FILE} states no format number"
        )
    if version > layout.FORMAT:
        raise NotAStoreError(
            f"store {str(path)!r} has format {version}, this version of cudnn-aot reads format "
            f"{layout.FORMAT}: update cudnn-aot"
        )
    if plain_bytes(document) + b"\n" != data:
        raise DamagedError(f"{file} is damaged: it is not in the form in which it was written")
    return version


def _reason(error: DamagedError) -> str:
    """The message without the path that the problem names anyway."""
    _, _, reason = str(error).partition(" is damaged: ")
    return reason or str(error)


__all__ = ["Listing", "Problem", "StoreReader", "read_format"]
