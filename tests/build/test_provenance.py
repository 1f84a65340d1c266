"""The record of a build: what went in, and nothing of when, where or by whom."""

import json
from pathlib import Path

import pytest
import toy_store
from cli_process import declined_graph, run_cli, tree_digest, write_graph

from cudnn_aot.cache import layout
from cudnn_aot.cache.canonical import sha256_hex
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.toolchain import toolchain
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build import driver, provenance
from cudnn_aot.compiler.target.target import load_target


def only_build(store: Path) -> dict:
    reader = StoreReader(store)
    (digest,) = reader.builds()
    return reader.build(digest)


def test_what_is_recorded(built_store: Path, graph_files: list[Path]) -> None:
    reader = StoreReader(built_store)
    names = {name: reader.name("cpu", name)["graph_key"] for _, name in reader.names()}
    assert only_build(built_store) == {
        "version": "0.1.0",
        "sources": provenance.source_digest(),
        "toolchain": {"cu12": toolchain("cu12")},
        "cudnn": {},
        "engines": ["native"],
        "targets": [load_target("cpu").descriptor()],
        "graphs": [{"name": name, "graph_key": names[name]} for name in ("down", "up")],
        "tuning": "",
    }


def test_an_edited_source_is_another_build(tmp_path: Path) -> None:
    """By what is in the files and how they are called, not by where they are."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "mine.py").write_text("x = 1\n")
    before = provenance.digest_of({"p": here})
    assert provenance.digest_of({"p": there}) == before
    (there / "sub" / "mine.pyc").write_bytes(b"no source")
    assert provenance.digest_of({"p": there}) == before
    (there / "sub" / "mine.py").rename(there / "sub" / "yours.py")
    (here / "sub" / "mine.py").write_text("x = 2\n")
    assert len({before, *(provenance.digest_of({"p": f}) for f in (here, there))}) == 3
    (here / "tuning").mkdir()
    for text in ("[]", "[1]"):  # measured plans that are shipped
        digest = provenance.digest_of({"p": here})
        (here / "tuning" / "h200.json").write_text(text)
        assert provenance.digest_of({"p": here}) != digest


def test_a_tuning_file_is_recorded_by_what_it_says(
    tmp_path: Path, graph_files: list[Path], store_copy: Path
) -> None:
    tuning = tmp_path / "tuning.json"
    entry = {
        "family": "gemm",
        "target": "cpu",
        "layout_class": "BFLOAT16xBFLOAT16 kk [] relu -> BFLOAT16",
        "extents": {"batch": 1, "m": 33, "n": 64, "k": 48},
        "plans": [{"engine": "gemm.host.blocked", "knobs": {}}],
    }
    tuning.write_text(json.dumps({"format": 1, "entries": [entry]}))
    (without,) = StoreReader(store_copy).builds()
    driver.build(graph_files, ["cpu"], store_copy, tuning=tuning)
    reader = StoreReader(store_copy)
    (tuned,) = set(reader.builds()) - {without}
    assert len(reader.build(tuned)["tuning"]) == 64
    assert {**reader.build(tuned), "tuning": ""} == reader.build(without)
    tuning.write_text(json.dumps({"format": 1, "entries": [entry]}, indent=2))
    before = tree_digest(store_copy)
    driver.build(graph_files, ["cpu"], store_copy, tuning=tuning)
    assert tree_digest(store_copy) == before


def test_part_of_what_is_there_is_no_build(store_copy: Path, graph_files: list[Path]) -> None:
    before = tree_digest(store_copy)
    summary = driver.build(graph_files[:1], ["cpu"], store_copy)
    assert summary.files_written == 0
    assert tree_digest(store_copy) == before


def test_the_record_comes_before_all_that_it_explains(tmp_path: Path) -> None:
    """Killed right after it the build is repeated and recorded; before it nothing was published."""
    path = tmp_path / "store"
    with StoreWriter(path) as writer:
        writer.introduce(lambda: toy_store.build_record(1))
        assert writer.reader.builds() == []
        with pytest.raises(OSError, match="no such tool"):
            writer.introduce(fails)
            writer.put_blob(b"first")
        assert not (path / layout.blob_path(sha256_hex(b"first"))).exists()
        writer.introduce(lambda: toy_store.build_record(1))
        writer.put_blob(b"first")
        writer.put_blob(b"second")
    assert only_build(path) == toy_store.build_record(1)
    with StoreWriter(path) as writer:
        writer.introduce(fails)
        writer.put_blob(b"first")  # there: nothing is written


def fails() -> dict:
    raise OSError("no such tool")


def test_builds_are_listed(tmp_path: Path, store_copy: Path) -> None:
    (build,) = json.loads(run_cli("ls", "--builds", "--json", "--store", store_copy).stdout)[
        "builds"
    ]
    assert build.pop("build") == StoreReader(store_copy).builds()[0]
    assert build == only_build(store_copy)
    table = run_cli("ls", "--builds", "--store", store_copy).stdout.splitlines()
    assert table[2].split()[1:] == ["0.1.0", build["sources"][:12], "cpu", "native", "2", "-"]
    path = store_copy / layout.build_path(StoreReader(store_copy).builds()[0])
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"native", b"naTive"))
    done = run_cli("ls", "--builds", "--store", store_copy)
    assert done.returncode == 1 and "does not match its digest" in done.stderr
    with StoreWriter(tmp_path / "empty") as writer:
        writer.put_blob(b"")
    assert run_cli("ls", "--builds", "--store", tmp_path / "empty").stdout == "no builds\n"


def test_a_declined_graph_is_recorded(tmp_path: Path) -> None:
    store = tmp_path / "store"
    graph = declined_graph("odd")
    driver.build([write_graph(tmp_path, graph)], ["cpu", "h200"], store)
    build = only_build(store)
    assert build["graphs"] == [{"name": "odd", "graph_key": graph.key()}]
    assert [target["name"] for target in build["targets"]] == ["cpu", "h200"]
