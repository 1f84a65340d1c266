"""Signatures: what they cover, what they do not, and which keys count."""

from __future__ import annotations

import base64
import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from served_store import put_plan, small_store

from cudnn_aot import errors
from cudnn_aot.cache import layout, trust
from cudnn_aot.cache.layers import open_store
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter

pytest.importorskip("cryptography", reason="the extra `trust` is not installed")


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Private keys of two signers."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("one", "two"):
        trust.new_private_key(folder / name)
    return folder / "one", folder / "two"


@pytest.fixture(scope="session")
def signed(tmp_path_factory: pytest.TempPathFactory, keys) -> Path:
    path = small_store(tmp_path_factory.mktemp("served") / "store")
    sign(path, keys[0])
    return path


@pytest.fixture
def copy(signed: Path, tmp_path: Path) -> Path:
    shutil.copytree(signed, tmp_path / "store")
    return tmp_path / "store"


def sign(store: Path, key: Path) -> Path:
    with StoreWriter(store) as writer:
        root_digest = writer.reader.root_digest()
        relative, data = trust.sign_digest(root_digest, trust.load_private_key(key))
        writer.put_file(relative, data)
    return store / relative


def public(*private: Path) -> list[trust.PublicKey]:
    return [
        trust.PublicKey(trust.load_private_key(each).public_key().public_bytes_raw())
        for each in private
    ]


def test_a_store_that_a_trusted_key_signed_is_opened_pinned(copy, keys):
    reader = open_store(copy, keys=public(*keys))
    assert reader.root_digest() == StoreReader(copy).root_digest()
    name = reader.name("cpu", "scale")
    with StoreWriter(copy) as writer:
        writer.put_name("cpu", "scale", name["graph_key"], {"X": 7})
    with pytest.raises(errors.PinError, match="it was changed after the store was opened"):
        reader.name("cpu", "scale")


def test_the_signature_is_a_document_of_the_store(signed, keys):
    (path,) = (path for path in StoreReader(signed).files() if path.startswith("signatures/"))
    assert path == layout.signature_path(public(keys[0])[0].id)
    assert (StoreReader(signed).verify(), StoreReader(signed).foreign()) == ([], [])
    document = StoreReader(signed).signature(public(keys[0])[0].id)
    assert document["root_digest"] == StoreReader(signed).root_digest()


def test_a_signature_does_not_count_itself_and_several_live_together(copy, keys):
    before = StoreReader(copy).root_digest()
    sign(copy, keys[1])
    assert StoreReader(copy).root_digest() == before
    for key in keys:
        open_store(copy, keys=public(key))


def replaced(store: Path, name: str) -> None:
    with StoreWriter(store) as writer:
        writer.put_name("cpu", name, "0" * 64, {})


CHANGES = {
    "a changed document": lambda store: replaced(store, "scale"),
    "a further document": lambda store: replaced(store, "more"),
    "a missing document": lambda store: (store / "names" / "cpu" / "scale.json").unlink(),
    "a missing kernel record": lambda store: next(store.glob("kernels/*/*.json")).unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_makes_a_signature_invalid(copy, keys, change):
    change(copy)
    with pytest.raises(errors.TrustError, match="signed root digest .*, the store has ") as refused:
        open_store(copy, keys=public(keys[0]))
    assert "\n" not in str(refused.value)


def test_what_does_not(copy, keys):
    with StoreWriter(copy) as writer:
        writer.put_blob(b"named by nothing")
    (copy / "README").write_text("not of the store")
    (copy / "names" / "cpu" / "note.txt").write_text("nor this")
    open_store(copy, keys=public(keys[0]))


def test_a_key_that_is_not_trusted_does_not_count(signed, keys):
    two = public(keys[1])[0]
    with pytest.raises(errors.TrustError, match=f"key {two.id[:12]} has not signed it$"):
        open_store(signed, keys=[two])


@pytest.mark.parametrize("fault", ["flipped", "of another key", "no base64", "not sealed"])
def test_a_signature_that_is_none(copy, keys, fault):
    (one,), reader = public(keys[0]), StoreReader(copy)
    file = copy / layout.signature_path(one.id)
    document = reader.signature(one.id)
    raw = bytearray(base64.b64decode(document["signature"]))
    if fault == "of another key":
        _, data = trust.sign_digest(document["root_digest"], trust.load_private_key(keys[1]))
        document = {**layout.parse_document(data), "key_id": one.id}
    elif fault == "no base64":
        document["signature"] = "!"
    else:
        raw[5] ^= 1
        document["signature"] = base64.b64encode(raw).decode()
    data = layout.document_bytes(document)
    file.chmod(0o644)
    file.write_bytes(data[:-1] if fault == "not sealed" else data)
    with pytest.raises(errors.TrustError, match="did not make the signature|is damaged"):
        open_store(copy, keys=[one])


def test_openssl_makes_keys_and_checks_signatures(copy, tmp_path):
    """What is signed, and in which form, is what docs/remote.md says."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")

    def openssl(*arguments: object) -> str:
        command = ["openssl", *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    key, pub = tmp_path / "key.pem", tmp_path / "key.pub"
    openssl("genpkey", "-algorithm", "ed25519", "-out", key)
    openssl("pkey", "-in", key, "-pubout", "-out", pub)
    sign(copy, key)
    open_store(copy, keys=trust.public_keys(pub))
    (trusted,) = trust.public_keys([pub])
    (tmp_path / "signature").write_bytes(
        base64.b64decode(StoreReader(copy).signature(trusted.id)["signature"])
    )
    text = f"cudnn-aot root digest 1\n{StoreReader(copy).root_digest()}\n"
    (tmp_path / "message").write_text(text)
    said = openssl(
        "pkeyutl", "-verify", "-pubin", "-inkey", pub, "-rawin", "-in", tmp_path / "message",
        "-sigfile", tmp_path / "signature",
    )  # fmt: skip
    assert "Verified Successfully" in said


def test_keys_as_they_are_given(keys, tmp_path, monkeypatch):
    (one,), (two,) = public(keys[0]), public(keys[1])
    (tmp_path / "one.pub").write_bytes(trust.public_pem(one))
    assert trust.public_keys(tmp_path / "one.pub") == trust.public_keys(str(one)) == [one]
    monkeypatch.setenv("CUDNN_AOT_TRUST", f"{tmp_path}/one.pub:{two}")
    assert trust.environment_keys() == [one, two]
    monkeypatch.setenv("CUDNN_AOT_TRUST", "")
    assert trust.environment_keys() == []


@pytest.mark.parametrize("given", ["", "/nowhere", "AAAA", [], [7], ["", "x"], b"x"])
def test_what_is_no_key(given, keys):
    with pytest.raises(errors.UsageError, match="want an Ed25519 public key"):
        trust.public_keys(given)


def test_a_private_key_is_not_one_to_trust_nor_the_other_way(keys, tmp_path):
    with pytest.raises(errors.UsageError, match="want an Ed25519 public key"):
        trust.public_keys(keys[0])
    (tmp_path / "pub").write_bytes(trust.public_pem(public(keys[0])[0]))
    with pytest.raises(errors.UsageError, match="want an Ed25519 private key"):
        trust.load_private_key(tmp_path / "pub")


def test_a_new_key_is_its_owners_alone_and_replaces_none(tmp_path):
    path = tmp_path / "key"
    trust.new_private_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    with pytest.raises(errors.UsageError, match="it exists, and may be a key"):
        trust.new_private_key(path)
    assert path.read_bytes() == before
    public = trust.public_path(path)
    path.unlink()
    with pytest.raises(errors.UsageError, match="key.pub': it exists, and may be a key"):
        trust.new_private_key(path)
    assert public.exists() and not path.exists()


@pytest.mark.parametrize("failing", [1, 2])
def test_a_disk_that_is_full_leaves_no_half_key(tmp_path, monkeypatch, failing):
    calls = []

    def sync(descriptor):
        calls.append(descriptor)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(errors.StoreError, match="cannot write the key '.*key.*': no space left"):
        trust.new_private_key(tmp_path / "key")
    assert not list(tmp_path.iterdir())


def test_a_pin_and_a_key_must_both_hold(copy, keys):
    with pytest.raises(errors.PinError):
        open_store(copy, "0" * 64, public(keys[0]))
    root_digest = StoreReader(copy).root_digest()
    open_store(copy, root_digest, public(keys[0]))
    with StoreWriter(copy) as writer:
        put_plan(writer, "more")
    with pytest.raises(errors.TrustError):
        open_store(copy, StoreReader(copy).root_digest(), public(keys[0]))
