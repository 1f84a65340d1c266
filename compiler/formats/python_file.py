"""Graphs that a Python file defines: run in a process of its own, handed over as graph JSON.

The file builds graphs as programs do (``import cudnn_aot as cudnn``). Taken are the graphs that are
names of the module, and those of ``graphs``: a list, a dict by name, or a function that returns
either or yields graphs. The file is run under its own name, so ``if __name__ == "__main__"`` does
not hold. What it prints goes nowhere, unless CUDNN_AOT_DEBUG=1 sends it to stderr.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cudnn_aot.cache.switch import is_debugging
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.formats.load import Unread, stem_of
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import Error, InvalidGraphError, cudnnGraphNotSupportedError

SECONDS = 600  # a file that takes longer is stopped
_NAME = "graphs"


def load(path: Path) -> list[Graph | Unread]:
    """The validated graphs of a file, in the order in which it names them.

    Raises `InvalidGraphError` in one line for a file that fails, and `cudnnGraphNotSupportedError`
    if what stopped it is a graph beyond what is supported.
    """
    with tempfile.TemporaryDirectory(prefix="cudnn-aot-") as folder:
        answer = Path(folder) / "answer.json"
        code = _run(path, answer)
        if not os.path.exists(answer):
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise InvalidGraphError(f"running the file ended with {how}")
        document = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in document:
        raise _error(document)
    return [
        Unread(row["name"], _error(row)) if "error" in row else graph_json.loads(row["text"])
        for row in document[_NAME]
    ]


def _error(row: dict[str, Any]) -> Error:
    kind = cudnnGraphNotSupportedError if row["is_unsupported"] else InvalidGraphError
    return kind(row["error"])


def _run(path: Path, answer: Path) -> int:
    output = 2 if is_debugging() else subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "-m", "cudnn_aot.compiler.formats.python_file", str(path), str(answer)],
        env={**os.environ, "CUDNN_AOT_TARGET": "none"},  # graphs are described, not built
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        return process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        raise InvalidGraphError(f"running the file took more than {SECONDS} s") from None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # what the file started and left
        except ProcessLookupError:
            pass
        process.wait()


# In the process of the file.


def _main(path: Path, answer: Path) -> None:
    try:
        document: dict[str, Any] = {_NAME: [_row(found, path) for found in _graphs(path)]}
    except BaseException as error:
        document = _failure(error, path)
    answer.write_text(json.dumps(document), encoding="utf-8")


class _Found(NamedTuple):
    """What the file has at a place: a graph, and its name if it has none, or why there is none."""

    place: str
    name: str
    value: Graph | BaseException


def _row(found: _Found, path: Path) -> dict[str, Any]:
    value, name = found.value, found.name
    try:
        if isinstance(value, BaseException):
            raise value
        if value.name:
            name = value.name
        else:
            value.name = name
        return {"text": graph_json.dumps(value)}
    except BaseException as error:
        return {"name": name, **_failure(error, path, f"{found.place}: ")}


def _graphs(path: Path) -> list[_Found]:
    import runpy

    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    found: dict[int, _Found] = {}
    for name, value in runpy.run_path(str(path), run_name=path.stem).items():
        if name == _NAME:
            for item in _collect(value, stem_of(path)):
                found.setdefault(id(item.value), item)
        elif isinstance(value, Graph):
            found.setdefault(id(value), _Found(name, name, value))
    if not found:
        raise InvalidGraphError(
            "the file defines no graph: want graphs as names of the module, or a list or function "
            f"{_NAME}"
        )
    return list(found.values())


def _collect(value: Any, stem: str) -> Iterator[_Found]:
    """What `graphs` holds; the last is an error if it fails."""
    try:
        if callable(value):
            value = value()
        if isinstance(value, Graph):
            value = [value]
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise InvalidGraphError(f"got {type(value).__name__}, want graphs")
        for key, graph in value.items() if isinstance(value, Mapping) else enumerate(value):
            name = key if isinstance(key, str) else f"{stem}_{key}"
            if not isinstance(graph, Graph):
                graph = InvalidGraphError(f"got {type(graph).__name__}, want a graph")
            yield _Found(f"{_NAME}[{key!r}]", name, graph)
    except BaseException as error:
        yield _Found(_NAME, _NAME, error)


def _failure(error: BaseException, path: Path, place: str = "") -> dict[str, Any]:
    """One line: where, what was raised, and the last line of the file that it went through."""
    is_unsupported = isinstance(error, cudnnGraphNotSupportedError)
    if isinstance(error, SystemExit):
        what = f"the file called exit({error.code!r})"
    else:
        text = " ".join(str(error).split())
        is_ours = is_unsupported or isinstance(error, InvalidGraphError)
        what = text if is_ours else f"{type(error).__name__}: {text}".rstrip(": ")
    line = None
    if isinstance(error, SyntaxError) and error.filename == str(path):
        what, line = f"{type(error).__name__}: {error.msg}", error.lineno
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = place if line is None else f"{place}line {line}: "
    # Like any other message about a file, it is cut.
    return {"error": str(InvalidGraphError(where + what)), "is_unsupported": is_unsupported}


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
