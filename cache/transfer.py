"""Asking another machine for something: limits, which failures are tried again, and one error.

What may pass is tried again: time-outs, connections that break, HTTP 5xx and its like, bytes that
are not those that were asked for. All else fails at once. No message holds a secret of a URL.
"""

from __future__ import annotations

import errno
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from cudnn_aot.cache.switch import is_on
from cudnn_aot.errors import RemoteError

_T = TypeVar("_T")

OFFLINE_VARIABLE = "CUDNN_AOT_OFFLINE"

_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_PASSING_ERRNO = frozenset({errno.EIO, errno.ETIMEDOUT, errno.EAGAIN, errno.ENETUNREACH})
# Exceptions of libraries that are not imported here, by the names of their classes.
_PASSING_CLASSES = frozenset(
    {
        "ClientConnectionError",  # aiohttp
        "ClientPayloadError",
        "ConnectionError",  # of Python, requests
        "ChunkedEncodingError",  # requests
        "ContentDecodingError",
        "Timeout",
        "TimeoutError",  # of Python, asyncio, fsspec
        "HTTPClientError",  # botocore
        "ProtocolError",  # urllib3
        "IncompleteRead",  # http.client
    }
)
_USER = re.compile(r"(://)[^/@\s'\"]*@")
_QUERY = re.compile(r"(://[^\s?#'\"]*)[?#][^\s'\"]*")


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how long one thing is tried; times are in seconds.

    Wrong bytes are asked for again ``mismatches`` times: a cache on the way may have held them,
    but a store that has been changed will not change back.
    """

    attempts: int = 4
    attempt_s: float = 60.0
    total_s: float = 300.0
    backoff_s: float = 0.25  # doubled each time, and shifted at random by half of it
    mismatches: int = 2
    slowest_bytes_per_s: float = 1e6  # of a large file, beyond what an attempt takes

    def limit_s(self, seconds: float, size: int) -> float:
        """What an attempt at a file of so many bytes may take, of which ``seconds`` are left."""
        return seconds + size / self.slowest_bytes_per_s


class Mismatch(Exception):
    """What came is not what was asked for."""


def fetch(what: str, retry: Retry, ask: Callable[[float], _T]) -> _T:
    """What ``ask`` returns, which is given the seconds that it may take.

    ``what`` starts the message: ``"cannot read https://host/store/index.json"``.

    Raises:
        FileNotFoundError: the other side says that it is not there.
        RemoteError: it failed for good, or too often, or for too long.
    """
    started = time.monotonic()
    mismatches = 0
    for attempt in range(1, retry.attempts + 1):
        left_s = started + retry.total_s - time.monotonic()
        try:
            return ask(max(min(retry.attempt_s, left_s), 0.001))
        except (FileNotFoundError, RemoteError):
            raise
        except Exception as error:
            mismatches += isinstance(error, Mismatch)
            wait_s = retry.backoff_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
            left_s = started + retry.total_s - time.monotonic()
            if (
                attempt == retry.attempts
                or not passes(error)
                or mismatches > retry.mismatches
                or left_s <= wait_s
            ):
                times = "once" if attempt == 1 else f"{attempt} times"
                raise RemoteError(
                    f"{redacted(what)}: tried {times}, then: {reason(error)}", attempt
                ) from None
            time.sleep(wait_s)
    raise AssertionError("the last attempt returns or raises")


def passes(error: BaseException) -> bool:
    """Whether trying again may help."""
    status = _status(error)
    if status is not None:
        return status in _PASSING_STATUS
    if isinstance(error, Mismatch):
        return True
    if isinstance(error, OSError) and error.errno in _PASSING_ERRNO:
        return True
    return any(kind.__name__ in _PASSING_CLASSES for kind in type(error).__mro__)


def reason(error: BaseException) -> str:
    """One line without secrets."""
    status = _status(error)
    if status is not None:
        return f"HTTP {status}"
    if isinstance(error, Mismatch):
        return str(error)
    text = " ".join(redacted(str(error)).split()).rstrip(".")
    name = type(error).__name__
    if not text:
        return "it timed out" if "Timeout" in name else name
    return text if len(text) < 300 else f"{text[:300]}..."


def redacted(text: str) -> str:
    """``text`` with users, passwords, queries and fragments of URLs left out."""
    return _QUERY.sub(r"\1", _USER.sub(r"\1", text))


def is_offline() -> bool:
    """Whether ``CUDNN_AOT_OFFLINE`` is on; raises as `is_on`."""
    return is_on(OFFLINE_VARIABLE)


def _status(error: BaseException) -> int | None:
    """The HTTP status behind an exception of aiohttp, requests or botocore."""
    for each in (error, error.__cause__):
        response: Any = getattr(each, "response", None)
        if isinstance(response, dict):  # botocore
            response = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        found = getattr(each, "status", None) or getattr(response, "status_code", response)
        if isinstance(found, int):
            return found
    return None
