"""What a name may be: one rule for what programs set and for what files hold."""

from __future__ import annotations

from typing import Any

from cudnn_aot.errors import InvalidGraphError

MAX_TEXT = 1000  # characters of a name or another text


def as_name(value: Any) -> str:
    """`value`, which is a name; refuses anything else."""
    if not isinstance(value, str):
        raise InvalidGraphError(f"bad name: got {value!r}, want text")
    reason = refuse_text(value)
    if reason:
        raise InvalidGraphError(f"bad name: {reason}")
    return value


def refuse_text(text: str) -> str | None:
    """Why no file can hold `text`, or None."""
    if len(text) > MAX_TEXT:
        return f"got text of {len(text)} characters, want at most {MAX_TEXT}"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return f"got {text[:60]!r}, want text without half of a surrogate pair"
    return None
