"""Open a graph file of any form that is read here, by looking at its content.

Only a file whose name ends in ``.py`` is run, in a process of its own (`formats.python_file`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cudnn_aot.compiler.formats import graph_json, lowered, peer_blob
from cudnn_aot.compiler.formats.json_reader import MAX_BYTES, parse
from cudnn_aot.compiler.formats.user_file import opened
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import InvalidGraphError, cudnnGraphNotSupportedError


@dataclass(frozen=True, slots=True)
class Unread:
    """A graph that a file names and that cannot be had, and why."""

    name: str
    error: Exception


def load_graphs(path: str | os.PathLike[str]) -> list[Graph]:
    """The validated graphs of one file; a graph without a name gets the file's stem.

    Raises:
        UsageError: the file cannot be read.
        InvalidGraphError: it is no graph, or a wrong one; the message starts with the path.
        cudnnGraphNotSupportedError: a graph of the cuDNN frontend beyond what is supported.
    """
    graphs = []
    for found in read_graphs(path):
        if isinstance(found, Unread):
            raise found.error
        graphs.append(found)
    return graphs


def read_graphs(path: str | os.PathLike[str]) -> list[Graph | Unread]:
    """As `load_graphs`; of a program, one graph that cannot be had costs no other.

    Raises what `load_graphs` does if the file as a whole cannot be read.
    """
    path = Path(path)
    is_program = path.suffix == ".py"
    with opened(path, "graph file") as file:
        # Room is made for what is asked for: all that may be only where no size is known (/proc).
        size = os.fstat(file.fileno()).st_size or MAX_BYTES
        data = b"" if is_program else file.read(min(size, MAX_BYTES) + 1)
    try:
        if not is_program:
            return [read_bytes(data, stem_of(path))]
        from cudnn_aot.compiler.formats import python_file

        return [
            Unread(found.name, _located(path, found.error)) if isinstance(found, Unread) else found
            for found in python_file.load(path)
        ]
    except (InvalidGraphError, cudnnGraphNotSupportedError) as error:
        raise _located(path, error) from None


def stem_of(path: Path) -> str:
    """The name that a graph gets from its file; a file's may be bytes that are no text."""
    return os.fsencode(path.stem).decode("utf-8", "replace")


def _located(path: Path, error: Exception) -> Exception:
    return type(error)(f"{path}: {error}")


def read_bytes(data: bytes, name: str = "") -> Graph:
    """The validated graph of a file's content, of any form but a program."""
    if data.startswith(peer_blob.MAGIC):
        return peer_blob.read(parse(peer_blob.header_of(data)), name)
    root = parse(data)
    members = root.object()
    if graph_json.MARKER in members:
        return graph_json.read(root, name)
    if lowered.is_lowered(root):
        return lowered.read(root, name)
    if peer_blob.is_peer(root):
        return peer_blob.read(root, name)
    raise InvalidGraphError(
        f"not a graph: got no field {graph_json.MARKER!r}, "
        "want a cudnn-aot graph, or the cuDNN frontend's plan blob or lowered form"
    )
