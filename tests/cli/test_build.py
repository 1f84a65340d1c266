"""What `build` makes and says: summary, repetition, reproducibility, order of settings."""

import json
import shutil
from pathlib import Path

from cli_process import linear_graph, run_cli, tree_digest, write_graph

from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.compiler.target.target import load_target

SUMMARY_FIELDS = {"format", "store", "executor", "jobs", "shard", "graphs", "kernels"}
SUMMARY_FIELDS |= {"failures", "files_written", "seconds"}
KERNEL_FIELDS = {"key", "symbol", "object", "blob", "bytes", "compiled", "seconds"}
GRAPH_FIELDS = {"name", "graph_key", "target", "status", "engine", "knobs", "kernels", "seconds"}


def test_json_summary_and_repetition(tmp_path: Path, graph_files: list[Path]) -> None:
    """The schema, a second build that compiles and writes nothing, and what it reports."""
    store = tmp_path / "store"
    arguments = ("build", *graph_files, "--target", "cpu", "--store", store, "--json")
    first = run_cli(*arguments)
    assert first.returncode == 0, first.stderr
    summary = json.loads(first.stdout)
    assert set(summary) == SUMMARY_FIELDS
    assert (summary["executor"], summary["shard"], summary["failures"]) == ("local", None, [])
    assert summary["jobs"] >= 1
    assert [item["name"] for item in summary["graphs"]] == ["up", "down"]
    for item in summary["graphs"]:
        assert GRAPH_FIELDS <= set(item)
        assert item["status"] == "built" and item["target"] == "cpu"
        assert item["engine"] == "gemm.host.blocked"
        assert item["kernels"]
        for kernel in item["kernels"]:
            assert set(kernel) == KERNEL_FIELDS
            assert len(kernel["object"]) == len(kernel["blob"]) == len(kernel["key"]) == 64
    assert summary["kernels"]["compiled"] == 2 and summary["kernels"]["hits"] == 0
    assert summary["files_written"] == len([p for p in store.rglob("*") if p.is_file()])

    before = tree_digest(tmp_path)
    second = run_cli(*arguments)
    again = json.loads(second.stdout)
    assert second.returncode == 0
    assert {item["status"] for item in again["graphs"]} == {"cached"}
    assert again["kernels"] == {**summary["kernels"], "compiled": 0, "hits": 2}
    assert again["files_written"] == 0
    assert tree_digest(tmp_path) == before
    for old, new in zip(summary["graphs"], again["graphs"], strict=True):
        for field in ("graph_key", "engine", "knobs"):
            assert old[field] == new[field]


def test_two_builds_are_the_same_bytes(
    tmp_path: Path, graph_files: list[Path], built_store: Path
) -> None:
    """Another folder, working directory, order of graphs and number of jobs."""
    other = tmp_path / "elsewhere"
    done = run_cli(
        "build", *reversed(graph_files), "-t", "cpu", "-o", other, "-j", "1", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert tree_digest(other) == tree_digest(built_store)


def test_readable_report(store_copy: Path, graph_files: list[Path]) -> None:
    done = run_cli("build", *graph_files, "--target", "cpu", "--store", store_copy)
    lines = done.stdout.splitlines()
    assert lines[0].split() == "graph target status engine kernels bytes seconds".split()
    assert "2 cached" in lines
    assert any(line.startswith("kernels: 0 compiled, 2 already there") for line in lines)
    assert done.stderr == ""


def test_a_build_that_reads_nothing_speaks_of_no_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = run_cli("build", tmp_path / "absent.json", "-t", "cpu", "-o", store)
    assert done.returncode == 1 and not store.exists()
    assert "kernels: 0 compiled" in done.stdout and str(store) not in done.stdout


def test_the_store_setting_is_one_everywhere(
    tmp_path: Path, store_copy: Path, graph_files: list[Path]
) -> None:
    """Flag before environment before default, and doctor says which."""
    env = {"CUDNN_AOT_STORE": str(store_copy)}
    assert "up" in run_cli("ls", env=env, cwd=tmp_path).stdout
    done = run_cli("build", *graph_files, "-t", "cpu", "--json", env=env, cwd=tmp_path)
    assert json.loads(done.stdout)["store"] == str(store_copy)
    absent = run_cli("ls", "--store", tmp_path / "absent", env=env)
    assert absent.returncode == 2
    default = tmp_path / "cudnn_aot_store"
    for arguments, extra, chosen in (
        (("--store", str(store_copy)), env, "--store"),
        ((), env, "CUDNN_AOT_STORE"),
        ((), {}, "default"),
    ):
        report = json.loads(run_cli("doctor", *arguments, "--json", env=extra, cwd=tmp_path).stdout)
        assert report["store_chosen_by"] == chosen
    assert not default.exists()


def test_declined_graphs_have_their_own_exit_code(tmp_path: Path) -> None:
    """A graph that no engine takes is stored as declined, with every engine's reason."""
    graph = linear_graph("declined", 64)
    other = linear_graph("fine", 64, op="swish")
    files = [write_graph(tmp_path, other), tmp_path / "two_matmuls.json"]
    files[1].write_text(two_matmuls(graph.name))
    store = tmp_path / "store"
    done = run_cli("build", *files, "-t", "cpu", "--store", store, "--json")
    assert done.returncode == 3, done.stderr
    declined = json.loads(done.stdout)["graphs"][1]
    assert declined["status"] == "declined" and declined["reasons"]
    assert done.stderr.startswith("declined: two_matmuls for cpu: ")
    shown = run_cli("show", "two_matmuls", "--store", store)
    assert declined["reasons"][0] in shown.stdout
    before = tree_digest(store)
    for allow in ("cpu", "all"):
        done = run_cli(
            "build", *files, "-t", "cpu", "--store", store, "--allow-declined", allow, "--json"
        )
        assert done.returncode == 0
        assert json.loads(done.stdout)["graphs"][1]["status"] == "declined"
    assert tree_digest(store) == before
    run = run_cli("run", "two_matmuls", "--store", store)
    assert run.returncode in (1, 3) and run.stderr.startswith("error: ")
    assert len(run.stderr.splitlines()) == 1


def test_declines_are_allowed_by_every_name_of_a_target(tmp_path: Path) -> None:
    """By its own, its descriptor's file, and the one that it is filed under for another host."""
    graph = tmp_path / "graph.json"
    graph.write_text(two_matmuls("declined"))
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({**load_target("cpu").descriptor(), "name": "my-cpu"}))
    host = ("--host", "x86_64-linux-gnu")
    for target, allow, options in (
        (mine, mine, ()),
        (mine, "my-cpu", ()),
        ("gb200", "gb200", host),
        ("gb200", "gb200-x86_64", host),
    ):
        build = ("build", graph, "-t", target, "--store", tmp_path / "store", *options)
        assert run_cli(*build).returncode == 3
        done = run_cli(*build, "--allow-declined", allow)
        assert done.returncode == 0, (allow, done.stderr)


def two_matmuls(name: str) -> str:
    from cudnn_aot.compiler.formats import graph_json
    from cudnn_aot.compiler.graph.enums import data_type
    from cudnn_aot.compiler.graph.graph import Graph

    graph = Graph(
        "two_matmuls",
        io_data_type=data_type.BFLOAT16,
        intermediate_data_type=data_type.FLOAT,
        compute_data_type=data_type.FLOAT,
    )
    a = graph.tensor([1, 8, 16], [128, 16, 1], uid=1, name="A")
    b = graph.tensor([1, 16, 16], [256, 16, 1], uid=2, name="B")
    first = graph.matmul(a, b)
    first.set_data_type(data_type.BFLOAT16)
    graph.matmul(first, b).set_uid(3).set_output(True)
    return graph_json.dumps(graph)


def test_a_store_moves_and_keeps_no_path(
    tmp_path: Path, graph_files: list[Path], built_store: Path
) -> None:
    """Nothing stored names a folder, and a moved store needs no compile."""
    moved = tmp_path / "moved"
    shutil.copytree(built_store, moved, copy_function=shutil.copy2)
    secrets = [str(built_store).encode(), str(Path.home()).encode() + b"/", str(tmp_path).encode()]
    for path in moved.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not [secret for secret in secrets if secret in data], path
    done = run_cli("build", *graph_files, "-t", "cpu", "--store", moved, "--json")
    assert json.loads(done.stdout)["kernels"]["compiled"] == 0


def test_foreign_files_are_left_alone(store_copy: Path) -> None:
    """Editors and other tools leave files behind; they are reported and never read."""
    for name in (".tmp123", "names/cpu/.up.json.swp", "kernels/README", "lost+found/x"):
        path = store_copy / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("junk")
    assert run_cli("verify", "--store", store_copy).returncode == 0
    listed = json.loads(run_cli("ls", "--store", store_copy, "--json").stdout)
    assert {plan["name"] for plan in listed["plans"]} == {"up", "down"}
    assert "4 files" in run_cli("doctor", "--store", store_copy).stdout


def test_a_kernel_that_fails_is_named_and_the_rest_is_finished(
    tmp_path: Path, graph_files: list[Path], store_copy: Path
) -> None:
    """Graph, target, kernel and the first line that says something; never success without it."""
    extra = write_graph(tmp_path, linear_graph("extra", 56, op="tanh"))
    build = ("build", extra, *graph_files, "-t", "cpu", "-o", store_copy)
    done = run_cli(*build, env={"CC": "/bin/false"})
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()[-1:]
    assert line.startswith("error: extra for cpu: kernel gemm.kernels.host:matmul")
    assert "/bin/false" in line
    rows = {row.split()[0]: row.split()[2] for row in done.stdout.splitlines()[2:5]}
    assert rows == {"extra": "failed", "up": "cached", "down": "cached"}
    assert "failed kernel" in done.stdout and "1 failed" in done.stdout
    assert StoreReader(store_copy).names() == [("cpu", "down"), ("cpu", "up")]
    complete = ("verify", "--complete", tmp_path, "--store", store_copy)
    assert run_cli(*complete).returncode == 1
    assert run_cli(*build).returncode == 0
    assert run_cli(*complete).returncode == 0
