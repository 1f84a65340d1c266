"""Graphs of files written as graph JSON into a folder, for ``cudnn-aot convert``."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudnn_aot.cache.output import write_output
from cudnn_aot.compiler.build.sources import failure_line, read_each
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.formats.load import Unread
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import cudnnGraphNotSupportedError


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one graph, or of a file that could not be read."""

    source: str
    status: str  # "converted", "declined" or "failed"
    graph: Graph | None = None
    path: str = ""
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"source": self.source, "status": self.status}
        if self.graph is not None:
            document |= {
                "name": self.graph.name,
                "graph_key": self.graph.key(),
                "file": self.path,
                "nodes": len(self.graph.nodes),
            }
        return document | ({"reason": self.reason} if self.reason else {})


class Writer:
    """Writes graphs into a folder, never two to one file and never over what it reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[Path, tuple[str, str]] = {}  # by path: text, source

    def convert(self, source: Path) -> list[Result]:
        """The results of one file."""
        found = read_each(source)
        return [
            self._refused(source, item)
            if isinstance(item, Unread)
            else self._write(source, source.stem if len(found) == 1 else item.name, item)
            for item in found
        ]

    def _refused(self, source: Path, item: Unread) -> Result:
        declined = isinstance(item.error, cudnnGraphNotSupportedError)
        status = "declined" if declined else "failed"
        return Result(str(source), status, reason=failure_line(item.error))

    def _write(self, source: Path, name: str, graph: Graph) -> Result:
        path = self._folder / f"{_file_stem(name)}.json"
        text = graph_json.dumps(graph)
        other = self._written.get(path)
        reason = ""
        if other is not None and other[0] != text:  # a key alone has no names and no hints
            reason = f"{source}: {path} is written already, with another graph of {other[1]}"
        elif os.path.exists(path) and os.path.exists(source) and path.samefile(source):
            reason = f"{source}: the graph would be written over it: choose another folder"
        if reason:
            return Result(str(source), "failed", reason=reason)
        try:
            write_output(path, text.encode())
        except OSError as error:
            return Result(str(source), "failed", reason=f"{path}: cannot write: {error.strerror}")
        self._written[path] = text, str(source)
        return Result(str(source), "converted", graph, str(path))


def _file_stem(name: str) -> str:
    """`name` as a file's name: letters, digits and ``_.-``."""
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).lstrip(".")[:120] or "graph"
