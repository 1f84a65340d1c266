"""`diff` as it is read: what one store lacks, which field differs, exit codes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import toy_store
from cli_process import assert_one_line_error, linear_graph, run_cli, write_graph

from cudnn_aot.cache import layout
from cudnn_aot.cache.canonical import canonical_bytes, canonical_digest
from cudnn_aot.cache.diff import diff
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter


def test_equal_stores(built_store: Path, store_copy: Path) -> None:
    (store_copy / "notes").write_text("not of the store")
    done = run_cli("diff", built_store, store_copy)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"kernels: 2 in both, 0 only in {built_store}, 0 only in {store_copy}",
        f"blobs: 6 in both, 0 only in {built_store}, 0 only in {store_copy}",
        f"builds: 1 in both, 0 only in {built_store}, 0 only in {store_copy}",
    ]
    assert json.loads(run_cli("diff", built_store, store_copy, "--json").stdout)["equal"] is True


def test_a_pack_is_compared_as_the_folder(store_copy: Path, tmp_path: Path) -> None:
    pack = tmp_path / "store.pack"
    assert run_cli("pack", "--store", store_copy, "-o", pack).returncode == 0
    done = run_cli("diff", pack, store_copy)
    assert (done.returncode, done.stderr) == (0, "")
    counted = json.loads(run_cli("ls", "--stats", "--store", pack, "--json").stdout)
    want = json.loads(run_cli("ls", "--stats", "--store", store_copy, "--json").stdout)
    (row,), (wanted,) = counted["targets"], want["targets"]
    assert (row["plans"], row["bytes"]) == (wanted["plans"], wanted["bytes"])


def test_what_one_lacks(tmp_path: Path) -> None:
    for name, numbers in (("a", (0, 1)), ("b", (1, 2, 3))):
        with StoreWriter(tmp_path / name) as writer:
            for number in numbers:
                toy_store.put(writer, number)
    done = run_cli("diff", "a", "b", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert "only in a: layer/0 for h200" in lines
    assert {"only in b: layer/2 for h200", "only in b: layer/3 for h200"} <= set(lines)
    assert "kernels: 1 in both, 1 only in a, 2 only in b" in lines
    assert "blobs: 3 in both, 3 only in a, 6 only in b" in lines
    found = json.loads(run_cli("diff", "a", "b", "--json", cwd=tmp_path).stdout)
    assert [graph["names"] for graph in found["only_a"]] == [["layer/0"]]
    assert len(found["only_b"]) == len(found["kernels"]["only_b"]) == 2


def changed_plan(store: Path, changes: dict[str, Any], plan_key: str = "") -> None:
    """Let the plan `up` of a store say something else, and be made under another key if given."""
    with StoreWriter(store) as writer:
        reader = writer.reader
        key = reader.name("cpu", "up")["graph_key"]
        pointer = reader.pointer("cpu", key)
        record = json.loads(reader.blob(pointer["records"][0]))
        kernel = record["kernels"][0]
        if "spec" in changes:
            stored = reader.kernel(kernel["key"])
            spec = {**stored["spec"], **changes.pop("spec")}
            kernel["key"] = canonical_digest(spec)
            writer.put_kernel({**stored, "spec": spec, "key": kernel["key"]})
        if "linked" in changes:
            kernel["blob"] = writer.put_blob(reader.blob(kernel["blob"]) + changes.pop("linked"))
        blob = writer.put_blob(canonical_bytes({**record, **changes}))
        native = pointer["providers"]["native"]
        native = {**native, "records": [blob], "plan_key": plan_key or native["plan_key"]}
        made = layout.pointer_of(pointer["graph"], {"native": native}, ["native"])
        writer.put_pointer("cpu", key, made)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"knobs": {"TILE_M": 32}}, {"native.knobs.TILE_M": ("absent", "32")}),
        ({"engine": {"id": 9, "name": "gemm.host.other"}}, {
            "native.engine.id": ("100", "9"),
            "native.engine.name": ("gemm.host.blocked", "gemm.host.other"),
        }),
        ({"spec": {"host_level": "x86-64"}}, {
            "native.kernels[0].host_level": ("x86-64-v3", "x86-64"),
        }),
        ({"spec": {"source_digest": "0" * 64}}, {"native.kernels[0].source_digest": None}),
        ({"linked": b"elsewhere"}, {"native.kernels[0].linked": None}),
        ({"table": {}}, None),
        ({}, {"native.plan_key": None}),
    ],
    ids=["knob", "engine", "level", "sources", "linker", "table", "plan key"],
)  # fmt: skip
def test_the_field_that_differs(
    built_store: Path,
    store_copy: Path,
    changes: dict[str, Any],
    fields: dict[str, tuple[str, str] | None] | None,
) -> None:
    changed_plan(store_copy, dict(changes), "" if changes else "1" * 64)
    (changed,) = diff(StoreReader(built_store), StoreReader(store_copy)).changed
    assert (changed.target, changed.names) == ("cpu", ("up",))
    got = {change.field: (change.a, change.b) for change in changed.changes}
    if fields is None:
        assert got and all(field.startswith("native.table.") for field in got)
        return
    assert got.keys() == fields.keys()
    for field, values in fields.items():
        assert got[field][0] != got[field][1]
        if values is not None and field != "native.engine.id":
            assert got[field] == values
    back = diff(StoreReader(store_copy), StoreReader(built_store)).changed
    assert [(c.field, c.b, c.a) for c in back[0].changes] == [
        (c.field, c.a, c.b) for c in changed.changes
    ]


def test_a_decline_and_a_plan(built_store: Path, store_copy: Path) -> None:
    with StoreWriter(store_copy) as writer:
        key = writer.reader.name("cpu", "up")["graph_key"]
        part = {"plan_key": "k", "records": [], "reasons": ["too odd"]}
        writer.put_pointer("cpu", key, layout.pointer_of(None, {"native": part}, ["native"]))
    done = run_cli("diff", built_store, store_copy)
    assert done.returncode == 1
    assert f"  native.plans: 1 built, and in {store_copy} declined\n" in done.stdout
    assert "native.reasons: [], and in" in done.stdout and '["too odd"]' in done.stdout


def test_a_name_of_two_graphs_says_how_they_differ(built_store: Path, tmp_path: Path) -> None:
    run_cli("build", write_graph(tmp_path, linear_graph("up", 72)), "-t", "cpu", "-o",
            tmp_path / "other")  # fmt: skip
    shutil.copytree(built_store, tmp_path / "a")
    done = run_cli("diff", "a", "other", cwd=tmp_path)
    assert done.returncode == 1
    assert "name 'up' for cpu: graph " in done.stdout
    assert "  dim[2] of 'B': in the first 64, in the second 72\n" in done.stdout
    assert "only in a: down for cpu\n" in done.stdout and "name 'down'" not in done.stdout


def test_a_name_and_a_class_that_one_lacks(built_store: Path, store_copy: Path) -> None:
    (store_copy / layout.name_path("cpu", "up")).unlink()
    for path in (store_copy / "classes" / "cpu").iterdir():
        path.unlink()
    found = diff(StoreReader(built_store), StoreReader(store_copy))
    (move,) = found.moved
    assert (move.name, move.b) == ("up", "absent")
    assert [change.field[:6] for each in found.changed for change in each.changes] == ["class "] * 2
    assert {(c.a, c.b) for each in found.changed for c in each.changes} == {("member", "absent")}
    assert not found.is_empty


def test_wrong_commands(built_store: Path, tmp_path: Path) -> None:
    assert_one_line_error(run_cli("diff", built_store), 2, "missing argument 'B'")
    assert_one_line_error(run_cli("diff", built_store, tmp_path), 2, "is not a store")
