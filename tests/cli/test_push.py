"""``push``, ``pull``, ``sign`` and what the other commands do with URLs and signatures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_process import assert_one_line_error, run_cli, tree_digest
from registry_server import run_registry
from served_store import small_store

from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter

pytest.importorskip("fsspec", reason="the extra `remote` is not installed")
pytest.importorskip("cryptography", reason="the extra `trust` is not installed")


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("served") / "store")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"CUDNN_AOT_CACHE": str(tmp_path / "cache"), "DOCKER_CONFIG": str(tmp_path / "docker")}


def test_a_store_at_a_url_from_push_to_pull(stored, tmp_path, environment):
    url = f"file://{tmp_path}/far/store"
    root_digest = StoreReader(stored).root_digest()

    def done(*arguments: object, code: int = 0) -> dict:
        ran = run_cli(*arguments, "--json", env=environment)
        assert ran.returncode == code, ran.stderr
        return json.loads(ran.stdout)

    assert done("push", url, "--store", stored)["files_sent"] == 15
    assert done("push", url, "--store", stored) == {
        "format": 1,
        "store": str(stored),
        "place": url,
        "root_digest": root_digest,
        "digest": None,
        "files": 15,
        "files_sent": 0,
        "bytes_sent": 0,
    }
    here, there = done("ls", "--store", stored), done("ls", "--store", url)
    assert (there.pop("store"), here.pop("store")) == (url, str(stored))
    assert there == here
    assert done("show", "scale", "--store", url)["plans"][0]["engine"] == "by.hand"
    assert done("verify", "--store", url)["root_digest"] == root_digest
    findings = done("doctor", "--store", url, code=done_code(environment, stored))["findings"]
    assert any("4 plans for cpu, h200, read by way of" in finding["found"] for finding in findings)
    pulled = done("pull", url, "-o", tmp_path / "pulled", "--digest", root_digest)
    assert (pulled["targets"], pulled["files_written"]) == (["cpu", "h200"], 15)
    assert tree_digest(tmp_path / "pulled") == tree_digest(stored)
    moved = tmp_path / "far" / "away"
    (tmp_path / "far" / "store").rename(moved)
    again = run_cli("ls", "--store", url, "--offline", "--json", env=environment)
    assert json.loads(again.stdout)["plans"] == there["plans"]
    failed = run_cli("ls", "--store", url, env=environment)
    assert_one_line_error(failed, 2, "is not a store: it has no index.json", "push")
    refused = run_cli("build", "x.json", "--target", "cpu", "--store", url, env=environment)
    assert_one_line_error(refused, 2, "--store: got the URL", "want a folder")


@pytest.mark.parametrize("verb", ["diff", "merge"])
def test_stores_that_arguments_name_are_not_read_offline(verb, stored, tmp_path, environment):
    url = f"file://{tmp_path}/far"
    made = ("-o", tmp_path / "made") if verb == "merge" else (stored,)
    assert run_cli("push", url, "--store", stored).returncode == 0
    flag = run_cli(verb, url, *made, "--offline", env=environment)
    assert_one_line_error(flag, 1, "offline")
    (tmp_path / "cudnn-aot.toml").write_text("offline = true")
    assert_one_line_error(run_cli(verb, url, *made, env=environment, cwd=tmp_path), 1, "offline")
    assert not (tmp_path / "made").exists()
    assert run_cli(verb, url, *made, env=environment).stderr == ""


def done_code(environment: dict[str, str], stored: Path) -> int:
    """What `doctor` says of this machine alone."""
    return run_cli("doctor", "--store", stored, env=environment).returncode


def test_an_image_from_push_to_pull(stored, tmp_path, environment):
    with run_registry(tmp_path / "registry") as registry:
        reference = f"{registry.host}/team/store:v1"
        sent = run_cli("push", reference, "--store", stored, env=environment)
        assert sent.returncode == 0, sent.stderr
        counted, root, digest = sent.stdout.splitlines()
        assert counted.startswith(f"{reference}: sent 4 blobs of 4, ")
        assert root == f"root digest {StoreReader(stored).root_digest()}"
        pinned = f"{reference}@{digest.removeprefix('digest ')}"
        got = run_cli("pull", pinned, "-o", tmp_path / "store", env=environment)
        assert got.returncode == 0, got.stderr
        assert f"targets cpu, h200; {root}" in got.stdout
        one = run_cli("pull", reference, "-o", tmp_path / "one", "-t", "cpu", env=environment)
        part, source = one.stdout.splitlines()[1:]
        assert part == f"targets cpu; root digest {StoreReader(tmp_path / 'one').root_digest()}"
        assert source == f"the source has {root}"
        bad = ("pull", reference, "-o", tmp_path / "bad", "--digest", "0" * 64)
        assert_one_line_error(run_cli(*bad, env=environment), 1, "is not the pinned store")
    assert tree_digest(tmp_path / "store") == tree_digest(stored)
    assert StoreReader(tmp_path / "one").targets() == ["cpu"]
    assert not (tmp_path / "bad").exists()
    gone = run_cli("pull", reference, "-o", tmp_path / "no", "--offline", env=environment)
    assert_one_line_error(gone, 2, "needs a network: --offline says")
    (tmp_path / "cudnn-aot.toml").write_text("offline = true")
    gone = run_cli("push", reference, "--store", stored, cwd=tmp_path)
    assert_one_line_error(gone, 2, "needs a network", "cudnn-aot.toml says to be offline")
    assert_one_line_error(run_cli("push", "host.x/A", "--store", stored), 2, "bad image 'host.x/A'")


def test_a_pull_that_disagrees_with_what_is_there(stored, tmp_path, environment):
    url, mine = f"file://{tmp_path}/far", tmp_path / "mine"
    assert run_cli("push", url, "--store", stored, env=environment).returncode == 0
    shutil.copytree(stored, mine)
    key = StoreReader(stored).name("cpu", "both")["graph_key"]
    with StoreWriter(mine) as writer:
        writer.put_name("cpu", "scale", key, {"X": 1})
    ran = run_cli("pull", url, "-o", mine, env=environment)
    assert ran.returncode == 1
    assert ran.stderr.startswith(
        f"error: name 'scale' for cpu: stands for graph {key[:12]}, and in"
    )
    document = json.loads(run_cli("pull", url, "-o", mine, "--json", env=environment).stdout)
    assert len(document["conflicts"]) == 1 and document["failures"] == []
    kept = run_cli("pull", url, "-o", mine, "--keep", env=environment)
    assert kept.returncode == 0 and kept.stderr.startswith("note: name 'scale'")
    assert StoreReader(mine).name("cpu", "scale")["graph_key"] == key
    assert run_cli("pull", url, "-o", mine, "--replace", env=environment).returncode == 0
    assert tree_digest(mine) == tree_digest(stored)
    both = run_cli("pull", url, "-o", mine, "--keep", "--replace", env=environment)
    assert_one_line_error(both, 2, "--keep and --replace exclude each other")


def test_a_store_is_signed_and_trusted(stored, tmp_path, environment):
    url, key = f"file://{tmp_path}/far", tmp_path / "key"
    made = run_cli("sign", "--new-key", key, "--json")
    text = json.loads(made.stdout)["base64"]
    pulled = tmp_path / "store"
    for arguments in (("push", url, "--store", stored), ("pull", url, "-o", pulled)):
        assert run_cli(*arguments, env=environment).returncode == 0
    unsigned = run_cli("verify", "--store", pulled, "--trust", f"{key}.pub")
    assert_one_line_error(unsigned, 1, "is not trusted", "has not signed it")
    assert run_cli("sign", "--store", pulled, "--key", key).returncode == 0
    trusting = {**environment, "CUDNN_AOT_TRUST": text}
    for trust in (["--trust", f"{key}.pub"], ["--trust", text]):
        assert run_cli("verify", "--store", pulled, *trust).returncode == 0
    assert run_cli("ls", "--store", pulled, env=trusting).returncode == 0
    refused = run_cli("ls", "--store", stored, env=trusting)
    assert_one_line_error(refused, 1, "is not trusted")
    # The signature travels with the store, and is asked for before anything else is.
    refused = run_cli("pull", url, "-o", tmp_path / "no", "--trust", text, env=environment)
    assert_one_line_error(refused, 1, "is not trusted", "has not signed it")
    assert not (tmp_path / "no").exists()
    assert run_cli("push", url, "--store", pulled, env=environment).returncode == 0
    assert (
        run_cli("pull", url, "-o", tmp_path / "yes", "--trust", text, env=environment).returncode
        == 0
    )
    assert tree_digest(tmp_path / "yes") == tree_digest(pulled)
    with run_registry(tmp_path / "registry") as registry:
        image = f"{registry.host}/team/store"
        assert run_cli("push", image, "--store", pulled, env=environment).returncode == 0
        got = run_cli("pull", image, "-o", tmp_path / "image", env=trusting)
        assert got.returncode == 0, got.stderr
        part = run_cli("pull", image, "-o", tmp_path / "part", "-t", "cpu", env=trusting)
        assert part.returncode == 0, part.stderr
        assert run_cli("push", image, "--store", stored, env=environment).returncode == 0
        refused = run_cli("pull", image, "-o", tmp_path / "none", env=trusting)
        assert_one_line_error(refused, 1, "is not trusted")
        assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "arguments", [(), ("--key", "k", "--new-key", "k"), ("--store", "s", "--new-key", "k")]
)
def test_sign_wants_one_thing(arguments, tmp_path):
    assert_one_line_error(run_cli("sign", *arguments, cwd=tmp_path), 2, "want either --key FILE")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_store_is_not_signed(stored, tmp_path):
    run_cli("sign", "--new-key", tmp_path / "key")
    run_cli("push", f"file://{tmp_path}/store", "--store", stored)
    next(tmp_path.glob("store/blobs/sha256/*/*")).unlink()
    failed = run_cli("sign", "--store", tmp_path / "store", "--key", tmp_path / "key")
    assert_one_line_error(failed, 1, "faults, the first: ")
    assert not (tmp_path / "store" / "signatures").exists()


def test_stores_at_urls_are_merged_and_compared(stored, tmp_path, environment):
    url = f"file://{tmp_path}/far"
    assert run_cli("push", url, "--store", stored, env=environment).returncode == 0
    merged = run_cli("merge", url, "-o", tmp_path / "merged", env=environment)
    assert merged.returncode == 0, merged.stderr
    assert tree_digest(tmp_path / "merged") == tree_digest(stored)
    same = run_cli("diff", url, tmp_path / "merged", "--json", env=environment)
    assert (same.returncode, json.loads(same.stdout)["a"]) == (0, url), same.stderr
    packed = run_cli("pack", "--store", url, "-o", tmp_path / "pack", env=environment)
    assert packed.returncode == 0, packed.stderr
    assert StoreReader(tmp_path / "pack").root_digest() == StoreReader(stored).root_digest()


def test_nothing_of_an_unsigned_store_goes_elsewhere_where_keys_are_trusted(
    stored, tmp_path, environment
):
    key, signed = tmp_path / "key", tmp_path / "signed"
    text = json.loads(run_cli("sign", "--new-key", key, "--json").stdout)["base64"]
    shutil.copytree(stored, signed)
    assert run_cli("sign", "--store", signed, "--key", key).returncode == 0
    trusting = {**environment, "CUDNN_AOT_TRUST": text}
    for number, store in enumerate((stored, signed)):
        out = tmp_path / f"out{number}"
        out.mkdir()
        for command in (
            ("merge", signed, store, "-o", out / "merged"),
            ("push", f"file://{out}/far", "--store", store),
            ("pack", "--store", store, "-o", out / "pack"),
        ):
            done = run_cli(*command, env=trusting)
            if store == signed:
                assert done.returncode == 0, done.stderr
            else:
                assert_one_line_error(done, 1, "is not trusted", "has not signed it")
    assert list((tmp_path / "out0").iterdir()) == []
    assert len(list((tmp_path / "out1").iterdir())) == 3
