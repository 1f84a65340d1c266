"""The compile worker: ``python -m cudnn_aot.cache.worker``. One process, one arch, one flavour.

JSON lines on stdin and stdout. The DSL, MLIR and templates may print what they like: both standard
streams are moved away first, and what they print goes to stderr, which the pool keeps as the log.

    <- {"ready": true} or {"fatal": "why no kernel can be compiled here"}
    -> {"template", "source_digest", "params", "host_level", "toolchain", "options", "output"}
    <- {"ok": true, "smem_bytes": 0, "seconds": 1.9} or {"ok": false, "error": "one line"}
       with "refused": true where a worker of other sources or tools could compile it

A worker refuses a kernel that was planned with other sources or another toolchain than its own, so
that a key never names what other tools made, wherever the worker runs.

A kernel may read its source closure and nothing else of the project. An audit hook refuses opening
or importing any other project file, and starting a process that could; sources are read, never
cached byte code; the digest is taken again before and after the compile.

The worker ends when stdin closes, in the middle of a compile too: it never outlives its pool.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import linecache
import os
import queue
import re
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from cudnn_aot.cache import export
from cudnn_aot.cache.source import (
    PROJECT,
    RECIPES,
    SourceClosure,
    add_recipe_folders,
    forget_scans,
    project_folders,
    source_closure,
    split_template,
)
from cudnn_aot.cache.toolchain import dsl_folder, toolchain
from cudnn_aot.errors import CompileError

_SAYS_NOTHING = re.compile(r"could not be resolved|\U0001f9ca|\U0001f4a5")  # ice: an internal error
_NOTE = re.compile(r"^\s*= note: *(.+?) *$", re.MULTILINE)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_STARTS_PROCESS = frozenset(
    ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec")
)


class Guard:
    """The audit hook's state: what the kernel being compiled may read of the project."""

    def __init__(self, home: Path) -> None:
        self.violation: str | None = None
        self._home = f"{_real(home)}{os.sep}"
        self._files: frozenset[str] | None = None
        self._modules: frozenset[str] = frozenset()
        folders = {_real(folder) for folder in project_folders()}
        prefixes = {_real(prefix) for prefix in (sys.prefix, sys.base_prefix)}
        # A virtual environment inside a checkout is not the project.
        self._roots = [
            (f"{folder}{os.sep}", [f"{p}{os.sep}" for p in prefixes if _within(p, folder)])
            for folder in folders
        ]
        sys.addaudithook(self._audit)

    def start(self, closure: SourceClosure, output: Path) -> None:
        packages = {PROJECT, RECIPES}
        for name, _ in closure.modules:
            parts = name.split(".")
            packages.update(".".join(parts[:end]) for end in range(3, len(parts)))
        self.violation = None
        self._modules = frozenset(packages | {name for name, _ in closure.modules})
        # Error messages quote the lines of the two files that call the template.
        calling = (Path(__file__), Path(export.__file__))
        self._files = frozenset(_real(path) for path in (*closure.files, *calling, output))

    def stop(self) -> None:
        self._files = None

    def check(self) -> None:
        if self.violation is not None:
            raise CompileError(self.violation)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self._files is None:
            return
        if event == "open":
            if isinstance(args[0], (str, bytes)):
                self._check_file(_real(os.fsdecode(args[0])))
        elif event == "import":
            name = args[0]
            if name.startswith(f"{PROJECT}.") and name not in self._modules:
                self._refuse(f"imports {name}")
        elif event in _STARTS_PROCESS:
            self._refuse(f"starts a process ({event})")

    def _check_file(self, path: str) -> None:
        assert self._files is not None
        if path in self._files or path.startswith(self._home):
            return
        for root, outside in self._roots:
            if path.startswith(root) and not path.startswith(tuple(outside)):
                self._refuse(f"opens {path[len(root) :]}")

    def _refuse(self, what: str) -> None:
        self.violation = f"the kernel {what}, which its source digest does not cover"
        raise CompileError(self.violation)


def _real(path: str | Path) -> str:
    return os.path.realpath(path)


def _within(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}{os.sep}")


class _Refused(CompileError):
    """This worker's sources or tools are not those that the kernel was planned with."""


def compile_kernel(
    job: Mapping[str, Any], gpu_arch: str, tools: Mapping[str, str], guard: Guard
) -> dict[str, Any]:
    """Do one job; never raises."""
    started = time.perf_counter()
    try:
        _check_tools(job["toolchain"], tools)
        module, function = split_template(job["template"])
        closure = _current_closure(job)
        _forget_recipes()
        guard.start(closure, Path(job["output"]))
        try:
            _import_sources(closure)
            smem_bytes = export.export(
                module,
                function,
                job["params"],
                gpu_arch,
                job["host_level"],
                tuple(job["options"]),
                Path(job["output"]),
            )
        finally:
            guard.stop()
        guard.check()  # the template may have swallowed the refusal
        _check_loaded(closure)
        _current_closure(job)
    except BaseException as error:
        traceback.print_exc()
        refused = {"refused": True} if isinstance(error, _Refused) else {}
        return {"ok": False, "error": guard.violation or one_line(error), **refused}
    return {"ok": True, "smem_bytes": smem_bytes, "seconds": time.perf_counter() - started}


def one_line(error: BaseException) -> str:
    """The first line that says something; DSL errors come as a dozen lines with colours.

    Some of them say only that something went wrong: then what they note, or their cause, counts.
    """
    text = _ANSI.sub("", str(error))
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if _SAYS_NOTHING.search(line):
        note = _NOTE.search(text)
        cause = getattr(error, "cause", None) or error.__cause__
        if note is not None:
            line = note.group(1)
        elif isinstance(cause, BaseException):
            return one_line(cause)
    line = re.sub(r"^error(\[(\w+)\])?:\s*", r"\2 ", line).strip()
    if isinstance(error, CompileError):
        return line
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _check_tools(planned: Mapping[str, str], tools: Mapping[str, str]) -> None:
    differ = [name for name in sorted({*planned, *tools}) if planned.get(name) != tools.get(name)]
    if differ:
        listed = ", ".join(
            f"{name} {tools.get(name, 'absent')} (planned with {planned.get(name, 'none')})"
            for name in differ
        )
        raise _Refused(f"the compile worker has another toolchain: {listed}: install the same one")


def _current_closure(job: Mapping[str, Any]) -> SourceClosure:
    forget_scans()
    closure = source_closure(job["template"])
    if closure.digest != job["source_digest"]:
        digests = f"{closure.digest[:12]}, planned with {job['source_digest'][:12]}"
        raise _Refused(
            "its sources changed since it was planned: build again, with the same sources on every "
            f"worker (source digest {digests})"
        )
    return closure


def _forget_recipes() -> None:
    """Each kernel imports afresh, so a module loaded for another one is not there by accident."""
    for name in [name for name in sys.modules if name.startswith(f"{RECIPES}.")]:
        del sys.modules[name]
    linecache.clearcache()


def _import_sources(closure: SourceClosure) -> None:
    """Import every module of the closure from its source: byte code can be stale."""
    sys.pycache_prefix = os.devnull
    try:
        for name, _ in closure.modules:
            importlib.import_module(name)
    finally:
        sys.pycache_prefix = None


def _check_loaded(closure: SourceClosure) -> None:
    files = {_real(path) for path in closure.files}
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{RECIPES}."):
            file = getattr(module, "__file__", None)
            if file is None or _real(file) not in files:
                raise CompileError(f"the kernel loaded {name}, which its source digest leaves out")


def _read_jobs(stream: TextIO, jobs: queue.Queue[str], home: Path) -> None:
    for line in stream:
        jobs.put(line)
    # The pool is gone or done, and a compile under way has no reader.
    shutil.rmtree(home, ignore_errors=True)
    with contextlib.suppress(OSError):
        home.parent.rmdir()
    os._exit(0)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="cudnn_aot.cache.worker")
    parser.add_argument("--arch", default="", help="GPU arch; empty for kernels of the host")
    parser.add_argument("--flavor", required=True, help="DSL flavour: cu12 or cu13")
    parser.add_argument("--recipes", action="append", default=[], help="a folder of recipes")
    parser.add_argument("--home", type=Path, required=True, help="a folder of the worker's own")
    arguments = parser.parse_args(argv)

    requests = os.fdopen(os.dup(0), encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    jobs: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_jobs, args=(requests, jobs, arguments.home), daemon=True).start()

    def reply(message: Mapping[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        export.bind_environment(arguments.arch)
        export.bind_flavor(
            arguments.flavor, dsl_folder() / "dsl_packages" / "cutlass" / "_mlir" / "_mlir_libs"
        )
        tools = toolchain(arguments.flavor)
        add_recipe_folders(arguments.recipes)
        guard = Guard(arguments.home)
    except BaseException as error:
        traceback.print_exc()
        reply({"fatal": one_line(error)})
        return
    reply({"ready": True})
    while True:
        reply(compile_kernel(json.loads(jobs.get()), arguments.arch, tools, guard))


if __name__ == "__main__":
    main()
