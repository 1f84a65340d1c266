"""``cudnn-aot pack``, and every command that reads a store on what it writes."""

import json
from pathlib import Path

import pytest
from cli_process import assert_one_line_error, run_cli

from cudnn_aot import runtime


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory, built_store: Path) -> Path:
    path = tmp_path_factory.mktemp("packed") / "store.pack"
    done = run_cli("pack", "--store", built_store, "-o", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{path}: ") and f"of {built_store}" in done.stdout
    return path


def test_pack_as_json(built_store: Path, pack: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.pack"
    done = run_cli("pack", "-o", again, "--json", env={"CUDNN_AOT_STORE": str(built_store)})
    assert json.loads(done.stdout) == {
        "format": 1,
        "store": str(built_store),
        "pack": str(again),
        "files": sum(path.is_file() for path in built_store.rglob("*")),
        "bytes": pack.stat().st_size,
        "root_digest": runtime.open(built_store).root_digests()[0],
        "foreign": [],
    }
    assert again.read_bytes() == pack.read_bytes()


@pytest.mark.parametrize("command", [("ls",), ("show", "up"), ("verify",)])
def test_reading_commands_say_the_same(command, built_store: Path, pack: Path) -> None:
    said = []
    for store in (built_store, pack):
        done = run_cli(*command, "--store", store, "--json")
        assert done.returncode == 0, done.stderr
        said.append(json.loads(done.stdout))
        assert said[-1].pop("store") == str(store)
    assert said[0] == said[1]


def test_running_and_explaining(pack: Path, graph_files: list[Path]) -> None:
    done = run_cli("run", "--all", "--store", pack)
    assert done.returncode == 0 and "2 of 2 plans correct" in done.stdout, done.stderr
    done = run_cli("why", graph_files[0], "--target", "cpu", "--store", pack, "--json")
    assert done.returncode == 0, done.stderr
    (graph,) = json.loads(done.stdout)["graphs"]
    assert [plan["held"] for plan in graph["stored"]["plans"]][:1] == ["current"]
    done = run_cli("doctor", "--store", pack)
    assert f"{pack}: 2 plans for cpu, a pack" in done.stdout


def test_building_into_a_pack_is_refused(pack: Path, graph_files: list[Path]) -> None:
    done = run_cli("build", graph_files[0], "--target", "cpu", "--store", pack)
    assert_one_line_error(done, 2, "it is a pack", "build into a folder", "cudnn-aot pack")


def test_damage_is_named_and_exits_1(pack: Path, store_copy: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.pack"
    path.write_bytes(pack.read_bytes()[:-1])
    for command in (("verify",), ("ls",), ("run", "up")):
        done = run_cli(*command, "--store", path)
        assert_one_line_error(done, 1, f"{path} is damaged: its file", "is cut short")
    (blob,) = {
        json.loads(run_cli("show", "up", "--store", pack, "--json").stdout)["plans"][0]["kernels"][
            0
        ]["blob"]
    }
    file = store_copy / "blobs" / "sha256" / blob[:2] / blob
    file.chmod(0o644)
    file.write_bytes(b"junk")
    done = run_cli("pack", "--store", store_copy, "-o", tmp_path / "never.pack")
    assert_one_line_error(done, 1, "is damaged and is not packed", blob)
    assert not (tmp_path / "never.pack").exists()


def test_foreign_files_are_left_out(store_copy: Path, pack: Path, tmp_path: Path) -> None:
    (store_copy / "notes.txt").write_text("mine")
    done = run_cli("pack", "--store", store_copy, "-o", tmp_path / "store.pack")
    assert "left out 1 file not of the store" in done.stdout
    assert (tmp_path / "store.pack").read_bytes() == pack.read_bytes()
