"""Builds toy kernels into a store, as one process of several; also the helpers that tests share.

Run as a script: ``toy_store.py STORE [--jobs N] [--die-at N] [--sleep S] FUNCTION=SCALE...`` prints
one JSON line per kernel. ``--die-at`` kills the process with SIGKILL at its N-th sync,
removal or rename.
"""

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cudnn_aot.recipes
from cudnn_aot.cache.canonical import canonical_digest
from cudnn_aot.cache.compile import compile_cached
from cudnn_aot.cache.spec import KernelSpec, kernel_spec
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build.executors import ExecutorChoice
from cudnn_aot.compiler.target.target import load_target

# A launch table that launches nothing.
NOTHING = {
    "version": 1,
    "device": "cuda",
    "symbols": {},
    "operands": [],
    "checks": [],
    "dispatch": [{"branch": "none", "when": True}],
    "branches": {"none": {"steps": [], "workspace": []}},
}
RECIPES = Path(__file__).parents[1] / "cache" / "recipes"


def use_toys() -> None:
    """Templates resolve along the package's path; compile workers are given the same path."""
    if str(RECIPES) not in cudnn_aot.recipes.__path__:
        cudnn_aot.recipes.__path__.append(str(RECIPES))


def toy_spec(function: str = "host", module: str = "elementwise", **params: Any) -> KernelSpec:
    target = load_target("h200" if function == "device" else "cpu")
    return kernel_spec(f"toys.kernels.{module}:{function}", {"scale": 2.0, **params}, target)


def fill(writer: StoreWriter, count: int = 3, asked: int | None = None) -> None:
    """A store with every kind of file and no compile; its build was asked for ``asked`` graphs."""
    writer.introduce(lambda: build_record(asked or count))
    for number in range(count):
        put(writer, number)


def build_record(count: int) -> dict[str, Any]:
    """Of a build that was asked for the first ``count`` graphs."""
    return {
        "version": "toys",
        "sources": hashlib.sha256(b"toys").hexdigest(),
        "toolchain": {},
        "cudnn": {},
        "engines": ["native"],
        "targets": [{"name": "h200"}],
        "graphs": [{"name": f"layer/{n}", "graph_key": graph_key(n)} for n in range(count)],
        "tuning": "",
    }


def graph_key(number: int) -> str:
    return hashlib.sha256(b"graph %d" % number).hexdigest()


def put(writer: StoreWriter, number: int, linker: bytes = b"") -> None:
    """Graph ``number`` with all that it needs; linkers give other blobs of one object."""
    made = {"sha256": hashlib.sha256(b"kernel %d" % number).hexdigest(), "bytes": 8}
    data = b"kernel %d" % number + linker
    blob = writer.put_blob(data)
    spec = {"template": "none", "number": number}
    key = canonical_digest(spec)
    writer.put_kernel(
        {
            "key": key,
            "spec": spec,
            "symbol": "kernel",
            "object": made,
            "blob": {"sha256": blob, "bytes": len(data)},
            "requirements": {"gpu_arch": "sm_90a"},
        }
    )
    kernel = {"key": key, "symbol": "kernel", "blob": blob, "bytes": len(data)}
    graph_of = graph_key(number)
    document = {
        "format": 1,
        "graph_key": graph_of,
        "target": "h200",
        "engine": {"id": 1, "name": "toy"},
        "knobs": {},
        "table": NOTHING,
        "kernels": [kernel],
        "requirements": {},
        "number": number,
    }
    record = writer.put_blob(json.dumps(document).encode())
    graph = writer.put_blob(b"graph %d" % number)
    pointer = {"status": "built", "records": [record], "graph": graph, "reasons": []}
    writer.put_pointer("h200", graph_of, pointer)
    writer.put_class_member("h200", class_bucket(number), graph_of)
    writer.put_name("h200", f"layer/{number}", graph_of, {"A": 1, "Y": 4})


def class_bucket(number: int) -> str:
    """The class of graph ``number``: the graphs are in it by twos."""
    return hashlib.sha256(b"class %d" % (number // 2)).hexdigest()


def snapshot(store: Path) -> dict[str, tuple[int, int, bytes]]:
    """Mode, time in ns and bytes of everything in a store."""
    found = {}
    for path in [store, *sorted(store.rglob("*"))]:
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(store))] = (status.st_mode, status.st_mtime_ns, data)
    return found


def start(store: Path, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, str(store), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def finish(process: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def die_at(count: int) -> None:
    calls = 0

    def counted(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    os.fsync, os.unlink = counted(os.fsync), counted(os.unlink)
    Path.replace = counted(Path.replace)  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--die-at", type=int, default=0)
    parser.add_argument("--ray", metavar="ADDRESS", help="compile on this Ray cluster")
    parser.add_argument("--sleep", type=float, default=0)
    parser.add_argument("--gate", help="a file that the template waits for")
    parser.add_argument("--at", type=float, default=0, help="monotonic time to start at")
    arguments = parser.parse_args()
    use_toys()
    if arguments.die_at:
        die_at(arguments.die_at)
    extra: dict[str, Any] = {"sleep": arguments.sleep} if arguments.sleep else {}
    if arguments.gate:
        extra["gate"] = arguments.gate
    specs = [
        toy_spec(function, scale=float(scale), **extra)
        for function, scale in (kernel.split("=") for kernel in arguments.kernels)
    ]
    time.sleep(max(0.0, arguments.at - time.monotonic()))
    with StoreWriter(arguments.store) as writer:
        if not specs:
            fill(writer)
            return

        def build(spec: KernelSpec) -> dict[str, Any]:
            began = time.monotonic()
            entry = compile_cached(spec, writer, pool, wait_notice=notices.append_notice)
            return {**asdict(entry), "began": began, "ended": time.monotonic()}

        notices = _Notices()
        choice = ExecutorChoice("ray" if arguments.ray else "local", arguments.jobs, arguments.ray)
        with (
            contextlib.closing(choice.open(notices.seen.append)) as pool,
            ThreadPoolExecutor(arguments.jobs) as threads,
        ):
            for result in threads.map(build, specs):
                print(json.dumps({**result, "notices": notices.seen}), flush=True)


class _Notices:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def append_notice(self, holder: str, seconds: float) -> None:
        self.seen.append(holder)


if __name__ == "__main__":
    main()
