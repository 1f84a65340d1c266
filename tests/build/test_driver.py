"""The build driver: failures stay local, repetition is free, kills are harmless."""

import dataclasses
import json
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import gemm_graphs
import pytest
from cli_process import declined_graph, linear_graph, tree_digest, write_graph
from kill_build import kill_builds, start

from cudnn_aot.cache import compile, layout, spec
from cudnn_aot.cache.canonical import canonical_bytes
from cudnn_aot.cache.layout import providers_of
from cudnn_aot.cache.progress import Event, Stage
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build import driver
from cudnn_aot.compiler.build.records import with_provider
from cudnn_aot.compiler.build.sources import read_sources
from cudnn_aot.compiler.build.summary import BuildSummary, GraphResult, Status
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.bucket import graph_class
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.instantiate import instantiate
from cudnn_aot.compiler.planning import plan_list
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import CompileError, UsageError


def test_a_failing_kernel_fails_its_graphs_alone(
    tmp_path: Path, graph_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`down` shares no kernel with `up`; only the graph that waits for the broken one fails."""
    real = compile.compile_cached
    broken: list[str] = []
    lock = threading.Lock()

    def compile_or_break(spec, *args, **options):
        with lock:
            if not broken:
                broken.append(spec.key)
        if spec.key == broken[0]:
            raise CompileError("this one is broken")
        return real(spec, *args, **options)

    monkeypatch.setattr(compile, "compile_cached", compile_or_break)
    store = tmp_path / "store"
    summary = driver.build(graph_files, ["cpu"], store, jobs=1)
    assert sorted(result.status for result in summary.graphs) == [Status.BUILT, Status.FAILED]
    assert summary.exit_code() == 1
    (failed,) = (result for result in summary.graphs if result.status is Status.FAILED)
    assert len(failed.reasons) == 1
    assert "this one is broken" in failed.reasons[0]
    (failure,) = summary.kernels.failures
    assert failure.to_json() == {
        "key": broken[0],
        "template": "gemm.kernels.host:matmul",
        "error": "this one is broken",
        "log": "",
        "graphs": [{"name": failed.name, "target": "cpu"}],
    }
    assert "gemm.kernels.host:matmul" in failed.reasons[0]
    assert failed.name not in {name for _, name in StoreReader(store).names()}
    assert StoreReader(store).verify() == []

    monkeypatch.setattr(compile, "compile_cached", real)
    summary = driver.build(graph_files, ["cpu"], store)
    assert {result.name: result.status for result in summary.graphs} == {
        failed.name: Status.BUILT,
        next(r.name for r in summary.graphs if r.name != failed.name): Status.CACHED,
    }


def test_a_fault_of_the_planner_fails_one_graph(
    store_copy: Path, graph_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = driver.plan_key

    def plan_key(graph, target, **options):
        if graph.name == "up":
            raise RuntimeError("planner\nfault")
        return real(graph, target, **options)

    monkeypatch.delenv("CUDNN_AOT_DEBUG", raising=False)
    monkeypatch.setattr(driver, "plan_key", plan_key)
    summary = driver.build(graph_files, ["cpu"], store_copy)
    by_name = {result.name: result for result in summary.graphs}
    assert by_name["down"].status is Status.CACHED
    assert by_name["up"].status is Status.FAILED
    assert "\n" not in by_name["up"].reasons[0] and "RuntimeError" in by_name["up"].reasons[0]


def test_a_decline_for_want_of_the_compiler_is_not_stored(
    tmp_path: Path, graph_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says something of the build machine, not of the graph: elsewhere the graph builds."""
    missing = "nvidia-cutlass-dsl is not installed"
    monkeypatch.setattr(plan_list, "why_no_dsl", lambda minimum: missing)
    summary = driver.build(graph_files, ["cpu"], tmp_path / "store")
    assert {result.status for result in summary.graphs} == {Status.DECLINED}
    assert all(any(missing in reason for reason in r.reasons) for r in summary.graphs)
    assert StoreReader(tmp_path / "store").pointers() == []


def test_an_unchanged_build_neither_plans_nor_starts_a_worker(
    store_copy: Path, graph_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*args, **options):
        raise AssertionError("an unchanged build came here")

    for module, name in (
        (driver, "plan_graph"),
        (driver, "build_record"),
        (compile, "compile_cached"),
    ):
        monkeypatch.setattr(module, name, forbidden)
    monkeypatch.setattr(driver.ExecutorChoice, "open", forbidden)
    before = tree_digest(store_copy.parent)
    summary = driver.build(graph_files, ["cpu"], store_copy)
    assert {result.status for result in summary.graphs} == {Status.CACHED}
    assert summary.files_written == 0
    assert tree_digest(store_copy.parent) == before


@pytest.mark.parametrize("change", ["key format", "kernel source"])
def test_what_a_kernel_key_covers_makes_a_stored_plan_stale(
    store_copy: Path, graph_files: list[Path], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A plan's own key does not cover the kernels' sources and tools; the kernels' keys do."""
    before = {r.name: [k.key for k in r.kernels] for r in build_cpu(graph_files, store_copy).graphs}
    if change == "key format":
        monkeypatch.setattr(spec, "VERSION", spec.VERSION + 1)
    else:
        real = spec.source_closure
        monkeypatch.setattr(
            spec,
            "source_closure",
            lambda template: dataclasses.replace(real(template), digest="edited since"),
        )
    stale = build_cpu(graph_files, store_copy, forbid_compile=True)
    assert {result.status for result in stale.graphs} == {Status.FAILED}
    assert all("CUDNN_AOT_FORBID_COMPILE" in " ".join(r.reasons) for r in stale.graphs)
    monkeypatch.undo()
    again = build_cpu(graph_files, store_copy)
    assert {r.name: [k.key for k in r.kernels] for r in again.graphs} == before
    assert {result.status for result in again.graphs} == {Status.CACHED}


@pytest.mark.parametrize("place", ["record", "table"])
def test_a_record_of_another_release_is_made_again(
    store_copy: Path, graph_files: list[Path], place: str
) -> None:
    whole = StoreReader(store_copy).root_digest()
    with StoreWriter(store_copy) as writer:
        for target, key in writer.reader.pointers():
            pointer = writer.reader.pointer(target, key)
            held = dict(providers_of(pointer)["native"])
            record = json.loads(writer.reader.blob(held["records"][0]))
            if place == "record":
                record["format"] = 99
            else:
                record["table"]["version"] = 99
            held["records"] = [writer.put_blob(canonical_bytes(record))]
            writer.update_pointer(
                target, key, partial(with_provider, pointer["graph"], ["native"], "native", held)
            )
    assert StoreReader(store_copy).root_digest() != whole
    again = build_cpu(graph_files, store_copy)
    assert {result.status for result in again.graphs} == {Status.BUILT}
    assert again.kernels.compiled == 0
    assert StoreReader(store_copy).root_digest() == whole


def build_cpu(graphs: list[Path], store: Path, **options) -> BuildSummary:
    return driver.build(graphs, ["cpu"], store, **options)


def test_an_unchanged_build_imports_no_recipe(store_copy: Path, graph_files: list[Path]) -> None:
    script = f"""
import sys
from cudnn_aot.compiler.build.driver import build
summary = build({[str(path) for path in graph_files]!r}, ["cpu"], {str(store_copy)!r})
assert summary.files_written == 0
assert not [m for m in sys.modules if m.startswith("cudnn_aot.recipes.")], sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_equal_graphs_are_planned_once_and_keep_their_names(tmp_path: Path) -> None:
    first = write_graph(tmp_path, linear_graph("first", 64))
    second = write_graph(tmp_path, linear_graph("second", 64))
    store = tmp_path / "store"
    planned: list[Event] = []
    summary = driver.build([first, second, first], ["cpu"], store, progress=planned.append)
    assert [(r.name, r.status) for r in summary.graphs] == [
        ("first", Status.BUILT),
        ("second", Status.BUILT),
    ]
    assert summary.graphs[0].graph_key == summary.graphs[1].graph_key
    assert summary.kernels.compiled == 1
    assert len([event for event in planned if event.stage is Stage.PLAN]) == 1
    assert StoreReader(store).names() == [("cpu", "first"), ("cpu", "second")]


def hinted_graph(name: str, hint: int | None) -> Graph:
    fields = {} if hint is None else {"hint": hint}
    return gemm_graphs.plain(name, "M", 64, 48, symbols={"M": {"max": 4096, **fields}})


def test_a_changed_hint_is_planned_again(tmp_path: Path) -> None:
    """The graph is the same one, and what its plan is ranked for another."""
    store = tmp_path / "store"

    def build(hint: int | None) -> GraphResult:
        return driver.build(
            [write_graph(tmp_path, hinted_graph("g", hint))], ["cpu"], store
        ).graphs[0]

    first, again, other, none = build(64), build(64), build(1536), build(None)
    assert len({result.graph_key for result in (first, again, other, none)}) == 1
    got = [result.status for result in (first, again, other, none)]
    assert got == [Status.BUILT, Status.CACHED, Status.BUILT, Status.BUILT]
    reader = StoreReader(store)
    stored = graph_json.loads(reader.blob(reader.pointer("cpu", none.graph_key)["graph"]))
    assert stored.symbols["M"].hint is None


def test_of_graphs_with_other_hints_the_first_is_planned_and_that_is_said(tmp_path: Path) -> None:
    store = tmp_path / "store"
    graphs = [hinted_graph("few", 64), hinted_graph("many", 1536), hinted_graph("same", 64)]
    files = [write_graph(tmp_path, graph) for graph in graphs]
    sources, _ = read_sources(files, lambda event: None)
    (job,) = driver._jobs(sources, [load_target("cpu")])
    assert [source.name for source in job.sources] == ["few", "many", "same"]
    assert job.source.graph.symbols["M"].hint == 64

    events: list[Event] = []
    summary = driver.build(files, ["cpu"], store, progress=events.append)
    assert {result.status for result in summary.graphs} == {Status.BUILT}
    (note,) = (event.label for event in events if event.stage is Stage.NOTE)
    assert note == (
        f"'many' of {files[1]} and 'few' of {files[0]} are one graph with other hints "
        "(M: 1536 and 64): the plan of both is that for the latter"
    )
    alone = {
        file.stem: driver.build([file], ["cpu"], store).graphs[0].status for file in files[::-1]
    }
    assert alone == {"same": Status.CACHED, "many": Status.BUILT, "few": Status.BUILT}


def test_a_name_follows_an_edited_graph(tmp_path: Path) -> None:
    """The usual edit: the same file with another shape; the old plan stays, the name moves."""
    store = tmp_path / "store"
    path = write_graph(tmp_path, linear_graph("layer", 64))
    old = driver.build([path], ["cpu"], store).graphs[0]
    write_graph(tmp_path, linear_graph("layer", 72))
    new = driver.build([path], ["cpu"], store).graphs[0]
    assert old.graph_key != new.graph_key
    reader = StoreReader(store)
    assert reader.name("cpu", "layer")["graph_key"] == new.graph_key
    assert reader.pointer("cpu", old.graph_key)["status"] == "built"


def test_a_symbolic_graph_is_in_its_class(tmp_path: Path) -> None:
    """Two ranges of one class; a concrete graph of it has an entry of no use, and gets none."""
    wide, narrow = linear_graph("wide", 64), linear_graph("narrow", 64, max_rows=128)
    concrete = instantiate(wide, {"M": 5})
    concrete.name = "five"
    files = [write_graph(tmp_path, graph) for graph in (wide, narrow, concrete)]
    store = tmp_path / "store"
    assert driver.build(files, ["cpu"], store).exit_code() == 0
    bucket = graph_class(wide).bucket
    assert graph_class(concrete).bucket == bucket
    reader = StoreReader(store)
    assert reader.classes() == [("cpu", bucket)]
    assert reader.class_members("cpu", bucket) == sorted([wide.key(), narrow.key()])
    assert reader.verify() == []


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_an_unchanged_build_repairs_a_class(
    store_copy: Path, graph_files: list[Path], damage: str
) -> None:
    before = tree_digest(store_copy)
    (target, bucket), *_ = StoreReader(store_copy).classes()
    path = store_copy / layout.class_path(target, bucket)
    data = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[:-9])
    summary = driver.build(graph_files, ["cpu"], store_copy, forbid_compile=True)
    assert {result.status for result in summary.graphs} == {Status.CACHED}
    assert summary.files_written == 1
    assert tree_digest(store_copy) == before


def test_a_declined_graph_is_in_no_class(tmp_path: Path) -> None:
    graph = declined_graph("odd")
    summary = driver.build([write_graph(tmp_path, graph)], ["cpu"], tmp_path / "store")
    assert [result.status for result in summary.graphs] == [Status.DECLINED]
    assert StoreReader(tmp_path / "store").classes() == []


def test_progress_reaches_its_totals(tmp_path: Path, graph_files: list[Path]) -> None:
    events: list[Event] = []
    driver.build(graph_files, ["cpu"], tmp_path / "store", progress=events.append)
    for stage in (Stage.LOAD, Stage.PLAN, Stage.COMPILE):
        of_stage = [event for event in events if event.stage is stage]
        assert [event.done for event in of_stage] == [1, 2]
        assert {event.total for event in of_stage} == {2}


def test_arguments() -> None:
    with pytest.raises(UsageError, match="no graph file"):
        driver.build([], ["cpu"], "unused")
    with pytest.raises(UsageError, match="no target"):
        driver.build(["g.json"], [], "unused")
    with pytest.raises(UsageError, match="jobs"):
        driver.build(["g.json"], ["cpu"], "unused", jobs=0)


@pytest.mark.parametrize(
    ("statuses", "allowed", "want"),
    [
        ({"cpu": Status.BUILT}, (), 0),
        ({"cpu": Status.FAILED, "h200": Status.DECLINED}, ("all",), 1),
        ({"cpu": Status.DECLINED}, (), 3),
        ({"cpu": Status.DECLINED}, ("cpu",), 0),
        ({"cpu": Status.DECLINED, "h200": Status.DECLINED}, ("cpu",), 3),
        ({"cpu": Status.DECLINED, "h200": Status.DECLINED}, ("all",), 0),
        ({"cpu": Status.CACHED, "h200": Status.BUILT}, (), 0),
    ],
)
def test_exit_code(statuses: dict[str, Status], allowed: tuple[str, ...], want: int) -> None:
    graphs = tuple(GraphResult("g", "k", target, status) for target, status in statuses.items())
    summary = BuildSummary("s", 1, graphs, driver.KernelTotals(), 0, 0.0)
    assert summary.exit_code(allowed) == want


@pytest.mark.slow
def test_killed_builds_repeat_well(tmp_path: Path, graph_files: list[Path]) -> None:
    """SIGKILL at 20 random moments: no half entry, no hang, and an end as if there were none."""
    files, undisturbed, folder = graph_files[:1], tmp_path / "undisturbed", tmp_path / "killed"
    started = time.perf_counter()
    assert start(files, undisturbed).wait() == 0
    build_s = time.perf_counter() - started
    folder.mkdir()
    killed = kill_builds(files, undisturbed, folder, points=20, seed=20, build_s=build_s)
    assert killed.faults == []
    assert killed.ended < 20 and len(set(killed.files)) > 1, killed


def test_a_changed_tuning_file_plans_again_the_graphs_it_speaks_of(
    tmp_path: Path, store_copy: Path, graph_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is compiled again for it: the measured plan has the kernels that are there."""
    tuning = tmp_path / "tuning.json"
    planned: list[str] = []
    real = driver.plan_graph

    def plan_graph(graph, target, **options):
        planned.append(graph.name)
        return real(graph, target, **options)

    monkeypatch.setattr(driver, "plan_graph", plan_graph)

    def build_by(*plans: dict) -> dict[str, Status]:
        planned.clear()
        about = {
            "family": "gemm",
            "target": "cpu",
            "layout_class": "BFLOAT16xBFLOAT16 kk [] relu -> BFLOAT16",
            "extents": {"batch": 1, "m": 33, "n": 64, "k": 48},
            "plans": plans,
        }
        tuning.write_text(json.dumps({"format": 1, "entries": [about]}))
        summary = driver.build(graph_files, ["cpu"], store_copy, tuning=tuning)
        assert summary.kernels.compiled == 0
        return {result.name: result.status for result in summary.graphs}

    host = {"engine": "gemm.host.blocked", "knobs": {}}
    # Without plans an entry takes the place of one that may be shipped.
    assert build_by() == {"up": Status.BUILT, "down": Status.CACHED}
    assert build_by() == {"up": Status.CACHED, "down": Status.CACHED}
    assert build_by(host) == {"up": Status.BUILT, "down": Status.CACHED}
    assert planned == ["up"]
    assert build_by(host) == {"up": Status.CACHED, "down": Status.CACHED}
    assert build_by(host, host) == {"up": Status.BUILT, "down": Status.CACHED}
    monkeypatch.undo()
    without = build_cpu(graph_files, store_copy)
    assert {r.name: r.status for r in without.graphs} == {
        "up": Status.BUILT,
        "down": Status.CACHED,
    }


def test_a_kernel_that_graphs_share_is_checked_once_per_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extents are arguments of a kernel, so these two graphs have one."""
    files = [write_graph(tmp_path, linear_graph(f"n{n}", n)) for n in (64, 72)]
    store = tmp_path / "store"
    built = build_cpu(files, store)
    (blob,) = {kernel.blob_digest for result in built.graphs for kernel in result.kernels}
    read: list[str] = []
    real = StoreReader.blob

    def note(self: StoreReader, digest: str) -> bytes:
        read.append(digest)
        return real(self, digest)

    monkeypatch.setattr(StoreReader, "blob", note)
    again = build_cpu(files, store)
    assert {result.status for result in again.graphs} == {Status.CACHED}
    assert read.count(blob) == 1
    path = store / layout.blob_path(blob)
    path.chmod(0o644)
    path.write_bytes(b"other bytes")
    mended = build_cpu(files, store)
    assert {result.status for result in mended.graphs} == {Status.BUILT}
    assert mended.kernels.compiled == 1 and StoreReader(store).verify() == []
