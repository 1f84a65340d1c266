"""Handles, as programs written for the cuDNN frontend pass them around: what names a stream.

Nothing is loaded and no device is touched. A handle only remembers the stream that its owner set;
`execute(..., handle=handle)` of a graph and `execute(..., stream=get_stream(handle))` of a plan run
there. Without a handle the default stream is used, and a destroyed handle is refused rather than
read as the default stream.
"""

from __future__ import annotations

from typing import Any

from cudnn_aot.errors import UsageError


class Handle:
    """A stream by another name; made by `create_handle`.

    Attributes:
        stream: what `set_stream` was given: 0 for the default stream, a ``cudaStream_t``, or an
            object with ``cuda_stream``, ``ptr`` or ``__cuda_stream__``; None once destroyed.
    """

    __slots__ = ("stream",)

    def __init__(self, stream: Any = 0) -> None:
        self.stream: Any = stream

    def __repr__(self) -> str:
        return f"<Handle on stream {self.stream!r}>"


handle = Handle  # the name in annotations of programs


def create_handle() -> Handle:
    """A handle on the default stream."""
    return Handle()


def set_stream(handle: Handle, stream: Any) -> None:
    """Let what is executed with `handle` run on `stream`."""
    _live(handle, "set_stream")
    handle.stream = 0 if stream is None else stream


def get_stream(handle: Handle) -> Any:
    """The stream of `handle`."""
    return _live(handle, "get_stream").stream


def destroy_handle(handle: Handle) -> None:
    """Give `handle` up; a second time is a no-op, any other use of it is refused."""
    if not isinstance(handle, Handle):
        _live(handle, "destroy_handle")
    handle.stream = None


def _live(handle: Handle, what: str) -> Handle:
    if not isinstance(handle, Handle):
        raise TypeError(
            f"{what}: got {type(handle).__name__}, want a handle: call cudnn_aot.create_handle()"
        )
    if handle.stream is None:
        raise UsageError(f"{what}: the handle is destroyed: call create_handle() for a new one")
    return handle
