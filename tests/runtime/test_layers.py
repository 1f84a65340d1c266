"""Stores in layers: the overlay before the base, and past what is damaged in one of them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import c_interface
import numpy as np
import pytest
from cli_process import assert_one_line_error, linear_graph, run_cli, write_graph
from served_store import graph_key, put_decline, put_plan

from cudnn_aot import errors, runtime
from cudnn_aot.cache.layers import StoreLayers, open_layers
from cudnn_aot.cache.layout import blob_path, document_bytes, name_path, pointer_path
from cudnn_aot.cache.pack_writer import write_pack
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.cli.options import choose_store
from cudnn_aot.compiler.build.driver import build
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.instantiate import instantiate

OVERLAY, BASE = 2, 1  # versions of the kernel, which its results tell


@pytest.fixture
def base(tmp_path: Path) -> Path:
    with StoreWriter(tmp_path / "base") as writer:
        for name in ("scale", "below", "odd"):
            put_plan(writer, name, version=BASE)
        put_plan(writer, "below", "h200")
    return tmp_path / "base"


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    with StoreWriter(tmp_path / "overlay") as writer:
        for name in ("scale", "above"):
            put_plan(writer, name, version=OVERLAY)
        put_decline(writer, "odd", "cpu", "no engine takes it")
    return tmp_path / "overlay"


def version_of(plan: Any) -> int:
    """Of the kernel that a plan runs, in Python or C."""
    x, y = np.full((3, 6), 3, np.float32), np.empty((3, 6), np.float32)
    plan.execute({1: x, 9: y})
    assert (y == y[0, 0]).all()
    return int(y[0, 0]) - 5


def opened(*layers: Path) -> list[Any]:
    """The layers as Python and as C open them, for the CPU."""
    return [
        runtime.open(list(layers), target="cpu"),
        c_interface.Store(list(layers), target="cpu"),
    ]


def test_the_overlay_comes_first(overlay: Path, base: Path) -> None:
    for store in opened(overlay, base):
        names = {"scale": OVERLAY, "above": OVERLAY, "below": BASE}
        assert {name: version_of(store.plan(name)) for name in names} == names
        keys = {graph_key(name): version for name, version in names.items()}
        assert {key: version_of(store.plan(key)) for key in keys} == keys
    for store in opened(base, overlay):
        assert version_of(store.plan("scale")) == BASE
    store = runtime.open([overlay, base])
    assert store.names() == c_interface.Store([overlay, base]).names()
    assert store.names() == [
        ("cpu", "above"), ("cpu", "below"), ("cpu", "odd"), ("cpu", "scale"), ("h200", "below"),
    ]  # fmt: skip
    plans = runtime.open([overlay, base], target="cpu").plans()
    assert {name: version_of(plan) for name, plan in plans.items()} == names
    assert store.stats().fallbacks == {}
    assert store.path == f"{overlay}:{base}"
    found = sorted((plan.target, plan.names, plan.ok) for plan in store.validity())
    names_of_plans = [(holder, (name,), True) for holder, name in store.names() if name != "odd"]
    assert found == names_of_plans


def test_a_decline_of_the_overlay_is_an_answer(overlay: Path, base: Path) -> None:
    for store in opened(overlay, base):
        with pytest.raises(errors.cudnnGraphNotSupportedError, match="no engine takes it"):
            store.plan("odd")
    assert version_of(runtime.open([base, overlay]).plan("odd")) == BASE


def test_what_no_layer_has(overlay: Path, base: Path) -> None:
    said = []
    for store in opened(overlay, base):
        with pytest.raises(errors.NotInStoreError) as absent:
            store.plan("scael")
        said.append(str(absent.value))
        with pytest.raises(errors.NotInStoreError, match=f"is not in the store '{overlay}:{base}'"):
            store.plan("0" * 64, "cpu")
    assert said[0] == said[1]
    assert f"in store '{overlay}:{base}'; the nearest are 'scale'" in said[0]


def test_packs_are_layers_too(overlay: Path, base: Path, tmp_path: Path) -> None:
    packs = []
    for store in (overlay, base):
        packs.append(tmp_path / f"{store.name}.pack")
        write_pack(StoreReader(store), packs[-1], 0)
    for layers in (packs, (overlay, packs[1])):
        for store in opened(*layers):
            assert version_of(store.plan("scale")) == OVERLAY
            assert version_of(store.plan("below")) == BASE


# Damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def parts_of(store: Path, name: str) -> dict[str, Path]:
    """The files that loading a plan reads."""
    reader = StoreReader(store)
    pointer = reader.pointer("cpu", graph_key(name))
    record = pointer["records"][0]
    (kernel,) = runtime.open(store).plan(name)._record.document["kernels"]
    return {
        "name": store / name_path("cpu", name),
        "pointer": store / pointer_path("cpu", graph_key(name)),
        "record": store / blob_path(record),
        "kernel": store / blob_path(kernel["blob"]),
    }


@pytest.mark.parametrize("damage", [flip, as_folder, as_link, Path.unlink])
@pytest.mark.parametrize("part", ["name", "pointer", "record", "kernel"])
def test_a_damaged_part_falls_through(
    part: str, damage: Callable[[Path], object], overlay: Path, base: Path, monkeypatch, capfd
) -> None:
    path = parts_of(overlay, "scale")[part]
    damage(path)
    with pytest.raises(errors.StoreError):
        runtime.open(overlay).plan("scale")
    monkeypatch.setenv("CUDNN_AOT_LOG", "error")
    for store in opened(overlay, base):
        # The name of the base leads to the overlay's pointer.
        assert version_of(store.plan("scale")) == (OVERLAY if part == "name" else BASE)
        assert version_of(store.plan("below")) == BASE
    store = runtime.open([overlay, base], target="cpu")
    assert version_of(store.plans(["scale"])["scale"]) == (OVERLAY if part == "name" else BASE)
    assert [plan.ok for plan in store.validity() if plan.graph_key == graph_key("scale")] == [True]
    store = runtime.open([overlay, base], target="cpu")
    assert version_of(store.plan("scale"))
    is_absent = damage is Path.unlink and part in ("name", "pointer")  # which is no fault
    assert store.stats().fallbacks == ({} if is_absent else {"DamagedError": 1})
    assert (store.stats().loads, store.stats().failures) == (1, {})
    lines = [line for line in capfd.readouterr().err.splitlines() if "another layer" in line]
    assert bool(lines) != is_absent
    assert all("error: DamagedError: " in line and path.name in line for line in lines)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("pointer", "records", True),
        ("pointer", "records", ["1"]),
        ("pointer", "reasons", [None]),
        ("pointer", "providers", {"native": -1}),
        ("name", "graph_key", 5),
        ("name", "uids", {"X": [None]}),
    ],
)
def test_a_sealed_document_of_wrong_types_is_damage_and_no_answer(
    part: str, field: str, value: Any, overlay: Path, base: Path
) -> None:
    path = parts_of(overlay, "scale")[part]
    document = json.loads(path.read_bytes()) | {field: value}
    path.unlink()
    path.write_bytes(document_bytes(document))
    for store in opened(overlay):
        with pytest.raises(errors.DamagedError, match=f" is damaged: {field}"):
            store.plan("scale")
    for store in opened(overlay, base):
        assert version_of(store.plan("scale")) == (OVERLAY if part == "name" else BASE)


def test_a_blob_may_lie_in_any_layer(overlay: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(overlay, tmp_path / "copy")
    parts_of(overlay, "scale")["kernel"].unlink()
    flip(parts_of(copy, "scale")["record"])
    for store in opened(overlay, copy):
        assert version_of(store.plan("scale")) == OVERLAY
    store = runtime.open([overlay, copy])
    assert store.plan("scale") and store.stats().fallbacks == {}
    assert runtime.open([copy, overlay]).plan("above")


def test_where_no_layer_has_it_whole_the_first_fault_is_raised(overlay: Path, base: Path) -> None:
    flip(parts_of(overlay, "scale")["kernel"])
    flip(parts_of(base, "scale")["record"])
    for store in opened(overlay, base):
        with pytest.raises(errors.DamagedError, match=f"plan 'scale' for cpu: {overlay}/blobs"):
            store.plan("scale")
    flip(base / name_path("cpu", "below"))
    for store in opened(overlay, base):  # that the overlay has none comes second
        with pytest.raises(errors.DamagedError, match=f"{base}/names/cpu/below.json is damaged"):
            store.plan("below")
    store = runtime.open([overlay, base], target="cpu")
    with pytest.raises(errors.DamagedError):
        store.plan("scale")
    assert (store.stats().fallbacks, store.stats().failures) == ({}, {"DamagedError": 1})


# Opening


def test_layers_of_the_environment(overlay: Path, base: Path, monkeypatch) -> None:
    monkeypatch.setenv("CUDNN_AOT_STORE", f"{overlay}{os.pathsep}{base}")
    for store in (runtime.open(target="cpu"), c_interface.Store(None, "cpu")):
        assert version_of(store.plan("scale")) == OVERLAY
        assert version_of(store.plan("below")) == BASE
    for text in (f"{overlay}:", f":{base}", f"{overlay}::{base}", ":"):
        monkeypatch.setenv("CUDNN_AOT_STORE", text)
        for open_it in (runtime.open, lambda: c_interface.Store(None)):
            with pytest.raises(errors.UsageError, match=r"got .*, want folders or packs with ':'"):
                open_it()
        with pytest.raises(errors.UsageError, match="want folders or packs"):
            choose_store(text)


def test_a_path_is_one_store_whatever_is_in_its_name(overlay: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a:b"
    overlay.rename(odd)
    for store in (runtime.open(odd), c_interface.Store(odd)):
        assert version_of(store.plan("scale")) == OVERLAY


def test_a_layer_that_is_no_store_is_named(
    overlay: Path, base: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.delenv("CUDNN_AOT_STORE", raising=False)
    monkeypatch.chdir(base)  # which an empty path is not
    (tmp_path / "empty").mkdir()
    for bad, why in (("absent", "there is no such folder"), ("empty", "it has no store.json")):
        for layers in ((overlay, tmp_path / bad), (tmp_path / bad, base)):
            for open_it in (runtime.open, c_interface.Store, open_python):
                with pytest.raises(errors.NotAStoreError, match=f"{tmp_path / bad}.*{why}"):
                    open_it(list(layers))
    with pytest.raises(errors.NotInStoreError, match=f"'{overlay}:{base}' holds nothing for"):
        runtime.open([overlay, base], target="h300")
    for layers in ([], [""], [overlay, ""]):
        with pytest.raises(errors.UsageError, match="no store: pass a path or set CUDNN_AOT_STORE"):
            runtime.open(layers)
        with pytest.raises(errors.UsageError, match="no store: pass a path or set CUDNN_AOT_STORE"):
            c_interface.Store(layers)


def open_python(layers: list[Path]) -> Any:
    return open_layers([(path, "") for path in layers])


def test_the_python_reader_does_alike(overlay: Path, base: Path) -> None:
    seen: list[errors.StoreError] = []
    reader = open_layers([(overlay, ""), (base, "")], seen.append)
    assert isinstance(reader, StoreLayers)
    store = runtime.open([overlay, base])
    assert reader.names() == store.names()
    assert reader.targets() == store._native.targets() == ["cpu", "h200"]
    assert reader.holders("below") == ["cpu", "h200"]
    assert len(reader.pointers()) == 5 and reader.has_target("h200")
    assert reader.pointer("cpu", graph_key("odd"))["status"] == "declined"
    flip(overlay / pointer_path("cpu", graph_key("odd")))
    assert reader.pointer("cpu", graph_key("odd"))["status"] == "built"
    (fault,) = seen
    assert isinstance(fault, errors.DamagedError) and str(overlay) in str(fault)
    with pytest.raises(errors.NotInStoreError, match=f"is not in the store '{overlay}:{base}'"):
        reader.blob("0" * 64)


# Graphs and their classes


def test_classes_of_all_layers_count(built_store: Path, tmp_path: Path) -> None:
    """Each layer has one symbolic graph of the class; and past a damaged class of one."""
    file = write_graph(tmp_path, linear_graph("wide", 96))
    assert build([file], ["cpu"], tmp_path / "wide").exit_code() == 0
    up, wide = linear_graph("up", 64), linear_graph("wide", 96)
    buckets = [StoreReader(path).classes() for path in (built_store, tmp_path / "wide")]
    assert set(buckets[1]) <= set(buckets[0])
    for layers in ([built_store, tmp_path / "wide"], [tmp_path / "wide", built_store]):
        store = runtime.open(layers)
        for graph in (up, wide):
            concrete = concrete_of(graph)
            assert store.plan(concrete).graph_key == graph.key()
        assert store.stats().fallbacks == {}
    copy = shutil.copytree(built_store, tmp_path / "copy")
    for path in (copy / "classes").rglob("*.json"):
        flip(path)
    store = runtime.open([copy, built_store])
    assert store.plan(concrete_of(up)).graph_key == up.key()
    assert store.stats().fallbacks == {"DamagedError": 1}


def concrete_of(graph: Graph) -> Graph:
    return instantiate(graph, {"M": 7})


# The command line


def test_reading_commands_take_layers(built_store: Path, store_copy: Path) -> None:
    name = StoreReader(store_copy).name("cpu", "down")
    (store_copy / pointer_path("cpu", name["graph_key"])).unlink()
    (store_copy / name_path("cpu", "down")).unlink()
    both = f"{store_copy}:{built_store}"
    assert run_cli("ls", "--store", both).stdout == run_cli("ls", "--store", built_store).stdout
    done = run_cli("run", "--all", "--store", both)
    assert done.returncode == 0 and "2 of 2 plans correct" in done.stdout, done.stderr
    done = run_cli("show", "down", "--store", both)
    assert done.returncode == 0 and "down for cpu: built" in done.stdout, done.stderr
    done = run_cli("doctor", env={"CUDNN_AOT_STORE": both})
    assert f"{store_copy}: 1 plan for cpu" in done.stdout
    assert f"{built_store}: 2 plans for cpu" in done.stdout
    for command in (("verify",), ("build", "x.json", "-t", "cpu"), ("pack", "-o", "x")):
        done = run_cli(*command, env={"CUDNN_AOT_STORE": both})
        assert_one_line_error(done, 2, "got 2 layers", "want one store here")
