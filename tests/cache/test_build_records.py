"""Build records in the life of a store: packed, merged, layered, compared, counted and pruned."""

import json
from pathlib import Path

import pytest
import toy_store
from cli_process import assert_one_line_error, run_cli
from registry_server import run_registry

from cudnn_aot.cache import exchange, layout, prune
from cudnn_aot.cache.inventory import take_inventory
from cudnn_aot.cache.layers import open_layers
from cudnn_aot.cache.merge import merge
from cudnn_aot.cache.prune import Criteria
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.remote import open_remote, remote_reader
from cudnn_aot.cache.stats import stats_of
from cudnn_aot.cache.writer import StoreWriter


def made(path: Path, numbers: range, asked: int) -> Path:
    """Toy graphs by a build that was asked for the first ``asked``."""
    with StoreWriter(path) as writer:
        writer.introduce(lambda: toy_store.build_record(asked))
        for number in numbers:
            toy_store.put(writer, number)
    return path


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return made(tmp_path / "one", range(2), 2)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return made(tmp_path / "other", range(4), 4)


def builds(*paths: Path) -> list[str]:
    return open_layers([(path, "") for path in paths]).builds()


def damage(store: Path, digest: str) -> None:
    path = store / layout.build_path(digest)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"toys", b"tOys"))


def test_a_pack_keeps_them(one: Path, tmp_path: Path) -> None:
    done = run_cli("pack", "--store", one, "-o", tmp_path / "pack")
    assert done.returncode == 0, done.stderr
    listed = [run_cli("ls", "--builds", "--store", store) for store in (one, tmp_path / "pack")]
    assert listed[0].stdout == listed[1].stdout and builds(one)[0][:12] in listed[1].stdout
    assert run_cli("diff", one, tmp_path / "pack").returncode == 0


def test_merging_takes_all_that_are_whole(one: Path, other: Path, tmp_path: Path) -> None:
    assert len(builds(one, other)) == 2
    damage(made(tmp_path / "third", range(1), 3), *builds(tmp_path / "third"))
    stores = [StoreReader(path) for path in (one, other, tmp_path / "third")]
    did = merge(stores, tmp_path / "all")
    assert builds(tmp_path / "all") == builds(one, other)
    assert did.builds == 2
    (failure,) = did.failures
    assert failure.endswith("the content does not match its digest")
    before = toy_store.snapshot(tmp_path / "all")
    again = merge(stores[:2], tmp_path / "all")
    assert (again.builds, again.files_written) == (0, 0)
    assert toy_store.snapshot(tmp_path / "all") == before


def test_layers_have_those_of_all(one: Path, other: Path) -> None:
    layers = open_layers([(one, ""), (other, "")])
    assert layers.builds() == sorted([*builds(one), *builds(other)])
    assert [layers.build(digest) for digest in builds(other)] == [toy_store.build_record(4)]
    document = json.loads(run_cli("ls", "--builds", "--json", "--store", f"{one}:{other}").stdout)
    assert [build["build"] for build in document["builds"]] == layers.builds()
    damage(one, *builds(one))
    assert layers.build(builds(other)[0])["version"] == "toys"


def test_one_goes_with_the_last_graph_that_it_asks_for(one: Path, other: Path) -> None:
    """Of the store of both: graphs 0 and 1 are of both builds, 2 and 3 of the larger alone."""
    merge([StoreReader(other)], one)
    (large,) = builds(other)
    (small,) = set(builds(one)) - {large}
    inventory = take_inventory(StoreReader(one))
    by_number = {graph.names[0]: graph for graph in inventory.graphs}
    assert set(by_number["layer/0"].builds) == {small, large}
    assert by_number["layer/3"].builds == (large,)
    with StoreWriter(one) as writer:  # as a build that was killed before its first graph
        unused = writer.put_build({**toy_store.build_record(0), "version": "killed"})
    for graph in ("layer/0", "layer/1"):
        (one / by_number[graph].pointer).unlink()
        (one / layout.name_path("h200", graph)).unlink()
    for bucket in {bucket for _, bucket in StoreReader(one).classes()}:
        with StoreWriter(one) as writer:
            gone = [toy_store.graph_key(0), toy_store.graph_key(1)]
            writer.remove_from_class("h200", bucket, gone)
    counts = stats_of(take_inventory(StoreReader(one)))
    assert (counts.all.builds, counts.unused_builds, counts.targets[0].builds) == (3, 2, 1)
    text = run_cli("ls", "--stats", "--store", one).stdout
    assert "2 build records, " in text
    (one / "builds" / "notes").write_text("not of the store")
    went = prune.prune(one, Criteria(unreferenced=True))
    assert sorted(went.builds) == sorted([small, unused])
    assert builds(one) == [large] and StoreReader(one).verify() == []
    said = json.loads(run_cli("prune", "--target", "h200", "--json", "--store", one).stdout)
    assert said["builds"] == [large] and builds(one) == []
    assert (one / "builds" / "notes").exists()


def test_a_damaged_one_waits_for_the_build_that_mends_it(one: Path) -> None:
    (digest,) = builds(one)
    damage(one, digest)
    assert prune.prune(one, Criteria(unreferenced=True)).builds == ()
    assert [problem.path for problem in StoreReader(one).verify()] == [layout.build_path(digest)]
    with StoreWriter(one) as writer:
        writer.introduce(lambda: toy_store.build_record(2))
    assert StoreReader(one).verify() == []


def test_stores_of_other_builds_differ(one: Path, tmp_path: Path) -> None:
    """Their plans are equal, and their root digests are not."""
    again = made(tmp_path / "again", range(2), 7)
    done = run_cli("diff", one, again)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == f"builds: 0 in both, 1 only in {one}, 1 only in {again}"
    found = json.loads(run_cli("diff", one, again, "--json").stdout)
    assert found["builds"] == {"both": 0, "only_a": builds(one), "only_b": builds(again)}
    assert not found["equal"] and not found["only_a"] and not found["changed"]


def test_a_pack_is_measured_and_not_pruned(one: Path, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    run_cli("pack", "--store", one, "-o", pack)
    folder = json.loads(run_cli("ls", "--stats", "--json", "--store", one).stdout)
    packed = json.loads(run_cli("ls", "--stats", "--json", "--store", pack).stdout)
    assert packed["all"]["bytes"] == pack.stat().st_size
    assert packed["all"]["disk_bytes"] == 512 * pack.stat().st_blocks
    assert packed["foreign"]["bytes"] == 0
    for name in ("graphs", "plans", "kernels", "blobs", "builds", "bytes"):
        assert packed["targets"][0][name] == folder["targets"][0][name]
    size = next(
        line for line in run_cli("doctor", "--store", pack).stdout.splitlines() if " KiB" in line
    )
    assert size.split()[:2] == ["store", "size"]
    for option in ("--dry-run", "--wait=0"):
        done = run_cli("prune", "--unreferenced", option, "--store", pack)
        assert_one_line_error(done, 2, "it is a pack, which never changes; prune the folder")


def test_a_push_and_a_pull_keep_them_and_so_the_root_digest(
    one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec", reason="the extra `remote` is not installed")
    pytest.importorskip("requests", reason="the extra `remote` is not installed")
    monkeypatch.setenv("CUDNN_AOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    root_digest = StoreReader(one).root_digest()
    with run_registry(tmp_path / "registry") as registry:
        reference = f"{registry.host}/team/builds:v1"
        assert exchange.push_image(StoreReader(one), reference).root_digest == root_digest
        exchange.pull_image(reference, tmp_path / "image", digest=root_digest)
    url = f"file://{tmp_path}/far"
    assert exchange.push_folder(StoreReader(one), url).root_digest == root_digest
    exchange.pull_folder(open_remote(url, digest=root_digest), tmp_path / "folder")
    assert remote_reader(url).builds() == builds(one)
    for path in ("far", "image", "folder"):
        assert StoreReader(tmp_path / path).root_digest() == root_digest
        assert builds(tmp_path / path) == builds(one)
