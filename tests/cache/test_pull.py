"""A pull into a store that has something: what was there stays, as where stores are merged."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_store
from registry_server import run_registry

from cudnn_aot.cache import layout, trust
from cudnn_aot.cache.exchange import (
    Received,
    pull_folder,
    pull_image,
    push_folder,
    push_image,
)
from cudnn_aot.cache.merge import Prefer, merge
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.errors import DamagedError, PinError, UsageError

pytest.importorskip("fsspec", reason="the extra `remote` is not installed")
from cudnn_aot.cache.remote import open_remote  # noqa: E402

Pull = Callable[..., Received]  # (source, destination, target=, digest=, prefer=)


@pytest.fixture(params=["folder", "image"])
def pull(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pull]:
    """Pushes a store and pulls it."""
    monkeypatch.setenv("CUDNN_AOT_CACHE", str(tmp_path / "cache"))
    if request.param == "folder":

        def by_folder(
            source: Path,
            path: Path,
            target: str | None = None,
            digest: str = "",
            prefer: Prefer | None = None,
        ) -> Received:
            url = f"file://{tmp_path}/far/{source.name}"
            push_folder(StoreReader(source), url)
            return pull_folder(open_remote(url, digest=digest), path, target, prefer=prefer)

        yield by_folder
        return
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with run_registry(tmp_path / "registry") as registry:

        def by_image(source: Path, path: Path, **options: Any) -> Received:
            reference = f"{registry.host}/team/{source.name}:v1"
            push_image(StoreReader(source), reference)
            return pull_image(reference, path, **options)

        yield by_image


def made(path: Path, numbers: list[int]) -> StoreReader:
    with StoreWriter(path) as writer:
        for number in numbers:
            toy_store.put(writer, number)
    return StoreReader(path)


def rewrite(path: Path, **changes: Any) -> None:
    document = {**json.loads(path.read_bytes()), **changes}
    path.chmod(0o644)
    path.write_bytes(layout.document_bytes(document))


def test_a_new_folder_becomes_the_store_itself(pull: Pull, tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a") as writer:
        toy_store.fill(writer)
    for destination in ("new", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        got = pull(tmp_path / "a", tmp_path / destination)
        assert (
            got.root_digest == got.source_root_digest == StoreReader(tmp_path / "a").root_digest()
        )
        assert toy_store.snapshot(tmp_path / destination) == toy_store.snapshot(tmp_path / "a")
    assert pull(tmp_path / "a", tmp_path / "new").files_written == 0


def test_members_of_a_class_are_united(pull: Pull, tmp_path: Path) -> None:
    """Graphs 0 and 1 are of one class."""
    a, b = made(tmp_path / "a", [0]), made(tmp_path / "b", [1, 2])
    merge([a, b], tmp_path / "merged")
    got = pull(tmp_path / "b", tmp_path / "a")
    assert (got.conflicts, got.failures) == ((), ())
    members = a.class_members("h200", toy_store.class_bucket(0))
    assert members == sorted(map(toy_store.graph_key, (0, 1)))
    assert toy_store.snapshot(tmp_path / "a") == toy_store.snapshot(tmp_path / "merged")


@pytest.mark.parametrize("prefer", [None, "keep", "replace"])
@pytest.mark.parametrize("target", [None, "h200"])
def test_a_name_of_two_graphs_is_a_conflict(
    pull: Pull, tmp_path: Path, target: str | None, prefer: Prefer | None
) -> None:
    a, b = made(tmp_path / "a", [0]), made(tmp_path / "b", [2])
    (tmp_path / "b" / layout.name_path("h200", "layer/2")).unlink()
    with StoreWriter(b.path) as writer:
        writer.put_name("h200", "layer/0", toy_store.graph_key(2), {"A": 1, "Y": 4})
    got = pull(b.path, a.path, target=target, prefer=prefer)
    (conflict,) = got.conflicts
    assert conflict.startswith("name 'layer/0' for h200: stands for graph ")
    stands_for = toy_store.graph_key(2 if prefer == "replace" else 0)
    assert a.name("h200", "layer/0")["graph_key"] == stands_for
    assert len(a.pointers()) == 2 and a.verify() == []


def test_another_object_under_a_key_is_the_alarm(pull: Pull, tmp_path: Path) -> None:
    a, b = made(tmp_path / "a", [0]), made(tmp_path / "b", [0, 2])
    (key,) = set(a.kernels()) & set(b.kernels())
    changed = {"sha256": "f" * 64, "bytes": 8}
    rewrite(b.path / layout.kernel_path(key), object=changed)
    before = a.kernel(key)
    (failure,) = pull(b.path, a.path).failures
    assert f"kernel {key} compiled to object" in failure and "not reproducible" in failure
    assert a.kernel(key) == before and a.verify() == []
    assert len(a.names()) == 2  # the rest is taken


def test_plans_of_another_provider_stay(pull: Pull, tmp_path: Path) -> None:
    a, b = made(tmp_path / "a", [0]), made(tmp_path / "b", [0])
    place = b.pointers()[0]
    pointer = b.pointer(*place)
    native = layout.providers_of(pointer)["native"]
    declined = {"plan_key": "c", "records": [], "reasons": ["too odd"]}
    for reader, providers in ((a, {"native": native, "cudnn": declined}), (b, {"native": native})):
        with StoreWriter(reader.path) as writer:
            writer.put_pointer(*place, layout.pointer_of(pointer["graph"], providers, ["native"]))
    assert pull(b.path, a.path).conflicts == ()
    assert a.pointer(*place)["providers"] == {"native": native, "cudnn": declined}


def test_nothing_is_added_of_a_store_that_is_not_the_pinned_one(pull: Pull, tmp_path: Path) -> None:
    a, b = made(tmp_path / "a", [0]), made(tmp_path / "b", [2])
    before = toy_store.snapshot(a.path)
    with pytest.raises(PinError, match="is not the pinned"):
        pull(b.path, a.path, digest=a.root_digest())
    assert toy_store.snapshot(a.path) == before
    assert pull(b.path, a.path, digest=b.root_digest()).targets == ("h200",)


def test_a_signature_is_taken_over_by_the_store_that_it_is_of(pull: Pull, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="the extra `trust` is not installed")
    a, b = made(tmp_path / "a", [0, 2]), made(tmp_path / "b", [0])
    trust.new_private_key(tmp_path / "key")
    private = trust.load_private_key(tmp_path / "key")
    for reader in (a, b):
        with StoreWriter(reader.path) as writer:
            writer.put_file(*trust.sign_digest(reader.root_digest(), private))
    (signature,) = (path for path in a.files() if path.startswith("signatures/"))
    before = a.read(signature)
    assert pull(b.path, a.path).files_written == 0  # it has all of it, and is signed itself
    assert a.read(signature) == before
    pull(a.path, b.path)
    assert b.read(signature) == before and b.root_digest() == a.root_digest()


# What is pushed


@pytest.fixture
def no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


def flip_a_kernel(store: Path) -> None:
    reader = StoreReader(store)
    blob = store / layout.blob_path(reader.kernel(reader.kernels()[0])["blob"]["sha256"])
    data = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def lose_a_member(store: Path) -> None:
    shutil.rmtree(store / "plans")


@pytest.mark.parametrize("damage", [flip_a_kernel, lose_a_member])
def test_a_store_that_verify_refuses_is_not_pushed(
    no_login: None, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    reader = made(tmp_path / "a", [0, 1])
    damage(reader.path)
    with pytest.raises(DamagedError, match="is damaged and is not pushed: "):
        push_folder(reader, f"file://{tmp_path}/far")
    assert not (tmp_path / "far").exists()
    with run_registry(tmp_path / "registry") as registry:
        with pytest.raises(DamagedError, match="is damaged and is not pushed: "):
            push_image(reader, f"{registry.host}/team/store:v1")
        assert not [each for each in registry.requests() if "team/store" in each]


def test_a_folder_that_was_pushed_and_built_into_is_pushed_again(tmp_path: Path) -> None:
    reader = made(tmp_path / "a", [0])
    url = f"file://{reader.path}"
    push_folder(reader, url)
    made(reader.path, [1])
    assert [problem.path for problem in reader.verify()] == [layout.INDEX_FILE]
    push_folder(reader, url)
    assert reader.verify() == []


def test_a_store_of_two_architectures_is_no_image(no_login: None, tmp_path: Path) -> None:
    reader = made(tmp_path / "a", [0, 1])
    for key, triple in zip(reader.kernels(), ("x86_64", "aarch64"), strict=True):
        requirements = {"gpu_arch": "sm_90a", "host_triple": f"{triple}-linux-gnu"}
        rewrite(reader.path / layout.kernel_path(key), requirements=requirements)
    assert reader.verify() == []
    with run_registry(tmp_path / "registry") as registry:
        with pytest.raises(UsageError, match=r"architectures \(amd64, arm64\), .* for each host"):
            push_image(reader, f"{registry.host}/team/store:v1")
        assert not [each for each in registry.requests() if "team/store" in each]
