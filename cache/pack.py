"""A pack: the files of one store in one uncompressed file, which is read as it lies.

    header   24 bytes ``cudnn-aot pack 1``, a newline and zeros; the size of the index in bytes, 8,
             little endian; the SHA-256 of the index, 32
    index    canonical JSON, ``[[path, size in bytes], ...]``, the paths in ascending order
    entries  the bytes of each file, in the order of the index

Index and entries start at multiples of 64 bytes, with zeros before them and nothing after the last
ones. So sizes alone say where everything lies, equal stores are equal packs, and each byte is
covered: the header by what it must be, the index by its digest, an entry as a file of a folder is.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import weakref
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

from cudnn_aot.cache.canonical import plain_bytes, sha256_hex
from cudnn_aot.cache.files import Status
from cudnn_aot.errors import DamagedError, NotAStoreError

FORMAT = 1
ALIGNMENT = 64  # bytes: of a cache line, and the header's size

NAME = b"cudnn-aot pack "
MAGIC = (NAME + b"%d\n" % FORMAT).ljust(24, b"\0")
HEADER = struct.Struct("<24sQ32s")


class Pack:
    """The files of a store that is a pack: one descriptor, read by position.

    Raises:
        NotAStoreError: the file is no pack of a format that this version reads, or unreadable.
        DamagedError: its index or its size is not what was written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise NotAStoreError(f"cannot read {self._path!r}: {error.strerror}") from None
        self._close = weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotAStoreError(f"{self._path!r} is not a store: it is not a regular file")
        try:
            index, start = self._index(status.st_size)
        except OSError as error:
            raise NotAStoreError(f"cannot read {self._path!r}: {error.strerror}") from None
        self._places: dict[str, tuple[int, int]] = {}  # offset and size in bytes
        for path_in_store, size in index:
            self._places[path_in_store] = (start, size)
            start = aligned(start + size)
            if start > status.st_size:
                raise self._damaged(f"its file {path_in_store!r} is cut short")
        self._paths = list(self._places)
        if start != status.st_size:
            raise self._damaged(f"it has {status.st_size} bytes, want {start}")

    def read(self, relative: str) -> bytes:
        place = self._places.get(relative)
        if place is None:
            kind = errno.EISDIR if self._is_folder(relative) else errno.ENOENT
            raise OSError(kind, os.strerror(kind), relative)
        offset, size = place
        data = self._at(offset, aligned(size))
        if data.count(0, size) != len(data) - size:
            raise OSError(errno.EBADMSG, "the bytes after it are not zero", relative)
        return data[:size]

    def status(self, relative: str) -> Status | None:
        place = self._places.get(relative)
        if place is not None:
            return Status(is_file=True, is_folder=False, size=place[1])
        is_folder = self._is_folder(relative)
        return Status(is_file=False, is_folder=True, size=0) if is_folder else None

    def entries(self, folder: str) -> Sequence[tuple[str, bool]]:
        return sorted(self._listed(f"{folder}/" if folder else ""))

    # What follows is not part of the interface.

    def _index(self, file_size: int) -> tuple[list[tuple[str, int]], int]:
        """The index, checked, and where the entries start."""
        header = self._at(0, HEADER.size)
        if not header.startswith(NAME):
            raise NotAStoreError(f"{self._path!r} is not a store: it is a file, and no pack")
        if len(header) < HEADER.size:
            raise self._damaged("its header is cut short")
        magic, size, digest = HEADER.unpack(header)
        if magic != MAGIC:
            got = magic[len(NAME) :].partition(b"\n")[0]
            if got.isdigit() and magic == (NAME + got + b"\n").ljust(24, b"\0"):
                raise NotAStoreError(
                    f"pack {self._path!r} has format {int(got)}, this version of cudnn-aot reads "
                    f"format {FORMAT}: update cudnn-aot"
                )
            raise self._damaged("its header is not that of a pack")
        if size > file_size - HEADER.size:
            raise self._damaged("its index is cut short")
        data = self._at(HEADER.size, aligned(size))
        if sha256_hex(data[:size]) != digest.hex():
            raise self._damaged("its index does not match its digest")
        if data.count(0, size) != len(data) - size:
            raise self._damaged("the bytes after its index are not zero")
        try:
            index = json.loads(data[:size])
        except (ValueError, RecursionError):
            raise self._damaged("its index is not JSON") from None
        fault = _index_fault(index)
        if fault is None and plain_bytes(index) != data[:size]:
            fault = "its index is not in canonical form"
        if fault:
            raise self._damaged(fault)
        return index, HEADER.size + len(data)

    def _at(self, offset: int, size: int) -> bytes:
        """The bytes there, fewer where the file ends."""
        parts = []
        while size and (data := os.pread(self._descriptor, size, offset)):
            parts.append(data)
            offset += len(data)
            size -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _is_folder(self, relative: str) -> bool:
        return relative == "" or any(True for _ in self._listed(f"{relative}/"))

    def _listed(self, prefix: str) -> Iterator[tuple[str, bool]]:
        at = bisect_left(self._paths, prefix)
        while at < len(self._paths) and self._paths[at].startswith(prefix):
            name, slash, _ = self._paths[at][len(prefix) :].partition("/")
            yield name, bool(slash)
            after = f"{prefix}{name}0"  # "0" comes after "/": past all that lies in the folder
            at = bisect_left(self._paths, after, at) if slash else at + 1

    def _damaged(self, what: str) -> DamagedError:
        return DamagedError(f"{self._path} is damaged: {what}")


def is_pack(path: Path) -> bool:
    """Whether a file starts as a pack does, of whatever format."""
    try:
        if not path.is_file():  # opening a FIFO waits
            return False
        with path.open("rb") as stream:
            return stream.read(len(NAME)) == NAME
    except OSError:
        return False


def _index_fault(index: object) -> str | None:
    if not isinstance(index, list):
        return "its index is not a list"
    before = ""
    for entry in index:
        is_entry = isinstance(entry, list) and len(entry) == 2
        if not is_entry or type(entry[0]) is not str or type(entry[1]) is not int or entry[1] < 0:
            return "its index has an entry that is no path and size"
        try:
            entry[0].encode()
        except UnicodeEncodeError:  # half of a pair, which no text in JSON is
            return "its index is not JSON"
        if entry[0] <= before:
            return f"its paths are not in ascending order at {entry[0]!r}"
        before = entry[0]
    return None


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
