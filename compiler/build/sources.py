"""Graph files read for a build: what each holds, or why it could not be read."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cudnn_aot.cache.layout import encode_name
from cudnn_aot.cache.progress import Event, ProgressCallback, Stage
from cudnn_aot.cache.switch import is_debugging
from cudnn_aot.compiler.build.summary import GraphResult, Status
from cudnn_aot.compiler.formats.load import Unread, read_graphs, stem_of
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import Error, UsageError, cudnnGraphNotSupportedError


@dataclass(frozen=True, slots=True)
class Source:
    """A validated, frozen graph and the file it came from."""

    file: str
    name: str
    key: str
    graph: Graph


def read_sources(
    files: Iterable[Path], progress: ProgressCallback
) -> tuple[list[Source], list[GraphResult]]:
    """Read every file; what cannot be read becomes a result without target, not an exception.

    That result is failed, or declined when it is a graph beyond what can be expressed here.

    Raises:
        UsageError: one name is given to two different graphs, so a name could not find its plan.
    """
    paths = list(dict.fromkeys(files))
    sources: list[Source] = []
    failed: list[GraphResult] = []
    for done, path in enumerate(paths, start=1):
        started = time.perf_counter()
        for found in read_each(path):
            item = found if isinstance(found, Unread) else _source(path, found)
            if isinstance(item, Source):
                sources.append(item)
                continue
            declined = isinstance(item.error, cudnnGraphNotSupportedError)
            failed.append(
                GraphResult(
                    name=item.name,
                    graph_key="",
                    target="",
                    status=Status.DECLINED if declined else Status.FAILED,
                    file=str(path),
                    reasons=(failure_line(item.error).removeprefix(f"{path}: "),),
                    seconds=time.perf_counter() - started,
                )
            )
        progress(Event(Stage.LOAD, done, len(paths), str(path)))
    _refuse_ambiguous_names(sources)
    return sources, failed


def expand(files: Iterable[str | Path]) -> list[Path]:
    """Graph files, and for a folder the ``*.json`` files right in it, by name.

    An empty folder has none; one that holds other things alone is a file that cannot be read.

    Raises:
        UsageError: a folder cannot be listed.
    """
    paths: list[Path] = []
    for path in map(Path, files):
        if not os.path.isdir(path):
            paths.append(path)
            continue
        try:
            listed = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
        except OSError as error:
            raise UsageError(f"cannot list {str(path)!r}: {error.strerror}") from None
        found = [entry for entry in listed if entry.suffix == ".json"]
        found.sort(key=lambda entry: entry.name)
        paths += found if found or not listed else [path]
    return paths


def read_each(path: Path) -> list[Graph | Unread]:
    """The graphs of one file, or why there is none; nothing is raised."""
    try:
        return read_graphs(path)
    except Exception as error:
        return [Unread(stem_of(path), error)]


def failure_line(error: Exception) -> str:
    """One line for a report; an exception that is not ours is named as a fault of the program."""
    if is_debugging() and not isinstance(error, Error | OSError):
        raise error
    if isinstance(error, OSError) and error.strerror:
        return (f"{error.filename}: " if error.filename else "") + error.strerror.lower()
    text = " ".join(str(error).split())
    if isinstance(error, Error):
        return text
    return f"internal error: {type(error).__name__}: {text}; CUDNN_AOT_DEBUG=1 shows the traceback"


def _source(path: Path, graph: Graph) -> Source | Unread:
    name = graph.name or stem_of(path)
    try:
        graph.freeze()
        encode_name("graph name", name)  # refuses what the store could not file
        return Source(str(path), name, graph.key(), graph)
    except Exception as error:
        return Unread(name, error)


def _refuse_ambiguous_names(sources: list[Source]) -> None:
    first: dict[str, Source] = {}
    for source in sources:
        other = first.setdefault(source.name, source)
        if other.key != source.key:
            raise UsageError(
                f"name {source.name!r} is given to two different graphs, in {other.file} and in "
                f"{source.file}: give one of them another name"
            )
