"""The document of a report as one HTML page, which names no other file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


def page(document: Mapping[str, Any]) -> str:
    """The page. The document is carried as data, and the page's script draws it as text."""
    parts = {
        "@CSS@": _read("page.css"),
        "@JS@": _read("page.js"),
        # Nothing that ends a script, or starts a comment in one, is left in it.
        "@DATA@": json.dumps(document).replace("<", "\\u003c"),
    }
    text = _read("page.html")
    for mark, part in parts.items():
        before, _, after = text.partition(mark)
        text = before + part + after
    return text


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
