"""Finds the graphs in a log of the cuDNN frontend's C++ half (``CUDNN_FRONTEND_LOG_INFO``).

Each validated graph is printed as one line of JSON. Threads write to one stream, so other messages
may stand before it, after it and, where a write was split, inside it: a message or a whole graph
that interrupts another is cut out. What still does not parse is counted as damaged.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudnn_aot.compiler.formats.user_file import opened
from cudnn_aot.compiler.recorder.spool import RecordedGraph

_START = re.compile(rb'\{\s*"context"\s*:')  # the writer sorts keys
_INSIDE = b'"json_version"'
# What may interrupt a graph: a message, a banner's rule, another graph. To the end of its line.
_FOREIGN = re.compile(r'\[cudnn_frontend\][^\n]*\n?|={64,}\n?|(?P<graph>\{\s*"context"\s*:)')
_WITHOUT_JSON = b"unavailable when compiled with CUDNN_FRONTEND_SKIP_JSON_LIB"
_MAX_GRAPH = 4 << 20  # bytes, with what interrupts it
_MAX_CUTS = 256
_MAX_DEPTH = 8  # graphs that interrupt one another

_decoder = json.JSONDecoder()


@dataclass(slots=True)
class FrontendLog:
    """What a log holds.

    Attributes:
        graphs: the distinct graphs, in the lowered form; `built` counts their prints.
        damaged: graphs that begin but cannot be read, by byte offset.
        without_json: prints by a library that was compiled without the means to print graphs.
    """

    graphs: list[RecordedGraph] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    without_json: int = 0


def read_log(path: Path) -> FrontendLog:
    """Read one log file; a graph that is printed often is one graph with a count.

    Raises:
        UsageError: the file cannot be read.
    """
    log = FrontendLog()
    graphs: dict[str, RecordedGraph] = {}
    with opened(path, "log") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return log
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for document in _graphs(data, log):
                document.pop("gid", None)  # numbers the graphs of a process
                text = json.dumps(document, sort_keys=True)
                graphs.setdefault(text, RecordedGraph("lowered", document)).built += 1
            log.without_json = len(re.findall(re.escape(_WITHOUT_JSON), data))
    log.graphs = list(graphs.values())
    return log


def _graphs(data: mmap.mmap, log: FrontendLog) -> Iterator[dict[str, Any]]:
    position = 0
    is_lost = False  # a graph that was counted as damaged may go on after `position`
    while True:
        match = _START.search(data, position)
        gap = match.start() if match else len(data)
        inside = data.find(_INSIDE, position, gap)
        if inside >= 0 and not is_lost:  # the start itself was interrupted
            log.damaged.append(inside)
        if match is None:
            return
        end, found = _decode_at(data, gap)
        is_lost = end is None
        if end is None:
            log.damaged.append(gap)
        position = match.end() if end is None else end
        yield from found


def _decode_at(data: mmap.mmap, start: int) -> tuple[int | None, list[dict[str, Any]]]:
    """Where the graph at `start` ends, or None, and the graphs that it came to."""
    line = data.find(b"\n", start, start + _MAX_GRAPH)
    found: list[dict[str, Any]] = []
    for stop in (line, start + _MAX_GRAPH):  # it is one line unless something interrupts it
        if stop >= 0:
            # Bytes as they are, so that places in the text are places in the file.
            end = _decode(data[start:stop].decode("latin-1"), found)
            if end is not None:
                return start + end, found
    return None, []


def _decode(text: str, found: list[dict[str, Any]], depth: int = 0) -> int | None:
    """Where the graph at the start of `text` ends; it and those inside it go to `found`.

    None, and nothing found, when it cannot be read.
    """
    inner: list[dict[str, Any]] = []
    removed = 0
    for _ in range(_MAX_CUTS):
        try:
            value, end = _decoder.raw_decode(text)
        except (json.JSONDecodeError, RecursionError) as error:
            at = getattr(error, "pos", 0)
            # A string without an end is reported where it begins.
            last = len(text) if str(error).startswith("Unterminated") else at + 1
            cut = _foreign(text, last, inner, depth)
            if cut is None:
                return None
            text = text[: cut[0]] + text[cut[1] :]
            removed += cut[1] - cut[0]
            continue
        if isinstance(value, dict) and "json_version" in value:
            # The bytes of names become text only now.
            found.append(json.loads(text[:end].encode("latin-1").decode("utf-8", "replace")))
        found.extend(inner)
        return end + removed
    return None


def _foreign(
    text: str, last: int, inner: list[dict[str, Any]], depth: int
) -> tuple[int, int] | None:
    """The first thing inside `text` and before `last` that is no part of its graph."""
    match = _FOREIGN.search(text, 1)
    if match is None or match.start() > last:
        return None
    if match["graph"] is None:
        return match.span()
    if depth == _MAX_DEPTH:
        return None
    end = _decode(text[match.start() :], inner, depth + 1)
    if end is None:
        return None
    end += match.start()
    return match.start(), end + 1 if text[end : end + 1] == "\n" else end
