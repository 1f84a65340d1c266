"""Mirrors of stores at URLs go by size and age, whole, and not while somebody uses them."""

import json
import shutil
import time
from pathlib import Path

import pytest
from cli_process import assert_one_line_error, run_cli
from served_store import put_plan, small_store

from cudnn_aot import runtime
from cudnn_aot.cache import layout
from cudnn_aot.cache.exchange import push_folder
from cudnn_aot.cache.mirrors import mirrors, prune_mirrors
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter

pytest.importorskip("fsspec", reason="the extra `remote` is not installed")
from cudnn_aot.cache.remote import open_remote  # noqa: E402


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDNN_AOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDNN_AOT_OFFLINE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def urls(tmp_path: Path, cache: Path) -> list[str]:
    """Two stores elsewhere, of which all was read, the first before the second."""
    found = []
    for number in range(2):
        store = small_store(tmp_path / f"store{number}")
        if number:
            with StoreWriter(store) as writer:
                put_plan(writer, "more")
        url = f"file://{tmp_path}/far{number}"
        push_folder(StoreReader(store), url)
        files = open_remote(url)
        files.need(files.index.paths)
        found.append(url)
        time.sleep(0.02)  # ctimes have the grain of the system's clock
    return found


def digests(cache: Path) -> list[str]:
    return [mirror.root_digest for mirror in mirrors(cache)]


def seen(cache: Path) -> list[str]:
    return sorted(path.read_text().strip() for path in (cache / layout.REMOTES).glob("*.seen"))


def test_all_go_and_are_fetched_again(urls: list[str], cache: Path) -> None:
    known = digests(cache)
    assert known == [open_remote(url).index.root_digest for url in urls]
    dry = prune_mirrors(cache, time.time(), dry_run=True)
    assert digests(cache) == known and dry.left.disk_bytes == 0
    went = prune_mirrors(cache, time.time())
    assert [each.root_digest for each in went.mirrors] == known
    assert went.before.disk_bytes > 0 == went.left.disk_bytes
    assert not any((cache / layout.REMOTES).iterdir())
    assert StoreReader(cache).verify() == []
    assert runtime.open(urls[1]).plan("more", "cpu").engine == "by.hand"


def test_the_one_without_a_fetch_for_longest_goes_first(urls: list[str], cache: Path) -> None:
    first, second = mirrors(cache)
    went = prune_mirrors(cache, time.time(), max_disk_bytes=second.size.disk_bytes)
    assert went.mirrors == (first,) and went.left == second.size
    assert digests(cache) == seen(cache) == [second.root_digest]
    assert prune_mirrors(cache, time.time(), max_disk_bytes=second.size.disk_bytes).mirrors == ()


def test_age_is_that_of_the_last_fetch(urls: list[str], cache: Path) -> None:
    first, second = mirrors(cache)
    now_s = first.fetched_s + 100
    went = prune_mirrors(cache, now_s, older_than_s=100 - (second.fetched_s - first.fetched_s) / 2)
    assert went.mirrors == (first,) and digests(cache) == [second.root_digest]


def test_what_a_process_holds_stays(urls: list[str], cache: Path) -> None:
    first, second = digests(cache)
    plan = runtime.open(urls[0]).plan("scale", "cpu")
    with StoreWriter(cache / layout.REMOTES / second):  # as one that fetches
        went = prune_mirrors(cache, time.time())
    assert [each.root_digest for each in went.held] == [first, second] and went.mirrors == ()
    assert digests(cache) == [first, second]
    del plan
    assert prune_mirrors(cache, time.time()).held == ()


def test_what_a_killed_one_left_goes(urls: list[str], cache: Path) -> None:
    folder = cache / layout.REMOTES
    (folder / digests(cache)[0]).rename(folder / ".going-0123")
    prune_mirrors(cache, time.time(), max_disk_bytes=1 << 40)
    assert not (folder / ".going-0123").exists() and len(digests(cache)) == len(seen(cache)) == 1


def test_the_command(urls: list[str], cache: Path, tmp_path: Path) -> None:
    environment = {"CUDNN_AOT_CACHE": str(cache)}
    shutil.copytree(cache, tmp_path / "other")
    done = run_cli("prune", "--mirrors", "--max-size", "1G", env=environment)
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "removed 0 mirrors")
    said = run_cli("prune", "--max-size", "1", "--store", cache, env=environment)
    assert said.returncode == 1 and "nothing that may go is left" in said.stderr
    done = run_cli("prune", "--mirrors", "--json", env=environment)
    document = json.loads(done.stdout)
    assert len(document["mirrors"]) == 2 and document["left"]["disk_bytes"] == 0
    assert digests(cache) == [] and len(digests(tmp_path / "other")) == 2
    done = run_cli("prune", "--mirrors", "--older-than", "1d", "--store", tmp_path / "other")
    assert done.returncode == 0 and len(digests(tmp_path / "other")) == 2
    bad = run_cli("prune", "--mirrors", "--target", "cpu", env=environment)
    assert_one_line_error(bad, 2, "--mirrors goes with --max-size and --older-than alone")
