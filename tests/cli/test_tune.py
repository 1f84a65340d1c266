"""`tune`: plans of a graph beside each other, the right ones alone, and the file that comes out."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import gemm_graphs
import numpy as np
import pytest
from cli_process import assert_one_line_error, run_cli

from cudnn_aot import runtime
from cudnn_aot.cache import output
from cudnn_aot.cache.canonical import canonical_bytes
from cudnn_aot.cache.layout import providers_of
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.cli import device, measure, operands
from cudnn_aot.cli.operands import Reference, make_operands
from cudnn_aot.cli.tune import _TuningFile
from cudnn_aot.compiler.build.records import provider, with_provider
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.planning.tuning import load_tuning, read_entries
from cudnn_aot.errors import LaunchError, RequirementError
from cudnn_aot.runtime import cudart

ENGINE = "gemm.host.blocked"
SLOW, WRONG, FAST = {"STAGES": 2}, {"STAGES": 3}, {"STAGES": 4}


def changed(record: dict[str, Any], knobs: dict[str, int]) -> dict[str, Any]:
    """Another plan of a record: the same work, the same thirty times, or none of it."""
    table = json.loads(json.dumps(record["table"]))
    for branch in table["branches"].values():
        branch["steps"] = branch["steps"] * (30 if knobs is SLOW else 0 if knobs is WRONG else 1)
    return {**record, "table": table, "knobs": knobs}


@pytest.fixture
def candidates(store_copy: Path) -> Path:
    """A store whose graph `up` has four plans, first what a build took."""
    with StoreWriter(store_copy) as writer:
        key = writer.reader.name("cpu", "up")["graph_key"]
        pointer = writer.reader.pointer("cpu", key)
        held = providers_of(pointer)["native"]
        record = json.loads(writer.reader.blob(held["records"][0]))
        made = [
            writer.put_blob(canonical_bytes(changed(record, knobs)))
            for knobs in (SLOW, WRONG, FAST)
        ]
        native = provider(held["plan_key"], [*held["records"], *made], all_configs=True)
        change = partial(with_provider, pointer["graph"], ["native"], "native", native)
        writer.update_pointer("cpu", key, change)
    assert StoreReader(store_copy).verify() == []
    return store_copy


def test_what_is_right_is_in_the_file_fastest_first(candidates: Path, tmp_path: Path) -> None:
    file = tmp_path / "cpu.json"
    options = ("--store", candidates, "-o", file, "--rounds", 4)
    done = run_cli("tune", *options, "--symbol", "M=1,33", "--json")
    assert done.returncode == 1  # one plan is wrong, and named
    wrong = f"error: up M={{}}: {ENGINE}[STAGES=3]: wrong result: inf times the tolerance"
    assert done.stderr.splitlines() == [wrong.format(m) for m in (1, 33)]
    cases = json.loads(done.stdout, parse_constant=pytest.fail)["cases"]
    assert [case["symbols"] for case in cases] == [{"M": 1}, {"M": 33}]
    for case in cases:
        first, slow, bad, fast = case["plans"]
        assert [p["knobs"] for p in case["plans"]] == [{}, SLOW, WRONG, FAST]
        assert (bad["microseconds"], bad["rounds"], bad["worst_error"]) == (None, 0, None)
        assert slow["rounds"] == 2 and 0 <= slow["worst_error"] <= 1  # hopeless, not wrong
        assert slow["microseconds"] > 2 * min(first["microseconds"], fast["microseconds"]) > 0
    entries = read_entries(file)
    assert [entry["extents"]["m"] for entry in entries] == [1, 33]
    for entry in entries:
        assert (entry["family"], entry["target"]) == ("gemm", "cpu")
        times = [plan["us"] for plan in entry["plans"]]
        assert times == sorted(times) and 1 <= len(times) <= 2
        assert all(plan["knobs"] in ({}, FAST) for plan in entry["plans"])
    before = entries[0]
    assert run_cli("tune", "up", *options, "--symbol", "M=33,64").returncode == 1
    entries = read_entries(file)
    assert [entry["extents"]["m"] for entry in entries] == [1, 33, 64]
    assert entries[0] == before  # what it did not measure stays
    load_tuning(file)


def test_every_value_of_a_ladder_and_a_table(candidates: Path, tmp_path: Path) -> None:
    done = run_cli("tune", "--store", candidates, "-o", tmp_path / "f", "--rounds", 1)
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    # From the lowest in steps of four times, and the hint.
    assert [row[2] for row in rows] == [f"M={m}" for m in (1, 4, 16, 33, 64, 256, 1024, 4096)]
    assert all(row[:2] == ["up", "cpu"] and row[3] == "4" for row in rows)
    assert all(float(ranked) > 0 and float(best) > 0 for *_, ranked, best, _ in rows)


def test_a_build_takes_what_was_measured(candidates: Path, tmp_path: Path, graph_files) -> None:
    """The host engine has no knobs, so of the file only its one plan is known to it."""
    file = tmp_path / "cpu.json"
    run_cli("tune", "up", "--store", candidates, "-o", file, "--symbol", "M=33", "--rounds", 1)
    for entry in (entries := read_entries(file)):
        entry["plans"].append({"engine": ENGINE, "knobs": {}})
    file.write_text(json.dumps({"format": 1, "entries": entries}))
    done = run_cli("why", graph_files[0], "-t", "cpu", "--tuning", file, "--json")
    (graph,) = json.loads(done.stdout)["graphs"]
    assert "measured at M=33" in graph["plans"][0]["why"]


def test_wrong_commands(built_store: Path, candidates: Path, tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    none = run_cli("tune", "--store", built_store, "-o", file)
    assert_one_line_error(none, 1, "no graph has more than one plan", "--all-configs")
    options = ("up", "--store", candidates, "-o", file)
    for symbol, said in (
        ("M", "want NAME=NUMBERS"),
        ("M=1,", "want NAME=NUMBERS"),
        ("N=1", "no symbol 'N'"),
        ("M=99999", "M"),
        ("m=1", "no symbol 'm' (did you mean 'M'?); it has: M"),
    ):
        assert_one_line_error(run_cli("tune", *options, "--symbol", symbol), 2, said)
    assert_one_line_error(
        run_cli("tune", "upp", *options[1:]), 1, "no plan 'upp' (did you mean 'up'?)"
    )
    elsewhere = run_cli("tune", *options, "--target", "h200")
    assert_one_line_error(elsewhere, 1, "'up' is stored for cpu, not for 'h200'")
    assert not file.exists()
    file.write_text("{}")
    assert_one_line_error(run_cli("tune", *options), 2, "tuning file", "format is None")
    assert file.read_text() == "{}"


def test_a_stream_gets_one_file(candidates: Path) -> None:
    options = ("--store", candidates, "-o", "/dev/stdout", "--rounds", 1)
    done = run_cli("tune", "up", *options, "--symbol", "M=1,33")
    entries = json.loads(done.stdout)["entries"]
    assert [entry["extents"]["m"] for entry in entries] == [1, 33]
    assert "M=33" in done.stderr


def test_a_symbol_of_no_graph_is_refused_before_anything_is_measured(
    candidates: Path, tmp_path: Path
) -> None:
    """Without a name a symbol need not belong to every graph, but to one."""
    file = tmp_path / "f.json"
    options = ("--store", candidates, "-o", file, "--rounds", 1)
    done = run_cli("tune", *options, "--symbol", "m=1")
    assert_one_line_error(done, 2, "no graph has a symbol 'm' (did you mean 'M'?); they have: M")
    done = run_cli("tune", *options, "--symbol", "M=1", "--symbol", "M=99999")
    assert_one_line_error(done, 2, "--symbol M: got 99999, want 0..4096")
    assert not file.exists()


def test_values_of_a_symbol_that_is_given_twice_are_all_measured(
    candidates: Path, tmp_path: Path
) -> None:
    file = tmp_path / "f.json"
    options = ("--store", candidates, "-o", file, "--rounds", 1)
    run_cli("tune", *options, "--symbol", "M=7,1", "--symbol", "M=1,3")
    assert [entry["extents"]["m"] for entry in read_entries(file)] == [7, 1, 3]


def test_where_a_file_cannot_be_is_said_before_anything_is_measured(
    candidates: Path, tmp_path: Path
) -> None:
    options = ("up", "--store", candidates, "--rounds", 1, "-o")
    for path, said in ((tmp_path, "is a directory"), (tmp_path / "no" / "f", "no such file")):
        done = run_cli("tune", *options, path)
        assert_one_line_error(done, 2, f"{path}: cannot write the tuning file: {said}")
        assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.glob(".*.tmp"))


def test_engines_with_one_plan_are_no_fault_of_the_build(
    built_store: Path, tmp_path: Path, graph_files
) -> None:
    store = tmp_path / "store"
    options = ("--target", "cpu", "--all-configs", "--store", store)
    assert run_cli("build", graph_files[0], *options).returncode == 0
    done = run_cli("tune", "--store", store, "-o", tmp_path / "f.json")
    assert_one_line_error(done, 1, "its engines have one plan of each graph: name a graph")


def test_what_others_write_meanwhile_stays(candidates: Path, tmp_path: Path) -> None:
    """Two of them at once, as on a machine with several GPUs."""
    file = tmp_path / "f.json"
    options = ("up", "--store", candidates, "-o", file, "--rounds", 1, "--symbol")
    values = [f"M={','.join(map(str, range(first, 41, 2)))}" for first in (1, 2)]
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda given: run_cli("tune", *options, given), values):
            assert done.returncode == 1, done.stderr  # a plan of the store is wrong
    assert {entry["extents"]["m"] for entry in read_entries(file)} == set(range(1, 41))
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(("module", "function"), [(os, "open"), (fcntl, "flock")])
def test_without_locks_a_file_is_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: Any, function: str
) -> None:
    """As on some network file systems, and in a folder that may be written but not read."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as refusing:
        refusing.setattr(module, function, refuse)
        with output.exclusive(tmp_path / "f"):
            entered = True
    assert entered


class StandIn:
    """A device with room for some allocations."""

    l2_bytes = 1 << 20

    def __init__(self, room: int) -> None:
        self.room, self.taken, self.launched = room, set(), 0
        self.index, self.stream = 0, 0

    def allocate(self, size_bytes: int) -> int:
        if len(self.taken) == self.room:
            raise LaunchError("cudaMalloc failed: out of memory (error 2)")
        address = 256 + 256 * len(self.taken)
        self.taken.add(address)
        return address

    def free(self, address: int) -> None:
        self.taken.remove(address)

    def free_graph(self, graph: int) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def upload(self, address: int, array: Any) -> None:
        pass

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        pass


@pytest.mark.parametrize("room", [0, 1, 4, 1000])
def test_what_a_graph_took_of_the_device_is_free_again(
    monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Where it did not get all that it wants, too: the next graph may need less."""
    gpu = StandIn(room)
    monkeypatch.setattr(device, "Device", lambda path, index: gpu)
    monkeypatch.setattr(cudart, "find", lambda: "")
    operands = make_operands(gemm_graphs.plain("g", 16, 64, 32), {}, 0)
    expected = pytest.raises(LaunchError) if room < 1000 else contextlib.nullcontext()
    with expected, measure._on_gpu(operands, 0, [512]):
        assert len(gpu.taken) == 1 + 3 * measure._SETS
    assert not gpu.taken


def test_a_plan_that_cannot_be_timed_is_a_fault_of_that_plan_alone(
    monkeypatch: pytest.MonkeyPatch, built_store: Path
) -> None:
    plan = runtime.open(built_store).plan("up", "cpu")
    reader = StoreReader(built_store)
    pointer = reader.pointer("cpu", plan.graph_key)
    graph = graph_json.loads(reader.blob(pointer["graph"]).decode())
    operands = make_operands(graph, {"M": 3}, 0)
    timer = measure._Cpu.timer
    others = [plan, runtime.open(built_store).plan("up", "cpu")]

    def failing(self: Any, timed: Any, symbols: Any) -> Any:
        if timed is plan:
            raise LaunchError("cudaStreamEndCapture failed")
        return timer(self, timed, symbols)

    monkeypatch.setattr(measure._Cpu, "timer", failing)
    reference = Reference(graph, operands, {"M": 3}, 1 << 10)
    bad, good = measure.measure(others, operands, reference, {"M": 3}, 0, 1)
    assert (bad.microseconds, bad.fault) == (None, "cudaStreamEndCapture failed")
    assert good.microseconds is not None and not good.fault


def test_of_two_that_measure_the_same_what_was_written_last_stays(tmp_path: Path) -> None:
    """Each writes what it measured then, not again what it measured before."""
    file = tmp_path / "f.json"

    def entry(m: int, knobs: dict[str, int]) -> dict[str, Any]:
        about = {"family": "gemm", "target": "cpu", "layout_class": "c", "extents": {"m": m}}
        return {**about, "plans": [{"engine": ENGINE, "knobs": knobs, "us": 1.0}]}

    first, second = _TuningFile(file), _TuningFile(file)
    first.add(entry(1, SLOW))
    second.add(entry(1, FAST))
    first.add(entry(4, SLOW))
    assert read_entries(file) == [entry(1, FAST), entry(4, SLOW)]
    second.add(entry(4, FAST))
    first.finish()
    assert read_entries(file) == [entry(1, FAST), entry(4, FAST)]


def test_a_weight_is_made_once_for_all_values(monkeypatch: pytest.MonkeyPatch) -> None:
    symbols = {"M": {"min": 1, "max": 64}}
    graph = gemm_graphs.chain("g", "M", 48, 32, "relu", symbols=symbols).freeze()
    earlier = make_operands(graph, {"M": 3}, 5)
    made, fresh = make_operands(graph, {"M": 16}, 5, earlier), make_operands(graph, {"M": 16}, 5)
    for got, want in zip(
        (*made.inputs, *made.outputs), (*fresh.inputs, *fresh.outputs), strict=True
    ):
        assert got.uid == want.uid and np.array_equal(got.flat, want.flat), got.tensor
        assert got.view.shape == want.view.shape and got.view.strides == want.view.strides
    before = {buffer.uid: buffer for buffer in earlier.inputs}
    kept = [buffer.tensor.name for buffer in made.inputs if buffer is before[buffer.uid]]
    assert kept == ["B", "bias"]
    # What is there already need not fit a second time.
    monkeypatch.setattr(operands, "available_memory_bytes", lambda: 30_000)
    with pytest.raises(RequirementError, match="choose smaller symbols"):
        make_operands(graph, {"M": 8}, 5)
    make_operands(graph, {"M": 8}, 5, earlier)
