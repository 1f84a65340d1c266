"""`run`: executes what is stored, judges it, and keeps going."""

import json
import math
from pathlib import Path
from typing import Any

import gemm_graphs
import moe_graphs
import numpy as np
import pytest
from cli_process import assert_one_line_error, linear_graph, run_cli, tree_digest, write_graph

import cudnn_aot as cudnn
from cudnn_aot.cli import operands
from cudnn_aot.cli.commands import run_command
from cudnn_aot.compiler.reference.storage import to_storage
from cudnn_aot.compiler.target.target import load_target


def test_every_plan_is_right_and_nothing_is_written(built_store: Path) -> None:
    before = tree_digest(built_store.parent)
    done = run_cli("run", "--all", "--store", built_store, "--json")
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [(item["name"], item["correct"]) for item in runs] == [("down", True), ("up", True)]
    assert all(item["symbols"] == {"M": 33} for item in runs)
    assert all(0 <= item["worst_error"] <= 1 for item in runs)
    assert tree_digest(built_store.parent) == before


def test_a_store_that_any_user_may_change_is_named(store_copy: Path) -> None:
    """Before its kernels run, unless it is pinned."""
    pin = json.loads(run_cli("verify", "--store", store_copy, "--json").stdout)["root_digest"]
    store_copy.chmod(0o777)
    done = run_cli("run", "up", "--store", store_copy)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 0
    assert line.startswith(f"warning: any user may change the store '{store_copy}'")
    done = run_cli("run", "up", "--store", store_copy, env={"CUDNN_AOT_PIN": pin})
    assert (done.returncode, done.stderr) == (0, "")


# 0: an empty result; 1 and 17: no multiple of any tile; 4096: the largest
@pytest.mark.parametrize("rows", [0, 1, 17, 4096])
def test_symbols_and_seeds(rows: int, built_store: Path) -> None:
    done = run_cli("run", "up", "--symbol", f"M={rows}", "--seed", "3", "--store", built_store)
    assert done.returncode == 0, done.stderr
    assert f"M={rows}" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 of 1 plan correct")


def test_bench_reports_time(built_store: Path) -> None:
    done = run_cli("run", "up", "down", "--bench", "--store", built_store, "--json")
    assert done.returncode == 0, done.stderr
    for item in json.loads(done.stdout)["runs"]:
        assert item["microseconds"] > 0 and item["tflops"] > 0


def test_a_wrong_result_is_found(
    built_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The comparison itself: a reference that is off by a little must not pass."""
    real = operands.execute
    monkeypatch.setattr(
        operands, "execute", lambda *args: {k: v + 0.1 for k, v in real(*args).items()}
    )
    assert run_command(["run", "up", "--store", str(built_store)]) == 1
    out, err = capsys.readouterr()
    assert "WRONG" in out and "0 of 1 plan correct" in out
    assert err.startswith("error: up: wrong result")


def test_an_output_that_is_not_written_is_found(
    built_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs start as NaN, so a plan that does nothing cannot pass."""
    from cudnn_aot.cli import run

    monkeypatch.setattr(run, "_on_cpu", lambda *args: None)
    assert run_command(["run", "up", "--store", str(built_store)]) == 1


def test_a_damaged_plan_does_not_stop_the_others(store_copy: Path) -> None:
    name = json.loads((store_copy / "names/cpu/down.json").read_text())
    pointer = store_copy / "plans/cpu" / f"{name['graph_key']}.json"
    pointer.chmod(0o644)
    pointer.write_text("{")
    done = run_cli("run", "--all", "--store", store_copy)
    assert_one_line_error(done, 1, "down", "damaged")
    assert "1 of 2 plans correct" in done.stdout


def test_a_name_stored_for_several_targets_asks_which(tmp_path: Path) -> None:
    path = write_graph(tmp_path, linear_graph("both", 64))
    other = tmp_path / "other_cpu.json"
    other.write_text(json.dumps(load_target("cpu").descriptor() | {"name": "other_cpu"}))
    store = tmp_path / "store"
    built = run_cli("build", path, "-t", f"cpu,{other}", "--store", store)
    assert built.returncode == 0, built.stderr
    assert_one_line_error(run_cli("run", "both", "--store", store), 2, "cpu, other_cpu", "--target")
    assert_one_line_error(run_cli("run", "--all", "--store", store), 2, "cpu, other_cpu")
    for named in ("other_cpu", other):
        done = run_cli("run", "both", "--target", named, "--store", store)
        assert done.returncode == 0, done.stderr
        assert "other_cpu" in done.stdout


def test_a_gpu_plan_without_a_driver(tmp_path: Path) -> None:
    """Built here without a GPU; running it here is one line."""
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver")
    path = write_graph(tmp_path, linear_graph("gpu", 64))
    store = tmp_path / "store"
    built = run_cli("build", path, "-t", "h200", "--store", store)
    assert built.returncode == 0, built.stderr
    done = run_cli("run", "gpu", "--store", store)
    assert_one_line_error(done, 1, "driver")


@pytest.mark.parametrize("dtype", ["FLOAT", "HALF", "BFLOAT16", "FP8_E4M3", "INT8", "INT32"])
def test_a_sample_tells_what_was_not_written(dtype: str) -> None:
    """Of every type, in which the poison may be a value that is right, as -1 is of integers."""
    kind = cudnn.data_type[dtype]
    g = cudnn.pygraph("g", kind, cudnn.data_type.FLOAT, cudnn.data_type.FLOAT)
    x = g.tensor(name="x", dim=[1, 64, 64])
    g.identity(x).set_output(True).set_data_type(kind)
    made = operands.make_operands(g.freeze(), {}, seed=0)
    reference = operands.Reference(g, made, {}, sample=16)
    (out,) = made.outputs
    (source,) = [buffer for buffer in made.inputs if buffer.tensor.name == "x"]
    out.view[...] = source.view
    assert reference.worst_error([out]) <= 1
    out.view[0, 63, 5:7].view(np.uint8)[...] = 0xFF
    assert not reference.worst_error([out]) <= 1


def linear() -> Any:
    symbols = {"M": {"min": 1, "max": 4096}}
    return gemm_graphs.chain("g", "M", 72, 24, "gelu", symbols=symbols)


@pytest.mark.parametrize("m", [300, 1000, 4096])
def test_of_many_rows_some_of_every_tile_are_compared(m: int, monkeypatch) -> None:
    """The same as of all rows, for less than all of the reference's work."""
    graph, symbols = linear().freeze(), {"M": m}
    made = operands.make_operands(graph, symbols, seed=0)
    computed = []
    real = operands.execute
    monkeypatch.setattr(operands, "execute", lambda *a: computed.append(a[2]) or real(*a))
    whole = operands.Reference(graph, made, symbols)
    some = operands.Reference(graph, made, symbols, sample=1 << 14)
    assert computed[0] == symbols and computed[1]["M"] < m
    (out,) = made.outputs
    assert some.worst_error([out]) == math.inf  # nothing is written yet
    out.view[...] = to_storage(whole._want[out.uid], out.tensor.data_type)
    assert some.worst_error([out]) == whole.worst_error([out]) <= 1
    # A tile that is wrong is found wherever it is, and one element that is not written.
    for row in range(0, m, 64):
        for column in (0, 64):
            kept = out.view[..., row : row + 64, column : column + 64].copy()
            out.view[..., row : row + 64, column : column + 64] = 0
            assert some.worst_error([out]) > 1, (row, column)
            out.view[..., row : row + 64, column : column + 64] = kept
    out.view[..., m - 2, 5].view(np.uint8)[...] = 0xFF
    assert some.worst_error([out]) == math.inf


@pytest.mark.parametrize(
    "make",
    [
        lambda: gemm_graphs.bias_gradient("g", "M", 72, 24, symbols={"M": {"max": 4096}}),
        lambda: gemm_graphs.by_columns("g", "M", 72, 24, symbols={"M": {"max": 4096}}),
        lambda: gemm_graphs.plain("g", 64, "M", 24, symbols={"M": {"max": 4096}}),
        lambda: gemm_graphs.plain("g", "2*M", 64, 24, symbols={"M": {"max": 2048}}),
        lambda: moe_graphs.grouped("NONE", rows="M", tokens=8, symbols={"M": {"max": 4096}}),
    ],
    ids=["folds_along_rows", "folds_of_all", "columns", "multiples", "routed"],
)
def test_rows_that_depend_on_others_or_are_no_rows_are_all_computed(make) -> None:
    assert operands._row_symbol(make().freeze()) is None
