"""Where stores are, as users name them: paths, URLs, lists of both, and the user's own store."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cudnn_aot.errors import UsageError

CACHE_VARIABLE = "CUDNN_AOT_CACHE"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# A URL in a list: its port and its "//" have colons of their own, nothing after them may.
_ENTRY = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://(?:\[[0-9A-Fa-f:]*\])?[^:/]*(?::\d+(?=[/:]|$))?(?:/[^:]*)?|[^:]*"
)


def is_url(place: object) -> bool:
    """Whether a store is named by a URL."""
    return isinstance(place, str) and _URL.match(place) is not None


Place = Path | str  # where a store is: a path, or a URL as a string


def place_of(text: str) -> Place:
    return text if is_url(text) else Path(text)


def split_places(text: str, what: str) -> tuple[Place, ...]:
    """The paths and URLs in a setting, with ``:`` between them.

    Raises:
        UsageError: one is empty, as where a variable of the caller's shell is not set.
    """
    places = []
    at = 0
    while True:
        entry = _ENTRY.match(text, at)
        assert entry is not None  # the second form takes anything
        places.append(entry[0])
        at = entry.end() + 1
        if at > len(text):
            break
    if not all(places) or ":".join(places) != text:
        raise UsageError(
            f"{what}: got {text!r}, want folders or packs, or URLs, with ':' between them and no "
            "empty one"
        )
    return tuple(map(place_of, places))


def cache_store() -> Path:
    """The store that this user's processes may add to: ``CUDNN_AOT_CACHE``, else in the user cache.

    Raises:
        UsageError: there is no place for it.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not Path(folder).is_absolute():  # as that standard says of a relative one
        try:
            folder = str(Path.home() / ".cache")
        except RuntimeError:
            raise UsageError(
                f"no place for compiled plans: there is no home folder; set {CACHE_VARIABLE}"
            ) from None
    # Locks and staging of a build lie beside the store, so it has a folder around it.
    return Path(folder) / "cudnn-aot" / "store"
