"""Writing a store: every file is staged, synced, and renamed into place once.

Kernels and blobs are insert-only: what is there and whole is kept, what is damaged is replaced.
Pointers, names and classes are the only files replaced by others, under a lock and only when they
differ; a graph is added to its class under that lock, so that builders lose none of each other's.
A store that already holds everything is not written to at all. Files are 0444, folders 0755, times
are ``SOURCE_DATE_EPOCH`` or 0: two builds of the same things are the same bytes, modes and times.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from cudnn_aot.cache import held, layout, session
from cudnn_aot.cache.canonical import canonical_digest, plain, sha256_hex
from cudnn_aot.cache.files import Folder
from cudnn_aot.cache.interrupts import uninterrupted
from cudnn_aot.cache.pack import is_pack
from cudnn_aot.cache.reader import StoreReader, read_format
from cudnn_aot.errors import (
    DamagedError,
    NotAStoreError,
    NotReproducibleError,
    StoreError,
    UsageError,
)

_LAST_EPOCH = (1 << 33) - 1  # in seconds: of the year 2242
_TRIES, _PAUSE_S = 3, 0.01  # of a rename that is refused for the moment


class StoreWriter:
    """A store opened for building; a context manager. Safe to use from many threads.

    While it is open nobody prunes the store: it waits for whoever does, and tells ``notice`` the
    seconds so far. With ``marks``, which it closes, it is the one that prunes. It waits for a prune
    and for each lock of other builders no longer than ``lock_timeout_s``, if that is given.

    Attributes:
        reader: the same store for reading.
        files_written, bytes_written: what this writer added or replaced.

    Raises:
        NotAStoreError: the folder holds something that is not a store, or it does not exist and
            ``create`` is false.
        DamagedError: a link lies where the store has a folder.
        UsageError: it is a pack.
        StoreError: the file system refuses (full, read-only, no permission), or a wait was too
            long.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        create: bool = True,
        notice: held.Notice | None = None,
        marks: held.Marks | None = None,
        lock_timeout_s: float | None = None,
    ) -> None:
        self.path = Path(path)
        self.files_written = 0
        self.bytes_written = 0
        self._mutex = threading.Lock()
        self._session: session.BuildSession | None = None
        self._touched = False
        self._closed = False
        self._marks = marks
        self._lock_timeout_s = lock_timeout_s
        self._removed_from: set[str] = set()  # folders, until they are synced
        self._members: dict[str, set[str]] = {}  # of each class that was read, those seen in it
        self._epoch = source_date_epoch()
        self._introducing = threading.RLock()
        self._introduction: Callable[[], Mapping[str, Any]] | None = None
        if is_pack(self.path):
            raise UsageError(
                f"cannot build into {str(self.path)!r}: it is a pack, which never changes; build "
                "into a folder, then make a pack of that with `cudnn-aot pack`"
            )
        self._files = Folder(self.path)
        try:
            if not self._is_begun():
                self._create(create)
            self.reader = StoreReader(self.path, files=self._files)
            if links := self.reader.folder_links():
                raise self._is_link(links[0])
            if self._marks is None:
                self._marks = held.join_builders(self.path, notice, lock_timeout_s)
            if session.sweep(self.path):
                self._touched = True  # a dead builder left folder times behind as well
        except BaseException:
            self.close()  # nobody else could
            raise

    def put_blob(self, data: bytes) -> str:
        """Store bytes under their digest and return it."""
        digest = sha256_hex(data)
        try:
            self.reader.blob(digest)
        except StoreError:  # not there, damaged or unreadable
            self._publish(layout.blob_path(digest), data)
        return digest

    def put_kernel(self, record: Mapping[str, Any]) -> bool:
        """Publish a kernel record, its blob being there; False when the store already had it.

        Raises:
            NotReproducibleError: the store holds another object for this key.
        """
        key = str(record["key"])
        if canonical_digest(record["spec"]) != key:
            raise UsageError(f"bad kernel record: key {key} does not belong to its spec")
        if self._has_kernel(record):
            return False
        with self.lock(f"record-{key}"):
            if self._has_kernel(record):
                return False
            if not self._blob_is_whole(record["blob"]["sha256"]):
                raise StoreError(
                    f"kernel {key} names blob {record['blob']['sha256']}, which is not stored"
                )
            data = layout.document_bytes({**record, "format": layout.FORMAT})
            self._publish(layout.kernel_path(key), data)
        return True

    def put_build(self, record: Mapping[str, Any]) -> str:
        """Store what a build was asked to make and return the digest that names it."""
        data = layout.document_bytes({**record, "format": layout.FORMAT})
        digest = str(layout.parse_document(data)["digest"])
        relative = layout.build_path(digest)
        if not self._same(relative, data):
            self._publish(relative, data)
        return digest

    def introduce(self, record: Callable[[], Mapping[str, Any]]) -> None:
        """Store the record of a build before whatever this writer writes next, if anything.

        A build that is killed and repeated therefore has its record; one that finds everything
        there writes none, unless a record is damaged: this one may be it.
        """
        self._introduction = record
        if self._is_a_build_damaged():
            self._introduce()

    def put_pointer(self, target: str, graph_key: str, pointer: Mapping[str, Any]) -> bool:
        """Point a graph at its plan records (or its decline) for a target; False when equal.

        ``format``, ``target`` and ``graph_key`` are filled in.
        """
        document = {**pointer, "format": layout.FORMAT, "target": target, "graph_key": graph_key}
        return self._replace(layout.pointer_path(target, graph_key), document)

    def update_pointer(
        self,
        target: str,
        graph_key: str,
        change: Callable[[dict[str, Any] | None], Mapping[str, Any]],
    ) -> bool:
        """Replace a pointer by what ``change`` makes of it; False when that is equal.

        ``change`` gets None where there is none, or a damaged one. No other builder changes the
        pointer meanwhile.
        """
        relative = layout.pointer_path(target, graph_key)
        with self._document_lock(relative):
            try:
                known = self.reader.pointer(target, graph_key)
            except StoreError:
                known = None
            document = {
                **change(known),
                "format": layout.FORMAT,
                "target": target,
                "graph_key": graph_key,
            }
            data = layout.document_bytes(document)
            if self._same(relative, data):
                return False
            self._publish(relative, data)
        return True

    def put_class_member(self, target: str, bucket: str, graph_key: str) -> bool:
        """Add a symbolic graph, whose pointer is there, to its class; False when it is in it.

        Of a damaged class nothing is kept: the next build of each other member adds it again.
        A class is read once to find its members: other builders only add to it, and a class as
        large as the build would be read as often as it has members.
        """
        relative = layout.class_path(target, bucket)
        if relative not in self._members:
            self._members[relative] = set(self._class_members(target, bucket))
        if graph_key in self._members[relative]:
            return False
        with self._document_lock(relative):
            known = self._class_members(target, bucket)
            self._members[relative] = {*known, graph_key}
            if graph_key in known:
                return False
            graphs = sorted({*known, graph_key})
            document = {"target": target, "bucket": bucket, "graphs": graphs}
            data = layout.document_bytes({**document, "format": layout.FORMAT})
            self._publish(relative, data)
        return True

    def remove_from_class(self, target: str, bucket: str, graph_keys: Collection[str]) -> None:
        """Take graphs out of their class; one that has no other is removed. For who prunes alone.

        Raises:
            StoreError: it is damaged, or there is no space for what it becomes.
        """
        relative = layout.class_path(target, bucket)
        self._members.pop(relative, None)
        graphs = sorted(set(self.reader.class_members(target, bucket)) - set(graph_keys))
        if graphs:
            document = {"target": target, "bucket": bucket, "graphs": graphs}
            self._publish(relative, layout.document_bytes({**document, "format": layout.FORMAT}))
        else:
            self.remove(relative)

    def remove(self, relative: str) -> bool:
        """Remove a file of the store, no link being followed; False when it is not there.

        Raises:
            StoreError: the system refuses.
        """
        folder, _, name = relative.rpartition("/")
        try:
            descriptor = _open_folder(self.path, folder)
            try:
                os.unlink(name, dir_fd=descriptor)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return False
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StoreError(f"cannot remove {str(self.path / relative)!r}: {reason}") from None
        self._touched = True
        self._removed_from.add(folder)
        return True

    def sync_removals(self, folders: Iterable[str] = ()) -> None:
        """Let what was removed so far be gone before anything else is.

        The folders that are empty without it go as well, and of ``folders`` those that are.
        """
        folders, self._removed_from = self._removed_from.union(folders), set()
        while folders:
            folder = max(folders, key=len)  # before what it lies in
            folders.remove(folder)
            outer, _, name = folder.rpartition("/")
            with contextlib.suppress(OSError):  # gone, or a link: nothing was removed there
                descriptor = _open_folder(self.path, folder)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            if not folder:
                continue
            with contextlib.suppress(OSError):  # most are not empty
                descriptor = _open_folder(self.path, outer)
                try:
                    os.rmdir(name, dir_fd=descriptor)
                    folders.add(outer)
                finally:
                    os.close(descriptor)

    def put_name(self, target: str, name: str, graph_key: str, uids: Mapping[str, int]) -> bool:
        """Give a graph a name for a target; False when equal."""
        document = {
            "format": layout.FORMAT,
            "name": name,
            "graph_key": graph_key,
            "uids": plain(uids, "uids"),
        }
        return self._replace(layout.name_path(target, name), document)

    def put_file(self, relative: str, data: bytes) -> bool:
        """Take over a file of a store as another store has it; False when it is there.

        What it names should be there before. A document replaces the one at its place.

        Raises:
            DamagedError: the bytes are not those of a file of a store at this place.
        """
        fault = layout.file_fault(relative, data)
        if fault:
            raise DamagedError(f"bad file {relative!r} of a store: {fault}")
        return self._put(relative, data)

    def lock(
        self, name: str, notice: session.WaitNotice | None = None
    ) -> AbstractContextManager[None]:
        """Hold a lock of this store among all its builders; gone when the process dies."""
        return self._building().lock(name, notice, self._lock_timeout_s)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A fresh folder for a compile, outside what ships; removed afterwards or swept."""
        folder = self._building().stage / f"scratch-{secrets.token_hex(8)}"
        try:
            folder.mkdir(0o755)
        except OSError as error:
            raise session.refused(folder, error) from None
        try:
            yield folder
        finally:
            _remove_tree(folder)

    def write_scratch(self, path: Path, data: bytes) -> Path:
        """Write a file of a `scratch` folder and return it."""
        try:
            path.write_bytes(data)
        except OSError as error:
            raise session.refused(path, error) from None
        return path

    def close(self) -> None:
        """Settle folder times and leave; the last builder removes locks and staging."""
        with uninterrupted():
            self._close()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # What follows is not part of the interface.

    def _close(self) -> None:
        with self._mutex:
            mine, self._session, self._closed = self._session, None, True
        try:
            if mine is not None:
                mine.close()
            if self._touched and self.path.is_dir():
                _settle_folders(self.path, self._epoch)
                self._touched = False
        finally:
            if self._marks is not None:
                self._marks.close()

    def _create(self, create: bool) -> None:
        if not create:
            read_format(self.path, self._files)  # says what is wrong
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            inside = {entry.name for entry in self.path.iterdir()}
        except (NotADirectoryError, FileExistsError):
            leads_nowhere = self.path.is_symlink() and not os.path.exists(self.path)  # noqa: PTH110
            kind = "a link that leads to nothing" if leads_nowhere else "a file"
            raise NotAStoreError(f"{str(self.path)!r} is not a store: it is {kind}") from None
        except OSError as error:
            raise session.refused(self.path, error) from None
        foreign = [name for name in inside if not name.startswith(layout.NOT_SHIPPED)]
        if foreign and not self._is_begun():  # another builder's just now?
            raise NotAStoreError(
                f"{str(self.path)!r} is not a store: it has files but no {layout.STORE_FILE}; "
                "choose an empty or a new folder"
            )
        with contextlib.suppress(OSError):
            self.path.chmod(0o755)
        self._publish(layout.STORE_FILE, layout.STORE_BYTES)

    def _is_begun(self) -> bool:
        return os.path.exists(self.path / layout.STORE_FILE)  # noqa: PTH110 (`Path`'s may raise)

    def _building(self) -> session.BuildSession:
        with self._mutex:
            if self._closed:
                raise StoreError(f"the store {str(self.path)!r} was closed by its builder")
            if self._session is None:
                with uninterrupted():
                    self._session = session.BuildSession(self.path)
                self._touched = True
            return self._session

    def _has_kernel(self, record: Mapping[str, Any]) -> bool:
        """Whether the record's kernel is there and whole; the alarm if it is another object."""
        try:
            known = self.reader.kernel(record["key"])
        except StoreError:  # not there, damaged or unreadable
            return False
        had, got = known["object"]["sha256"], record["object"]["sha256"]
        if had != got:
            raise NotReproducibleError(
                f"kernel {record['key']} compiled to object {got}, the store holds {had} for this "
                "key: its compile is not reproducible, keep both objects and report it"
            )
        return self._blob_is_whole(known["blob"]["sha256"])

    def _blob_is_whole(self, digest: str) -> bool:
        try:
            self.reader.blob(digest)
        except StoreError:  # not there, damaged or unreadable
            return False
        return True

    def _replace(self, relative: str, document: Mapping[str, Any]) -> bool:
        return self._put(relative, layout.document_bytes(document))

    def _put(self, relative: str, data: bytes) -> bool:
        """Publish what replaces a file, under its lock; False when it is there already."""
        if self._same(relative, data):
            return False
        with self._document_lock(relative):
            if self._same(relative, data):
                return False
            self._publish(relative, data)
        return True

    def _document_lock(self, relative: str) -> AbstractContextManager[None]:
        return self.lock("document-" + sha256_hex(relative.encode()))

    def _class_members(self, target: str, bucket: str) -> list[str]:
        try:
            return self.reader.class_members(target, bucket)
        except StoreError:  # not there, damaged or unreadable
            return []

    def _same(self, relative: str, data: bytes) -> bool:
        try:
            return self._files.read(relative) == data
        except OSError:
            return False

    def _introduce(self) -> None:
        with self._introducing:  # nobody's file may come before the record
            record, self._introduction = self._introduction, None
            if record is None:
                return
            try:
                self.put_build(record())
            except BaseException:
                self._introduction = record
                raise

    def _is_a_build_damaged(self) -> bool:
        folder = self.path / "builds"
        if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
            return True
        try:
            for digest in self.reader.builds():
                self.reader.build(digest)
        except StoreError:
            return True
        return False

    def _publish(self, relative: str, data: bytes) -> None:
        """Readers see the old file, if any, or the whole new one."""
        self._introduce()
        final = self.path / relative
        stage = self._building().stage / f"{secrets.token_hex(8)}"
        try:
            _write_synced(stage, data, self._epoch)
            self._make_folders(relative.rpartition("/")[0])
            if final.is_dir() and not final.is_symlink():
                final.rename(stage.with_name(f"{stage.name}-replaced"))  # swept with the staging
            _rename(stage, final)
            _sync_folder(final.parent)
        except (OSError, StoreError) as error:
            with contextlib.suppress(OSError):
                stage.unlink(missing_ok=True)
            if isinstance(error, StoreError):
                raise
            raise session.refused(final, error) from None
        with self._mutex:
            self._touched = True
            self.files_written += 1
            self.bytes_written += len(data)

    def _make_folders(self, relative: str) -> None:
        """Create the folders down to this one, 0755 whatever the umask is.

        A file where only a folder can be is replaced; behind a link lies what somebody stored.
        """
        folder = self.path
        for name in filter(None, relative.split("/")):
            folder = folder / name
            if folder.is_symlink():
                raise self._is_link(str(folder.relative_to(self.path)))
            try:
                folder.mkdir()
            except FileExistsError:
                if folder.is_dir():
                    continue
                folder.unlink(missing_ok=True)
                folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
            _sync_folder(folder.parent)

    def _is_link(self, relative: str) -> DamagedError:
        return DamagedError(
            f"{self.path / relative} is damaged: it is a symbolic link, which no reader of a store "
            "follows: put the folder that it leads to in its place"
        )


def source_date_epoch() -> int:
    """The time that every file of a store carries, from ``SOURCE_DATE_EPOCH``, else 0."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "").strip()
    if not text:
        return 0
    if not text.isdecimal() or len(text) > 20 or int(text) > _LAST_EPOCH:
        shown = text if len(text) <= 40 else text[:40] + "..."
        raise UsageError(
            f"bad SOURCE_DATE_EPOCH: got {shown!r}, want seconds since 1970, at most {_LAST_EPOCH}"
        )
    return int(text)


def _write_synced(path: Path, data: bytes, epoch: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fchmod(descriptor, 0o444)
        os.utime(descriptor, (epoch, epoch))
        os.fsync(descriptor)


def _rename(stage: Path, final: Path) -> None:
    """File servers say that a name is busy, or stale, while somebody else has it in use."""
    for _ in range(_TRIES - 1):
        try:
            stage.replace(final)
            return
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ESTALE):
                raise
            time.sleep(_PAUSE_S)
    stage.replace(final)


def _open_folder(root: Path, relative: str) -> int:
    """A folder of a store, no part of the way below ``root`` being a link."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in filter(None, relative.split("/")):
        outer = descriptor
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(part, flags, dir_fd=outer)
        finally:
            os.close(outer)
    return descriptor


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems without folder sync
            raise
    finally:
        os.close(descriptor)


def _settle_folders(root: Path, epoch: int) -> None:
    """Folder times are set last: every rename into a folder changes them."""
    for folder, names, _ in os.walk(root, topdown=False):
        if folder == str(root):
            names[:] = [name for name in names if name not in layout.NOT_SHIPPED]
        with contextlib.suppress(OSError):
            if os.stat(folder).st_mtime_ns != epoch * 1_000_000_000:  # noqa: PTH116 (walk gives str)
                os.utime(folder, (epoch, epoch))


def _remove_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()
