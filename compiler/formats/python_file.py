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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import InvalidGraphError, cudnnGraphNotSupportedError

SECONDS = 600  # a file that takes longer is stopped
_NAME = "graphs"


def load(path: Path) -> list[Graph]:
    """The validated graphs of a file, in the order in which it names them.

    Raises `InvalidGraphError` in one line for a file that fails, and `cudnnGraphNotSupportedError`
    if what stopped it is a graph beyond what is supported.
    """
    with tempfile.TemporaryDirectory(prefix="cudnn-aot-") as folder:
        answer = Path(folder) / "answer.json"
        code = _run(path, answer)
        if not answer.exists():
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise InvalidGraphError(f"running the file ended with {how}")
        document = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in document:
        kind = cudnnGraphNotSupportedError if document["is_unsupported"] else InvalidGraphError
        raise kind(document["error"])
    return [graph_json.loads(text) for text in document[_NAME]]


def _run(path: Path, answer: Path) -> int:
    output = 2 if os.environ.get("CUDNN_AOT_DEBUG") == "1" else subprocess.DEVNULL
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
        document: dict[str, Any] = {_NAME: [graph_json.dumps(graph) for graph in _graphs(path)]}
    except BaseException as error:
        document = {
            "error": _line(error, path),
            "is_unsupported": isinstance(error, cudnnGraphNotSupportedError),
        }
    answer.write_text(json.dumps(document), encoding="utf-8")


def _graphs(path: Path) -> list[Graph]:
    import runpy

    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    found: dict[int, Graph] = {}
    for name, value in runpy.run_path(str(path), run_name=path.stem).items():
        if name == _NAME:
            _collect(value() if callable(value) else value, path.stem, found)
        elif isinstance(value, Graph):
            _take(value, name, found)
    if not found:
        raise InvalidGraphError(
            "the file defines no graph: want graphs as names of the module, or a list or function "
            f"{_NAME}"
        )
    return list(found.values())


def _collect(value: Any, stem: str, found: dict[int, Graph]) -> None:
    if isinstance(value, Graph):
        value = [value]
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidGraphError(f"{_NAME}: got {type(value).__name__}, want graphs")
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for place, graph in items:
        if not isinstance(graph, Graph):
            raise InvalidGraphError(f"{_NAME}[{place!r}]: got {type(graph).__name__}, want a graph")
        _take(graph, place if isinstance(place, str) else f"{stem}_{place}", found)


def _take(graph: Graph, name: str, found: dict[int, Graph]) -> None:
    if not graph.name:
        graph.name = name
    found.setdefault(id(graph), graph)


def _line(error: BaseException, path: Path) -> str:
    """One line: what was raised, and the last line of the file that it went through."""
    if isinstance(error, SystemExit):
        what = f"the file called exit({error.code!r})"
    else:
        text = " ".join(str(error).split())
        is_ours = isinstance(error, InvalidGraphError | cudnnGraphNotSupportedError)
        what = text if is_ours else f"{type(error).__name__}: {text}".rstrip(": ")
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"line {error.lineno}: {type(error).__name__}: {error.msg}"
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return what if line is None else f"line {line}: {what}"


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
