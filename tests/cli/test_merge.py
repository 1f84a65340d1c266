"""`merge` as it is read: lines, document, exit codes."""

import json
from pathlib import Path

import toy_store
from cli_process import assert_one_line_error, run_cli

from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter


def test_shards_become_one_store(
    built_store: Path, graph_files: list[Path], tmp_path: Path
) -> None:
    build = ("build", *graph_files, "-t", "cpu", "-j", 1)
    for number in (1, 2):
        part = tmp_path / f"shard{number}"
        done = run_cli(*build, "--shard", f"{number}/2", "--store", part)
        assert done.returncode == 0, done.stderr
    shards = tmp_path / "shard2", tmp_path / "shard1"
    done = run_cli("merge", *shards, "-o", tmp_path / "whole")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 plans, 2 kernels, 2 names, 1 build record added or changed: 16 files, " in done.stdout
    assert toy_store.snapshot(tmp_path / "whole") == toy_store.snapshot(built_store)
    again = run_cli("merge", *shards, "-o", tmp_path / "whole", "--json")
    document = json.loads(again.stdout)
    assert document["plans"] == document["files_written"] == 0
    assert document["conflicts"] == document["failures"] == []


def test_conflicts_end_with_1_unless_decided(tmp_path: Path) -> None:
    for name, number in (("a", 0), ("b", 1)):
        with StoreWriter(tmp_path / name) as writer:
            toy_store.put(writer, number)
            key = writer.reader.pointers()[0][1]
            writer.put_name("h200", "one", key, {"A": 1})
    stores = tmp_path / "a", tmp_path / "b"
    keys = [StoreReader(store).name("h200", "one")["graph_key"] for store in stores]
    line = (
        f"name 'one' for h200: stands for graph {keys[0][:12]}, and in {str(stores[1])!r} "
        f"{keys[1][:12]}"
    )
    done = run_cli("merge", *stores, "-o", tmp_path / "dst")
    assert_one_line_error(done, 1, line)
    for option, key in (("--keep", keys[0]), ("--replace", keys[1])):
        done = run_cli("merge", *stores, "-o", tmp_path / "dst", option)
        assert (done.returncode, done.stderr) == (0, f"note: {line}\n")
        assert StoreReader(tmp_path / "dst").name("h200", "one")["graph_key"] == key


def test_wrong_commands(built_store: Path, tmp_path: Path) -> None:
    assert_one_line_error(run_cli("merge", "-o", tmp_path / "dst"), 2, "missing argument")
    assert_one_line_error(run_cli("merge", tmp_path, "-o", tmp_path / "dst"), 2, "is not a store")
    both = run_cli("merge", built_store, "-o", tmp_path / "dst", "--keep", "--replace")
    assert_one_line_error(both, 2, "--keep and --replace exclude each other")
    assert not (tmp_path / "dst").exists()
