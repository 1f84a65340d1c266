"""The files that a store is made of, in a folder or in one pack file; readers do not know which.

Paths are relative to the store, with forward slashes. What the system refuses is an OSError, as of
the calls of `os`: ENOENT for what is not there, and the numbers of `reader._NO_FILE` for what is no
file of a store.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# Without O_NONBLOCK opening a FIFO waits for somebody to write into it.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW

_TRIES = 3


@dataclass(frozen=True, slots=True)
class Status:
    """What lies at a path, a symbolic link being neither a file nor a folder."""

    is_file: bool
    is_folder: bool
    size: int  # in bytes, of a file
    is_link: bool = False


class StoreFiles(Protocol):
    """The files of one store. All that a reader asks of them."""

    def read(self, relative: str) -> bytes:
        """All bytes of a regular file that is no link, and that no link in the store leads to."""

    def status(self, relative: str) -> Status | None:
        """What lies there, None for nothing."""

    def entries(self, folder: str) -> Sequence[tuple[str, bool]]:
        """(name, whether it is a folder) of all that lies in a folder, sorted; "" is the root."""


class Folder:
    """The files of a store that is a folder.

    Links lead to it, and nowhere in it: what lies behind one is no part of the store for anybody.
    Each folder is looked at until it was once seen to be one, since a build reads thousands of
    files in few folders.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._root = os.fspath(path)
        self._folders = {""}  # that are no links, nor is anything on the way to them

    def read(self, relative: str) -> bytes:
        self._need_folder(relative.rpartition("/")[0])
        # A build asks thousands of times: joining paths would cost as much as reading.
        return read_regular(f"{self._root}/{relative}")

    def status(self, relative: str) -> Status | None:
        try:
            self._need_folder(relative.rpartition("/")[0])
            found = os.lstat(f"{self._root}/{relative}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        mode = found.st_mode
        is_kind = stat.S_ISREG(mode), stat.S_ISDIR(mode)
        return Status(*is_kind, found.st_size, is_link=stat.S_ISLNK(mode))

    def entries(self, folder: str) -> Sequence[tuple[str, bool]]:
        self._need_folder(folder)
        with os.scandir(f"{self._root}/{folder}" if folder else self._root) as found:
            return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in found)

    def _need_folder(self, relative: str) -> None:
        if relative in self._folders:
            return
        self._need_folder(relative.rpartition("/")[0])
        path = f"{self._root}/{relative}"
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self._folders.add(relative)


class Selection:
    """Some of the files of a store, as if it had no others."""

    def __init__(self, files: StoreFiles, paths: Iterable[str]) -> None:
        self._files = files
        self._tree = tree_of(paths)

    def read(self, relative: str) -> bytes:
        if self.status(relative) is None:
            raise FileNotFoundError(relative)
        return self._files.read(relative)

    def status(self, relative: str) -> Status | None:
        folder, _, name = relative.rpartition("/")
        is_there = relative in self._tree or name in self._tree.get(folder, ())
        return self._files.status(relative) if is_there else None

    def entries(self, folder: str) -> Sequence[tuple[str, bool]]:
        if folder not in self._tree:
            raise FileNotFoundError(folder)
        return sorted(self._tree[folder].items())


def tree_of(paths: Iterable[str]) -> Mapping[str, dict[str, bool]]:
    """Of each folder the names in it, and whether they are folders."""
    tree: dict[str, dict[str, bool]] = {"": {}}
    for path in paths:
        folder, _, name = path.rpartition("/")
        tree.setdefault(folder, {})[name] = False
        while folder:
            parent, _, name = folder.rpartition("/")
            tree.setdefault(parent, {})[name] = True
            folder = parent
    return tree


def open_files(path: str | os.PathLike[str]) -> StoreFiles:
    """The files of the store at ``path``, which may be reached through a link.

    Raises:
        NotAStoreError: it is a file and no pack.
        DamagedError: it is a pack whose index is not what was written.
    """
    if os.path.isfile(path):  # noqa: PTH113 (False where the system does not let us look)
        from cudnn_aot.cache.pack import Pack

        return Pack(path)
    return Folder(path)


def is_open_to_all(path: str | os.PathLike[str]) -> bool:
    """Whether any user of the machine may change what lies at ``path``; False for nothing.

    Files of a store are checked against digests that lie in it: who may write it may well write
    others that agree. Its root digest, kept elsewhere, tells.
    """
    try:
        return bool(os.stat(path).st_mode & stat.S_IWOTH)  # noqa: PTH116 (serving has no Path here)
    except OSError:
        return False


def read_regular(path: str | Path) -> bytes:
    """All bytes of a regular file that is no link; raises OSError.

    A file server may have replaced it since its name was looked up: another look finds the new one.
    """
    for _ in range(_TRIES - 1):
        try:
            return _read_once(path)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return _read_once(path)


def _read_once(path: str | Path) -> bytes:
    descriptor = os.open(path, _READ_FLAGS)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        size = status.st_size
        data = os.read(descriptor, size + 1)
        if size and len(data) == size:  # fewer than were asked for: there are no more
            return data
        parts = [data]
        while data and (data := os.read(descriptor, max(size, 1) + 1)):
            parts.append(data)
        return b"".join(parts)
    finally:
        os.close(descriptor)
