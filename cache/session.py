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

Nothing but these three is removed, through a descriptor of the folder, and no link is followed. A
folder that is a link, that holds anything else, or that somebody may write who may not change the
store is refused: no builder of the store made it, or others could exchange what is being built.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cudnn_aot.cache import layout
from cudnn_aot.cache.held import NO_LOCKS, waited_long
from cudnn_aot.cache.place import CACHE_VARIABLE, cache_store
from cudnn_aot.errors import StoreError, UsageError

# who holds the lock ("pid 12 on host"), seconds waited so far
WaitNotice = Callable[[str, float], None]

_NOTICE_AFTER_S = 2.0
_UNKNOWN = "another builder"
_POLL_S = 0.02
_MODE = 0o755  # whatever the umask is: nobody else may exchange what is being built


_FIXES = {
    errno.ENOSPC: "free some space and build again; what is stored stays valid",
    errno.EDQUOT: "free some space and build again; what is stored stays valid",
    errno.EROFS: "choose a writable folder with {setting}",
    errno.EACCES: "make it writable or choose another folder with {setting}",
    errno.EPERM: "make it writable or choose another folder with {setting}",
    errno.ESTALE: "the file server has lost the folder: mount it again and build again",
    errno.EIO: "the disk or its server fails: check it and build again",
}


def refused(path: Path, error: OSError) -> StoreError:
    """What to tell of a file system that does not let us write."""
    fix = _FIXES.get(error.errno or 0, "").format(setting=_setting_of(path))
    reason = (error.strerror or str(error)).lower()
    return StoreError(f"cannot write {str(path)!r}: {reason}" + (f": {fix}" if fix else ""))


def _setting_of(path: Path) -> str:
    """What chooses another folder: nobody names the user's cache with an option."""
    try:
        cache = cache_store()
    except UsageError:
        return "--store"
    is_of_cache = any(path.is_relative_to(folder) for folder in (cache, *places(cache)))
    return CACHE_VARIABLE if is_of_cache else "--store"


class BuildSession:
    """One builder's membership; not thread-safe to open or close, safe to lock and stage from."""

    def __init__(self, store: Path) -> None:
        self.folder = _place(store)
        self._directory, self._alive, self.locks = _join(self.folder, store)
        self.stage = self.folder / "stage" / secrets.token_hex(8)
        try:
            self.stage.parent.mkdir(_MODE, exist_ok=True)
            self.stage.mkdir(_MODE)
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
                folder.mkdir(_MODE, exist_ok=True)
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
        if self._alive < 0:
            return
        try:
            _remove_tree(self._directory, f"stage/{self.stage.name}")
            if self.locks:
                _remove_if_alone(self.folder, self._directory, self._alive)
        finally:
            os.close(self._alive)
            os.close(self._directory)
            self._alive = self._directory = -1


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


def fault_of(folder: Path, store: Path) -> str | None:
    """Why a building folder of the store is not used, and not removed; None where it is or absent.

    Raises:
        OSError: the system does not let us look.
    """
    try:
        os.close(_open(folder, store))
    except FileNotFoundError:
        return None
    except StoreError as error:
        return str(error)
    return None


def sweep(store: Path) -> bool:
    """Remove what dead builders left, if nobody builds now; True when something was removed.

    Raises:
        StoreError: something else lies where a building folder would.
    """
    swept = False
    for folder in places(store):
        with contextlib.ExitStack() as opened:
            try:
                directory = _open(folder, store)
                opened.callback(os.close, directory)
                descriptor = _open_alive(folder, directory)
                opened.callback(os.close, descriptor)
                # No locks here: a living builder cannot be told from a dead one.
                swept |= _remove_if_alone(folder, directory, descriptor)
            except OSError:
                continue  # nothing there that we could remove: another user's, or read-only
    return swept


_NAMES = {"alive": stat.S_ISREG, "locks": stat.S_ISDIR, "stage": stat.S_ISDIR}
# What file servers keep of a removed file that is open, and what `_can_rename` makes.
_PASSING = re.compile(r"\.nfs[0-9a-f]+|" + re.escape(layout.STAGING) + "-[0-9a-f]{16}")
_WRITERS = stat.S_IWGRP | stat.S_IWOTH


def _open(folder: Path, store: Path) -> int:
    """A descriptor of a building folder that can be trusted.

    Raises:
        StoreError: it is none that builders of this store made.
        OSError: it is absent, or the system refuses.
    """
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR) or not os.path.lexists(folder):
            raise
        kind = "a link" if folder.is_symlink() else "no folder"
        raise _bad(folder, f"it is {kind}") from None
    try:
        fault = _why_not_trusted(os.fstat(directory), store.stat(), folder.parent.stat())
        if fault:
            raise _bad(folder, fault)
        for name in os.listdir(directory):  # noqa: PTH208 (no path can be trusted)
            is_kind = _NAMES.get(name)
            if is_kind is None:
                if not _PASSING.fullmatch(name):
                    raise _bad(folder, f"it holds {name!r}, which no build made")
                continue
            with contextlib.suppress(FileNotFoundError):  # the last builder just removed it
                if not is_kind(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                    raise _bad(folder, f"{name!r} in it is a link, or not what a build makes")
    except BaseException:
        os.close(directory)
        raise
    return directory


def _bad(folder: Path, fault: str) -> StoreError:
    return StoreError(
        f"bad building folder {str(folder)!r}: {fault}, want one that builds of this store made: "
        f"move it away, or choose another folder with {_setting_of(folder)}"
    )


def _why_not_trusted(
    building: os.stat_result, store: os.stat_result, container: os.stat_result
) -> str | None:
    """Why somebody may write a building folder who may not change the store; None if nobody.

    Whoever may write the folder around both may put another store in its place, unless it is
    sticky, where only owners may. Members of one group are not told from each other.
    """
    trusted = store.st_mode & _WRITERS
    if not container.st_mode & stat.S_ISVTX:
        trusted |= container.st_mode & _WRITERS
    could_make = container.st_mode & _WRITERS & ~trusted
    owners = (os.geteuid(), 0, store.st_uid, container.st_uid)
    if building.st_uid not in owners and could_make:
        return f"it is user {building.st_uid}'s, who may not change the store"
    if building.st_mode & _WRITERS & ~trusted and building.st_uid != os.geteuid():
        return "users may write it who may not change the store"
    return None


def _open_alive(folder: Path, directory: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open("alive", flags, 0o644, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _bad(folder, "'alive' in it is a link") from None
        raise


def _remove_if_alone(folder: Path, directory: int, alive: int) -> bool:
    """Remove a building folder, open as ``directory``, if nobody builds.

    ``alive`` may have been removed and made again since it was opened: a lock on the old one says
    nothing. It is removed after everything else, since who finds it absent makes a new one and
    builds at once; whoever waits for this one looks again. The folder stays if somebody did, or
    has put anything else into it.
    """
    if not _try_exclusive(alive) or not _is_alive(directory, alive):
        return False
    with contextlib.suppress(OSError):
        _remove_leftovers(directory)
        os.unlink("alive", dir_fd=directory)
        folder.rmdir()
    return True


def _remove_leftovers(directory: int) -> None:
    """Of who was alone in a building folder: all but ``alive``, and what is not a builder's."""
    for name in os.listdir(directory):  # noqa: PTH208 (as above)
        if _NAMES.get(name) is stat.S_ISDIR:
            _remove_tree(directory, name)
        elif name.startswith(layout.STAGING) and _PASSING.fullmatch(name):
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=directory)


def _remove_tree(directory: int, name: str) -> None:
    """Remove a folder in an open one, as far as the system lets us; no link is followed."""
    with contextlib.suppress(OSError):
        for _, folders, files, at in os.fwalk(name, topdown=False, dir_fd=directory):
            for each in (*folders, *files):  # links to folders are among the folders
                with contextlib.suppress(OSError):
                    is_folder = stat.S_ISDIR(
                        os.stat(each, dir_fd=at, follow_symlinks=False).st_mode
                    )
                    (os.rmdir if is_folder else os.unlink)(each, dir_fd=at)
        os.rmdir(name, dir_fd=directory)


_PLACE_TRIES = 1000


def _place(store: Path) -> Path:
    """The folder that all builders of the store agree on."""
    beside, inside = places(store)
    for folder in (inside, beside):
        with contextlib.suppress(OSError):
            fault = fault_of(folder, store)
            if fault:
                raise StoreError(fault)
    for _ in range(_PLACE_TRIES):
        try:
            if beside.parent.stat().st_dev == store.stat().st_dev and not os.path.ismount(store):
                directory = _make(beside, store)
                try:
                    if _can_rename(directory, store):
                        return beside
                finally:
                    os.close(directory)
        except FileNotFoundError:
            continue  # the last builder removed the folder meanwhile: it can be used all the same
        except OSError:
            pass
        break
    with contextlib.suppress(OSError):
        beside.rmdir()  # it cannot be used; one that is in use is not empty
    try:
        os.close(_make(inside, store))
    except FileNotFoundError:
        pass  # as above: who joins makes it again
    except OSError as error:
        raise StoreError(
            f"cannot write to the store {str(store)!r}: {error.strerror}: "
            f"make it writable or choose another with {_setting_of(store)}"
        ) from None
    return inside


def _make(folder: Path, store: Path) -> int:
    """As `_open`, of a folder that need not be there."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(_MODE)
    return _open(folder, store)


def _can_rename(directory: int, into: Path) -> bool:
    """A bind mount has the device of its parent and still refuses renames: only trying tells."""
    probe = f"{layout.STAGING}-{secrets.token_hex(8)}"
    os.mkdir(probe, dir_fd=directory)
    try:
        os.rename(probe, into / probe, src_dir_fd=directory)
    except FileNotFoundError:
        raise
    except OSError:
        os.rmdir(probe, dir_fd=directory)
        return False
    (into / probe).rmdir()
    return True


def _join(folder: Path, store: Path) -> tuple[int, int, bool]:
    """Open the folder, and ``alive`` with a shared lock.

    Returns both descriptors and whether locks work here.
    """
    while True:
        with contextlib.ExitStack() as opened:
            try:
                directory = _make(folder, store)
                opened.callback(os.close, directory)
                descriptor = _open_alive(folder, directory)
                opened.callback(os.close, descriptor)
            except FileNotFoundError:
                if folder.parent.is_dir():
                    continue  # the last builder removed the folder between two calls
                raise StoreError(f"cannot write to {str(folder)!r}: its folder is gone") from None
            except OSError as error:
                raise StoreError(f"cannot write to {str(folder)!r}: {error.strerror}") from None
            try:
                if _try_exclusive(descriptor) and _is_alive(directory, descriptor):
                    _remove_leftovers(directory)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                locks = True
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    where = str(folder / "alive")
                    raise StoreError(f"cannot lock {where!r}: {error.strerror}") from None
                locks = False
            if not locks or _is_alive(directory, descriptor):
                opened.pop_all()
                return directory, descriptor, locks
        # `alive` was removed by the last builder while we waited: start again


def _try_exclusive(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(directory: int, descriptor: int) -> bool:
    """Whether the open file is the ``alive`` that lies in the folder now."""
    try:
        found = os.stat("alive", dir_fd=directory, follow_symlinks=False)
        return os.path.samestat(found, os.fstat(descriptor))
    except OSError:
        return False


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text())
        return f"pid {int(holder['pid'])} on {str(holder['host'])}"
    except (OSError, ValueError, KeyError, TypeError):
        return _UNKNOWN
