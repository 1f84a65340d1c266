"""Stores of other releases: fields that this one does not know, and parts that it does not find."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import c_interface
import pytest
from cli_process import assert_one_line_error, run_cli

from cudnn_aot import runtime
from cudnn_aot.cache import layout
from cudnn_aot.cache.canonical import canonical_bytes
from cudnn_aot.cache.pack_writer import write_pack
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter

LATER = {"a_later_field": {"of": ["a later release", 1]}}


def rewrite(path: Path, document: dict[str, Any]) -> None:
    path.chmod(0o644)
    path.write_bytes(layout.document_bytes(document))


def serves(store: Path) -> None:
    """Every reader takes it: Python's, C++'s and C's, and each command that looks into it."""
    assert StoreReader(store).verify() == []
    assert set(runtime.open(store, "cpu").plans()) == {"up", "down"}
    assert c_interface.Store(store, "cpu").digest() == StoreReader(store).root_digest()
    done = run_cli("run", "--all", "--json", "--store", store)
    assert done.returncode == 0, done.stderr
    assert sorted(each["name"] for each in json.loads(done.stdout)["runs"]) == ["down", "up"]
    for command in (("ls", "--stats"), ("ls", "--builds"), ("show", "up")):
        assert run_cli(*command, "--store", store).returncode == 0


def test_fields_of_a_later_release_are_ignored(store_copy: Path, tmp_path: Path) -> None:
    """In each kind of document and in plan records; a build finds its plans current."""
    reader = StoreReader(store_copy)
    for target, key in reader.pointers():
        path = store_copy / layout.pointer_path(target, key)
        pointer = json.loads(path.read_bytes())
        (known,) = pointer["records"]
        record = json.loads(reader.blob(known))
        with StoreWriter(store_copy) as writer:
            later = writer.put_blob(canonical_bytes({**record, **LATER}))
        text = path.read_text().replace(known, later)
        rewrite(path, {**json.loads(text), **LATER})
        (store_copy / layout.blob_path(known)).unlink()
    for relative in reader.files():
        if relative.startswith(("classes/", "kernels/", "names/")):
            path = store_copy / relative
            rewrite(path, {**json.loads(path.read_bytes()), **LATER})
    (build,) = reader.builds()
    record = {**reader.build(build), **LATER}
    (store_copy / layout.build_path(build)).unlink()
    with StoreWriter(store_copy) as writer:
        writer.put_build(record)
    serves(store_copy)
    write_pack(StoreReader(store_copy), tmp_path / "pack", 0)
    serves(tmp_path / "pack")


def test_a_store_of_before_classes_build_records_and_providers(
    store_copy: Path, graph_files: list[Path]
) -> None:
    """It is served as it is; the next build adds what it lacks and compiles nothing."""
    for folder in ("classes", "builds"):
        shutil.rmtree(store_copy / folder)
    for path in (store_copy / "plans").rglob("*.json"):
        pointer = json.loads(path.read_bytes())
        del pointer["providers"]
        rewrite(path, pointer)
    serves(store_copy)
    env = {"CUDNN_AOT_FORBID_COMPILE": "1"}
    done = run_cli("build", *graph_files, "-t", "cpu", "-o", store_copy, "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kernels"]["compiled"] == 0
    assert {path.name for path in store_copy.iterdir()} >= {"classes", "builds"}
    serves(store_copy)


@pytest.mark.parametrize(
    "command",
    [("ls",), ("verify",), ("run", "--all"), ("show", "up"), ("pack", "-o", "p")],
    ids=lambda command: command[0],
)
def test_a_newer_store_is_refused_with_both_numbers(
    store_copy: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    file = store_copy / layout.STORE_FILE
    file.chmod(0o644)
    file.write_text('{"format":2}\n')
    options = ("--store", store_copy)
    done = run_cli(*command, *options, cwd=tmp_path)
    assert_one_line_error(done, 2, "has format 2, this version of cudnn-aot reads format 1: update")
