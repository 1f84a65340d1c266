"""`prune` and `ls --stats` as they are read: lines, documents, exit codes."""

import json
import subprocess
from pathlib import Path

import pytest
import toy_store
from cli_process import assert_one_line_error, linear_graph, run_cli, write_graph

from cudnn_aot import runtime
from cudnn_aot.cache.inventory import StoredKernel
from cudnn_aot.cache.layout import STORE_FILE
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.toolchain import dsl_version, toolchain
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.cli.prune import parse_age, parse_size, toolchain_test
from cudnn_aot.errors import UsageError


def du(store: Path, *options: str) -> int:
    done = subprocess.run(["du", "-s", *options, store], capture_output=True, check=True)
    return int(done.stdout.split()[0])


def test_a_dry_run_then_everything(store_copy: Path) -> None:
    def prune(*options: str) -> tuple[str, dict[str, object]]:
        ask = ("prune", "--target", "cpu", "--store", store_copy, *options)
        said, document = run_cli(*ask, "--dry-run"), run_cli(*ask, "--json")
        assert (said.returncode, document.returncode) == (0, 0), said.stderr + document.stderr
        return said.stdout, json.loads(document.stdout)

    built_by = f"made by nvidia-cutlass-dsl {dsl_version()}, apache-tvm-ffi"
    text, document = prune()
    assert f"would remove up for cpu, {built_by}" in text
    assert "would remove 2 graphs, 2 kernels, 6 blobs, 1 build record: " in text
    assert sorted(graph["names"] for graph in document["graphs"]) == [["down"], ["up"]]
    assert len(document["kernels"]) == 2 and len(document["blobs"]) == 6
    assert document["left"]["disk_bytes"] == du(store_copy, "-B1")
    assert [path.name for path in store_copy.iterdir()] == [STORE_FILE]
    assert "would remove 0 graphs, 0 kernels, 0 blobs: 0 B on the disk" in prune()[0]


def test_a_target_that_the_store_lacks_is_told(store_copy: Path) -> None:
    done = run_cli("prune", "--target", "cpuu", "--dry-run", "--store", store_copy)
    assert (done.returncode, done.stderr) == (
        0,
        "note: the store has nothing for target 'cpuu' (did you mean 'cpu'?)\n",
    )


def test_a_pruned_store_is_built_again(store_copy: Path, graph_files: list[Path]) -> None:
    before = toy_store.snapshot(store_copy)
    done = run_cli("prune", "--max-size", "1", "--store", store_copy)
    assert done.returncode == 1 and done.stdout.startswith("removed ")
    assert "error: the store still takes" in done.stderr
    assert "want at most 1 B: nothing that may go is left" in done.stderr
    assert StoreReader(store_copy).pointers() == []
    run_cli("build", *graph_files, "--target", "cpu", "--store", store_copy)
    assert toy_store.snapshot(store_copy) == before


def test_what_is_held_is_said(store_copy: Path) -> None:
    plan = runtime.open(store_copy).plan("up")
    done = run_cli("prune", "--older-than", "0s", "--store", store_copy)
    assert done.returncode == 0, done.stderr
    assert "kept up for cpu: a living process holds it\n" in done.stdout
    assert "removed down for cpu, made by " in done.stdout
    assert StoreReader(store_copy).names() == [("cpu", plan.name)]
    over = run_cli("prune", "--max-size", "1K", "--store", store_copy)
    assert over.returncode == 1 and "1 graph of what may go held by living" in over.stderr


def test_a_builder_at_work_is_named(store_copy: Path) -> None:
    with StoreWriter(store_copy):
        done = run_cli("prune", "--older-than", "0s", "--wait", "0", "--store", store_copy)
    assert_one_line_error(done, 1, "cannot prune", "another builder builds into it", "try later")


def test_unreferenced_and_toolchains(store_copy: Path) -> None:
    with StoreWriter(store_copy) as writer:
        writer.put_blob(b"left by a killed build")
    stats = run_cli("ls", "--stats", "--store", store_copy).stdout
    assert "of no graph: 1 blob, 22 B (4.0 KiB on the disk)" in stats

    def pruned(*options: str) -> tuple[int, int]:
        done = run_cli("prune", *options, "--json", "--store", store_copy)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        return len(document["graphs"]), len(document["blobs"])

    assert pruned("--toolchain", "other") == (0, 0)
    assert pruned("--toolchain", "<4.0") == (0, 0)
    assert pruned("--unreferenced") == (0, 1)
    assert pruned("--toolchain", str(dsl_version())) == (2, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "nothing to prune by: give --max-size"),
        (("--max-size", "much"), "bad --max-size: got 'much', want bytes"),
        (("--older-than", "30"), "bad --older-than: got '30', want a number with s, m, h, d or w"),
        (("--toolchain", "~4"), "bad --toolchain: got '~4'"),
        (("--wait", "-1"), "-1"),
    ],
)
def test_wrong_options(built_store: Path, options: tuple[str, ...], message: str) -> None:
    assert_one_line_error(run_cli("prune", *options, "--store", built_store), 2, message)


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("10", 10), ("1K", 1024), ("1.5kB", 1536), ("2MiB", 2 << 20), ("3G", 3 << 30)],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1.5h", 5400), ("2w", 1209600)])
def test_ages(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize(
    ("spec", "such"),
    [
        ("4.8.1", True),
        ("4.8", False),
        ("<4.9", True),
        (">=4.8,!=4.8.1", False),
        (">=4.8, <=4.8.1.0", True),
        ("==4.10", False),
        (">4.10", False),
    ],
)
def test_toolchain_versions(spec: str, such: bool) -> None:
    kernel = StoredKernel("0" * 64, "1" * 64, (("nvidia-cutlass-dsl", "4.8.1"),))
    assert toolchain_test(spec)(kernel) is such
    assert not toolchain_test(spec)(StoredKernel("0" * 64, "1" * 64, ()))


def test_other_tools_than_installed() -> None:
    installed = tuple(sorted(toolchain("cu12").items()))
    changed = tuple((tool, "0.1" if tool == "apache-tvm-ffi" else v) for tool, v in installed)
    is_other = toolchain_test("other")
    assert not is_other(StoredKernel("0" * 64, "1" * 64, installed))
    assert is_other(StoredKernel("0" * 64, "1" * 64, changed))
    lacking = StoredKernel("0" * 64, "1" * 64, (("dsl_flavor", "cu12"),))
    assert is_other(lacking)
    with pytest.raises(UsageError, match="unknown DSL flavour 'cu99'"):
        is_other(StoredKernel("0" * 64, "1" * 64, (("dsl_flavor", "cu99"),)))


def test_stats_count_a_store(store_copy: Path, tmp_path: Path) -> None:
    """One kernel of two graphs, a second target, a decline, and a foreign file."""
    wide = write_graph(tmp_path, linear_graph("wide", 64, max_rows=100))
    run_cli("build", wide, "--target", "cpu", "--store", store_copy)
    with StoreWriter(store_copy) as writer:
        pointer = writer.reader.pointer(*writer.reader.pointers()[0])
        writer.put_pointer("h200", "1" * 64, {**pointer, "status": "declined", "records": []})
    (store_copy / "notes").write_text("x" * 5000)
    document = json.loads(run_cli("ls", "--stats", "--json", "--store", store_copy).stdout)
    cpu, h200 = document["targets"]
    assert (cpu["target"], h200["target"]) == ("cpu", "h200")
    assert (cpu["graphs"], cpu["plans"], cpu["declined"], cpu["names"]) == (3, 3, 0, 3)
    assert (cpu["kernels"], cpu["shared_kernels"], cpu["blobs"]) == (2, 1, 8)
    assert (h200["graphs"], h200["plans"], h200["declined"]) == (1, 0, 1)
    assert h200["blobs"] == 1 and h200["kernels"] == 0 and h200["toolchains"] == []
    assert cpu["shared"] == h200["shared"] and cpu["shared"]["bytes"] > 0  # the graph
    every = document["all"]
    assert (every["graphs"], every["kernels"], every["blobs"], every["builds"]) == (4, 2, 8, 2)
    assert (cpu["builds"], h200["builds"]) == (2, 0)
    assert (every["bytes"], every["disk_bytes"]) == (du(store_copy, "-b"), du(store_copy, "-B1"))
    assert document["foreign"]["bytes"] == 5000
    assert document["unreferenced"] == {
        **{"kernels": 0, "blobs": 0, "builds": 0},
        **{"bytes": 0, "disk_bytes": 0},
    }
    (tools,) = cpu["toolchains"]
    assert tools.startswith(f"nvidia-cutlass-dsl {dsl_version()}, apache-tvm-ffi ")
    text = run_cli("ls", "--stats", "--target", "cpu", "--store", store_copy).stdout
    assert "  1 kernel of more than one graph\n" in text and f"cpu: made by {tools}\n" in text
    assert "h200:" not in text and "\nall " in text
    absent = run_cli("ls", "--stats", "--target", "h100", "--store", store_copy)
    assert_one_line_error(absent, 1, "no plan for target 'h100'", "cpu, h200")
