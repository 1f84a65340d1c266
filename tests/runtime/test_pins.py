"""The root digest of a store, and stores that are opened by it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import c_interface
import pytest
import toy_store
from class_graphs import LINEAR
from cli_process import assert_one_line_error, linear_graph, run_cli
from served_store import UIDS, graph_key, put_plan, small_store

from cudnn_aot import errors, runtime
from cudnn_aot.cache.layout import name_path, pointer_path
from cudnn_aot.cache.pack_writer import write_pack
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.graph.instantiate import instantiate


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return small_store(tmp_path / "store")


def digest_of(path: Path) -> str:
    """As each of the three readers has it."""
    found = {
        StoreReader(path).root_digest(),
        *runtime.open(path).root_digests(),
        c_interface.Store(path).digest(),
    }
    (digest,) = found
    return digest


def by_hand(store: Path) -> str:
    """What `find`, `sort` and `sha256sum` make of it."""
    documents = [path for path in store.rglob("*.json") if path.name != "store.json"]
    lines = sorted(
        (str(path.relative_to(store)), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in documents
    )
    text = "".join(f"{digest}  {path}\n" for path, digest in lines)
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_root_digest_is_that_of_the_documents(stored: Path, tmp_path: Path) -> None:
    assert digest_of(stored) == by_hand(stored)
    with StoreWriter(tmp_path / "toys") as writer:  # with classes
        toy_store.fill(writer)
    assert digest_of(tmp_path / "toys") == by_hand(tmp_path / "toys") != digest_of(stored)
    with StoreWriter(tmp_path / "empty"):
        pass
    assert digest_of(tmp_path / "empty") == hashlib.sha256(b"").hexdigest()


def test_what_does_not_count(stored: Path, tmp_path: Path) -> None:
    digest = digest_of(stored)
    with StoreWriter(stored) as writer:
        writer.put_blob(b"nobody names this")
    for foreign in ("notes.txt", "names/cpu/.up.json.swp", "kernels/zz/x.json", "plans/cpu/a.json"):
        (stored / foreign).parent.mkdir(exist_ok=True)
        (stored / foreign).write_text("{}")
    os.utime(stored / "store.json", (5, 5))
    moved = stored.rename(tmp_path / "moved")
    assert digest_of(moved) == digest
    write_pack(StoreReader(moved), tmp_path / "pack", 0)
    assert digest_of(tmp_path / "pack") == digest
    assert runtime.open([tmp_path / "pack", moved]).root_digests() == (digest, digest)
    assert c_interface.Store([tmp_path / "pack", moved]).digest(1) == digest
    with pytest.raises(errors.UsageError, match="bad layer: got 2, want one of 2"):
        c_interface.Store([tmp_path / "pack", moved]).digest(2)


def test_every_document_counts(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with StoreWriter(store) as writer:
        toy_store.fill(writer)
    digest = StoreReader(store).root_digest()
    for relative in StoreReader(store).files():
        if relative.startswith("blobs/") or relative == "store.json":
            continue
        path = store / relative
        kept = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(kept[:-1])
        changed = digest_of(store)
        path.unlink()
        assert len({digest, changed, digest_of(store)}) == 3, relative
        path.write_bytes(kept)
    assert digest_of(store) == digest


def openers(path: Any) -> list[Callable[..., Any]]:
    """Python's and C's, which take the digests, or None for the environment's."""
    return [
        lambda digests: runtime.open(path, "cpu", digest=digests),
        lambda digests: c_interface.Store(path, "cpu", digests),
    ]


def test_opening_by_digest(stored: Path, monkeypatch) -> None:
    digest, other = digest_of(stored), "0" * 64
    for opened in openers(stored):
        assert opened([digest]).plan("scale")
        with pytest.raises(errors.PinError) as refused:
            opened([other])
        assert str(refused.value) == (
            f"store {str(stored)!r} is not the pinned one: got root digest {digest}, want {other}"
        )
    assert runtime.open(stored, digest=digest).plan("scale", "cpu")
    with pytest.raises(errors.PinError):
        StoreReader(stored, other)
    monkeypatch.setenv("CUDNN_AOT_PIN", other)
    for opened in openers(stored):
        with pytest.raises(errors.PinError, match=f"got root digest {digest}, want {other}"):
            opened(None)
        assert opened([digest]).plan("scale")  # what the program says comes first
    monkeypatch.setenv("CUDNN_AOT_PIN", digest)
    for opened in openers(stored):
        assert opened(None).plan("scale")


@pytest.mark.parametrize("bad", ["", "0" * 63, "F" * 64, "g" * 64, "sha256:" + "0" * 64])
def test_a_digest_is_64_hex_digits(stored: Path, bad: str, monkeypatch) -> None:
    for opened in openers(stored):
        with pytest.raises(errors.UsageError, match="bad digest: got .*, want 64 hex digits"):
            opened([bad])
    if bad:
        monkeypatch.setenv("CUDNN_AOT_PIN", bad)
        for opened in openers(stored):
            with pytest.raises(errors.UsageError, match="bad CUDNN_AOT_PIN: got .*, want 64 hex"):
                opened(None)
    for digest in ([], 7, [b"0"]):
        with pytest.raises((errors.UsageError, TypeError)):
            runtime.open(stored, digest=digest)  # type: ignore[arg-type]


def test_no_layer_is_left_unpinned(stored: Path, tmp_path: Path, monkeypatch) -> None:
    other = tmp_path / "other"
    with StoreWriter(other) as writer:
        put_plan(writer, "scale", version=2)
    layers, digests = [other, stored], [digest_of(other), digest_of(stored)]
    for opened in openers(layers):
        assert opened(digests).plan("both")
        with pytest.raises(errors.PinError, match=f"store '{other}' is not the pinned one"):
            opened(digests[::-1])
        with pytest.raises(errors.PinError, match=f"store '{stored}' is not the pinned one"):
            opened([digests[0], digests[0]])
    for given in ([digests[0]], digests * 2):
        with pytest.raises(errors.UsageError, match="root digests, want 2, one of each layer"):
            runtime.open(layers, digest=given)
        monkeypatch.setenv("CUDNN_AOT_PIN", ":".join(given))
        for opened in openers(layers):
            with pytest.raises(errors.UsageError, match="bad CUDNN_AOT_PIN: got . root digests"):
                opened(None)
    monkeypatch.setenv("CUDNN_AOT_PIN", ":".join(digests))
    monkeypatch.setenv("CUDNN_AOT_STORE", ":".join(map(str, layers)))
    for opened in openers(None):
        assert opened(None).plan("both")
    with pytest.raises(errors.UsageError, match="got some for no layer"):
        c_interface.Store([], digests=digests)


# What comes after opening


def replace(writer: StoreWriter) -> Path:
    """Another plan under the same key: all that is read of it is whole."""
    put_plan(writer, "scale", knobs={"TILE_M": 64})
    return writer.path / pointer_path("cpu", graph_key("scale"))


def rename(writer: StoreWriter) -> Path:
    """Another graph under the same name."""
    writer.put_name("cpu", "scale", graph_key("both"), UIDS)
    return writer.path / name_path("cpu", "scale")


def remove(writer: StoreWriter) -> Path:
    path = writer.path / pointer_path("cpu", graph_key("scale"))
    path.unlink()
    return path


def damage(writer: StoreWriter) -> Path:
    path = writer.path / name_path("cpu", "scale")
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])
    return path


@pytest.mark.parametrize(
    ("change", "word"),
    [(replace, "changed"), (rename, "changed"), (damage, "changed"), (remove, "removed")],
)
def test_a_later_change_is_refused(stored: Path, tmp_path: Path, change, word: str) -> None:
    """By all readers, and no other layer takes its place."""
    base = shutil.copytree(stored, tmp_path / "base")
    digests = [digest_of(stored), digest_of(base)]
    stores = [opened(digests) for opened in openers([stored, base])]
    stores += [opened(digests[:1]) for opened in openers(stored)]
    free = runtime.open([stored, base], "cpu")
    reader = StoreReader(stored, digests[0])
    with StoreWriter(stored) as writer:
        path = change(writer)
    for store in stores:
        with pytest.raises(errors.PinError) as refused:
            store.plan("scale")
        assert str(refused.value) == (
            f"{path} is not what was pinned: it was {word} after the store was opened; open it anew"
        )
        assert store.plan("both")
    with pytest.raises(errors.PinError, match=f"it was {word}"):
        key = reader.name("cpu", "scale")["graph_key"]
        reader.pointer("cpu", key)
    assert free.plan("scale")
    with pytest.raises(errors.PinError, match=f"{stored}' is not the pinned one"):
        runtime.open(stored, digest=digests[0])


def test_what_is_added_later_is_refused(stored: Path) -> None:
    digest = digest_of(stored)
    stores = [opened([digest]) for opened in openers(stored)]
    with StoreWriter(stored) as writer:
        put_plan(writer, "late")
    for store in stores:
        with pytest.raises(errors.PinError, match="late.json is not what was pinned: it was added"):
            store.plan("late")
    assert stores[0].plans(["scale"])


def test_classes_are_pinned_too(store_copy: Path) -> None:
    """They are read from Python, when a graph is asked for."""
    digest = digest_of(store_copy)
    concrete = instantiate(linear_graph("up", 64), {"M": 7})
    store = runtime.open(store_copy, digest=digest)
    assert runtime.open(store_copy, digest=digest).plan(concrete).target == "cpu"
    ((target, bucket), *_) = StoreReader(store_copy).classes()
    with StoreWriter(store_copy) as writer:
        writer.put_class_member(target, bucket, LINEAR.graph().key())
    assert runtime.open(store_copy).names()
    with pytest.raises(errors.PinError):
        store.plan(concrete)


# The command line


def test_the_command_line_prints_and_takes_pins(built_store: Path) -> None:
    digest = digest_of(built_store)
    done = run_cli("verify", "--store", built_store)
    assert re.search(rf"^root digest {digest}$", done.stdout, re.MULTILINE)
    for command, told in (("verify", '"root_digest": "'), ("ls", '"root_digests": [\n    "')):
        assert told + digest in run_cli(command, "--store", built_store, "--json").stdout
    for pin, code in ((digest, 0), ("0" * 64, 1)):
        env = {"CUDNN_AOT_PIN": pin}
        done = run_cli("run", "up", "--store", built_store, env=env)
        assert done.returncode == code, done.stderr
        assert run_cli("verify", "--store", built_store, env=env).returncode == 0
    assert_one_line_error(done, 1, f"got root digest {digest}", f"want {'0' * 64}")


def test_where_signatures_are_required_c_wants_a_pin(stored: Path, monkeypatch) -> None:
    """It checks none: a store that nobody vouches for is not opened for want of a check."""
    digest = digest_of(stored)
    monkeypatch.setenv("CUDNN_AOT_TRUST", "release.pem.pub")
    with pytest.raises(errors.PinError, match="CUDNN_AOT_TRUST is set, .* pin the root digest"):
        c_interface.Store(stored, "cpu")
    assert c_interface.Store(stored, "cpu", [digest]).plan("scale")
    monkeypatch.setenv("CUDNN_AOT_PIN", digest)
    assert c_interface.Store(stored, "cpu").plan("scale")
    monkeypatch.setenv("CUDNN_AOT_PIN", "0" * 64)
    with pytest.raises(errors.PinError, match="is not the pinned one"):
        c_interface.Store(stored, "cpu")
    monkeypatch.delenv("CUDNN_AOT_PIN")
    monkeypatch.setenv("CUDNN_AOT_TRUST", "")
    assert c_interface.Store(stored, "cpu").plan("scale")
