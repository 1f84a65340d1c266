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

from cudnn_aot.compiler.formats.json_reader import MAX_DEPTH, is_deeper
from cudnn_aot.compiler.formats.user_file import opened
from cudnn_aot.compiler.recorder.spool import RecordedGraph

_START = re.compile(rb'\{\s*"context"\s*:')  # the writer sorts keys
_INSIDE = b'"json_version"'
# What may interrupt a graph: a message, a banner's rule, another graph. To the end of its line.
_FOREIGN = re.compile(r'\[cudnn_frontend\][^\n]*\n?|={64,}\n?|(?P<graph>\{\s*"context"\s*:)')
_FOREIGN_BEGINS = 256  # characters by which one can be told
_WITHOUT_JSON = b"unavailable when compiled with CUDNN_FRONTEND_SKIP_JSON_LIB"
_WINDOWS = (16 << 10, 256 << 10, 4 << 20)  # bytes of a graph with what interrupts it
_MAX_CUTS = 256
_MAX_INNER = 8  # graphs that interrupt one another
# Characters that may be decoded up to a place of the file: several times what readable graphs take.
_WORK, _WORK_PER_BYTE, _WORK_PER_DECODE = 16 << 20, 16, 256

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
    work = _Work()
    while True:
        match = _START.search(data, position)
        gap = match.start() if match else len(data)
        inside = data.find(_INSIDE, position, gap)
        if inside >= 0 and not is_lost:  # the start itself was interrupted
            log.damaged.append(inside)
        if match is None:
            return
        work.allowed = _WORK + _WORK_PER_BYTE * gap
        end, found = _decode_at(data, gap, work)
        is_lost = end is None
        if end is None:
            log.damaged.append(gap)
        position = match.end() if end is None else end
        yield from found


@dataclass(slots=True)
class _Work:
    """Bounds the work on a file: without it, graphs that begin and never end make it quadratic.

    Attributes:
        allowed: how many characters may have been decoded by now.
        done: how many were.
        is_short: the text ended before the graph did.
    """

    allowed: int = 0
    done: int = 0
    is_short: bool = False

    @property
    def is_spent(self) -> bool:
        return self.done > self.allowed


def _decode_at(data: mmap.mmap, start: int, work: _Work) -> tuple[int | None, list[dict[str, Any]]]:
    """Where the graph at `start` ends, or None, and the graphs that it came to."""
    for size in _WINDOWS:
        if work.is_spent:
            break
        found: list[dict[str, Any]] = []
        work.is_short = False
        # Bytes as they are, so that places in the text are places in the file.
        end = _decode(data[start : start + size].decode("latin-1"), found, work)
        if end is not None:
            return start + end, found
        if not work.is_short or start + size >= len(data):
            break
    return None, []


def _decode(text: str, found: list[dict[str, Any]], work: _Work, depth: int = 0) -> int | None:
    """Where the graph at the start of `text` ends; it and those inside it go to `found`.

    None, and nothing found, when it cannot be read.
    """
    inner: list[dict[str, Any]] = []
    removed = 0
    for _ in range(_MAX_CUTS):
        if work.is_spent:
            return None
        work.done += _WORK_PER_DECODE + len(text) // 64  # to copy it
        try:
            value, end = _decoder.raw_decode(text)
        except json.JSONDecodeError as error:
            # A string without an end is reported where it begins, and so is half of a word.
            last = len(text) if error.msg.startswith("Unterminated") else error.pos + len("false")
            work.done += last
            cut = _foreign(text, last, inner, work, depth)
            if cut is None:
                work.is_short |= last + _FOREIGN_BEGINS > len(text)
                return None
            text = text[: cut[0]] + text[cut[1] :]
            removed += cut[1] - cut[0]
            continue
        except (RecursionError, ValueError):  # too deep; an integer of too many digits
            work.done += len(text)
            return None
        work.done += end
        if is_deeper(value, MAX_DEPTH):
            return None
        if isinstance(value, dict) and "json_version" in value:
            # The bytes of names become text only now.
            found.append(json.loads(text[:end].encode("latin-1").decode("utf-8", "replace")))
        found.extend(inner)
        return end + removed
    return None


def _foreign(
    text: str, last: int, inner: list[dict[str, Any]], work: _Work, depth: int
) -> tuple[int, int] | None:
    """The first thing inside `text` and before `last` that is no part of its graph."""
    begin = _FOREIGN.search(text, 1, last + _FOREIGN_BEGINS)
    if begin is None or begin.start() > last:
        return None
    match = _FOREIGN.match(text, begin.start())
    assert match is not None
    if match["graph"] is None:
        return match.span()
    if depth == _MAX_INNER:
        return None
    end = _decode(text[match.start() :], inner, work, depth + 1)
    if end is None:
        return None
    end += match.start()
    return match.start(), end + 1 if text[end : end + 1] == "\n" else end
