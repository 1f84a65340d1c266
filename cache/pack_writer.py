"""Writing a pack: staged, checked as a reader checks it, synced, and renamed into place once."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from cudnn_aot.cache.canonical import canonical_bytes, sha256_hex
from cudnn_aot.cache.contents import need_whole
from cudnn_aot.cache.output import replaceable
from cudnn_aot.cache.pack import HEADER, MAGIC, aligned
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.errors import StoreError, UsageError

_MAX_INDEX_BYTES = 64 << 20  # that the C++ reader takes of one JSON text


def write_pack(reader: StoreReader, path: Path, epoch: int) -> int:
    """Write the store's own files as the pack at ``path``, replacing a file there.

    Returns the number of files. The pack has mode 0444 and the time ``epoch``, in seconds.

    Raises:
        DamagedError: the store has faults; the message has the first and the number of them.
        UsageError: a folder, a device or another stream lies at ``path``; a link is followed.
        StoreError: the file system refuses, the store was changed meanwhile, or it has too many
            files for one index.
    """
    final = _final(path)
    need_whole(reader, "packed")
    files = reader.files()
    sizes = [reader.size(relative) or 0 for relative in files]
    with _published(final, epoch) as (stage, descriptor), os.fdopen(descriptor, "wb") as stream:
        stream.write(_start(list(zip(files, sizes, strict=True))))
        for relative, size in zip(files, sizes, strict=True):
            data = reader.read(relative)
            if len(data) != size:
                raise StoreError(f"cannot pack {relative!r}: it was changed meanwhile")
            stream.write(_padded(data))
        stream.flush()
        # Also that nothing was changed meanwhile.
        need_whole(StoreReader(stage, whole=reader.where), "packed")
    return len(files)


def _final(path: Path) -> Path:
    try:
        final = replaceable(path)
    except OSError as error:
        raise StoreError(f"cannot write {str(path)!r}: {(error.strerror or '').lower()}") from None
    if final is None:  # a pack is checked before it is there, which no stream can be
        kind = "a folder" if os.path.isdir(path) else "a stream or a device"
        raise UsageError(f"bad pack {str(path)!r}: it is {kind}, want the path of a file")
    return final


def _start(entries: list[tuple[str, int]]) -> bytes:
    """Header and index of a pack of these (path, size in bytes), which are in ascending order."""
    index = canonical_bytes(entries)
    if len(index) > _MAX_INDEX_BYTES:
        raise StoreError(
            f"cannot pack {len(entries)} files: their index has {len(index)} bytes, want at most "
            f"{_MAX_INDEX_BYTES}"
        )
    digest = bytes.fromhex(sha256_hex(index))
    return HEADER.pack(MAGIC, len(index), digest) + _padded(index)


def _padded(data: bytes) -> bytes:
    return data.ljust(aligned(len(data)), b"\0")


@contextlib.contextmanager
def _published(path: Path, epoch: int) -> Iterator[tuple[Path, int]]:
    """A staged file beside ``path`` and a descriptor of it; it becomes ``path`` if the body ends.

    The body closes the descriptor.
    """
    stage = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        try:
            yield stage, os.open(stage, flags, 0o600)
            descriptor = os.open(stage, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fchmod(descriptor, 0o444)
                os.utime(descriptor, (epoch, epoch))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            stage.replace(path)
        finally:
            stage.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StoreError(f"cannot write {str(path)!r}: {reason}") from None
