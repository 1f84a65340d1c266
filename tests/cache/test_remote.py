"""Stores at URLs: what is fetched, what is refused, and what is tried again."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from lying_server import ALWAYS, Server, serve
from served_store import graph_key, put_plan, small_store

from cudnn_aot import errors
from cudnn_aot.cache import layout, remote, trust
from cudnn_aot.cache.exchange import pull_folder, push_folder
from cudnn_aot.cache.index import parse_index
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.registry import Registry, parse_reference
from cudnn_aot.cache.transfer import Retry
from cudnn_aot.cache.writer import StoreWriter

pytest.importorskip("fsspec", reason="the extra `remote` is not installed")
from cudnn_aot.cache.remote import RemoteFiles, open_remote, remote_reader  # noqa: E402

QUICK = Retry(attempts=3, attempt_s=10, total_s=20, backoff_s=0.001)


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Among others a name that a URL spells otherwise."""
    path = small_store(tmp_path_factory.mktemp("served") / "store")
    with StoreWriter(path) as writer:
        put_plan(writer, "layer/0 é%2F#?")
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDNN_AOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDNN_AOT_OFFLINE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def far(tmp_path: Path, stored: Path, cache: Path) -> Iterator[Server]:
    """The store behind an HTTP server."""
    push_folder(StoreReader(stored), f"file://{tmp_path}/far")
    with serve(tmp_path / "far") as server:
        yield server


def mirrored(cache: Path) -> set[str]:
    """Files that were published of stores elsewhere, less what is there of every store."""
    found = {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()}
    found = {path.split("/", 2)[2] for path in found if path.count("/") >= 2}
    return found - {layout.STORE_FILE}


def plan_blob(store: Path) -> str:
    """The kernel of `scale`, by its digest."""
    pointer = StoreReader(store).pointer("cpu", graph_key("scale"))
    record = json.loads(StoreReader(store).blob(pointer["records"][0]))
    return str(record["kernels"][0]["blob"])


@pytest.fixture(params=["file", "memory", "http", "s3"])
def url(request, tmp_path, stored, cache) -> Iterator[str]:
    if request.param == "http":
        yield request.getfixturevalue("far").url
        return
    if request.param == "s3":
        place = f"s3://{request.getfixturevalue('bucket')}/some/store"
    else:
        place = {"file": f"file://{tmp_path}/there", "memory": f"memory://{tmp_path}"}[
            request.param
        ]
    push_folder(StoreReader(stored), place, QUICK)
    yield place


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    import s3fs

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    name = f"bucket-{secrets.token_hex(8)}"  # moto's are those of the process
    s3fs.S3FileSystem().mkdir(name)
    yield name
    s3fs.S3FileSystem.clear_instance_cache()
    running.stop()


def test_a_store_at_a_url_is_the_store(url, stored, cache):
    here, there = StoreReader(stored), remote_reader(url, retry=QUICK)
    assert there.root_digest() == here.root_digest()
    assert there.verify() == [] and there.foreign() == []
    for listed in (StoreReader.names, StoreReader.pointers, StoreReader.kernels):
        assert listed(there) == listed(here)
    assert there.targets() == ["cpu", "h200"] and there.holders("both") == ["cpu", "h200"]
    for path in here.files():
        assert there.read(path) == here.read(path)
    with pytest.raises(errors.NotInStoreError, match="graph named 'scael'"):
        there.name("cpu", "scael")


def test_a_pull_gives_the_store_itself(url, stored, tmp_path):
    pull_folder(open_remote(url, retry=QUICK), tmp_path / "pulled")
    assert StoreReader(tmp_path / "pulled").verify() == []
    for path in StoreReader(stored).files():
        assert (tmp_path / "pulled" / path).read_bytes() == (stored / path).read_bytes()


def test_one_target_is_pulled_without_what_others_need(far, tmp_path):
    pull_folder(open_remote(far.url), tmp_path / "pulled", "cpu")
    reader = StoreReader(tmp_path / "pulled")
    assert (reader.targets(), reader.verify()) == (["cpu"], [])
    assert {path for path in far.requests if path != layout.INDEX_FILE} == {
        path for path in reader.files() if path != layout.STORE_FILE
    }
    with pytest.raises(errors.NotInStoreError, match="holds nothing for target 'b200'"):
        pull_folder(open_remote(far.url), tmp_path / "none", "b200")
    assert not (tmp_path / "none").exists()


def test_a_second_push_sends_nothing_and_a_changed_store_what_is_new(url, stored, tmp_path):
    if url.startswith("http:"):
        with pytest.raises(errors.UsageError, match="nothing can be written over HTTP"):
            push_folder(StoreReader(stored), url)
        return
    again = push_folder(StoreReader(stored), url, QUICK)
    # store.json has no digest; in a folder here it is looked at
    here = 0 if url.startswith("file:") else 1
    assert again.files_sent == here
    shutil.copytree(stored, tmp_path / "more")
    with StoreWriter(tmp_path / "more") as writer:
        put_plan(writer, "another")
    more = push_folder(StoreReader(tmp_path / "more"), url, QUICK)
    assert more.files_sent == here + 3  # plan record, pointer, name
    there = remote_reader(url, retry=QUICK)
    assert there.root_digest() == StoreReader(tmp_path / "more").root_digest()
    assert there.verify() == []


def test_a_push_never_changes_a_file_that_somebody_may_have_mapped(stored, tmp_path, cache):
    there = tmp_path / "there"
    shutil.copytree(stored, there)
    before = {path: path.stat() for path in there.rglob("*") if path.is_file()}
    blob = there / layout.blob_path(plan_blob(there))
    good = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(b"damaged")
    link = there / layout.name_path("cpu", "scale")
    outside = tmp_path / "outside"
    link.rename(outside)
    link.symlink_to(outside)
    outside.chmod(0o644)
    outside.write_bytes(b"somebody's")
    with blob.open("rb") as mapped:
        assert push_folder(StoreReader(stored), f"file://{there}").files_sent == 2
        assert mapped.read() == b"damaged"
    assert blob.read_bytes() == good and outside.read_bytes() == b"somebody's"
    assert StoreReader(there).verify() == []
    for path, status in before.items():
        if path not in (blob, link):
            assert (path.stat().st_ino, path.stat().st_mtime_ns) == (
                status.st_ino,
                status.st_mtime_ns,
            )
    # A store may be given an index where it lies.
    assert push_folder(StoreReader(there), f"file://{there}").files_sent == 0
    assert not list(there.rglob(".*"))


def test_only_what_is_read_is_fetched_and_but_once(far, cache):
    reader = remote_reader(far.url)
    assert mirrored(cache) == {layout.INDEX_FILE}
    name = reader.name("cpu", "scale")
    reader.pointer("cpu", name["graph_key"])
    reader.pointer("cpu", name["graph_key"])
    fetched = {layout.name_path("cpu", "scale"), layout.pointer_path("cpu", name["graph_key"])}
    assert mirrored(cache) == {layout.INDEX_FILE, *fetched}
    remote_reader(far.url).name("cpu", "scale")
    assert far.requests == {layout.INDEX_FILE: 2, **dict.fromkeys(fetched, 1)}


@pytest.mark.parametrize("fault", ["wrong", "cut", "closed early", "500", "503", "429"])
@pytest.mark.parametrize("what", [layout.INDEX_FILE, "blob"])
def test_what_may_pass_is_tried_again(far, stored, cache, fault, what):
    digest = plan_blob(stored)
    far.faults[digest if what == "blob" else what] = (fault, 2)
    assert remote_reader(far.url, retry=QUICK).blob(digest) == StoreReader(stored).blob(digest)


@pytest.mark.parametrize(
    ("fault", "attempts", "message"),
    [
        ("wrong", 3, "its bytes hash to [0-9a-f]{64}, want [0-9a-f]{64}$"),
        ("cut", 3, r"it has \d+ bytes, want \d+$"),
        ("closed early", 3, "tried 3 times, then: "),
        ("500", 3, "tried 3 times, then: HTTP 500$"),
        ("slow", 3, "tried 3 times, then: "),
        ("403", 1, "tried once, then: HTTP 403$"),
        ("404", 1, "is not there, though the index lists it$"),
    ],
)
def test_what_does_not_pass_is_one_error_and_publishes_nothing(
    far, stored, cache, fault, attempts, message
):
    digest = plan_blob(stored)
    path = layout.blob_path(digest)
    far.faults[digest] = (fault, ALWAYS)
    retry = replace(QUICK, attempt_s=0.2) if fault == "slow" else QUICK
    reader = remote_reader(far.url, retry=retry)
    with pytest.raises(errors.RemoteError, match=message) as failed:
        reader.blob(digest)
    assert failed.value.attempts == attempts == far.requests[path]
    assert path in str(failed.value) and "\n" not in str(failed.value)
    assert mirrored(cache) == {layout.INDEX_FILE}


@pytest.mark.parametrize("fault", ["wrong", "cut", "closed early", "500"])
def test_an_index_that_is_none_publishes_nothing(far, cache, fault):
    far.faults[layout.INDEX_FILE] = (fault, ALWAYS)
    with pytest.raises(errors.RemoteError, match="/index.json: tried 3 times"):
        open_remote(far.url, retry=QUICK)
    assert not cache.exists()


@pytest.mark.parametrize("fault", ["endless", "unpacking"])
def test_a_body_is_read_as_far_as_it_may_be_one(far, stored, cache, monkeypatch, fault):
    """More than what is wanted is not read, and nothing is unpacked."""
    digest = plan_blob(stored)
    reader = remote_reader(far.url, retry=QUICK)
    far.faults[digest] = (fault, ALWAYS)
    tracemalloc.start()
    with pytest.raises(errors.RemoteError, match=r"it has more than \d+ bytes"):
        reader.blob(digest)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert far.requests[layout.blob_path(digest)] == 3
    assert peak < 8 << 20
    monkeypatch.setattr(remote, "MAX_INDEX_BYTES", 1 << 10)
    far.faults[layout.INDEX_FILE] = (fault, ALWAYS)
    with pytest.raises(errors.RemoteError, match="index.json has more than 1024 bytes"):
        open_remote(far.url, retry=QUICK)
    assert not mirrored(cache) & {layout.blob_path(digest)}


@pytest.fixture
def poisoned(far, tmp_path) -> str:
    """The root digest of the store; of its mirror an index of elsewhere lists no blobs."""
    index = parse_index((far.folder / layout.INDEX_FILE).read_bytes())
    shutil.copytree(far.folder, tmp_path / "elsewhere")
    lacking = replace(index, blobs={}, signatures={})
    (tmp_path / "elsewhere" / layout.INDEX_FILE).unlink()
    (tmp_path / "elsewhere" / layout.INDEX_FILE).write_bytes(lacking.to_bytes())
    assert remote_reader(f"file://{tmp_path}/elsewhere").root_digest() == index.root_digest
    return index.root_digest


def test_an_index_that_lacks_what_documents_name_is_no_store(poisoned, tmp_path):
    for target in (None, "cpu"):
        files = open_remote(f"file://{tmp_path}/elsewhere", digest=poisoned)
        with pytest.raises(errors.RemoteError, match="is no whole store: .*missing|is not in"):
            pull_folder(files, tmp_path / "pulled", target)
    assert not (tmp_path / "pulled").exists()


def test_what_another_url_said_of_blobs_does_not_hold_for_a_pin(poisoned, far, stored, tmp_path):
    digest = plan_blob(stored)
    pinned = remote_reader(far.url, digest=poisoned, retry=QUICK)
    assert pinned.blob(digest) == StoreReader(stored).blob(digest)
    assert far.requests[layout.INDEX_FILE] == 1
    pull_folder(open_remote(far.url, digest=poisoned, retry=QUICK), tmp_path / "pulled")
    assert StoreReader(tmp_path / "pulled").verify() == []
    assert StoreReader(tmp_path / "pulled").files() == StoreReader(stored).files()


def test_the_limit_of_time_holds_over_all_attempts(far):
    far.faults[layout.INDEX_FILE] = ("slow", ALWAYS)
    with pytest.raises(errors.RemoteError):
        open_remote(far.url, retry=Retry(attempts=1000, attempt_s=0.1, total_s=0.5, backoff_s=0.01))
    assert 1 < far.requests[layout.INDEX_FILE] <= 6


def test_wrong_bytes_are_not_asked_for_as_often_as_a_server_that_fails(far, stored):
    digest = plan_blob(stored)
    far.faults[digest] = ("wrong", ALWAYS)
    with pytest.raises(errors.RemoteError, match="tried 3 times"):
        remote_reader(far.url, retry=replace(QUICK, attempts=50)).blob(digest)


def test_no_secret_of_a_url_is_in_a_message(far):
    with pytest.raises(errors.NotAStoreError) as absent:
        open_remote(far.url.replace("://", "://user:hunter2@") + "/absent", retry=QUICK)
    with pytest.raises(errors.UsageError, match="with a query") as query:
        open_remote(far.url + "?token=hunter2", retry=QUICK)
    far.faults[layout.INDEX_FILE] = ("500", ALWAYS)
    with pytest.raises(errors.RemoteError) as failed:
        open_remote(far.url.replace("://", "://user:hunter2@"), retry=QUICK)
    for error in (absent, query, failed):
        assert "hunter2" not in str(error.value) and "127.0.0.1" in str(error.value)


def test_what_is_no_url_of_a_store(tmp_path, cache):
    with pytest.raises(errors.UsageError, match="[Pp]rotocol not known: nonsense"):
        open_remote("nonsense://host/store")
    with pytest.raises(errors.UsageError, match="an image, which is no folder: `cudnn-aot pull`"):
        open_remote("oci://registry.example/team/store")
    with pytest.raises(errors.NotAStoreError, match="it has no index.json, which `cudnn-aot push`"):
        open_remote(f"file://{tmp_path}/nothing")


def test_what_a_module_is_missing_for(cache, monkeypatch, tmp_path):
    ed25519 = "cryptography.hazmat.primitives.asymmetric"
    for module in ("fsspec", "requests", "s3fs", ed25519):
        monkeypatch.setitem(sys.modules, module, None)
    for url in ("https://host/store", "s3://bucket/store"):
        with pytest.raises(errors.RemoteError, match=f"{url} needs a module .*pip install 'cudnn-"):
            open_remote(url)
    with pytest.raises(errors.StoreError, match=r"pip install 'cudnn-aot\[remote\]'"):
        Registry(parse_reference("host.x/store"))
    for call in (lambda: trust.public_keys("AAAA"), lambda: trust.new_private_key(tmp_path / "k")):
        with pytest.raises(errors.StoreError, match=r"pip install 'cudnn-aot\[trust\]'"):
            call()


def test_a_pin_is_compared_before_anything_is_published(far, stored, cache):
    root_digest = StoreReader(stored).root_digest()
    with pytest.raises(errors.PinError, match=f"got root digest {root_digest}, want {'0' * 64}"):
        open_remote(far.url, digest="0" * 64)
    assert not cache.exists()
    remote_reader(far.url, digest=root_digest).name("cpu", "scale")
    with pytest.raises(errors.UsageError, match="bad root digest"):
        open_remote(far.url, digest="up")


def test_a_document_that_is_changed_there_is_refused(far, stored, cache):
    """Though it is whole by itself: the index, and so the root digest, has another."""
    with StoreWriter(far.folder) as writer:
        writer.put_name("cpu", "scale", graph_key("both"), {"X": 1})
    reader = remote_reader(far.url, digest=StoreReader(stored).root_digest(), retry=QUICK)
    with pytest.raises(errors.RemoteError, match="names/cpu/scale.json"):
        reader.name("cpu", "scale")
    assert mirrored(cache) == {layout.INDEX_FILE}


def test_a_store_that_is_pushed_anew_has_a_mirror_of_its_own(far, stored, cache, tmp_path):
    remote_reader(far.url).name("cpu", "scale")
    with StoreWriter(far.folder) as writer:
        writer.put_name("cpu", "scale", graph_key("both"), {"X": 1})
    push_folder(StoreReader(far.folder), f"file://{far.folder}")
    assert remote_reader(far.url).name("cpu", "scale")["graph_key"] == graph_key("both")
    old = StoreReader(stored).root_digest()
    pinned = remote_reader(far.url, digest=old, offline=True)
    assert pinned.name("cpu", "scale")["graph_key"] == graph_key("scale")


def test_what_was_damaged_in_the_cache_is_fetched_again(far, stored, cache):
    digest = plan_blob(stored)
    reader = remote_reader(far.url)
    data = reader.blob(digest)
    file = next(cache.rglob(digest))
    file.chmod(0o644)
    file.write_bytes(b"x" + data[1:])
    assert remote_reader(far.url).blob(digest) == data
    assert file.read_bytes() == data


def test_an_index_may_not_name_what_lies_elsewhere(far, cache):
    file = far.folder / layout.INDEX_FILE
    document = json.loads(file.read_bytes())
    for path in ("../../etc/passwd", "/etc/passwd", "names/cpu/../../x.json", "blobs/x", ""):
        for field in ("documents", "blobs", "signatures"):
            listed = document[field] | {path: ["0" * 64, 3]}
            file.chmod(0o644)
            file.write_bytes(layout.document_bytes({**document, field: listed}))
            with pytest.raises(errors.RemoteError, match="it is no index: it lists"):
                open_remote(far.url, retry=QUICK)
    assert not cache.exists()


def test_an_index_beside_a_store_is_verified_with_it(far, stored):
    index = parse_index((far.folder / layout.INDEX_FILE).read_bytes())
    assert index.root_digest == StoreReader(stored).root_digest()
    reader = StoreReader(far.folder)
    assert (reader.verify(), reader.foreign()) == ([], [])
    with StoreWriter(far.folder) as writer:
        put_plan(writer, "another")
    (problem,) = reader.verify()
    assert (problem.path, problem.what.split(":")[1]) == (layout.INDEX_FILE, " push again")


# Runs `statement` with `url`; any socket is the end of it.
_OFFLINE = """
import os, sys
sys.addaudithook(lambda event, args: event.startswith("socket.") and os._exit(99))
from cudnn_aot import errors
from cudnn_aot.cache.remote import remote_reader
url = sys.argv[1]
reader = remote_reader(url)
print(len(reader.blob(sys.argv[2])))
try:
    reader.kernel(reader.kernels()[0])
except errors.RemoteError as error:
    print(error)
"""


@pytest.mark.parametrize("namespace", [False, True], ids=["no sockets", "no interfaces"])
def test_offline_opens_no_socket(far, stored, cache, namespace):
    digest = plan_blob(stored)
    remote_reader(far.url).blob(digest)
    before = far.requests.copy()
    command = [sys.executable, "-c", _OFFLINE, far.url, digest]
    if namespace:
        command = ["unshare", "-n", *command]
        if subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
            pytest.skip("unshare -n is not permitted")
    environment = {**os.environ, "CUDNN_AOT_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, (done.returncode, done.stderr)
    size, absent = done.stdout.splitlines()
    assert int(size) == len(StoreReader(stored).blob(digest))
    assert "was not fetched yet and this is offline: unset CUDNN_AOT_OFFLINE" in absent
    assert far.requests == before
    # The child would have noticed.
    loud = {**environment, "CUDNN_AOT_OFFLINE": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=loud, timeout=60)
    assert done.returncode != 0


def test_offline_a_store_that_was_never_read_is_an_error(far, cache):
    with pytest.raises(errors.RemoteError, match="was not read yet and this is offline"):
        open_remote(far.url, offline=True)
    assert not far.requests


def test_files_are_those_of_a_folder(far, stored):
    files = open_remote(far.url)
    assert isinstance(files, RemoteFiles)
    assert files.status("names") and files.status("names").is_folder
    assert files.status("absent") is None
    for call in (files.read, files.entries):
        with pytest.raises(FileNotFoundError):
            call("absent")
