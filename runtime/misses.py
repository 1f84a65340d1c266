"""The folder of missing graphs, ``CUDNN_AOT_MISS_DIR``: what the next build has to make.

Imported at the first miss of a graph. Each graph is written once, with the extents that it had, as
a file that ``cudnn-aot build FOLDER`` reads; processes may share the folder.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from cudnn_aot.cache.layout import encode_name
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import Error

MOST_FILES = 1000  # of one process; a program may have new extents at each step for ever
_MOST_NAME = 60  # characters of a graph's name that are kept

_lock = threading.Lock()
_written: set[str] = set()  # keys, by this process


def write(graph: Graph, folder: str) -> str | None:
    """Write a graph unless that was done; returns what went wrong and never raises."""
    try:
        key = graph.key()
        with _lock:
            if key in _written or len(_written) >= MOST_FILES:
                return None
            _written.add(key)
        return _write(graph, key, Path(folder))
    except Exception as error:  # a graph that cannot be written must not fail the look-up
        return f"{type(error).__name__}: {error}"


def _write(graph: Graph, key: str, folder: Path) -> str | None:
    # Graphs of one name with other extents are other graphs: a build wants a name for each.
    name = f"{graph.name[:_MOST_NAME]}-{key[:12]}" if graph.name else key
    try:
        stem = encode_name("graph name", name)
    except (Error, UnicodeError):
        stem = name = key
    document = json.loads(graph_json.dumps(graph)) | {"name": name}
    path = folder / f"{stem}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.path.exists(path):
            return None  # by another process
        staged = folder / f".{key[:12]}.{os.getpid()}"
        staged.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        staged.replace(path)
    except OSError as error:
        return f"cannot write {str(path)!r}: {(error.strerror or str(error)).lower()}"
    return None


__all__ = ["MOST_FILES", "write"]
