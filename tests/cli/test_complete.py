"""`verify --complete` and `verify --device`: what is asked for, what lacks and why, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import assert_one_line_error, linear_graph, run_cli, write_graph

from cudnn_aot.cache import layout
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.target.target import load_target


def concrete(folder: Path, name: str, n: int, rows: int = 7) -> Path:
    """A case of `linear_graph`, in a file that has its symbol's value."""
    document = json.loads(write_graph(folder, linear_graph(name, n)).read_text())
    del document["symbols"]
    text = json.dumps(document).replace('"48*M"', str(48 * rows)).replace(f'"{n}*M"', str(n * rows))
    (folder / f"{name}.json").write_text(text.replace('"M"', str(rows)))
    return folder / f"{name}.json"


def test_everything_is_here(built_store: Path, graph_files: list[Path], tmp_path: Path) -> None:
    ask = ("verify", "--store", built_store, "--complete")
    done = run_cli(*ask, graph_files[0].parent)
    assert (done.returncode, done.stdout) == (0, "cpu: 2 graphs: 2 whole\n"), done.stderr
    key = StoreReader(built_store).name("cpu", "down")["graph_key"]
    listed = tmp_path / "graphs.txt"
    (tmp_path / "up.json").write_bytes(graph_files[0].read_bytes())
    listed.write_text(f"# what we serve\n\nup.json\n{graph_files[1]}\ndown\n{key}\n")
    done = run_cli(*ask, listed)
    assert (done.returncode, done.stdout) == (0, "cpu: 4 graphs: 4 whole\n"), done.stderr


def test_a_graph_of_a_class_is_served(built_store: Path, tmp_path: Path) -> None:
    concrete(tmp_path, "step", 64)
    done = run_cli("verify", "--complete", tmp_path, "--store", built_store, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (answer,) = json.loads(done.stdout)["graphs"]
    assert (answer["state"], answer["by"], answer["name"]) == ("served", "up", "step")


def test_what_lacks_is_told_by_field(built_store: Path, tmp_path: Path) -> None:
    write_graph(tmp_path, linear_graph("mine", 72))
    concrete(tmp_path, "step", 64, rows=5000)
    listed = tmp_path / "list"
    listed.write_text("mine.json\nstep.json\nupp\ngone.json\n" + "0" * 64 + "\n")
    done = run_cli("verify", "--complete", listed, "--store", built_store)
    assert done.returncode == 1
    assert done.stderr == "error: gone.json: there is no such graph file\n"
    (tmp_path / "none").write_text("gone.json\n")
    none = run_cli("verify", "--complete", tmp_path / "none", "--store", built_store)
    assert (none.returncode, none.stdout) == (1, "cpu: 0 graphs\n")
    lines = done.stdout.splitlines()
    assert lines[-1] == "cpu: 4 graphs: 4 absent"
    said = {line.split()[1]: line for line in lines[:-1]}
    assert said["mine"].startswith("absent: mine for cpu: ")
    assert "the nearest there is 'up': dim[2] of 'B': here 72, there 64" in said["mine"]
    assert "symbol 'M': got 5000, want 0..4096" in said["step"]
    assert "no graph of that name for cpu; the nearest are 'up'" in said["upp"]
    assert "no graph of that key for cpu" in said["0" * 64]


def test_another_target_is_another_question(built_store: Path, graph_files: list[Path]) -> None:
    ask = ("verify", "--complete", graph_files[0], "--store", built_store)
    assert run_cli(*ask, "--target", "cpu").returncode == 0
    done = run_cli(*ask, "--target", "cpu,h200")
    assert done.returncode == 1
    assert "absent: up for h200: the store has no graph for h200 that is like it\n" in done.stdout
    assert "cpu: 1 graph: 1 whole\nh200: 1 graph: 1 absent\n" in done.stdout


def test_damage_is_no_completeness(store_copy: Path, graph_files: list[Path]) -> None:
    reader = StoreReader(store_copy)
    pointer = reader.pointer("cpu", reader.name("cpu", "up")["graph_key"])
    kernel = json.loads(reader.blob(pointer["records"][0]))["kernels"][0]
    blob = store_copy / layout.blob_path(kernel["blob"])
    whole = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    ask = ("verify", "--complete", graph_files[0].parent, "--store", store_copy)
    done = run_cli(*ask)
    assert done.returncode == 1
    assert "damaged: up for cpu: " in done.stdout and "its bytes hash to" in done.stdout
    assert "cpu: 2 graphs: 1 whole, 1 damaged\n" in done.stdout
    blob.write_bytes(whole)
    (store_copy / layout.kernel_path(kernel["key"])).unlink()
    assert "damaged: up for cpu: kernel " in run_cli(*ask).stdout


def test_declined_graphs_end_with_3_unless_allowed(
    store_copy: Path, graph_files: list[Path]
) -> None:
    with StoreWriter(store_copy) as writer:
        key = writer.reader.name("cpu", "up")["graph_key"]
        pointer = writer.reader.pointer("cpu", key)
        part = {"plan_key": "k", "records": [], "reasons": ["too odd"]}
        declined = layout.pointer_of(pointer["graph"], {"native": part}, ["native"])
        writer.put_pointer("cpu", key, declined)
    ask = ("verify", "--complete", graph_files[0].parent, "--store", store_copy)
    done = run_cli(*ask)
    assert (done.returncode, done.stderr) == (3, "")
    assert "declined: up for cpu: too odd\n" in done.stdout
    assert run_cli(*ask, "--allow-declined", "h200").returncode == 3
    assert run_cli(*ask, "--allow-declined", "cpu").returncode == 0
    assert run_cli(*ask, "--allow-declined", "all").returncode == 0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--complete", "absent"), 2, "absent"),
        (("--complete", "empty"), 2, "names no graph: want graph files, or a list of them"),
        (("--complete", "bytes"), 2, "is no text"),
        (("--complete", "x", "--device", "cpu"), 2, "ask one at a time"),
        (("--target", "cpu"), 2, "--target belongs to --complete and --device"),
        (("--allow-declined", "cpu"), 2, "--allow-declined belongs to --complete"),
        (("--device", "h900"), 2, "unknown target 'h900'"),
        (("--device", "cpu", "--target", "h200"), 1, "it has those of cpu"),
    ],
)
def test_wrong_commands(
    built_store: Path, tmp_path: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    done = run_cli("verify", *options, "--store", built_store, cwd=tmp_path)
    assert_one_line_error(done, code, message)


def test_plans_that_run_on_a_target(built_store: Path) -> None:
    done = run_cli("verify", "--device", "cpu", "--store", built_store)
    assert done.returncode == 0, done.stdout
    assert "2 of 2 plans run on cpu\n" in done.stdout
    assert sorted(line.split() for line in done.stdout.splitlines()[2:4]) == [
        ["down", "cpu", "yes"],
        ["up", "cpu", "yes"],
    ]


def test_what_a_device_lacks_is_a_row(built_store: Path, tmp_path: Path) -> None:
    descriptor = load_target("cpu").descriptor()
    other = tmp_path / "arm.json"
    host = {"host_triple": "aarch64-linux-gnu", "host_level": ""}
    other.write_text(json.dumps(descriptor | {"name": "arm"} | host))
    done = run_cli("verify", "--device", other, "--store", built_store)
    assert done.returncode == 1
    assert "host_triple: want x86_64-linux-gnu, got aarch64-linux-gnu" in done.stdout
    assert f"0 of 2 plans run on {other}\n" in done.stdout
    document = json.loads(
        run_cli("verify", "--device", other, "--store", built_store, "--json").stdout
    )
    assert [plan["ok"] for plan in document["plans"]] == [False, False]
    (flag,) = [f for f in document["plans"][0]["flags"] if f["ok"] is False]
    assert flag["name"] == "host_triple"


def test_completeness_needs_no_compiler(built_store: Path, graph_files: list[Path]) -> None:
    """Where a store is served there is no DSL, no numpy and no file lock."""
    program = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('numpy', 'cutlass', 'filelock', 'rich', 'torch'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from cudnn_aot.cli.main import main\n"
        "sys.exit(main())\n"
    )
    command = [sys.executable, "-c", program, "verify", "--store", str(built_store), "--complete"]
    done = subprocess.run(
        [*command, str(graph_files[0].parent)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "cpu: 2 graphs: 2 whole\n"), done.stderr
