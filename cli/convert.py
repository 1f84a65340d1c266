"""``cudnn-aot convert``: graph files of any form that is read here, written as graph JSON."""

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cudnn_aot.cli.options import json_option
from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.cli.table import format_table, plural
from cudnn_aot.compiler.build.sources import failure_line, read_each
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.formats.load import Unread
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import UsageError, cudnnGraphNotSupportedError


@dataclass(frozen=True, slots=True)
class _Result:
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


@click.command()
@click.argument("files", nargs=-1, metavar="IN...")
@click.option("-o", "folder", metavar="DIR", help="Where the graph files go; made if absent.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of graph files, and stop.")
@json_option
def convert(files: tuple[str, ...], folder: str | None, schema: bool, as_json: bool) -> int:
    """Write graphs of any readable form as graph JSON.

    Takes graph JSON, the cuDNN frontend's plan blobs and lowered form, and Python files that define
    graphs. A file with one graph keeps its name; of several graphs, each is named for itself. One
    file that fails does not stop the others: exit code 1 if any failed, 3 if any is not supported.
    """
    if schema:
        from cudnn_aot.compiler.formats.schema import graph_schema

        print_json(graph_schema())
        return 0
    if not files:
        raise UsageError("no file given: name at least one")
    if folder is None:
        raise UsageError("no folder given: pass -o DIR")
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{target}: cannot make the folder: {error.strerror}") from None
    writer = _Writer(target)
    results = [result for file in dict.fromkeys(files) for result in writer.convert(Path(file))]
    for result in results:
        if result.reason:
            word = "declined" if result.status == "declined" else "error"
            complain(f"{word}: {result.reason}")
    if as_json:
        print_json({"folder": str(target), "graphs": [result.to_json() for result in results]})
    else:
        say(*_report(results, target))
    statuses = {result.status for result in results}
    return 1 if "failed" in statuses else 3 if "declined" in statuses else 0


class _Writer:
    """Writes graphs into a folder, never two to one file and never over what it reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[Path, tuple[str, str]] = {}  # by path: text, source

    def convert(self, source: Path) -> list[_Result]:
        """The results of one file."""
        found = read_each(source)
        return [
            self._refused(source, item)
            if isinstance(item, Unread)
            else self._write(source, source.stem if len(found) == 1 else item.name, item)
            for item in found
        ]

    def _refused(self, source: Path, item: Unread) -> _Result:
        declined = isinstance(item.error, cudnnGraphNotSupportedError)
        status = "declined" if declined else "failed"
        return _Result(str(source), status, reason=failure_line(item.error))

    def _write(self, source: Path, name: str, graph: Graph) -> _Result:
        path = self._folder / f"{_file_stem(name)}.json"
        text = graph_json.dumps(graph)
        other = self._written.get(path)
        reason = ""
        if other is not None and other[0] != text:  # a key alone has no names and no hints
            reason = f"{source}: {path} is written already, with another graph of {other[1]}"
        elif path.exists() and source.exists() and path.samefile(source):
            reason = f"{source}: the graph would be written over it: choose another folder"
        if reason:
            return _Result(str(source), "failed", reason=reason)
        try:
            _publish(path, text)
        except OSError as error:
            return _Result(str(source), "failed", reason=f"{path}: cannot write: {error.strerror}")
        self._written[path] = text, str(source)
        return _Result(str(source), "converted", graph, str(path))


def _file_stem(name: str) -> str:
    """`name` as a file's name: letters, digits and ``_.-``."""
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).lstrip(".")[:120] or "graph"


def _publish(path: Path, text: str) -> None:
    """Write a file at once: a reader finds the old or the new one, whole."""
    descriptor, stage = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(stage).chmod(0o644)
        Path(stage).replace(path)
    except BaseException:
        Path(stage).unlink(missing_ok=True)
        raise


def _report(results: list[_Result], folder: Path) -> list[str]:
    converted = [result for result in results if result.graph is not None]
    rows = [
        (
            Path(result.path).name,
            result.source,
            str(len(result.graph.nodes)),
            " ".join(dict.fromkeys(node.op for node in result.graph.nodes))[:60],
            result.graph.key()[:12],
        )
        for result in converted
        if result.graph is not None
    ]
    table = format_table(("graph", "from", "nodes", "ops", "key"), rows, right="nodes")
    left = len(results) - len(converted)
    written = len({result.path for result in converted})
    summary = f"{plural(written, 'graph')} written to {folder}"
    if left:
        summary += f", {left} left out"
    return [*table, "", summary] if table else [summary]
