"""Serving from stores at URLs and from signed stores."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from child import environment
from cli_process import linear_graph
from lying_server import ALWAYS, Server, serve
from served_store import graph_key, put_plan, small_store

from cudnn_aot import errors, runtime
from cudnn_aot.cache import layout, transfer, trust
from cudnn_aot.cache.exchange import push_folder
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.graph.instantiate import instantiate

pytest.importorskip("fsspec", reason="the extra `remote` is not installed")
pytest.importorskip("cryptography", reason="the extra `trust` is not installed")


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a kernel of its own for one plan."""
    path = small_store(tmp_path_factory.mktemp("served") / "store")
    with StoreWriter(path) as writer:
        put_plan(writer, "alone", symbol_name="scale", knobs={"TILE_M": 64})
    return path


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_AOT_CACHE", str(tmp_path / "cache"))
    for name in ("OFFLINE", "STORE", "PIN", "TRUST"):
        monkeypatch.delenv(f"CUDNN_AOT_{name}", raising=False)
    quick = transfer.Retry(attempts=2, attempt_s=10, total_s=20, backoff_s=0.001)
    monkeypatch.setattr("cudnn_aot.cache.remote.DEFAULT_RETRY", quick)


@pytest.fixture
def far(tmp_path: Path, stored: Path) -> Iterator[Server]:
    push_folder(StoreReader(stored), f"file://{tmp_path}/far")
    with serve(tmp_path / "far") as server:
        yield server


@pytest.fixture
def key(tmp_path: Path) -> tuple[Path, str]:
    """A private key, and the public one in base64."""
    return tmp_path / "key", str(trust.new_private_key(tmp_path / "key"))


def sign(store: Path, key: Path) -> None:
    with StoreWriter(store) as writer:
        root_digest = writer.reader.root_digest()
        writer.put_file(*trust.sign_digest(root_digest, trust.load_private_key(key)))


def run(plan: runtime.Plan) -> None:
    x = np.arange(18, dtype=np.float32).reshape(3, 6)
    y = np.full_like(x, np.nan)
    plan.execute({1: x, 9: y})
    assert (y == 2 * x).all()


def files_of_plan(store: Path, name: str) -> set[str]:
    """What loading a plan reads."""
    reader = StoreReader(store)
    pointer = reader.pointer("cpu", graph_key(name))
    record = json.loads(reader.blob(pointer["records"][0]))
    return {
        layout.name_path("cpu", name),
        layout.pointer_path("cpu", graph_key(name)),
        layout.blob_path(pointer["records"][0]),
        layout.blob_path(record["kernels"][0]["blob"]),
    }


def test_a_plan_is_fetched_when_it_is_asked_for(far, stored):
    store = runtime.open(far.url)
    assert far.requests == {layout.INDEX_FILE: 1}
    assert store.path == far.url
    assert store.names() == runtime.open(stored).names()
    assert store.root_digests() == runtime.open(stored).root_digests()
    for _ in range(2):
        run(store.plan("alone"))
    fetched = dict.fromkeys(files_of_plan(stored, "alone"), 1)
    assert far.requests == {layout.INDEX_FILE: 1, **fetched}
    run(store.plan(graph_key("scale")))
    assert store.stats().loads == 3 and not store.stats().fallbacks


def test_the_url_may_come_from_the_environment(far, monkeypatch):
    monkeypatch.setenv("CUDNN_AOT_STORE", far.url)
    run(runtime.open().plan("scale"))


def test_what_is_told_of_plans_is_what_the_store_tells(far, stored):
    there, here = runtime.open(far.url, target="cpu"), runtime.open(stored, target="cpu")
    assert there.closure_digest() == here.closure_digest()
    assert there.max_workspace() == here.max_workspace()
    assert there.plans().keys() == here.plans().keys() == {"scale", "both", "alone"}
    assert there.validity() == here.validity()


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("scael", None, "no graph named 'scael' in store 'http://.*'; the nearest are 'scale'"),
        ("scale", "h200", "no graph named 'scale' for h200 in .*; it is there for cpu"),
        ("scale", "h300", "no graph named 'scale' for h300 in .*; it is there for cpu"),
        ("0" * 64, None, "no graph named '0000"),
        ("../scale", None, "no graph named"),
        ("", None, "no graph named"),
    ],
)
def test_what_is_not_there(far, name, target, message):
    with pytest.raises(errors.NotInStoreError, match=message) as absent:
        runtime.open(far.url).plan(name, target)
    assert "\n" not in str(absent.value)
    assert far.requests == {layout.INDEX_FILE: 1}


def test_targets_and_declines_are_as_of_a_folder(far):
    with pytest.raises(
        errors.NotInStoreError, match="holds nothing for target 'h300'; it has: cpu"
    ):
        runtime.open(far.url, target="h300")
    store = runtime.open(far.url)
    with pytest.raises(errors.UsageError, match="'both' is stored for cpu, h200: choose"):
        store.plan("both")
    with pytest.raises(errors.cudnnGraphNotSupportedError, match="no engine takes INT4"):
        store.plan("odd")
    assert store.plan("both", "h200").device == "cuda"


@pytest.mark.parametrize("fault", ["wrong", "cut", "closed early", "500"])
def test_a_kernel_that_comes_otherwise_is_not_loaded(far, stored, tmp_path, fault):
    digest = StoreReader(stored).kernel(StoreReader(stored).kernels()[0])["blob"]["sha256"]
    far.faults[digest] = (fault, ALWAYS)
    store = runtime.open(far.url)
    with pytest.raises(errors.RemoteError, match=digest):
        store.plan("scale")
    assert not list((tmp_path / "cache").rglob(digest))
    assert store.stats().failures == {"RemoteError": 1}
    far.faults.clear()
    run(store.plan("scale"))


def test_graphs_find_their_plans_and_classes(built_store, tmp_path):
    url = f"file://{tmp_path}/far"
    push_folder(StoreReader(built_store), url)
    store = runtime.open(url)
    symbolic = linear_graph("up", 64)
    assert store.plan(symbolic).graph_key == symbolic.key()
    concrete = instantiate(linear_graph("mine", 64), {"M": 5})
    assert store.plan(concrete).graph_key == symbolic.key()
    with pytest.raises(errors.NotInStoreError, match="no plan of graph 'other' for cpu in store"):
        store.plan(linear_graph("other", 77))


def test_a_forked_child_fetches_for_itself(far):
    store = runtime.open(far.url)
    run(store.plan("scale"))
    child = os.fork()
    if child == 0:
        try:
            run(store.plan("alone"))
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- Pins and trust -----------------------------------------------------------------------------


def test_a_pinned_url(far, stored, monkeypatch):
    root_digest = StoreReader(stored).root_digest()
    with pytest.raises(errors.PinError, match=f"got root digest {root_digest}, want {'0' * 64}"):
        runtime.open(far.url, digest="0" * 64)
    assert far.requests == {layout.INDEX_FILE: 1}
    monkeypatch.setenv("CUDNN_AOT_PIN", root_digest)
    store = runtime.open(far.url)
    run(store.plan("scale"))
    with pytest.raises(errors.UsageError, match="got 1 root digests, want 2"):
        runtime.open([far.url, stored])


def test_a_document_that_changes_in_the_mirror_of_a_pinned_store_is_refused(far, stored, tmp_path):
    store = runtime.open(far.url, digest=StoreReader(stored).root_digest())
    (mirror,) = (path for path in (tmp_path / "cache/.remotes").iterdir() if path.is_dir())
    with StoreWriter(mirror) as writer:
        writer.put_name("cpu", "scale", graph_key("both"), {"X": 1})
    run(store.plan("scale"))  # it was compared with the index, and put right
    assert store.plan("scale").graph_key == graph_key("scale")


def test_an_unsigned_url_is_refused_before_anything_is_fetched(far, key):
    with pytest.raises(errors.TrustError, match="has not signed it"):
        runtime.open(far.url, trust=key[1])
    key_id = trust.public_keys(key[1])[0].id
    assert far.requests == {layout.INDEX_FILE: 1, layout.signature_path(key_id): 1}


def test_a_signed_url_is_served_and_pinned_to_what_was_signed(far, stored, key, monkeypatch):
    private, public = key
    sign(far.folder, private)
    monkeypatch.setenv("CUDNN_AOT_TRUST", public)
    store = runtime.open(far.url)
    run(store.plan("scale"))
    with StoreWriter(far.folder) as writer:
        put_plan(writer, "more")
    push_folder(StoreReader(far.folder), f"file://{far.folder}")
    with pytest.raises(errors.TrustError, match="has not signed it|signed root digest"):
        runtime.open(far.url)
    monkeypatch.setenv("CUDNN_AOT_OFFLINE", "1")
    monkeypatch.setenv("CUDNN_AOT_PIN", StoreReader(stored).root_digest())
    run(runtime.open(far.url).plan("scale"))


def test_a_signed_folder_is_pinned(stored, tmp_path, key):
    private, public = key
    shutil.copytree(stored, tmp_path / "store")
    with pytest.raises(errors.TrustError, match="has not signed it"):
        runtime.open(tmp_path / "store", trust=[public])
    sign(tmp_path / "store", private)
    store = runtime.open(tmp_path / "store", trust=[public])
    run(store.plan("scale"))
    with StoreWriter(tmp_path / "store") as writer:
        writer.put_name("cpu", "both", graph_key("scale"), {"X": 1})
    with pytest.raises(errors.PinError, match="changed after the store was opened"):
        store.plan("both", "cpu")
    with pytest.raises(errors.TrustError, match="signed root digest"):
        runtime.open(tmp_path / "store", trust=[public])


def test_every_layer_must_be_signed(far, stored, tmp_path, key):
    private, public = key
    sign(far.folder, private)
    with pytest.raises(errors.TrustError, match=f"store '{stored}' is not trusted"):
        runtime.open([far.url, stored], trust=public)
    shutil.copytree(stored, tmp_path / "store")
    sign(tmp_path / "store", private)
    run(runtime.open([tmp_path / "store", far.url], trust=public).plan("scale"))


# ---- Layers -------------------------------------------------------------------------------------


def test_a_folder_over_a_url(far, tmp_path, monkeypatch):
    with StoreWriter(tmp_path / "overlay") as writer:
        put_plan(writer, "mine")
    monkeypatch.setenv("CUDNN_AOT_STORE", f"{tmp_path}/overlay:{far.url}")
    store = runtime.open()
    assert store.path == f"{tmp_path}/overlay:{far.url}"
    run(store.plan("mine"))
    assert far.requests == {layout.INDEX_FILE: 1}
    run(store.plan("scale"))
    assert ("cpu", "mine") in store.names() and ("cpu", "alone") in store.names()


def test_a_damaged_folder_over_a_url(far, stored, tmp_path):
    overlay = tmp_path / "overlay"
    with StoreWriter(overlay) as writer:
        put_plan(writer, "scale", knobs={"TILE_M": 64})
    pointer = StoreReader(overlay).pointer("cpu", graph_key("scale"))
    (overlay / layout.blob_path(pointer["records"][0])).unlink()
    store = runtime.open([overlay, far.url])
    assert store.plan("scale").knobs == {"TILE_M": 128}
    assert sum(store.stats().fallbacks.values()) == 1


def test_a_url_that_fails_over_a_folder(far, stored):
    far.faults[layout.name_path("cpu", "scale")] = ("500", ALWAYS)
    store = runtime.open([far.url, stored])
    run(store.plan("scale"))
    assert store.stats().fallbacks == {"RemoteError": 1}


# ---- Offline ------------------------------------------------------------------------------------

_CHILD = """
import os, sys
sys.addaudithook(lambda event, args: event.startswith("socket.") and os._exit(99))
import numpy as np
from cudnn_aot import errors, runtime
store = runtime.open(sys.argv[1])
x = np.arange(18, dtype=np.float32).reshape(3, 6)
y = np.empty_like(x)
store.plan("scale").execute({1: x, 9: y})
assert (y == 2 * x).all()
try:
    store.plan("alone")
except errors.RemoteError as error:
    print(error)
"""


def test_what_was_fetched_is_served_without_a_socket(far):
    run(runtime.open(far.url).plan("scale"))
    before = far.requests.copy()
    command = [sys.executable, "-c", _CHILD, far.url]
    if subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0:
        command = ["unshare", "-n", *command]
    done = subprocess.run(
        command, env=environment(CUDNN_AOT_OFFLINE="1"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "was not fetched yet and this is offline" in done.stdout
    assert far.requests == before


def test_a_folder_needs_none_of_the_modules(stored):
    script = f"""
import sys
from cudnn_aot import runtime
runtime.open({str(stored)!r}).plan("scale")
held = {{"fsspec", "requests", "cryptography", "filelock", "cudnn_aot.cache.remote"}}
assert held.isdisjoint(sys.modules), held & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=dict(os.environ), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
