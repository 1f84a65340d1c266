"""One flipped byte in any file of a store: found by `verify`, refused where it would be loaded."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli_process import linear_graph, run_cli

from cudnn_aot import errors, runtime
from cudnn_aot.cache import layout
from cudnn_aot.cache.pack_writer import write_pack
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.compiler.graph.instantiate import instantiate

NAMES = ("down", "up")
# What is asked of a store: plans by their names, by their keys, and of concrete graphs by class.
ASKS = ("name", "key", "graph")
# Which of these a file of a kind is read for. Records of kernels are for builds: plans name blobs.
READ_FOR = {
    "name": {"name"},
    "pointer": {"name", "key", "graph"},
    "plan": {"name", "key", "graph"},
    "library": {"name", "key", "graph"},
    "graph": {"graph"},
    "class": {"graph"},
    "kernel": set(),
    "build": set(),
}


@dataclass(frozen=True)
class Part:
    """A file of the store: the kind of it, and the names of the plans that need it."""

    path: str
    kind: str
    names: frozenset[str]


@pytest.fixture(scope="module")
def graphs():
    pair = (linear_graph("down", 40, op="swish"), linear_graph("up", 64))
    return {graph.name: (graph.key(), instantiate(graph, {"M": 7})) for graph in pair}


@pytest.fixture(scope="module")
def parts(built_store: Path, graphs) -> list[Part]:
    """Every file but ``store.json``, by what the store itself says of it."""
    reader = StoreReader(built_store)
    users: dict[tuple[str, str], set[str]] = {}

    def use(kind: str, path: str, name: str) -> None:
        users.setdefault((path, kind), set()).add(name)

    for name in NAMES:
        key = graphs[name][0]
        use("name", layout.name_path("cpu", name), name)
        use("pointer", layout.pointer_path("cpu", key), name)
        pointer = reader.pointer("cpu", key)
        use("graph", layout.blob_path(pointer["graph"]), name)
        use("plan", layout.blob_path(pointer["records"][0]), name)
        for kernel in runtime.open(built_store).plan(name)._record.document["kernels"]:
            use("library", layout.blob_path(kernel["blob"]), name)
            use("kernel", layout.kernel_path(kernel["key"]), name)
        for target, bucket in reader.classes():
            if key in reader.class_members(target, bucket):
                use("class", layout.class_path(target, bucket), name)
    for build in reader.builds():  # which serving does not read
        users.setdefault((layout.build_path(build), "build"), set())
    found = [Part(path, kind, frozenset(names)) for (path, kind), names in users.items()]
    assert sorted([*(part.path for part in found), "store.json"]) == reader.files()
    assert {part.kind for part in found} == set(READ_FOR)
    return found


def offsets(size: int) -> list[int]:
    dice = random.Random(size)
    return sorted({0, size - 1, *(dice.randrange(size) for _ in range(3))})


def flipped(path: Path, at: int) -> Callable[[], None]:
    """Flips a byte, and gives what puts it back."""
    whole = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
    return lambda: (path.write_bytes(whole), None)[1]


def refused(store: runtime.Store, graphs) -> Iterator[tuple[str, str]]:
    """(ask, name) of what a store does not load; anything but a typed error fails the test."""
    for name in NAMES:
        key, concrete = graphs[name]
        for ask, asked in zip(ASKS, (name, key, concrete), strict=True):
            try:
                store.plan(asked)
            except errors.StoreError as error:
                assert "\n" not in str(error)
                yield ask, name


def check(store: Path, flip: Callable[[], Callable[[], None]], part: Part, base: Path, graphs):
    put_back = flip()
    problems = [problem.path for problem in StoreReader(store).verify()]
    assert part.path in problems, (part, problems)
    want = {(ask, name) for ask in READ_FOR[part.kind] for name in part.names}
    assert set(refused(runtime.open(store), graphs)) == want, part
    layered = runtime.open([store, base])
    assert list(refused(layered, graphs)) == []
    assert bool(layered.stats().fallbacks) == bool(want), part
    assert list(refused(runtime.open([base, store]), graphs)) == []
    put_back()


def test_in_a_folder(store_copy: Path, built_store: Path, parts, graphs) -> None:
    for part in parts:
        path = store_copy / part.path
        for at in offsets(path.stat().st_size):
            check(store_copy, lambda p=path, a=at: flipped(p, a), part, built_store, graphs)
    assert StoreReader(store_copy).verify() == []
    assert list(refused(runtime.open(store_copy), graphs)) == []


def test_in_a_pack(built_store: Path, tmp_path: Path, parts, graphs) -> None:
    pack = tmp_path / "store.pack"
    write_pack(StoreReader(built_store), pack, 0)
    places = StoreReader(pack)._store_files._places
    for part in parts:
        start, size = places[part.path]
        padded = -(-size // 64) * 64
        for at in {start, start + size - 1, start + size // 3, start + padded - 1}:
            check(pack, lambda a=at: flipped(pack, a), part, built_store, graphs)
    entries = min(start for start, _ in places.values())
    for at in [*offsets(entries), 64, *range(0, 64, 7)]:  # header and index: it does not open
        put_back = flipped(pack, at)
        for opened in (StoreReader, runtime.open):
            with pytest.raises((errors.DamagedError, errors.NotAStoreError), match=str(pack)):
                opened(pack)
        put_back()
    assert list(refused(runtime.open(pack), graphs)) == []


def test_in_what_says_that_it_is_a_store(store_copy: Path, built_store: Path) -> None:
    """Whichever byte: it does not open, in a pack neither."""
    path = store_copy / layout.STORE_FILE
    for at in range(path.stat().st_size):
        for bit in range(8):
            whole = path.read_bytes()
            path.chmod(0o644)
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            for opened in (StoreReader, runtime.open):
                with pytest.raises(errors.StoreError, match=r"store\.json|has format [2-9]"):
                    opened(store_copy)
            path.write_bytes(whole)


def test_the_command_line_names_each(store_copy: Path, parts) -> None:
    for kind in READ_FOR:
        part = next(part for part in parts if part.kind == kind)
        put_back = flipped(store_copy / part.path, 5)
        done = run_cli("verify", "--store", store_copy)
        assert done.returncode == 1
        assert re.search(rf"^damaged: {re.escape(part.path)}: ", done.stdout, re.MULTILINE), done
        put_back()
    put_back = flipped(store_copy / layout.STORE_FILE, 3)
    done = run_cli("verify", "--store", store_copy)
    assert done.returncode != 0 and layout.STORE_FILE in done.stderr
