"""Steps that an interrupt must not cut in two: what they make, nobody could remove."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back signals whose handlers raise until the block is left; for short blocks.

    Handlers run in the main thread alone, so there is nothing to hold back in another. A signal
    without a handler of Python's ends the process, or is ignored, as ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))

    handlers = {each: handler for each in _ENDING if callable(handler := signal.getsignal(each))}
    try:
        for each in handlers:
            signal.signal(each, note)
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        for number, frame in came:  # the first that raises ends it
            handlers[signal.Signals(number)](number, frame)
