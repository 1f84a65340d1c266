"""Packs: the same store in one file, the same bytes whoever packs, and every byte of it checked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import toy_store
from served_store import small_store

from cudnn_aot import _native, errors
from cudnn_aot.cache.pack import ALIGNMENT, HEADER, MAGIC
from cudnn_aot.cache.pack_writer import write_pack
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "store"
    with StoreWriter(path) as writer:
        toy_store.fill(writer)
    return path


@pytest.fixture
def pack(store: Path, tmp_path: Path) -> Path:
    write_pack(StoreReader(store), tmp_path / "store.pack", 0)
    return tmp_path / "store.pack"


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def everything(reader: StoreReader) -> dict[str, Any]:
    """All that a reader says of a store, and every byte."""
    return {
        "names": [(place, reader.name(*place)) for place in reader.names()],
        "pointers": [(place, reader.pointer(*place)) for place in reader.pointers()],
        "classes": [(place, reader.class_members(*place)) for place in reader.classes()],
        "kernels": [(key, reader.kernel(key)) for key in reader.kernels()],
        "targets": reader.targets(),
        "holders": reader.holders("layer/1"),
        "files": {path: (reader.size(path), reader.read(path)) for path in reader.files()},
        "foreign": reader.foreign(),
        "problems": reader.verify(),
    }


def test_a_pack_reads_as_its_folder_does(store: Path, pack: Path) -> None:
    folder, packed = everything(StoreReader(store)), everything(StoreReader(pack))
    assert folder == packed
    assert folder["problems"] == folder["foreign"] == []
    assert len(folder["files"]) == sum(path.is_file() for path in store.rglob("*"))
    assert len(folder["names"]) == 3


def test_absence_is_told_in_the_same_words(store: Path, pack: Path) -> None:
    for ask in (
        lambda reader: reader.blob("0" * 64),
        lambda reader: reader.kernel("0" * 64),
        lambda reader: reader.name("h200", "nine"),
        lambda reader: reader.name("cpu", "layer/1"),
        lambda reader: reader.pointer("h200", "0" * 64),
    ):
        words = []
        for path in (store, pack):
            with pytest.raises(errors.NotInStoreError) as absent:
                ask(StoreReader(path))
            words.append(str(absent.value).replace(str(path), "STORE"))
        assert words[0] == words[1]
    assert StoreReader(pack).holders("nine") == []
    assert not StoreReader(pack).has_target("cpu")


def test_the_two_readers_agree(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    write_pack(StoreReader(store), tmp_path / "pack", 0)
    folder, packed = (_native.Store([os.fsencode(path)]) for path in (store, tmp_path / "pack"))
    assert packed.names() == folder.names() == StoreReader(tmp_path / "pack").names()
    assert packed.targets() == folder.targets() == ["cpu", "h200"]
    for target, name in folder.names():
        assert packed.find(name, target) == folder.find(name, target)
        assert packed.holds(target, name) and not packed.holds(target, f"{name}x")
    for path in StoreReader(store).files():
        if path.startswith("blobs/"):
            digest = path.rpartition("/")[2]
            assert packed.blob(digest) == folder.blob(digest)


def test_whoever_packs_gets_the_same_bytes(store: Path, pack: Path, tmp_path: Path) -> None:
    """From another folder, order of creation, umask and user's environment; and of a pack."""
    copy = tmp_path / "elsewhere" / "copy"
    for path in reversed(StoreReader(store).files()):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(store / path, copy / path)
    (copy / "notes.txt").write_text("not of the store")
    script = """
import sys
from pathlib import Path
from cudnn_aot.cache.pack_writer import write_pack
from cudnn_aot.cache.reader import StoreReader
write_pack(StoreReader(sys.argv[1]), Path(sys.argv[2]), 7)
"""
    other = tmp_path / "other.pack"
    subprocess.run(
        [sys.executable, "-c", script, copy, other],
        check=True,
        cwd="/",
        umask=0o77,
        env={**os.environ, "HOME": "/nonexistent", "USER": "nobody", "PYTHONHASHSEED": "5"},
    )
    assert other.read_bytes() == pack.read_bytes()
    assert other.stat().st_mode & 0o7777 == 0o444 and other.stat().st_mtime == 7
    write_pack(StoreReader(pack), tmp_path / "again.pack", 0)
    assert (tmp_path / "again.pack").read_bytes() == pack.read_bytes()


def test_blobs_are_aligned(store: Path, pack: Path) -> None:
    data = pack.read_bytes()
    for path in StoreReader(store).files():
        content = (store / path).read_bytes()
        at = data.find(content, ALIGNMENT)
        while at % ALIGNMENT:
            at = data.find(content, at + 1)
        assert at > 0, path
    assert len(data) % ALIGNMENT == 0


# Damage


def faults(path: Path) -> list[str]:
    """The files that are found wrong; the pack itself where it cannot be opened."""
    try:
        return [problem.path for problem in StoreReader(path).verify()]
    except (errors.DamagedError, errors.NotAStoreError) as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return ["the pack"]


def test_a_flipped_byte_in_any_region_is_found(pack: Path) -> None:
    whole = pack.read_bytes()
    reader = StoreReader(pack)
    (index_size,) = (HEADER.unpack(whole[: HEADER.size])[1],)
    start = HEADER.size + -(-index_size // ALIGNMENT) * ALIGNMENT
    where = {position: "the pack" for position in range(0, start, 5)}
    where |= dict.fromkeys((0, 23, 24, 31, 32, 63, 64, 63 + index_size, start - 1), "the pack")
    for path in reader.files():
        size = reader.size(path) or 0
        end = start + -(-size // ALIGNMENT) * ALIGNMENT
        where |= dict.fromkeys((start, start + size // 2, start + size - 1, end - 1), path)
        start = end
    assert start == len(whole)
    for position, named in where.items():
        for bit in (1, 0x80):
            flipped = bytearray(whole)
            flipped[position] ^= bit
            overwrite(pack, bytes(flipped))
            found = faults(pack)
            assert named in found or (named == "store.json" and found == ["the pack"]), position
    overwrite(pack, whole)
    assert faults(pack) == []


def packed(index: Any, *contents: bytes, magic: bytes = MAGIC, digest: str = "") -> bytes:
    """A pack with this index, which may be bytes that are no JSON."""
    from cudnn_aot.cache.canonical import sha256_hex

    data = index if isinstance(index, bytes) else json.dumps(index, separators=(",", ":")).encode()
    header = HEADER.pack(magic, len(data), bytes.fromhex(digest or sha256_hex(data)))
    parts = (header, data, *contents)
    return b"".join(part.ljust(-(-len(part) // 64) * 64, b"\0") for part in parts)


STORE = ["store.json", 13]
CONTENT = b'{"format":1}\n'
BAD = {
    "empty": b"",
    "cut in the magic": MAGIC[:10],
    "cut in the header": packed([STORE], CONTENT)[:40],
    "cut in the index": packed([STORE] + [[f"x{i}", 0] for i in range(20)], CONTENT)[:128],
    "cut in a file": packed([STORE], CONTENT)[:-1],
    "a file less": packed([STORE]),
    "appended to": packed([STORE], CONTENT) + b"\0",
    "appended by a block": packed([STORE], CONTENT) + bytes(64),
    "a newer format": packed([STORE], CONTENT, magic=b"cudnn-aot pack 2\n".ljust(24, b"\0")),
    "no number": packed([STORE], CONTENT, magic=b"cudnn-aot pack x\n".ljust(24, b"\0")),
    "another magic": packed([STORE], CONTENT, magic=b"cudnn-aot pack 1\n!".ljust(24, b"\0")),
    "another digest": packed([STORE], CONTENT, digest="0" * 64),
    "an index beyond the file": HEADER.pack(MAGIC, 2**64 - 1, bytes(32)),
    "no JSON": packed(b"[[", CONTENT),
    "no list": packed({"store.json": 13}, CONTENT),
    "no size": packed([["store.json"]], CONTENT),
    "a size that is no number": packed([["store.json", "13"]], CONTENT),
    "a negative size": packed([["store.json", -1]], CONTENT),
    "a huge size": packed([["store.json", 2**62]], CONTENT),
    "huge sizes": packed([[f"{i}", 2**62] for i in range(5)], CONTENT),
    "twice": packed([STORE, STORE], CONTENT, CONTENT),
    "not in order": packed([STORE, ["plans", 0]], CONTENT),
    "blanks in the index": packed(b'[["store.json", 13]]', CONTENT),
    "half of a pair": packed(b'[["store.json",13],["z\\ud800",0]]', CONTENT),
    "no path": packed([["", 0], STORE], CONTENT),
    "no store.json": packed([["other", 13]], CONTENT),
    "another store.json": packed([["store.json", 12]], CONTENT[:-1]),
    "a newer store": packed([STORE], b'{"format":2}\n'),
}


@pytest.mark.parametrize("name", BAD)
def test_both_readers_refuse_what_is_no_pack_in_the_same_words(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.pack"
    path.write_bytes(BAD[name])
    said = []
    for opened in (StoreReader, lambda path: _native.Store([os.fsencode(path)])):
        with pytest.raises((errors.DamagedError, errors.NotAStoreError)) as refused:
            opened(path)
        said.append((type(refused.value), str(refused.value)))
        assert "\n" not in said[-1][1]
    assert said[0] == said[1]


def test_a_whole_pack_by_hand_is_taken(tmp_path: Path) -> None:
    """What the cases above have wrong is all that is wrong with them."""
    path = tmp_path / "good.pack"
    path.write_bytes(packed([STORE], CONTENT))
    assert StoreReader(path).verify() == []
    assert _native.Store([os.fsencode(path)]).names() == []


# Writing


def test_a_damaged_store_is_not_packed(store: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(store, tmp_path / "copy")
    blob = next(path for path in StoreReader(copy).files() if path.startswith("blobs/"))
    overwrite(copy / blob, b"junk")
    out = tmp_path / "out.pack"
    with pytest.raises(errors.DamagedError, match=f"is not packed: {blob}: its bytes hash to"):
        write_pack(StoreReader(copy), out, 0)
    (copy / blob).unlink()
    with pytest.raises(errors.DamagedError, match="is not packed: .* is missing"):
        write_pack(StoreReader(copy), out, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


def test_a_pack_is_replaced_whole_or_not_at_all(store: Path, pack: Path) -> None:
    before = pack.read_bytes()
    reading = StoreReader(pack)
    write_pack(StoreReader(store), pack, 0)
    assert pack.read_bytes() == before
    assert reading.verify() == []  # of the file that it opened
    with pytest.raises(errors.StoreError, match="cannot write '.*absent/x.pack': no such file"):
        write_pack(StoreReader(store), pack.parent / "absent" / "x.pack", 0)
    with pytest.raises(errors.UsageError, match="it is a folder, want the path of a file"):
        write_pack(StoreReader(store), pack.parent, 0)
    assert [path.name for path in pack.parent.iterdir()] == ["store.pack"]


def test_nothing_is_built_into_a_pack(pack: Path) -> None:
    before = pack.read_bytes()
    with pytest.raises(errors.UsageError, match=r"it is a pack.*build into a folder, then"):
        StoreWriter(pack)
    assert pack.read_bytes() == before
    assert [path.name for path in pack.parent.iterdir()] == ["store.pack"]
