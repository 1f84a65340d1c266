"""Stores as images of a real registry, read back by skopeo, and images that are no stores."""

from __future__ import annotations

import base64
import gzip
import io
import json
import shutil
import subprocess
import sys
import tarfile
import threading
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from registry_server import RunningRegistry, need, run_registry
from served_store import put_plan, small_store

from cudnn_aot import errors
from cudnn_aot.cache import image, layout
from cudnn_aot.cache.contents import contents_of
from cudnn_aot.cache.exchange import pull_image, push_image
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.registry import Registry, parse_reference
from cudnn_aot.cache.transfer import Retry
from cudnn_aot.cache.writer import StoreWriter

pytest.importorskip("requests", reason="the extra `remote` is not installed")

# Python says by this that files are to be as they were stored; the first of 3.10 and 3.11 cannot.
TRUSTED: dict[str, Any] = (
    {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
)
QUICK = Retry(attempts=3, attempt_s=30, total_s=60, backoff_s=0.001)


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Among others a kernel of the CPU alone, and a name that a tar can only hold by extension."""
    path = small_store(tmp_path_factory.mktemp("served") / "store")
    with StoreWriter(path) as writer:
        put_plan(writer, "alone", symbol_name="alone")
        put_plan(writer, "layer/" + "x" * 200)
    return path


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    with run_registry(tmp_path_factory.mktemp("registry") / "one") as running:
        yield running


@pytest.fixture
def logged_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a docker configuration that is not there yet."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    return tmp_path / "docker"


@pytest.fixture(autouse=True)
def no_login(logged_out: Path) -> None:
    pass


def files_of(store: Path) -> dict[str, bytes]:
    return {path: (store / path).read_bytes() for path in StoreReader(store).files()}


def manifest_of(registry: RunningRegistry, digest: str) -> dict[str, Any]:
    document = json.loads(registry.blob_file(digest).read_bytes())
    assert isinstance(document, dict)
    return document


def test_what_is_pushed_is_pulled(registry, stored, tmp_path):
    reference = f"{registry.host}/team/pulled:v1"
    sent = push_image(StoreReader(stored), reference)
    root_digest = StoreReader(stored).root_digest()
    assert (sent.root_digest, sent.files_sent) == (root_digest, 4)
    for number, place in enumerate((reference, f"{reference}@{sent.digest}")):
        got = pull_image(place, tmp_path / f"store{number}")
        assert (got.digest, got.root_digest, got.targets) == (
            sent.digest,
            root_digest,
            ("cpu", "h200"),
        )
        assert files_of(tmp_path / f"store{number}") == files_of(stored)
    again = pull_image(reference, tmp_path / "store0")
    assert again.files_written == 0


def test_a_second_push_sends_no_blob(registry, stored):
    reference = f"{registry.host}/team/twice:v1"
    first = push_image(StoreReader(stored), reference)
    before = len(registry.requests())
    second = push_image(StoreReader(stored), reference)
    assert (second.digest, second.files_sent, second.bytes_sent) == (first.digest, 0, 0)
    methods = [request.split()[0] for request in registry.requests()[before:]]
    assert methods == ["HEAD"] * 4 + ["PUT"]


def test_equal_stores_are_equal_images(stored, tmp_path):
    """Built elsewhere, in another order, at another time, with other files beside."""
    other = tmp_path / "elsewhere"
    with StoreWriter(other) as writer:
        for path in reversed(StoreReader(stored).files()):
            if not path.startswith("store"):
                writer.put_file(path, (stored / path).read_bytes())
        writer.put_blob(b"named by nothing")
    (other / "README").write_text("not of the store")
    made = [layers(StoreReader(store)) for store in (stored, other)]
    assert made[0] == made[1]
    assert [target for target, _ in made[0]] == ["", "cpu", "h200"]


def layers(reader: StoreReader) -> list[tuple[str, bytes]]:
    contents = contents_of(reader)
    made = []
    for layer in image.layers_of(contents):
        stream = io.BytesIO()
        layer.write(reader, contents.index.to_bytes(), stream)
        made.append((layer.target, stream.getvalue()))
    return made


def test_a_layer_may_be_larger_than_memory(registry, tmp_path):
    """What a push holds is some of the largest file, however many there are."""
    size, count = 1 << 20, 24
    store = tmp_path / "store"
    with StoreWriter(store) as writer:
        for number in range(count):
            digest = writer.put_blob(bytes([number]) * size)
            put_plan(writer, f"plan{number}", blobs=[{"blob": digest, "bytes": size}])
    tracemalloc.start()
    sent = push_image(StoreReader(store), f"{registry.host}/team/large:v1")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sent.bytes_sent > count * size and peak < 8 * size


def test_layers_over_each_other_are_the_store(stored, tmp_path):
    shares = []
    for _, data in layers(StoreReader(stored)):
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for entry in tar:
                assert (entry.mtime, entry.uid, entry.gid, entry.uname) == (0, 0, 0, "")
                assert entry.mode == (0o755 if entry.isdir() else 0o444)
            shares.append({entry.name for entry in tar if entry.isfile()})
            tar.extractall(tmp_path, **TRUSTED)
    assert not shares[0] & shares[1] and not shares[1] & shares[2]
    unpacked = tmp_path / "cudnn-aot" / "store"
    assert files_of(unpacked).keys() - files_of(stored).keys() == {layout.INDEX_FILE}
    assert files_of(stored).items() <= files_of(unpacked).items()
    assert StoreReader(unpacked).verify() == [] == StoreReader(unpacked).foreign()


def test_one_target_is_pulled_without_the_layers_of_others(registry, stored, tmp_path):
    reference = f"{registry.host}/team/target:v1"
    digest = push_image(StoreReader(stored), reference).digest
    before = len(registry.requests())
    got = pull_image(reference, tmp_path / "store", target="h200")
    assert got.root_digest == StoreReader(tmp_path / "store").root_digest()
    assert got.source_root_digest == StoreReader(stored).root_digest()
    wanted = [layer for layer in manifest_of(registry, digest)["layers"]
              if layer["annotations"][image.TARGET] in ("", "h200")]  # fmt: skip
    asked = [request for request in registry.requests()[before:] if "/blobs/" in request]
    assert [request.rsplit("/", 1)[1] for request in asked] == [each["digest"] for each in wanted]
    reader = StoreReader(tmp_path / "store")
    assert (got.targets, reader.targets(), reader.verify()) == (("h200",), ["h200"], [])
    with pytest.raises(errors.NotInStoreError, match="nothing for target 'b200'"):
        pull_image(reference, tmp_path / "other", target="b200")
    assert not (tmp_path / "other").exists()


def test_skopeo_reads_it(registry, stored, tmp_path):
    need("skopeo")
    reference = f"{registry.host}/team/skopeo:v1"
    sent = push_image(StoreReader(stored), reference)

    def skopeo(*arguments: str) -> str:
        done = subprocess.run(["skopeo", *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    found = json.loads(skopeo("inspect", "--tls-verify=false", f"docker://{reference}"))
    assert (found["Digest"], found["Architecture"], found["Os"]) == (sent.digest, "amd64", "linux")
    place = f"oci:{tmp_path}/oci:v1"
    skopeo(
        "copy", "-q", "--preserve-digests", "--src-tls-verify=false", f"docker://{reference}", place
    )
    blobs = tmp_path / "oci" / "blobs" / "sha256"
    (listed,) = json.loads((tmp_path / "oci" / "index.json").read_bytes())["manifests"]
    manifest = json.loads((blobs / listed["digest"].removeprefix("sha256:")).read_bytes())
    assert listed["digest"] == sent.digest
    assert manifest["annotations"] == {
        "cudnn-aot.root-digest": sent.root_digest,
        "cudnn-aot.targets": "cpu,h200",
    }
    for layer in manifest["layers"]:
        assert layer["mediaType"] == "application/vnd.oci.image.layer.v1.tar"
        with tarfile.open(blobs / layer["digest"].removeprefix("sha256:")) as tar:
            tar.extractall(tmp_path / "root", **TRUSTED)
    unpacked = tmp_path / "root" / "cudnn-aot" / "store"
    (unpacked / layout.INDEX_FILE).unlink()
    assert files_of(unpacked) == files_of(stored)


def test_a_copy_whose_layers_a_tool_compressed_is_pulled(registry, stored, tmp_path):
    need("skopeo")
    reference = f"{registry.host}/team/plain:v1"
    push_image(StoreReader(stored), reference)
    with run_registry(tmp_path / "other") as other:
        copy = f"{other.host}/mirror/store:v1"
        command = ["skopeo", "copy", "-q", "--src-tls-verify=false", "--dest-tls-verify=false"]
        command += [f"docker://{reference}", f"docker://{copy}"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        got = pull_image(copy, tmp_path / "store")
        kinds = {layer["mediaType"] for layer in manifest_of(other, got.digest)["layers"]}
    assert kinds == {image.GZIP_LAYER_TYPE}
    assert files_of(tmp_path / "store") == files_of(stored)


# ---- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_layer_that_is_not_what_the_manifest_says(registry, stored, tmp_path, damage):
    reference = f"{registry.host}/team/{damage}:v1"
    store = tmp_path / "store"  # with a layer of its own in the registry
    shutil.copytree(stored, store)
    with StoreWriter(store) as writer:
        put_plan(writer, damage)
    digest = push_image(StoreReader(store), reference).digest
    layer = manifest_of(registry, digest)["layers"][1]["digest"]
    file = registry.blob_file(layer)
    data = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(data[:-512] if damage == "cut" else data[:600] + b"x" + data[601:])
    kind = errors.NotInStoreError if damage == "gone" else errors.RemoteError
    with pytest.raises(kind, match=layer) as failed:
        pull_image(reference, tmp_path / "pulled", retry=QUICK)
    assert "\n" not in str(failed.value) and not (tmp_path / "pulled").exists()
    if damage == "flipped":
        assert "tried 3 times, then: its bytes hash to" in str(failed.value)
    file.write_bytes(data)


def test_a_manifest_that_is_not_the_one_asked_for(registry, stored, tmp_path):
    reference = f"{registry.host}/team/pinned:v1"
    digest = push_image(StoreReader(stored), reference).digest
    with pytest.raises(errors.NotInStoreError, match="the registry does not have it"):
        pull_image(f"{registry.host}/team/pinned@sha256:{'0' * 64}", tmp_path / "store")
    with StoreWriter(tmp_path / "more") as writer:
        put_plan(writer, "scale")
    push_image(StoreReader(tmp_path / "more"), reference)
    got = pull_image(f"{reference}@{digest}", tmp_path / "store")
    assert got.root_digest == StoreReader(stored).root_digest()


def file_entry(name: str, data: bytes = b"x", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry, data


def other_entry(name: str, kind: bytes, linkname: str = "") -> tuple[tarfile.TarInfo, bytes]:
    return file_entry(name, b"", type=kind, linkname=linkname)


_NAME = f"{image.FOLDER}/names/cpu/up.json"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (file_entry("../../etc/passwd"), "is no file of a store"),
        (file_entry(f"{image.FOLDER}/../../../etc/passwd"), "is no file of a store"),
        (file_entry(f"{image.FOLDER}/names/../store.json"), "is no file of a store"),
        (file_entry("/etc/passwd"), "is no file of a store"),
        (file_entry(f"/{_NAME}"), "is no file of a store"),
        (file_entry(f"{image.FOLDER}/.profile"), "is no file of a store"),
        (other_entry(_NAME, tarfile.SYMTYPE, "/etc/passwd"), "a link"),
        (other_entry(_NAME, tarfile.LNKTYPE, "store.json"), "a link"),
        (other_entry(_NAME, tarfile.CHRTYPE), "is no file of a store"),
        (other_entry(_NAME, tarfile.FIFOTYPE), "is no file of a store"),
        (other_entry("etc", tarfile.DIRTYPE), "is no file of a store"),
        (file_entry(f"{image.FOLDER}/blobs/sha256/00/{'0' * 64}"), "the index lists it otherwise"),
        (file_entry(_NAME, b"{}"), "the index lists it otherwise"),
        (
            file_entry(_NAME, layout.document_bytes({"format": 1, "name": "up"})),
            "the index lists it otherwise",
        ),
    ],
)
def test_a_layer_with_something_else_in_it(registry, stored, tmp_path, entry, message):
    """It has the digest that the manifest says, as whoever pushes may choose both."""
    header, data = entry
    stream = io.BytesIO(layers(StoreReader(stored))[0][1])
    with tarfile.open(fileobj=stream, mode="a") as tar:
        tar.addfile(header, io.BytesIO(data))
    reference = push_layers(registry, [("", stream.getvalue())])
    with pytest.raises(errors.RemoteError, match=message) as failed:
        pull_image(reference, tmp_path / "pulled", retry=QUICK)
    assert "\n" not in str(failed.value) and not (tmp_path / "pulled").exists()


def push_layers(
    registry: RunningRegistry, held: list[tuple[str, bytes]], is_annotated: bool = True
) -> str:
    reference = parse_reference(f"{registry.host}/team/odd:v1")
    there = Registry(reference, retry=QUICK)
    listed = []
    for target, data in held:
        annotations = {image.TARGET: target} if is_annotated else None
        described = image.descriptor(image.LAYER_TYPE, io.BytesIO(data), annotations)
        there.put_blob(described["digest"], io.BytesIO(data))
        listed.append(described)
    config = image.descriptor(image.CONFIG_TYPE, io.BytesIO(b"{}"))
    there.put_blob(config["digest"], io.BytesIO(b"{}"))
    document = {"schemaVersion": 2, "mediaType": image.MANIFEST_TYPE, "config": config}
    there.put_manifest("v1", json.dumps({**document, "layers": listed}).encode())
    return str(reference)


def test_an_image_that_lacks_what_it_lists(registry, stored, tmp_path):
    held = layers(StoreReader(stored))
    with pytest.raises(errors.RemoteError, match="no whole store: .* is missing"):
        pull_image(push_layers(registry, held[:2]), tmp_path / "pulled")
    with pytest.raises(errors.RemoteError, match="it has no index.json"):
        pull_image(push_layers(registry, held[1:]), tmp_path / "pulled")
    with pytest.raises(errors.RemoteError, match="is no tar"):
        pull_image(push_layers(registry, [("", b"no tar at all" * 100)]), tmp_path / "pulled")
    with pytest.raises(errors.RemoteError, match="has no layers"):
        pull_image(push_layers(registry, []), tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()


def zipped_layer(*parts: bytes) -> bytes:
    return gzip.compress(b"".join(parts))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize("size", [1 << 30, 1 << 20])
def test_a_header_is_not_read_into_memory_as_large_as_it_says(kind, size):
    header = file_entry("x", type=kind, size=size)[0].tobuf(tarfile.GNU_FORMAT)
    stream = io.BytesIO(zipped_layer(header, bytes(2 << 20)))
    with pytest.raises(errors.RemoteError, match=f"a header has {size} bytes, want 65536 at most"):
        list(image.entries(stream, image.GZIP_LAYER_TYPE, "layer"))


def test_headers_of_headers_of_headers():
    header = file_entry("x", b"", type=tarfile.XGLTYPE)[0].tobuf(tarfile.GNU_FORMAT)
    stream = io.BytesIO(zipped_layer(header * 5000, bytes(1024)))
    with pytest.raises(errors.RemoteError, match="too many headers|is no tar"):
        list(image.entries(stream, image.GZIP_LAYER_TYPE, "layer"))


def test_entries_do_not_gather_in_memory():
    """As many as fit a small layer: a thousand of an empty folder are one KiB of it."""
    folder = tarfile.TarInfo(image.FOLDER)
    folder.type = tarfile.DIRTYPE
    block = folder.tobuf(tarfile.GNU_FORMAT)
    peaks = []
    for count in (2000, 20000):
        stream = io.BytesIO(zipped_layer(block * count, bytes(1024)))
        tracemalloc.start()
        assert list(image.entries(stream, image.GZIP_LAYER_TYPE, "layer")) == []
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (1 << 20)


def test_a_layer_that_becomes_too_large(monkeypatch):
    monkeypatch.setattr(image, "_MAX_LAYER_BYTES", 1 << 20)
    header = file_entry(_NAME, size=2 << 20)[0].tobuf(tarfile.GNU_FORMAT)
    stream = io.BytesIO(zipped_layer(header, bytes(3 << 20)))
    with pytest.raises(errors.RemoteError, match="it has more than 1048576 bytes"):
        list(image.entries(stream, image.GZIP_LAYER_TYPE, "layer"))


@pytest.mark.parametrize(
    "layers",
    [5, {}, "x", [5], [{"size": True}], [{"size": -1}], [{"size": 10**400}], [{"size": 1 << 40}],
     [{"size": 1.5}], [{"size": float("nan")}], float("nan"),
     [{"annotations": [1]}], [{"annotations": {image.TARGET: 1}}], [{"digest": "0" * 64}]],
    ids=lambda layers: str(layers)[:40],
)  # fmt: skip
def test_a_manifest_that_lists_no_layers(layers, token_server, logged_out, tmp_path):
    good = {"mediaType": image.LAYER_TYPE, "digest": f"sha256:{'0' * 64}", "size": 1}
    if isinstance(layers, list):
        layers = [{**good, **each} if isinstance(each, dict) else each for each in layers]
    token_server.manifest = {"mediaType": image.MANIFEST_TYPE, "layers": layers}
    host = f"127.0.0.1:{token_server.server_port}"
    log_in(logged_out, host, "user:secret")
    with pytest.raises(errors.RemoteError, match="is no image of a store: bad layers"):
        pull_image(f"{host}/team/store:v1", tmp_path / "pulled", retry=QUICK)


@pytest.mark.parametrize(
    "answer", [b"[1]", b"no JSON", b"5", b'{"token":5}', b'{"token":"a\\nb"}', b"[" * 100_000]
)
def test_a_token_server_that_gives_no_token(answer, token_server, logged_out):
    host = f"127.0.0.1:{token_server.server_port}"
    log_in(logged_out, host, "user:secret")
    token_server.token = answer
    with pytest.raises(errors.RemoteError, match="bad answer of token server"):
        Registry(parse_reference(f"{host}/team/store"), retry=QUICK).manifest("v1")


@pytest.mark.parametrize("target", [None, "cpu"])
def test_an_image_whose_annotations_a_tool_has_dropped(registry, stored, tmp_path, target):
    reference = push_layers(registry, layers(StoreReader(stored)), is_annotated=False)
    got = pull_image(reference, tmp_path / "store", target=target)
    reader = StoreReader(tmp_path / "store")
    assert got.targets == (("cpu", "h200") if target is None else ("cpu",))
    assert (tuple(reader.targets()), reader.verify()) == (got.targets, [])
    with pytest.raises(errors.NotInStoreError, match="nothing for target 'b200': it has cpu, h200"):
        pull_image(reference, tmp_path / "other", target="b200")


def test_a_damaged_store_is_not_pushed(registry, stored, tmp_path):
    store = tmp_path / "store"
    shutil.copytree(stored, store)
    file = next(path for path in (store / "blobs").rglob("*") if path.is_file())
    file.chmod(0o644)
    file.write_bytes(b"x" + file.read_bytes()[1:])
    with pytest.raises(errors.DamagedError, match="damaged"):
        push_image(StoreReader(store), f"{registry.host}/team/damaged:v1")
    assert not [each for each in registry.requests() if "team/damaged/manifests" in each]


# ---- Credentials --------------------------------------------------------------------------------


def log_in(folder: Path, host: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    auth = base64.b64encode(text.encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def test_a_registry_that_wants_a_password(stored, tmp_path, logged_out):
    with run_registry(tmp_path / "registry", with_login=True) as registry:
        reference = f"{registry.host}/team/store:v1"
        with pytest.raises(errors.RemoteError, match="HTTP 401: log in") as failed:
            push_image(StoreReader(stored), reference, retry=QUICK)
        assert failed.value.attempts == 1
        log_in(logged_out, registry.host, "user:wrong")
        with pytest.raises(errors.RemoteError, match="HTTP 401") as failed:
            push_image(StoreReader(stored), reference, retry=QUICK)
        assert "wrong" not in str(failed.value)
        log_in(logged_out, registry.host, "user:secret")
        push_image(StoreReader(stored), reference)
        pull_image(reference, tmp_path / "store")
    assert files_of(tmp_path / "store") == files_of(stored)


class _TokenHandler(BaseHTTPRequestHandler):
    """A registry that gives tokens to ``user``, and a manifest for a token."""

    server: _TokenServer

    def do_GET(self) -> None:
        shown = self.headers.get("Authorization", "")
        host = f"127.0.0.1:{self.server.server_port}"
        self.server.seen.append((self.path.partition("?")[0], shown))
        if self.path.startswith("/token"):
            right = shown == "Basic " + base64.b64encode(b"user:secret").decode()
            asked = "service=here" in self.path and "scope=repository%3Ateam%2Fstore" in self.path
            self._answer(200 if right and asked else 401, self.server.token)
        elif shown == "Bearer t0k3n":
            self._answer(200, json.dumps(self.server.manifest).encode())
        else:
            realm = self.server.realm or f"http://{host}/token"
            scope = "repository:team/store:pull"
            challenge = f'Bearer realm="{realm}",service="here",scope="{scope}"'
            self._answer(401, b"", challenge)

    def _answer(self, status: int, data: bytes, challenge: str = "") -> None:
        self.send_response(status)
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _TokenServer(ThreadingHTTPServer):
    daemon_threads = True
    realm = ""
    token = b'{"token":"t0k3n"}'
    manifest: object = {"mediaType": image.MANIFEST_TYPE, "layers": []}

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _TokenHandler)
        self.seen: list[tuple[str, str]] = []


@pytest.fixture
def token_server() -> Iterator[_TokenServer]:
    with _TokenServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_token_is_asked_for_once_and_shown_to_the_registry(token_server, logged_out):
    host = f"127.0.0.1:{token_server.server_port}"
    log_in(logged_out, host, "user:secret")
    registry = Registry(parse_reference(f"{host}/team/store"), retry=QUICK)
    for _ in range(2):
        assert registry.manifest("v1")[0]["layers"] == []
    manifest = "/v2/team/store/manifests/v1"
    basic = "Basic " + base64.b64encode(b"user:secret").decode()
    assert token_server.seen == [
        (manifest, ""),
        ("/token", basic),
        (manifest, "Bearer t0k3n"),
        (manifest, "Bearer t0k3n"),
    ]


def test_a_login_is_not_sent_to_a_token_server_without_tls(token_server, logged_out):
    """A registry over TLS names the token server; only one over plain HTTP may name such a one."""
    host = f"127.0.0.1:{token_server.server_port}"
    log_in(logged_out, host, "user:secret")
    registry = Registry(parse_reference(f"{host}/team/store"), retry=QUICK)
    token_server.realm = "ftp://elsewhere/token"
    with pytest.raises(errors.RemoteError, match="bad token server 'ftp://elsewhere/token'"):
        registry.manifest("v1")
    assert {shown for _, shown in token_server.seen} == {""}


def test_a_configuration_that_cannot_be_read(logged_out):
    logged_out.mkdir()
    (logged_out / "config.json").write_text("{")
    with pytest.raises(errors.UsageError, match="cannot read the docker configuration"):
        Registry(parse_reference("localhost:5000/team/store"))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("localhost/a", ("localhost", "a", "latest", "")),
        ("oci://host:5000/team/a:v1", ("host:5000", "team/a", "v1", "")),
        ("ghcr.io/team/a__b.c-d", ("ghcr.io", "team/a__b.c-d", "latest", "")),
        ("a", ("docker.io", "library/a", "latest", "")),
        ("team/a:v1", ("docker.io", "team/a", "v1", "")),
        (f"host.x/a@sha256:{'0' * 64}", ("host.x", "a", "", f"sha256:{'0' * 64}")),
        (f"host.x/a:v1@sha256:{'0' * 64}", ("host.x", "a", "v1", f"sha256:{'0' * 64}")),
    ],
)
def test_references(text, want):
    reference = parse_reference(text)
    assert (reference.host, reference.name, reference.tag, reference.digest) == want


@pytest.mark.parametrize(
    "text",
    ["", "/a", "./a", "../a", "/tmp/a", "host.x/A", "host.x/a:", "host.x/a@sha256:0",
     "host.x/a:b:c", "host.x/../a",
     "user@host.x/a", "host.x/a b", "host.x//a", "host.x/a:v1/b", f"host.x/a@md5:{'0' * 32}"],
)  # fmt: skip
def test_what_is_no_reference(text):
    with pytest.raises(errors.UsageError, match="bad image .* want HOST"):
        parse_reference(text)


def test_nothing_of_it_is_imported_before_it_is_asked_for():
    script = "import sys, cudnn_aot.cache.exchange; print('requests' in sys.modules, 'fsspec' in sys.modules, 'cryptography' in sys.modules)"  # noqa: E501
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["False"] * 3, done.stderr
