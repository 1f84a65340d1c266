"""What was fetched of stores elsewhere: the mirrors in a user's cache, and how they go.

A mirror goes whole, the one into which nothing was fetched for longest first. One of which a living
process holds a graph, or into which one fetches, stays. Whoever asks for a store again fetches it.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cudnn_aot.cache import held, layout, session
from cudnn_aot.cache.inventory import Size, measure, total
from cudnn_aot.errors import StoreError

_GOING = ".going-"  # a mirror that was taken away; the next prune removes what a killed one left


@dataclass(frozen=True, slots=True)
class Mirror:
    """A mirror; ``fetched_s`` is when a file last came into it, in seconds since 1970."""

    root_digest: str
    size: Size
    fetched_s: float


@dataclass(frozen=True, slots=True)
class PrunedMirrors:
    """What went, or would; ``held`` would have gone, but a living process holds it.

    Attributes:
        failures: what could not be removed, a line each.
        before, left: what all mirrors took, and take.
    """

    mirrors: tuple[Mirror, ...]
    held: tuple[Mirror, ...]
    failures: tuple[str, ...]
    before: Size
    left: Size


def mirrors(cache: Path) -> tuple[Mirror, ...]:
    """Those in a cache, the one into which nothing was fetched for longest first.

    Raises:
        StoreError: the system does not let us look.
    """
    found = []
    for name in _names(cache / layout.REMOTES):
        path = cache / layout.REMOTES / name
        if layout.is_digest(name) and path.is_dir() and not path.is_symlink():
            sizes = measure(path)
            found.append(Mirror(name, total(sizes.values()), _changed_s(path, sizes)))
    return tuple(sorted(found, key=lambda mirror: (mirror.fetched_s, mirror.root_digest)))


def prune_mirrors(
    cache: Path,
    now_s: float,
    *,
    max_disk_bytes: int | None = None,
    older_than_s: float | None = None,
    dry_run: bool = False,
) -> PrunedMirrors:
    """Remove the mirrors in a cache.

    Args:
        max_disk_bytes: what they may take together in the end, as `du` counts; by default nothing.
        older_than_s: only those into which nothing was fetched for longer.

    Raises:
        StoreError: the system does not let us look.
    """
    known = mirrors(cache)
    before = left = sum((mirror.size for mirror in known), Size())
    gone: list[Mirror] = []
    kept: list[Mirror] = []
    failures: list[str] = []
    for mirror in known:
        if older_than_s is not None and now_s - mirror.fetched_s <= older_than_s:
            continue
        if max_disk_bytes is not None and left.disk_bytes <= max_disk_bytes:
            break
        try:
            is_gone = _take_away(cache / layout.REMOTES / mirror.root_digest, dry_run)
        except (StoreError, OSError) as error:
            failures.append(str(error))
            continue
        (gone if is_gone else kept).append(mirror)
        if is_gone:
            size = left.bytes - mirror.size.bytes, left.disk_bytes - mirror.size.disk_bytes
            left = Size(*size)
    if not dry_run:
        failures += _sweep(cache / layout.REMOTES)
    return PrunedMirrors(tuple(gone), tuple(kept), tuple(failures), before, left)


# What follows is not part of the interface.


def _names(folder: Path) -> Sequence[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 (names alone)
    except FileNotFoundError:
        return ()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StoreError(f"cannot list {str(folder)!r}: {reason}") from None


def _changed_s(mirror: Path, paths: Sequence[str] | dict[str, Size]) -> float:
    """By files' ctime: their mtime is a constant. That of folders changes as they are settled."""
    latest = 0.0
    for path in paths:
        if layout.classify(path) is not None:
            try:
                latest = max(latest, (mirror / path).lstat().st_ctime)
            except FileNotFoundError:
                continue
    return latest


def _take_away(mirror: Path, dry_run: bool) -> bool:
    """Whether nobody uses a mirror, which is then gone under its name.

    Raises:
        StoreError: the file system has no locks, which tell who uses it.
    """
    marks = held.join_as_pruner(mirror, 0.0)
    if marks is None:
        return False
    try:
        if not marks.works and (mirror / layout.STORE_FILE).exists():
            raise StoreError(
                f"cannot remove {str(mirror)!r}: its file system has no locks, which tell who uses "
                "it: remove it when nobody does"
            )
        marks.announce(held.PRUNED, held.ALL_GRAPHS)
        if marks.others(held.GRAPH, held.ALL_GRAPHS):
            return False
        if not dry_run:
            session.sweep(mirror)
            mirror.rename(mirror.with_name(_GOING + secrets.token_hex(8)))
        return True
    finally:
        marks.close()


def _sweep(folder: Path) -> list[str]:
    """Remove what was taken away, and what was last seen of URLs whose mirrors are gone."""
    failures = []
    names = _names(folder)
    for name in names:
        path = folder / name
        try:
            if name.startswith(_GOING):
                shutil.rmtree(path)
            elif name.endswith(".seen") and path.read_text("ascii").strip() not in names:
                path.unlink()
        except FileNotFoundError:
            continue  # another prune
        except (OSError, ValueError) as error:
            failures.append(f"cannot remove {str(path)!r}: {error}")
    return failures


__all__ = ["Mirror", "PrunedMirrors", "mirrors", "prune_mirrors"]
