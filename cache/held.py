"""Who uses a store: shared locks on bytes of its ``store.json``. Standard library only.

    byte                        locked by
    GRAPH + target + graph      a process that was given the graph's plan
    PRUNED + target + graph     ``prune``, while it takes the graph away
    BUILDING                    every builder, from opening the store until it closes it
    PRUNING                     ``prune``, from its listing until its end

where ``target`` is the first 24 bits of the SHA-256 of its name, and ``graph`` the first 32 of the
graph key. Two graphs that share a byte are held together, which costs nothing but space.

Nothing is written, and all descriptors are read-only, as the file is: such locks can only be
shared. So each side first announces itself and then asks for the other. Who is given a graph (the
C++ class ``HeldGraphs``) waits for ``prune``, which withdraws as soon as it finds a holder; a
builder waits for ``prune``, which withdraws as soon as it finds a builder. The locks belong to an
open file (``F_OFD_SETLK``), not to a process: they end when it is closed, by whatever end.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from cudnn_aot.cache import layout
from cudnn_aot.cache.canonical import sha256_hex
from cudnn_aot.errors import StoreError

GRAPH = 0
PRUNED = 1 << 56
BUILDING = 2 << 56
PRUNING = 3 << 56
ALL_GRAPHS = 1 << 56  # bytes of one kind

_POLL_S = 0.02
_NOTICE_AFTER_S = 2.0
# What file systems without locks say when asked for one.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid

# Told while one waits: seconds so far.
Notice = Callable[[float], None]


class Marks:
    """The locks of one open ``store.json``.

    Attributes:
        works: whether its file system has such locks; False without the file, too.
    """

    def __init__(self, store: Path) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        self._descriptor = -1
        try:
            self._descriptor = os.open(store / layout.STORE_FILE, flags)
        except OSError:
            self.works = False
            return
        self.works = True
        self.announce(GRAPH)
        self.withdraw(GRAPH)

    def announce(self, byte: int, length: int = 1) -> None:
        """Lock some bytes; other locks on them are no hindrance."""
        self._set(fcntl.F_RDLCK, byte, length)

    def withdraw(self, byte: int) -> None:
        self._set(fcntl.F_UNLCK, byte)

    def others(self, byte: int, length: int = 1) -> bool:
        """Whether anybody else has locked one of some bytes; False where there are no locks."""
        if not self.works:
            return False
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, length, 0)
        found = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, asked)
        return bool(struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        """Withdraw all."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self.works = -1, False

    def _set(self, kind: int, byte: int, length: int = 1) -> None:
        if not self.works:
            return
        request = struct.pack(_FLOCK, kind, os.SEEK_SET, byte, length, 0)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, request)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            self.works = False


def graph_byte(target: str, graph_key: str) -> int:
    """The place of a graph among those of one kind."""
    return int(sha256_hex(target.encode())[:6], 16) << 32 | int(graph_key[:8], 16)


def join_builders(
    store: Path, notice: Notice | None = None, timeout_s: float | None = None
) -> Marks:
    """Announce a builder, once nobody prunes; ends with ``close``.

    ``prune`` gives way at once to a builder that it finds, and none comes while it works, so what
    a builder has found in the store stays there until it names it.

    Raises:
        StoreError: somebody prunes for ``timeout_s``; without that it waits without bound.
    """
    marks = Marks(store)
    marks.announce(BUILDING)
    started, due_s = time.monotonic(), _NOTICE_AFTER_S
    while marks.others(PRUNING):
        waited = time.monotonic() - started
        if timeout_s is not None and waited >= timeout_s:
            marks.close()
            raise waited_long(f"a prune of {str(store)!r}", timeout_s)
        if notice is not None and waited > due_s:
            notice(waited)
            due_s = waited + _NOTICE_AFTER_S
        time.sleep(_POLL_S)
    return marks


def waited_long(what: str, timeout_s: float) -> StoreError:
    """What to tell where a wait was limited, and was as long."""
    return StoreError(
        f"waited {timeout_s:g} s for {what}: build again later, or with a longer --lock-timeout"
    )


def join_as_pruner(store: Path, wait_s: float) -> Marks | None:
    """Announce the one that prunes, alone; None when others built or pruned for ``wait_s``."""
    marks = Marks(store)
    deadline = time.monotonic() + wait_s
    pause = 0.001 * (1 + os.getpid() % 17)  # two that met do not meet again and again
    while True:
        marks.announce(PRUNING)
        if not marks.others(BUILDING) and not marks.others(PRUNING):
            return marks
        marks.withdraw(PRUNING)
        if time.monotonic() >= deadline:
            marks.close()
            return None
        time.sleep(pause)
