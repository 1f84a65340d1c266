"""What verifying a store of many kernels takes: a read of each file, and two files for a kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import many_kernels
import pytest

from cudnn_aot.cache.reader import StoreReader


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "store"
    many_kernels.fill(path, 20)
    return path


class _Counting:
    """The files of a store, and how often each was read."""

    def __init__(self, files) -> None:
        self._files = files
        self.reads: Counter[str] = Counter()

    def read(self, relative: str) -> bytes:
        self.reads[relative] += 1
        return self._files.read(relative)

    def __getattr__(self, name: str):
        return getattr(self._files, name)


def test_every_file_is_read_once(store: Path) -> None:
    reader = StoreReader(store)
    reader._store_files = counting = _Counting(reader._store_files)
    assert reader.verify() == []
    assert counting.reads == dict.fromkeys(set(reader.files()) - {"store.json"}, 1)


@pytest.mark.parametrize("folder", ["blobs", "kernels", "plans", "names"])
def test_one_byte_of_any_file_is_found(store: Path, folder: str) -> None:
    """What was read for the plan that names it is reported under its own path all the same."""
    for path in _files(store / folder):
        relative, data = str(path.relative_to(store)), path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
        found = {problem.path for problem in StoreReader(store).verify()}
        path.write_bytes(data)
        assert relative in found
    assert StoreReader(store).verify() == []


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if path.is_file())[:12]


def test_a_kernel_takes_two_files(built_store: Path) -> None:
    """In a real store: of all its files, those that are no plan's, graph's, name's or build's."""
    reader = StoreReader(built_store)
    blobs: set[str] = set()
    for target, graph_key in reader.pointers():
        pointer = reader.pointer(target, graph_key)
        blobs |= {pointer["graph"], *pointer["records"]}
    documents = (reader.pointers(), reader.names(), reader.classes(), reader.builds())
    others = sum(map(len, documents)) + len(blobs) + len(["store.json"])
    assert len(_all(built_store)) - others == 2 * len(reader.kernels()) == 4


def _all(store: Path) -> list[Path]:
    return [path for path in store.rglob("*") if path.is_file()]
