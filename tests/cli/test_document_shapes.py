"""Sealed documents that say something else than their kind: each verb calls them damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import toy_store

from cudnn_aot.cache import layout
from cudnn_aot.cache.canonical import canonical_bytes
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.cli.main import main

CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("plans", {"records": True}),
    ("plans", {"records": -1}),
    ("plans", {"graph": True}),
    ("plans", {"providers": {"native": -1}}),
    ("names", {"uids": {"A": [None]}}),
    ("classes", {"graphs": 5}),
    ("kernels", {"blob": "x"}),
    ("builds", {"engines": [[]]}),
    ("record", {"kernels": ["a"]}),
    ("record", {"kernels": "a"}),
    ("record", {"requirements": []}),
    ("record", {"table": {**toy_store.NOTHING, "version": 99}}),
    ("record", {"table": {**toy_store.NOTHING, "dispatch": [{"branch": "b", "when": True}]}}),
]


def change(store: Path, kind: str, fields: dict[str, Any]) -> None:
    folder = "plans" if kind == "record" else kind
    path = min((store / folder).rglob("*.json"))
    document = json.loads(path.read_bytes())
    if kind == "record":
        record = json.loads(StoreReader(store).blob(document["records"][0])) | fields
        with StoreWriter(store) as writer:
            fields = {"records": [writer.put_blob(canonical_bytes(record))]}
    data = layout.document_bytes(document | fields)
    path.unlink()
    if kind == "builds":
        path = store / layout.build_path(json.loads(data)["digest"])
    path.write_bytes(data)


@pytest.mark.parametrize(("kind", "fields"), CHANGES, ids=str)
def test_wrong_types_are_damage(
    kind: str, fields: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store, other = tmp_path / "store", tmp_path / "other"
    for path in (store, other):
        with StoreWriter(path) as writer:
            toy_store.fill(writer, 3)
    change(store, kind, fields)
    needed = tmp_path / "list"
    needed.write_text("".join(f"layer/{number}\n" for number in range(3)))
    verbs = [
        ("ls", "--store", store),
        ("ls", "--stats", "--store", store),
        ("ls", "--builds", "--store", store),
        ("show", "layer/0", "--store", store),
        ("prune", "--unreferenced", "--dry-run", "--store", store),
        ("verify", "--complete", needed, "--store", store),
        ("verify", "--device", "h200", "--store", store),
        ("diff", store, other),
        ("merge", store, other, "-o", tmp_path / "merged"),
    ]
    for verb in verbs:
        main([str(word) for word in verb])
        assert "internal error" not in capfd.readouterr().err, verb
    assert StoreReader(store).verify()
    assert len(StoreReader(tmp_path / "merged").pointers()) == 3
    if "table" in fields:
        for option in (("--complete", str(needed)), ("--device", "h200")):
            assert main(["verify", *option, "--store", str(store)]) == 1
            assert "launch table of plan" in capfd.readouterr().out


def test_a_step_without_its_kernel_is_found(
    store_copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    change(store_copy, "record", {"kernels": []})
    assert main(["verify", "--store", str(store_copy)]) == 1
    assert "a step names kernel 0, got 0 kernels" in capfd.readouterr().out
