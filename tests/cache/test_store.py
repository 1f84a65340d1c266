"""The store's files: publishing, reading back, damage, crashes, and places that refuse writes."""

import errno
import fcntl
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toy_store

from cudnn_aot.cache import layout
from cudnn_aot.cache.canonical import canonical_digest, sha256_hex
from cudnn_aot.cache.place import cache_store
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.errors import (
    DamagedError,
    NotAStoreError,
    NotInStoreError,
    NotReproducibleError,
    StoreError,
    UsageError,
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    build(tmp_path / "store")
    return tmp_path / "store"


def build(path: Path, count: int = 3) -> None:
    with StoreWriter(path) as writer:
        toy_store.fill(writer, count)


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def files_of(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*") if path.is_file())


def test_what_was_written_is_read_back(store: Path) -> None:
    reader = StoreReader(store)
    assert reader.verify() == []
    assert reader.names() == [("h200", f"layer/{n}") for n in range(3)]
    assert reader.targets() == ["h200"]
    assert len(reader.kernels()) == len(reader.pointers()) == 3
    name = reader.name("h200", "layer/1")
    assert name["uids"] == {"A": 1, "Y": 4}
    pointer = reader.pointer("h200", name["graph_key"])
    record = json.loads(reader.blob(pointer["records"][0]))
    buckets = [toy_store.class_bucket(n) for n in (0, 2)]
    assert reader.classes() == sorted(("h200", bucket) for bucket in buckets)
    members = [reader.class_members("h200", bucket) for bucket in buckets]
    assert [len(graphs) for graphs in members] == [2, 1] and name["graph_key"] in members[0]
    kernel = reader.kernel(record["kernels"][0]["key"])
    assert reader.blob(kernel["blob"]["sha256"]) == b"kernel 1"
    assert reader.foreign() == []


def test_a_finished_store_has_only_what_ships(store: Path) -> None:
    assert [path.name for path in store.parent.iterdir()] == ["store"]
    for path, (mode, time, _) in toy_store.snapshot(store).items():
        assert oct(mode & 0o7777) == ("0o755" if (store / path).is_dir() else "0o444"), path
        assert time == 0, path


def test_a_second_build_writes_nothing(store: Path) -> None:
    def touched() -> dict[Path, tuple[int, int]]:
        found = {path: path.stat() for path in [store.parent, store, *store.rglob("*")]}
        return {path: (status.st_ino, status.st_ctime_ns) for path, status in found.items()}

    before = touched()
    with StoreWriter(store) as writer:
        toy_store.fill(writer)
        assert writer.files_written == writer.bytes_written == 0
    assert touched() == before


def test_source_date_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    with StoreWriter(tmp_path / "store") as writer:
        toy_store.fill(writer)
    times = {time for _, time, _ in toy_store.snapshot(tmp_path / "store").values()}
    assert times == {1700000000 * 10**9}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(UsageError, match="got 'yesterday', want seconds since 1970"):
        StoreWriter(tmp_path / "store")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "9" * 20)
    with pytest.raises(UsageError, match="want seconds since 1970, at most"):
        StoreWriter(tmp_path / "store")


def test_two_builds_are_the_same_bytes_modes_and_times(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "other store"
    process = toy_store.start(
        other, cwd="/", env={**os.environ, "HOME": "/nonexistent"}, umask=0o77
    )
    toy_store.finish(process)
    assert toy_store.snapshot(store) == toy_store.snapshot(other)


def test_a_moved_store_works(store: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    store.rename(moved)
    link = tmp_path / "link"
    link.symlink_to(moved)
    assert StoreReader(link).verify() == []
    assert all(str(tmp_path).encode() not in path.read_bytes() for path in files_of(moved))


# Damage


def test_one_flipped_bit_anywhere_is_found(store: Path, tmp_path: Path) -> None:
    for path in files_of(store):
        whole = path.read_bytes()
        for position in {0, len(whole) // 2, len(whole) - 1}:
            overwrite(path, whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
            try:
                found = [problem.path for problem in StoreReader(store).verify()]
            except NotAStoreError as error:
                found = [layout.STORE_FILE] if layout.STORE_FILE in str(error) else []
            relative = str(path.relative_to(store))
            # A format number that reads as a newer one is told by its numbers.
            assert relative in found or relative == layout.STORE_FILE, (relative, position)
        overwrite(path, whole)
    assert StoreReader(store).verify() == []


@pytest.mark.parametrize("damage", [lambda d: b"", lambda d: d[:-1], lambda d: d + b"\n"])
def test_cut_and_grown_files_are_found(store: Path, damage: Callable[[bytes], bytes]) -> None:
    for path in files_of(store):
        if path.name != layout.STORE_FILE:
            whole = path.read_bytes()
            overwrite(path, damage(whole))
            relative = str(path.relative_to(store))
            assert relative in [problem.path for problem in StoreReader(store).verify()]
            overwrite(path, whole)


def test_missing_files_are_found_by_what_names_them(store: Path) -> None:
    for path in files_of(store):
        relative = str(path.relative_to(store))
        if relative.startswith(("names/", "classes/", "builds/", layout.STORE_FILE)):
            continue
        kept = path.read_bytes()
        path.unlink()
        assert StoreReader(store).verify(), f"nothing misses {relative}"
        path.write_bytes(kept)


def test_reading_damage_raises(store: Path) -> None:
    reader = StoreReader(store)
    key = reader.kernels()[0]
    record = reader.kernel(key)
    overwrite(store / layout.blob_path(record["blob"]["sha256"]), b"kernel x")
    with pytest.raises(DamagedError, match=r"blobs/sha256/.* is damaged: its bytes hash to"):
        reader.blob(record["blob"]["sha256"])
    overwrite(store / layout.kernel_path(key), b"{}\n")
    with pytest.raises(DamagedError, match=r"kernels/.*\.json is damaged: the content does not"):
        reader.kernel(key)
    with pytest.raises(NotInStoreError, match="kernel 0000"):
        reader.kernel("0" * 64)
    with pytest.raises(NotInStoreError, match="graph named 'nine' for target 'h200'"):
        reader.name("h200", "nine")


def test_a_record_under_another_key_is_refused(store: Path) -> None:
    """Whole files in the wrong place are damage too."""
    reader = StoreReader(store)
    one, two = reader.kernels()[:2]
    overwrite(store / layout.kernel_path(one), (store / layout.kernel_path(two)).read_bytes())
    with pytest.raises(DamagedError, match="the key does not belong to its spec"):
        reader.kernel(one)


def test_damage_is_replaced_by_the_next_build(store: Path) -> None:
    before = toy_store.snapshot(store)
    for path in files_of(store):
        if path.name != layout.STORE_FILE:
            overwrite(path, b"junk")
    with StoreWriter(store) as writer:
        toy_store.fill(writer)
    assert toy_store.snapshot(store) == before


def as_folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("junk")


def as_socket(path: Path) -> None:
    os.mknod(path, 0o644 | stat.S_IFSOCK)


def as_link(path: Path) -> None:
    path.symlink_to("/dev/null")


@pytest.mark.parametrize("replace", [as_folder, os.mkfifo, as_socket, as_link])
def test_what_is_no_file_is_found_and_replaced(
    store: Path, replace: Callable[[Path], None]
) -> None:
    """Nothing but a regular file can be served, so nothing else passes; a build puts it right."""
    before = toy_store.snapshot(store)
    for path in files_of(store):
        if path.name == layout.STORE_FILE:
            continue
        path.unlink()
        replace(path)
        relative = str(path.relative_to(store))
        assert relative in [problem.path for problem in StoreReader(store).verify()]
        with StoreWriter(store) as writer:
            toy_store.fill(writer)
        assert toy_store.snapshot(store) == before, relative
    assert [path.name for path in store.parent.iterdir()] == ["store"]


@pytest.mark.parametrize("place", ["kernels", "plans", "builds", "blobs/sha256", "kernels/*"])
@pytest.mark.parametrize("replace", [Path.touch, os.mkfifo])
def test_a_folder_that_is_none_is_found_and_replaced(
    store: Path, place: str, replace: Callable[[Path], None]
) -> None:
    before = toy_store.snapshot(store)
    folder = next(store.glob(place))
    shutil.rmtree(folder)
    replace(folder)
    problems = {problem.path: problem.what for problem in StoreReader(store).verify()}
    assert problems[str(folder.relative_to(store))] == "it is not a folder"
    assert StoreReader(store).foreign() == []
    with StoreWriter(store) as writer:
        toy_store.fill(writer)
    assert toy_store.snapshot(store) == before


def test_an_unreadable_file_is_not_called_damaged(store: Path, open_to_all: Path) -> None:
    blob = files_of(store / "blobs")[0]
    blob.chmod(0o000)
    relative = str(blob.relative_to(store))

    def look() -> None:
        with pytest.raises(StoreError, match="cannot read .*: permission denied") as caught:
            StoreReader(store).blob(blob.name)
        assert not isinstance(caught.value, DamagedError)
        (problem,) = StoreReader(store).verify()
        assert (problem.path, problem.unreadable) == (relative, True)

    assert in_child(look) == "no error"


def test_foreign_files_are_left_alone(store: Path, tmp_path: Path) -> None:
    blob = next((store / "blobs").rglob("*" * 1 + "[0-9a-f]" * 8 + "*"))
    junk = [
        store / "notes.tmp",
        store / "kernels" / ".record.swp",
        store / "plans" / "h200" / "README",
        store / "names" / "h200" / "%zz.json",
        store / "lost+found" / "x",
        blob.with_name(blob.name + ".tmp"),
    ]
    for path in junk:
        path.parent.mkdir(exist_ok=True)
        path.write_text("junk")
    (store / "kernels" / "out").symlink_to("/etc")
    reader = StoreReader(store)
    assert reader.verify() == []
    assert len(reader.names()) == 3
    assert reader.foreign() == sorted(
        [str(path.relative_to(store)) for path in junk] + ["kernels/out"]
    )


def test_links_in_a_store_are_not_followed(store: Path, tmp_path: Path) -> None:
    reader = StoreReader(store)
    digest = reader.kernel(reader.kernels()[0])["blob"]["sha256"]
    blob = store / layout.blob_path(digest)
    blob.rename(tmp_path / "outside")
    blob.symlink_to(tmp_path / "outside")
    with pytest.raises(DamagedError, match="it is a symbolic link"):
        reader.blob(digest)


@pytest.mark.parametrize(
    "place",
    [
        *("blobs", "blobs/sha256", "blobs/sha256/*", "kernels", "kernels/*", "plans"),
        *("plans/h200", "names", "names/h200", "classes/h200", "builds"),
    ],
)
def test_a_link_for_a_folder_is_followed_by_nobody(store: Path, tmp_path: Path, place: str) -> None:
    """All readers see one store, and a build takes nothing that they would not see."""
    before, outside = StoreReader(store).root_digest(), tmp_path / "outside"
    folder = next(store.glob(place))
    relative = str(folder.relative_to(store))
    behind = [path for path in StoreReader(store).files() if path.startswith(relative)]
    folder.rename(outside)
    folder.symlink_to(outside)

    reader = StoreReader(store)
    problems = {problem.path: problem.what for problem in reader.verify()}
    assert problems[relative] == "it is a symbolic link, and not a folder"
    assert reader.folder_links() == [relative] and reader.foreign() == []
    assert behind and not set(behind) & set(reader.files())
    for path in behind:
        assert reader.size(path) is None
        with pytest.raises(DamagedError, match="its folder is none, or a link to one"):
            reader.read(path)
    with pytest.raises(DamagedError, match=f"{folder} is damaged: it is a symbolic link"):
        build(store)
    folder.unlink()
    outside.rename(folder)
    assert StoreReader(store).verify() == [] and StoreReader(store).root_digest() == before


def test_folders_are_made_anew_where_a_file_is_in_the_way(store: Path) -> None:
    before = toy_store.snapshot(store)
    shutil.rmtree(store / "blobs")
    (store / "blobs").touch()
    build(store)
    assert toy_store.snapshot(store) == before


# What is a store


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"format":2}\n',
            "has format 2, this version of cudnn-aot reads format 1: update cudnn-aot",
        ),
        (b'{"format":0}\n', "states no format number"),
        (b'{"format":true}\n', "states no format number"),
        (b"[]", "states no format number"),
        (b"format 1", "store.json is no JSON"),
    ],
)
def test_other_formats_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / layout.STORE_FILE).write_bytes(content)
    for opened in (StoreReader, StoreWriter):
        with pytest.raises(NotAStoreError) as caught:
            opened(tmp_path)
        assert message in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [layout.STORE_FILE]


def test_a_newer_record_names_both_numbers(store: Path) -> None:
    path = files_of(store / "names")[0]
    document = {**json.loads(path.read_bytes()), "format": 7}
    overwrite(path, layout.document_bytes(document))
    (problem,) = StoreReader(store).verify()
    assert problem.what == "format 7 is newer than 1, which this version reads"


def test_other_folders_are_not_taken_for_stores(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises(NotAStoreError, match="there is no such folder"):
        StoreReader(tmp_path / "absent")
    with pytest.raises(NotAStoreError, match="there is no such folder"):
        StoreWriter(tmp_path / "absent", create=False)
    for opened in (StoreReader, StoreWriter):
        with pytest.raises(NotAStoreError, match=r"it has (files but )?no store\.json"):
            opened(tmp_path)
        with pytest.raises(NotAStoreError, match="is not a store"):
            opened(file)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "größe", "100%", "a b", "x" * 240])
def test_any_name_is_one_file(tmp_path: Path, name: str) -> None:
    with StoreWriter(tmp_path / "store") as writer:
        writer.put_name("h200", name, "0" * 64, {})
    assert StoreReader(tmp_path / "store").names() == [("h200", name)]
    assert len(list((tmp_path / "store" / "names" / "h200").iterdir())) == 1


@pytest.mark.parametrize("name", ["", "x" * 241, "ü" * 100])
def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    with (
        StoreWriter(tmp_path / "store") as writer,
        pytest.raises(UsageError, match=r"bad graph name .* want 1 to 240"),
    ):
        writer.put_name("h200", name, "0" * 64, {})


# Publishing


def test_two_objects_for_one_key_raise_the_alarm(store: Path) -> None:
    before = toy_store.snapshot(store)
    with StoreWriter(store) as writer:
        key = writer.reader.kernels()[0]
        record = writer.reader.kernel(key)
        record["object"] = {"sha256": "f" * 64, "bytes": 1}
        with pytest.raises(NotReproducibleError, match=f"kernel {key} compiled to object ffff"):
            writer.put_kernel(record)
    assert toy_store.snapshot(store) == before


def test_another_linker_keeps_what_is_stored(store: Path) -> None:
    """The object is the identity; linked bytes may differ."""
    with StoreWriter(store) as writer:
        record = writer.reader.kernel(writer.reader.kernels()[0])
        other = writer.put_blob(b"linked elsewhere")
        assert not writer.put_kernel({**record, "blob": {"sha256": other, "bytes": 16}})
        assert writer.reader.kernel(record["key"]) == record


def test_a_record_needs_its_blob(store: Path) -> None:
    spec = {"template": "none", "number": 99}
    part = {"sha256": "e" * 64, "bytes": 1}
    record = {"key": canonical_digest(spec), "spec": spec, "symbol": "kernel"}
    record |= {"object": part, "blob": part, "requirements": {}}
    with StoreWriter(store) as writer:
        with pytest.raises(StoreError, match="names blob eeee.*, which is not stored"):
            writer.put_kernel(record)
        with pytest.raises(UsageError, match="does not belong to its spec"):
            writer.put_kernel({**record, "key": "0" * 64})


def test_pointers_are_replaced(store: Path) -> None:
    with StoreWriter(store) as writer:
        target, graph_key = writer.reader.pointers()[0]
        declined = {"status": "declined", "records": [], "graph": None, "reasons": ["too odd"]}
        assert writer.put_pointer(target, graph_key, declined)
        assert not writer.put_pointer(target, graph_key, declined)
        assert writer.reader.pointer(target, graph_key)["reasons"] == ["too odd"]
        assert writer.files_written == 1


# Classes


def test_a_graph_is_added_to_its_class_once(store: Path) -> None:
    bucket = toy_store.class_bucket(0)
    with StoreWriter(store) as writer:
        before = writer.reader.class_members("h200", bucket)
        assert not writer.put_class_member("h200", bucket, before[1])
        assert writer.put_class_member("h200", bucket, "0" * 64)
        assert not writer.put_class_member("h200", bucket, "0" * 64)
        assert writer.files_written == 1
    reader = StoreReader(store)
    assert reader.class_members("h200", bucket) == ["0" * 64, *before]
    (problem,) = reader.verify()
    assert problem.path == layout.class_path("h200", bucket)
    assert problem.what == f"the plan of its graph {'0' * 64} is missing"
    with pytest.raises(NotInStoreError, match=f"class {bucket} for target 'cpu' is not in"):
        reader.class_members("cpu", bucket)


def test_a_class_is_read_once_for_all_its_members(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As often as it has members, it would take the time of their square."""
    bucket = toy_store.class_bucket(0)
    graphs = [f"{number:064x}" for number in range(20)]
    with StoreWriter(store) as first, StoreWriter(store) as second:
        for graph in graphs[:-1]:
            first.put_class_member("h200", bucket, graph)
        assert not second.put_class_member("h200", bucket, graphs[0])
        read = []
        members = StoreReader.class_members
        monkeypatch.setattr(
            StoreReader, "class_members", lambda *what: read.append(what) or members(*what)
        )
        assert not any([second.put_class_member("h200", bucket, each) for each in graphs[:-1]])
        assert read == []
        # What another builder adds meanwhile is kept.
        assert first.put_class_member("h200", bucket, graphs[-1])
        assert second.put_class_member("h200", bucket, "f" * 64)
        assert not second.put_class_member("h200", bucket, graphs[-1])
        assert {*graphs, "f" * 64} <= set(members(second.reader, "h200", bucket))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "cpu"}, "it belongs to another target or class"),
        ({"bucket": "0" * 64}, "it belongs to another target or class"),
        ({"graphs": "1" * 64}, "want a list"),
        ({"graphs": ["1"]}, "want 64 hex digits"),
        ({"graphs": ["1" * 64, "0" * 64]}, "its graph keys are not in order"),
        ({"graphs": ["1" * 64, "1" * 64]}, "its graph keys are not in order"),
    ],
)
def test_a_class_that_says_something_else_is_damaged(
    store: Path, change: dict[str, Any], message: str
) -> None:
    bucket = toy_store.class_bucket(0)
    path = store / layout.class_path("h200", bucket)
    overwrite(path, layout.document_bytes(json.loads(path.read_text()) | change))
    with pytest.raises(DamagedError, match=message):
        StoreReader(store).class_members("h200", bucket)
    with StoreWriter(store) as writer:  # a miss while building
        toy_store.fill(writer)
    assert StoreReader(store).verify() == []


@pytest.mark.parametrize("turn", range(6))
def test_builders_at_once_lose_no_member_of_a_class(store: Path, turn: int) -> None:
    """Processes that come, add to one class and leave at the same moment, all under one lock.

    One that leaves removes the building folder, which those that come must not lose.
    """
    bucket, builders, each = "ab" * 32, 6, 4
    keys = [sha256_hex(b"%d" % number) for number in range(builders * each)]
    start_reader, start_writer = os.pipe()
    children = []
    for builder in range(builders):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(start_writer)
                os.read(start_reader, 1)  # until all are there
                for key in keys[builder::builders]:
                    with StoreWriter(store) as writer:
                        writer.put_class_member("h200", bucket, key)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(start_reader)
    os.close(start_writer)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * builders
    assert StoreReader(store).class_members("h200", bucket) == sorted(keys)
    assert [path.name for path in store.parent.iterdir()] == ["store"]


# Crashes


@pytest.mark.parametrize("again", ["at once", "after the next kill"])
def test_killed_at_every_step_and_built_again(
    tmp_path: Path, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL at sync or rename number n, for every n; then a build must end in the same store."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # counted, but no disk is waited for
    build(tmp_path / "store", count=1)
    whole = toy_store.snapshot(tmp_path / "store")
    survivor = tmp_path / "survivor"
    step, killed = 0, True
    while killed:
        step += 1
        child = os.fork()
        if child == 0:
            toy_store.die_at(step)
            build(survivor, count=1)
            os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        if (survivor / layout.STORE_FILE).exists():
            assert [p for p in StoreReader(survivor).verify() if "missing" not in p.what] == []
        if again == "at once":
            build(survivor, count=1)
            assert toy_store.snapshot(survivor) == whole, step
            assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "survivor"]
            if killed:
                shutil.rmtree(survivor)
    assert toy_store.snapshot(survivor) == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "survivor"]
    assert step > (25 if again == "at once" else 5)


def test_what_a_dead_builder_left_is_swept(store: Path, tmp_path: Path) -> None:
    whole = toy_store.snapshot(store)
    for place in (tmp_path / ".store.building", store / layout.STAGING):
        (place / "stage" / "dead").mkdir(parents=True)
        (place / "stage" / "dead" / "half").write_text("half a blob")
        assert StoreReader(store).verify() == []
        assert StoreReader(store).foreign() == []
        with StoreWriter(store):
            assert not place.exists()
        assert toy_store.snapshot(store) == whole


def test_a_living_builder_is_not_swept(store: Path) -> None:
    with StoreWriter(store) as first, first.scratch() as scratch:
        (scratch / "half").write_text("being written")
        with StoreWriter(store) as second:
            second.put_blob(b"from the second builder")
            assert (scratch / "half").exists()
        assert (scratch / "half").exists()
    assert not scratch.exists()
    assert [path.name for path in store.parent.iterdir()] == ["store"]


# Stores that cannot be written


def as_nobody() -> None:
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def in_child(work: Callable[[], None], prepare: Callable[[], None] = as_nobody) -> str:
    """Run ``work`` in a forked child after ``prepare``; returns the StoreError that it raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        message = "no error"
        try:
            prepare()
            work()
        except StoreError as error:
            message = str(error)
        except BaseException as error:
            message = f"unexpected {error!r}"
        os.write(writing, message.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as stream:
        return stream.read()


def put_something(store: Path) -> None:
    with StoreWriter(store) as writer:
        writer.put_blob(b"something new")


@pytest.fixture
def open_to_all(tmp_path: Path) -> Path:
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
        if folder.name.startswith("pytest-of"):
            break
    return tmp_path


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_cache_that_is_not_ours(
    open_to_all: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_there: bool
) -> None:
    """No option names it, so none is the way out; what may not be looked at is one line too."""
    home = open_to_all / "home"
    home.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    if is_there:
        build(cache_store())
    home.chmod(mode)
    message = in_child(lambda: put_something(cache_store()))
    assert f"{home}/cudnn-aot" in message and "ermission denied" in message
    assert message.startswith("cannot ") and "\n" not in message
    assert "CUDNN_AOT_CACHE" in message and "--store" not in message


def test_a_store_of_another_user(store: Path, open_to_all: Path) -> None:
    store.chmod(0o555)
    message = in_child(lambda: put_something(store))
    assert message.startswith(f"cannot write to the store {str(store)!r}: Permission denied")
    store.parent.chmod(0o777)  # staging could lie beside the store, but not be moved into it
    assert in_child(lambda: put_something(store)) == message
    assert [path.name for path in store.parent.iterdir()] == ["store"]
    store.parent.chmod(0o755)
    assert StoreReader(store).verify() == []
    message = in_child(lambda: put_something(store.parent / "new"))
    if os.geteuid() == 0:
        assert message.startswith(
            f"cannot write {str(store.parent / 'new')!r}: permission denied: "
        )
    assert in_child(lambda: StoreReader(store).verify().clear()) == "no error"
    assert in_child(lambda: StoreWriter(store).close()) == "no error"


def test_a_store_whose_parent_cannot_be_written(store: Path, open_to_all: Path) -> None:
    """Staging then lies in the store for as long as it is built."""
    if os.geteuid() != 0:
        pytest.skip("needs another user")
    before = set(store.parent.iterdir())
    for path in [store, *store.rglob("*")]:
        os.chown(path, 65534, 65534)
    store.parent.chmod(0o755)
    assert in_child(lambda: put_something(store)) == "no error"
    assert set(store.parent.iterdir()) == before
    assert StoreReader(store).blob(sha256_hex(b"something new"))
    assert StoreReader(store).verify() == []
    assert {time for _, time, _ in toy_store.snapshot(store).values()} == {0}


def test_a_full_disk(store: Path) -> None:
    """A file size limit stops a write half way, as a full disk does."""
    before = toy_store.snapshot(store)

    def put_much() -> None:
        with StoreWriter(store) as writer:
            writer.put_blob(b"x" * 1_000_000)

    message = in_child(
        put_much, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
    )
    assert message.startswith("cannot write ")
    assert "file too large" in message
    assert "\n" not in message
    assert toy_store.snapshot(store) == before


def test_a_full_file_system(tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mounted)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("may not mount a tmpfs")
    try:
        with StoreWriter(mounted) as writer:  # a mount point: staging is inside
            toy_store.fill(writer)
            with pytest.raises(StoreError, match="no space left on device: free some space"):
                writer.put_blob(b"x" * 2_000_000)
            writer.put_blob(b"still works")
        assert StoreReader(mounted).verify() == []
        assert not (mounted / layout.STAGING).exists()
        assert {time for _, time, _ in toy_store.snapshot(mounted).values()} == {0}
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with StoreWriter(tmp_path / "store") as first, StoreWriter(tmp_path / "store") as second:
        toy_store.fill(first)
        toy_store.fill(second)
        with first.lock("one"), second.lock("one"):
            pass
    assert StoreReader(tmp_path / "store").verify() == []


def test_reading_imports_the_standard_library_alone() -> None:
    program = (
        "import sys; import cudnn_aot.cache.reader; "
        "print(*{n.split('.')[0] for n in sys.modules} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    heavy = {"numpy", "filelock", "click", "rich", "cutlass", "tvm_ffi", "torch"}
    assert "cudnn_aot" in done.stdout and not heavy & set(done.stdout.split())
