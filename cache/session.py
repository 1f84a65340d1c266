"""What builders of one store share while they build: locks and staging, beside the store.

The folder ``<parent>/.<store>.building`` (inside the store as ``.building`` where the parent cannot
hold it: not writable, or another file system) holds

    alive             every builder holds a shared lock on it for as long as it builds
    locks/<name>      one lock per kernel key or replaced document
    stage/<unique>    files being written; renamed into the store when complete

All locks are the operating system's, so a killed builder holds none. Whoever gets ``alive``
exclusively is alone: what lies in the folder then belongs to dead builders and is swept. The last
builder to leave removes the folder. On a file system without locks builders are not told apart:
each removes its own staging, nothing is swept, and two builders may compile one kernel twice
(publishing stays right).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cudnn_aot.cache import layout
from cudnn_aot.cache.held import waited_long
from cudnn_aot.errors import StoreError

# who holds the lock ("pid 12 on host"), seconds waited so far
WaitNotice = Callable[[str, float], None]

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
_NOTICE_AFTER_S = 2.0
_UNKNOWN = "another builder"
_POLL_S = 0.02


_FIXES = {
    errno.ENOSPC: "free some space and build again; what is stored stays valid",
    errno.EDQUOT: "free some space and build again; what is stored stays valid",
    errno.EROFS: "choose a writable folder with --store",
    errno.EACCES: "make it writable or choose another folder with --store",
    errno.EPERM: "make it writable or choose another folder with --store",
    errno.ESTALE: "the file server has lost the folder: mount it again and build again",
    errno.EIO: "the disk or its server fails: check it and build again",
}


def refused(path: Path, error: OSError) -> StoreError:
    """What to tell of a file system that does not let us write."""
    fix = _FIXES.get(error.errno or 0)
    reason = (error.strerror or str(error)).lower()
    return StoreError(f"cannot write {str(path)!r}: {reason}" + (f": {fix}" if fix else ""))


class BuildSession:
    """One builder's membership; not thread-safe to open or close, safe to lock and stage from."""

    def __init__(self, store: Path) -> None:
        self.folder = _place(store)
        self._alive, self.locks = _join(self.folder)
        self.stage = self.folder / "stage" / secrets.token_hex(8)
        try:
            self.stage.mkdir(parents=True)
        except OSError as error:
            self.close()
            raise StoreError(f"cannot write to {str(self.folder)!r}: {error.strerror}") from None

    @contextlib.contextmanager
    def lock(
        self, name: str, notice: WaitNotice | None = None, timeout_s: float | None = None
    ) -> Iterator[None]:
        """Hold the lock ``name``; waits, telling ``notice`` who is waited for.

        Raises:
            StoreError: another has had it for ``timeout_s``; without that it waits without bound.
        """
        if not self.locks:
            yield
            return
        import filelock  # a build that finds everything takes no lock

        folder = self.folder / "locks"
        lock = filelock.FileLock(str(folder / name), poll_interval=_POLL_S)
        holder = folder / f"{name}.holder"
        started = time.monotonic()
        end = math.inf if timeout_s is None else started + timeout_s
        while True:
            try:
                folder.mkdir(exist_ok=True)
                lock.acquire(timeout=max(0.0, min(_NOTICE_AFTER_S, end - time.monotonic())))
                break
            except filelock.Timeout:  # an OSError too
                if time.monotonic() >= end:
                    who = f"lock {name!r}, which {_holder(holder)} holds"
                    raise waited_long(who, timeout_s or 0.0) from None
                if notice is not None:
                    notice(_holder(holder), time.monotonic() - started)
            except OSError as error:
                raise refused(folder / name, error) from None
        try:
            with contextlib.suppress(OSError):  # only for the notice
                holder.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
            yield
        finally:
            with contextlib.suppress(OSError):
                holder.unlink(missing_ok=True)
            lock.release()

    def close(self) -> None:
        """Leave; the last one out removes the folder."""
        shutil.rmtree(self.stage, ignore_errors=True)
        if self._alive < 0:
            return
        try:
            if self.locks:
                _remove_if_alone(self.folder, self._alive)
        finally:
            os.close(self._alive)
            self._alive = -1


def places(store: Path) -> tuple[Path, Path]:
    """Where a building folder may be: beside the store, or inside it."""
    real = Path(os.path.realpath(store))
    return real.parent / f".{real.name}.building", real / layout.STAGING


def who_builds(store: Path) -> str:
    """Who works on a store, as far as that is known: the holders of locks in its folder."""
    holders = set()
    for folder in places(store):
        with contextlib.suppress(OSError):  # the last builder is just removing it
            holders |= {_holder(path) for path in (folder / "locks").iterdir()}
    named = sorted(holders - {_UNKNOWN})
    return f"{' and '.join(named) or _UNKNOWN} builds into it, or prunes it"


def sweep(store: Path) -> bool:
    """Remove what dead builders left, if nobody builds now; True when something was removed."""
    swept = False
    for folder in places(store):
        if not folder.is_dir():
            continue
        try:
            descriptor = os.open(folder / "alive", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            continue  # another user's, or a read-only place: nothing that we could remove
        try:
            swept |= _remove_if_alone(folder, descriptor)
        except OSError:
            pass  # no locks here: a living builder cannot be told from a dead one
        finally:
            os.close(descriptor)
    return swept


def _remove_if_alone(folder: Path, descriptor: int) -> bool:
    """Remove a building folder if nobody builds; ``descriptor`` is of its ``alive``.

    That file may have been removed and made again since it was opened: a lock on the old one says
    nothing. It is removed after everything else, since who finds it absent makes a new one and
    builds at once; whoever waits for this one looks again. The folder stays if somebody did.
    """
    if not _try_exclusive(descriptor) or not _is_file(folder / "alive", descriptor):
        return False
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != "alive":
                entry.unlink(missing_ok=True)
        (folder / "alive").unlink()
        folder.rmdir()
    return True


_PLACE_TRIES = 1000
# `mkdir(exist_ok=True)` says "exists" of a folder that is gone when it looks whether it is one.
_VANISHED = (FileNotFoundError, FileExistsError)


def _place(store: Path) -> Path:
    """The folder that all builders of the store agree on."""
    beside, inside = places(store)
    parent = beside.parent
    for _ in range(_PLACE_TRIES):
        try:
            if parent.stat().st_dev == store.stat().st_dev and not os.path.ismount(store):
                beside.mkdir(exist_ok=True)
                if _can_rename(beside, store):
                    return beside
        except _VANISHED:
            continue  # the last builder removed the folder meanwhile: it can be used all the same
        except OSError:
            pass
        break
    with contextlib.suppress(OSError):
        beside.rmdir()  # it cannot be used; one that is in use is not empty
    try:
        inside.mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot write to the store {str(store)!r}: {error.strerror}: "
            "make it writable or choose another with --store"
        ) from None
    return inside


def _can_rename(source: Path, into: Path) -> bool:
    """A bind mount has the device of its parent and still refuses renames: only trying tells."""
    probe = f"{layout.STAGING}-{secrets.token_hex(8)}"
    (source / probe).mkdir()
    try:
        (source / probe).rename(into / probe)
    except FileNotFoundError:
        raise
    except OSError:
        (source / probe).rmdir()
        return False
    (into / probe).rmdir()
    return True


def _join(folder: Path) -> tuple[int, bool]:
    """Open ``alive`` with a shared lock; returns the descriptor and whether locks work here."""
    while True:
        try:
            folder.mkdir(exist_ok=True)
            descriptor = os.open(folder / "alive", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if isinstance(error, _VANISHED) and (folder.is_dir() or not os.path.lexists(folder)):
                continue  # the last builder removed the folder between the two calls
            raise StoreError(f"cannot write to {str(folder)!r}: {error.strerror}") from None
        try:
            if _try_exclusive(descriptor) and _is_file(folder / "alive", descriptor):
                for name in ("stage", "locks"):
                    shutil.rmtree(folder / name, ignore_errors=True)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return descriptor, False
            os.close(descriptor)
            raise StoreError(f"cannot lock {str(folder / 'alive')!r}: {error.strerror}") from None
        if _is_file(folder / "alive", descriptor):
            return descriptor, True
        os.close(descriptor)  # removed by the last builder while we waited: start again


def _try_exclusive(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text())
        return f"pid {int(holder['pid'])} on {str(holder['host'])}"
    except (OSError, ValueError, KeyError, TypeError):
        return _UNKNOWN
