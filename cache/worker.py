"""The compile worker: ``python -m cudnn_aot.cache.worker``. One process, one arch, one flavour.

JSON lines on stdin and stdout. The DSL, MLIR and templates may print what they like: both standard
streams are moved away first, and what they print goes to stderr, which the pool keeps as the log.

    <- {"ready": true} or {"fatal": "why no kernel can be compiled here"}
    -> {"template", "source_digest", "params", "host_level", "toolchain", "options", "output"}
    <- {"ok": true, "smem_bytes": 0, "seconds": 1.9} or {"ok": false, "error": "one line"}
       with "refused": true where a worker of other sources or tools could compile it

A worker refuses a kernel that was planned with other sources or another toolchain than its own, so
that a key never names what other tools made, wherever the worker runs.

A kernel may read its source closure, the DSL, tvm-ffi and the standard library, whose versions its
key has or which change no byte. An audit hook refuses any other file, folder or module, and what
could get at one, a process or a socket; sources are read, never cached byte code; the digest is
taken again before and after the compile.

The worker ends when stdin closes, in the middle of a compile too: it never outlives its pool.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import importlib
import importlib.util
import json
import linecache
import os
import queue
import re
import shutil
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, TextIO

from cudnn_aot.cache import export
from cudnn_aot.cache.source import (
    PROJECT,
    RECIPES,
    SourceClosure,
    add_recipe_folders,
    forget_scans,
    source_closure,
    split_template,
)
from cudnn_aot.cache.toolchain import dsl_folder, toolchain
from cudnn_aot.errors import CompileError

_SAYS_NOTHING = re.compile(r"could not be resolved|\U0001f9ca|\U0001f4a5")  # ice: an internal error
_NOTE = re.compile(r"^\s*= note: *(.+?) *$", re.MULTILINE)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# Audit events, by what is judged of them.
_READS = ("open", "os.link", "os.rename", "os.getxattr", "os.listxattr", "sqlite3.connect")
_LISTS = ("os.listdir", "os.scandir")
_ACTS = {
    **dict.fromkeys(
        ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"),
        "starts a process",
    ),
    **dict.fromkeys(
        ("socket.__new__", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostname"),
        "asks the network",
    ),
}
# What a kernel module imports: a key has the versions of these and of no other package.
_IMPORTABLE = sys.stdlib_module_names | {PROJECT, "cutlass", "tvm_ffi"}
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_READING_IMPORT = vars(importlib.import_module("_frozen_importlib_external"))
_IMPORTING = (_READING_IMPORT, vars(importlib.import_module("_frozen_importlib")), vars(importlib))


class Guard:
    """The audit hook's state: what the kernel being compiled may read and import.

    It keeps honest templates honest. What raises no audit event passes: `os.stat`, the clock, what
    a C library opens, a module of the DSL's that is taken out of `sys.modules`.
    """

    def __init__(self, home: Path) -> None:
        self.violation: str | None = None
        self._is_on = False
        self._files: frozenset[str] = frozenset()
        self._modules: frozenset[str] = frozenset()
        self._home = _prefixes([_real(home)])
        tools, library = _tool_folders(), _library_folders()
        # As they are spelled too: most files are then judged without asking the file system.
        self._tools = _prefixes([*tools, *map(_real, tools)])
        self._library = _prefixes([*library, *map(_real, library)])
        self._packages = _prefixes(
            [f"{folder}{name}" for folder in self._library for name in _PACKAGE_FOLDERS]
        )
        self._installed = _prefixes(_package_folders(tools))
        self._project = _prefixes(f"{folder}{PROJECT}" for folder in self._installed)
        self._judges: dict[str, Callable[[tuple[Any, ...]], None]] = {
            "import": self._judge_import,
            "ctypes.dlopen": self._judge_library,
            **dict.fromkeys(_READS, self._judge_file),
            **dict.fromkeys(_LISTS, self._judge_listing),
            **{event: partial(self._refuse, f"{act} ({event})") for event, act in _ACTS.items()},
        }
        sys.addaudithook(self._audit)

    @contextlib.contextmanager
    def watch(self, closure: SourceClosure, output: Path) -> Iterator[None]:
        """Within it a kernel reads ``closure`` and the tools, and writes ``output``."""
        packages = {PROJECT, RECIPES}
        for name, _ in closure.modules:
            parts = name.split(".")
            packages.update(".".join(parts[:end]) for end in range(3, len(parts)))
        self._modules = frozenset(packages | {name for name, _ in closure.modules})
        # Error messages quote the lines of the two files that call the template.
        files = (*closure.files, Path(__file__), Path(export.__file__), output)
        self._files = frozenset({*map(str, files), *map(_real, files)})
        self.violation = None
        self._empty_home()
        with _hidden_project(), self._checked_imports():
            self._is_on = True
            try:
                yield
            finally:
                self._is_on = False

    def _empty_home(self) -> None:
        """Start where every kernel starts, with nothing that another one has left."""
        home = Path(self._home[0])
        os.chdir(home)
        for entry in home.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def check(self) -> None:
        if self.violation is not None:
            raise CompileError(self.violation)

    @contextlib.contextmanager
    def _checked_imports(self) -> Iterator[None]:
        """Ask by name too: to import what the DSL has loaded, as numpy, raises no audit event."""
        statement, function = builtins.__import__, importlib.import_module

        def check(name: str, importer: Mapping[str, Any]) -> None:
            if _is_recipe(importer) and name.partition(".")[0] not in _IMPORTABLE:
                self._refuse(f"imports {name}")

        def import_statement(
            name: str,
            globals: Mapping[str, Any] | None = None,  # callers name these arguments
            locals: Mapping[str, Any] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> ModuleType:
            if level == 0:
                check(name, sys._getframe(1).f_globals if globals is None else globals)
            return statement(name, globals, locals, fromlist, level)

        def import_function(name: str, package: str | None = None) -> ModuleType:
            full = importlib.util.resolve_name(name, package)
            self._judge_import((full,))  # a call raises no event, whether or not it is loaded
            check(full, sys._getframe(1).f_globals)
            return function(full)

        builtins.__import__, importlib.import_module = import_statement, import_function
        try:
            yield
        finally:
            builtins.__import__, importlib.import_module = statement, function

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self._is_on and (judge := self._judges.get(event)) is not None:
            judge(args)

    def _judge_import(self, args: tuple[Any, ...]) -> None:
        name = args[0]
        if name.startswith(f"{PROJECT}.") and name not in self._modules:
            self._refuse(f"imports {name}")

    def _judge_library(self, args: tuple[Any, ...]) -> None:
        if isinstance(args[0], (str, bytes)) and os.sep in os.fsdecode(args[0]):
            self._judge_file(args)  # a name without a folder is a library of the system's

    def _judge_listing(self, args: tuple[Any, ...]) -> None:
        # Where an import looks for a module is no input: the module itself is judged.
        if _importer() is None:
            self._judge_file(args)

    def _judge_file(self, args: tuple[Any, ...]) -> None:
        if isinstance(args[0], int):  # judged when it was opened
            return
        spelled = os.path.abspath(os.fsdecode("." if args[0] is None else args[0]))  # noqa: PTH100
        if spelled in self._files or self._is_tool(spelled):
            return
        path = _real(spelled)
        if path in self._files or self._is_tool(path) or _lies_in(path, self._home):
            return
        importer = _importer()
        # A module that the DSL imports late, or one of its own does.
        if importer and not _is_recipe(importer) and _lies_in(spelled, self._installed):
            if not _lies_in(spelled, self._project):
                return
        self._refuse(f"opens {spelled}")

    def _is_tool(self, path: str) -> bool:
        return _lies_in(path, self._tools) or (
            _lies_in(path, self._library) and not _lies_in(path, self._packages)
        )

    def _refuse(self, what: str, _: object = None) -> None:
        if self.violation is None:  # the first is the template's; others may follow from it
            self.violation = f"the kernel {what}, which its source digest does not cover"
        raise CompileError(self.violation)


@contextlib.contextmanager
def _hidden_project() -> Iterator[None]:
    """Leave a template no module of ours that is loaded: to take one raises no audit event."""
    hidden = {name: module for name, module in sys.modules.items() if _is_ours(name)}
    for name in hidden:
        del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")
    for name in (PROJECT, RECIPES):  # where the closure's modules are looked for
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = hidden[name].__path__
    try:
        yield
    finally:
        sys.modules.update(hidden)


def _is_ours(module: str) -> bool:
    return module in (PROJECT, "__main__") or module.startswith(f"{PROJECT}.")


def _tool_folders() -> list[str]:
    """What the versions in a key, or nothing at all, stand for."""
    found = importlib.util.find_spec("tvm_ffi")
    places = (found.submodule_search_locations or []) if found else []
    # Byte code is looked for below the null device, where there is none.
    return [str(dsl_folder()), *places, os.devnull]


def _package_folders(tools: Iterable[str]) -> list[str]:
    """Where packages that the tools need are installed: beside the tools, as a rule."""
    beside = [os.path.dirname(folder) for folder in tools if folder != os.devnull]  # noqa: PTH120
    return beside + [entry for entry in sys.path if entry.endswith(_PACKAGE_FOLDERS)]


def _library_folders() -> list[str]:
    """The standard library; packages of others may lie in it."""
    paths = sysconfig.get_paths()
    return [paths["stdlib"], paths["platstdlib"]]


def _importer() -> Mapping[str, Any] | None:
    """The globals of what imports a module, if this is called from within an import."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    if frame is None or frame.f_globals is not _READING_IMPORT:
        return None
    while frame is not None and any(frame.f_globals is names for names in _IMPORTING):
        frame = frame.f_back
    return None if frame is None else frame.f_globals


def _is_recipe(importer: Mapping[str, Any]) -> bool:
    return str(importer.get("__name__")).startswith(f"{RECIPES}.")


def _prefixes(folders: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{folder.rstrip(os.sep)}{os.sep}" for folder in folders)


def _lies_in(path: str, folders: tuple[str, ...]) -> bool:
    """Whether a path is one of the folders, which end in a separator, or below one."""
    return f"{path}{os.sep}".startswith(folders)


def _real(path: str | Path) -> str:
    return os.path.realpath(path)


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
        with guard.watch(closure, Path(job["output"])):
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
