"""Joining stores: order does not count, nothing is lost, other linkers are no alarm, damage is."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import toy_store
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnn_aot import runtime
from cudnn_aot.cache import layout
from cudnn_aot.cache.canonical import canonical_bytes
from cudnn_aot.cache.merge import Merged, Prefer, merge
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build.driver import build
from cudnn_aot.compiler.build.summary import Status
from cudnn_aot.errors import UsageError

LINKERS = st.sampled_from([b"", b" linked elsewhere"])
GRAPHS = st.dictionaries(st.integers(0, 4), LINKERS, max_size=4)


def made(path: Path, graphs: dict[int, bytes] | Iterable[int]) -> StoreReader:
    with StoreWriter(path) as writer:
        for number in sorted(graphs):
            toy_store.put(writer, number, graphs[number] if isinstance(graphs, dict) else b"")
    return StoreReader(path)


def joined(path: Path, *sources: StoreReader, prefer: Prefer | None = None) -> Merged:
    did = merge(sources, path, prefer)
    assert StoreReader(path).verify() == []
    return did


def rewrite(path: Path, **changes: Any) -> None:
    document = {**json.loads(path.read_bytes()), **changes}
    path.chmod(0o644)
    path.write_bytes(layout.document_bytes(document))


@settings(max_examples=15, deadline=None)
@given(a=GRAPHS, b=GRAPHS, c=GRAPHS)
def test_order_and_repetition_do_not_count(
    tmp_path_factory: pytest.TempPathFactory,
    a: dict[int, bytes],
    b: dict[int, bytes],
    c: dict[int, bytes],
) -> None:
    place = tmp_path_factory.mktemp("merge")
    sync, os.fsync = os.fsync, lambda descriptor: None  # nobody needs these after a crash
    try:
        stores = [made(place / str(number), each) for number, each in enumerate((a, b, c))]
        for target, order in (("one", (0, 1, 2)), ("other", (2, 0, 1)), ("again", (1, 1, 2, 0))):
            did = joined(place / target, *(stores[number] for number in order))
            assert (did.conflicts, did.failures) == ([], [])
        whole = toy_store.snapshot(place / "one")
        assert toy_store.snapshot(place / "other") == toy_store.snapshot(place / "again") == whole
        assert joined(place / "one", *stores).files_written == 0
        assert joined(place / "one", StoreReader(place / "other")).files_written == 0
        assert toy_store.snapshot(place / "one") == whole
        assert len(StoreReader(place / "one").names()) == len({*a, *b, *c})
        joined(place / "a", StoreReader(place / "0"))
        joined(place / "a", *stores[1:])  # in two steps: the same but for linked bytes
        assert structure(place / "a") == structure(place / "one")
    finally:
        os.fsync = sync
        shutil.rmtree(place)


def structure(store: Path) -> list[str]:
    """Names, pointers, classes and kernels, without linked bytes and what names them."""
    return [path for path in toy_store.snapshot(store) if not path.startswith("blobs/")]


def test_a_merge_of_one_store_is_a_copy(built_store: Path, tmp_path: Path) -> None:
    did = joined(tmp_path / "copy", StoreReader(built_store))
    assert toy_store.snapshot(tmp_path / "copy") == toy_store.snapshot(built_store)
    assert (did.plans, did.kernels, did.names) == (2, 2, 2)


def test_what_no_graph_names_is_not_taken(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a") as writer:
        toy_store.fill(writer, 1)
        junk = writer.put_blob(b"left by a killed build")
    joined(tmp_path / "dst", StoreReader(tmp_path / "a"))
    assert StoreReader(tmp_path / "dst").blob_size(junk) is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_linkers_give_one_store_that_serves_and_is_current(
    graph_files: list[Path], built_store: Path, tmp_path: Path, order: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    linker = tmp_path / "other-cc"
    linker.write_text('#!/bin/sh\nexec cc -Wl,-z,max-page-size=65536 "$@"\n')
    linker.chmod(0o755)
    monkeypatch.setenv("CC", str(linker))
    build([graph_files[0]], ["cpu"], tmp_path / "elsewhere", jobs=1)
    monkeypatch.delenv("CC")
    stores = [StoreReader(built_store), StoreReader(tmp_path / "elsewhere")]
    (key,) = stores[1].kernels()
    records = [store.kernel(key) for store in stores]
    assert records[0]["object"] == records[1]["object"]
    assert records[0]["blob"] != records[1]["blob"]
    path = tmp_path / "both"
    for number in order:
        did = joined(path, stores[number])
        assert (did.conflicts, did.failures) == ([], [])
    assert StoreReader(path).kernel(key)["blob"] == records[order[0]]["blob"]
    assert len(runtime.open(path).plans()) == 2
    before = toy_store.snapshot(path)
    summary = build(graph_files, ["cpu"], path, jobs=1, forbid_compile=True)
    assert {graph.status for graph in summary.graphs} == {Status.CACHED}
    assert toy_store.snapshot(path) == before


def test_a_plan_of_the_other_linker_is_whole_and_current(
    graph_files: list[Path], built_store: Path, tmp_path: Path
) -> None:
    """Its record names a blob of its own, beside the one that the kernel's record names."""
    path = tmp_path / "store"
    shutil.copytree(built_store, path, copy_function=shutil.copy2)
    with StoreWriter(path) as writer:
        reader = writer.reader
        key = reader.name("cpu", "up")["graph_key"]
        pointer = reader.pointer("cpu", key)
        record = json.loads(reader.blob(pointer["records"][0]))
        kernel = record["kernels"][0]
        library = reader.blob(kernel["blob"]) + b"\0" * 8
        kernel |= {"blob": writer.put_blob(library), "bytes": len(library)}
        blob = writer.put_blob(canonical_bytes(record))
        native = {**pointer["providers"]["native"], "records": [blob]}
        writer.put_pointer(
            "cpu", key, {**pointer, "records": [blob], "providers": {"native": native}}
        )
    assert StoreReader(path).verify() == []
    assert runtime.open(path).plan("up").workspace_bytes() >= 0
    summary = build(graph_files, ["cpu"], path, jobs=1, forbid_compile=True)
    assert {graph.status for graph in summary.graphs} == {Status.CACHED}
    assert summary.files_written == 0


def test_another_object_under_a_key_is_the_alarm(tmp_path: Path) -> None:
    a, b = made(tmp_path / "a", [0, 1]), made(tmp_path / "b", [0, 2])
    (key,) = set(a.kernels()) & set(b.kernels())
    changed = {"sha256": "f" * 64, "bytes": 8}
    rewrite(tmp_path / "b" / layout.kernel_path(key), object=changed)
    did = joined(tmp_path / "dst", a, b)
    (line,) = did.failures
    assert line.startswith(f"{tmp_path / 'b'}: kernel {key} compiled to object")
    assert "not reproducible" in line and len(StoreReader(tmp_path / "dst").names()) == 3


def test_what_is_damaged_is_listed_and_the_rest_is_taken(tmp_path: Path) -> None:
    a, b = made(tmp_path / "a", [0, 1]), made(tmp_path / "b", [1, 2])
    keys = [key for key in b.kernels() if key not in a.kernels()]
    path = tmp_path / "b" / layout.blob_path(b.kernel(keys[0])["blob"]["sha256"])
    path.chmod(0o644)
    path.write_bytes(b"kernel x")
    did = joined(tmp_path / "dst", a, b)
    assert [name for _, name in StoreReader(tmp_path / "dst").names()] == ["layer/0", "layer/1"]
    assert did.failures and all(line.startswith(f"{tmp_path / 'b'}: ") for line in did.failures)
    assert any("is damaged: its bytes hash to" in line for line in did.failures)
    repaired = joined(tmp_path / "dst", b, made(tmp_path / "c", [2]))
    assert repaired.failures and len(StoreReader(tmp_path / "dst").names()) == 3


@pytest.mark.parametrize(("prefer", "wins"), [(None, 0), ("keep", 0), ("replace", 1)])
def test_a_name_of_two_graphs_is_a_conflict(
    tmp_path: Path, prefer: Prefer | None, wins: int
) -> None:
    a, b = made(tmp_path / "a", [0]), made(tmp_path / "b", [1])
    shutil.move(tmp_path / "b" / layout.name_path("h200", "layer/1"), tmp_path / "moved")
    key = b.pointers()[0][1]
    with StoreWriter(tmp_path / "b") as writer:
        writer.put_name("h200", "layer/0", key, {"A": 1, "Y": 4})
    did = joined(tmp_path / "dst", a, b, prefer=prefer)
    keys = [a.pointers()[0][1], key]
    assert did.conflicts == [
        f"name 'layer/0' for h200: stands for graph {keys[0][:12]}, and in "
        f"{str(tmp_path / 'b')!r} {keys[1][:12]}"
    ]
    dst = StoreReader(tmp_path / "dst")
    assert dst.name("h200", "layer/0")["graph_key"] == keys[wins]
    assert len(dst.pointers()) == 2  # nothing is lost but a name
    assert joined(tmp_path / "dst", a, b, prefer=prefer).conflicts


def with_providers(store: Path, providers: dict[str, Any], order: list[str]) -> None:
    with StoreWriter(store) as writer:
        target, key = writer.reader.pointers()[0]
        graph = writer.reader.pointer(target, key)["graph"]
        writer.put_pointer(target, key, layout.pointer_of(graph, providers, order))


def provider(store: Path, plan_key: str, engine: str = "toy", **record: Any) -> dict[str, Any]:
    with StoreWriter(store) as writer:
        target, key = writer.reader.pointers()[0]
        whole = {
            "format": 1,
            "graph_key": key,
            "target": target,
            "engine": {"id": 1, "name": engine},
            "knobs": {},
            "table": toy_store.NOTHING,
            "kernels": [],
            "requirements": {},
            **record,
        }
        blob = writer.put_blob(json.dumps(whole, sort_keys=True).encode())
    return {"plan_key": plan_key, "records": [blob], "reasons": []}


def test_providers_of_one_graph_are_united(tmp_path: Path) -> None:
    a, b, c = (made(tmp_path / name, [0]) for name in "abc")
    declined = {"plan_key": "k", "records": [], "reasons": ["too odd"]}
    native, cudnn = provider(a.path, "n", engine="ours"), provider(b.path, "c", engine="theirs")
    with_providers(a.path, {"native": native}, ["native"])
    with_providers(b.path, {"cudnn": cudnn}, ["native"])
    with_providers(c.path, {"other": declined}, ["native"])
    assert joined(tmp_path / "dst", c, b, a).conflicts == []
    pointer = StoreReader(tmp_path / "dst").pointer(*a.pointers()[0])
    assert pointer["providers"] == {"native": native, "cudnn": cudnn, "other": declined}
    assert pointer["records"] == [*native["records"], *cudnn["records"]]
    assert pointer["reasons"] == ["other: too odd"] and pointer["status"] == "built"
    provider(a.path, "c", engine="theirs")
    with_providers(a.path, {"native": native, "cudnn": cudnn}, ["cudnn", "native"])
    joined(tmp_path / "ranked", b, a)  # as the build ranked them that had both
    ranked = StoreReader(tmp_path / "ranked").pointer(*a.pointers()[0])
    assert ranked["records"] == [*cudnn["records"], *native["records"]]


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"engine": "p"}, {"engine": "q"}, "its engine in"),
        ({"knobs": {"TILE": 1}}, {"knobs": {"TILE": 2}}, "its knobs in"),
        (
            {"requirements": {"host_triple": "x86_64-linux-gnu"}},
            {"requirements": {"host_triple": "aarch64-linux-gnu"}},
            "made for host x86_64-linux-gnu in",
        ),
        ({}, {}, "the planner, the target's description or the tuning differs"),
        ({}, None, "a plan in"),
    ],
)
@pytest.mark.parametrize(("prefer", "wins"), [(None, 0), ("keep", 0), ("replace", 1)])
def test_plans_that_differ_are_a_conflict_that_says_how(
    tmp_path: Path,
    one: dict[str, Any],
    other: dict[str, Any] | None,
    said: str,
    prefer: Prefer | None,
    wins: int,
) -> None:
    a, b = made(tmp_path / "a", [0]), made(tmp_path / "b", [0])
    parts = [
        provider(a.path, "before", **one),
        {"plan_key": "after", "records": [], "reasons": ["too odd"]}
        if other is None
        else provider(b.path, "after", **other),
    ]
    for store, part in zip((a, b), parts, strict=True):
        with_providers(store.path, {"native": part}, ["native"])
    place = b.pointers()[0]
    did = joined(tmp_path / "dst", a, b, prefer=prefer)
    (line,) = did.conflicts
    assert line.startswith(f"native plan of {place[1][:12]} for h200: ") and said in line
    dst = StoreReader(tmp_path / "dst")
    assert dst.pointer(*place)["providers"]["native"] == parts[wins]
    assert dst.names() == [("h200", "layer/0")]


def test_killed_at_every_step_and_merged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # counted, but no disk is waited for
    a, b = made(tmp_path / "a", [0]), made(tmp_path / "b", [1])
    joined(tmp_path / "whole", a, b)
    whole = toy_store.snapshot(tmp_path / "whole")
    step, killed = 0, True
    while killed:
        step += 3
        child = os.fork()
        if child == 0:
            toy_store.die_at(step)
            merge([a, b], tmp_path / "dst")
            os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        joined(tmp_path / "dst", a, b)
        assert toy_store.snapshot(tmp_path / "dst") == whole, step
        shutil.rmtree(tmp_path / "dst")
    assert step > 30


def test_a_store_is_not_merged_into_itself(built_store: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(built_store)
    with pytest.raises(UsageError, match="into itself: leave it out"):
        merge([StoreReader(tmp_path / "link")], built_store)
    with pytest.raises(UsageError, match="nothing to merge"):
        merge([], tmp_path / "dst")
