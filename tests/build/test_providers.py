"""Several providers in one store: each has its own key and records, and leaves the others' alone.

A stand-in answers for cuDNN; that its plans run is seen in tests/gpu.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_process import run_cli, tree_digest
from cudnn_stand_in import ABSENT, FOUND, NOTE, CudnnStandIn

from cudnn_aot import runtime
from cudnn_aot.cache.layout import providers_of
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build import driver, records
from cudnn_aot.compiler.build.summary import BuildSummary, Status
from cudnn_aot.compiler.planning import backend as planning
from cudnn_aot.compiler.planning.rank import BACKEND
from cudnn_aot.errors import (
    NotInStoreError,
    RequirementError,
    UsageError,
    cudnnGraphNotSupportedError,
)
from cudnn_aot.recipes.gemm import heuristics

ORDER = ("native", "cudnn")
BLOB = b"engine 4 {'KERNEL_CFG': 3}"


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> CudnnStandIn:
    return CudnnStandIn(monkeypatch)


def build(graphs: list[Path], store: Path, *engines: str) -> BuildSummary:
    return driver.build(graphs, ["cpu"], store, engines=engines or ("native",))


def pointers(store: Path) -> dict[str, Any]:
    reader = StoreReader(store)
    assert reader.verify() == []
    return {
        name: reader.pointer(target, reader.name(target, name)["graph_key"])
        for target, name in reader.names()
    }


def statuses(summary: BuildSummary) -> list[tuple[str, str, str]]:
    return [(r.name, r.provider, r.status.value) for r in summary.graphs]


def test_cudnn_adds_its_plans_to_a_store(
    store_copy: Path, graph_files: list[Path], cudnn: CudnnStandIn
) -> None:
    before = pointers(store_copy)
    summary = build(graph_files, store_copy, "cudnn")
    assert statuses(summary) == [("up", "cudnn", "built"), ("down", "cudnn", "built")]
    assert summary.exit_code() == 0
    (up, _) = summary.graphs
    assert (up.engines, up.knobs, up.kernels) == (("cudnn.eng4",), {"KERNEL_CFG": 3}, ())
    assert [size for _, size in up.blobs] == [len(BLOB)] and up.to_json()["provider"] == "cudnn"
    for name, pointer in pointers(store_copy).items():
        native = before[name]["providers"]["native"]
        assert pointer["providers"]["native"] == native
        assert pointer["records"] == [*native["records"], *pointer["providers"]["cudnn"]["records"]]
        assert pointer["status"] == "built" and pointer["reasons"] == []
        record = json.loads(StoreReader(store_copy).blob(pointer["records"][1]))
        assert record["engine"] == {"id": 4, "name": "cudnn.eng4"}
        assert record["requirements"]["cudnn"] == "9.19.0"
        assert record["knobs"] == {"KERNEL_CFG": 3} and record["notes"] == [NOTE]
        assert StoreReader(store_copy).blob(record["blobs"][0]["blob"]) == BLOB

    again = build(graph_files, store_copy, "cudnn", "native")
    assert {status for _, _, status in statuses(again)} == {"cached"} and len(again.graphs) == 4
    assert again.files_written == 0 and len(cudnn.asked) == 2


def test_a_native_build_keeps_cudnn_s_plans(
    tmp_path: Path, graph_files: list[Path], cudnn: CudnnStandIn
) -> None:
    store = tmp_path / "store"
    build(graph_files[:1], store, "cudnn")
    first = pointers(store)["up"]
    assert list(first["providers"]) == ["cudnn"] and len(first["records"]) == 1
    build(graph_files[:1], store)
    both = pointers(store)["up"]
    assert both["providers"]["cudnn"] == first["providers"]["cudnn"]
    assert both["records"][1] == first["records"][0]  # native first


@pytest.mark.parametrize("first", [("native", "cudnn"), ("cudnn", "native")])
def test_the_family_s_marker_orders_the_records(
    tmp_path: Path,
    graph_files: list[Path],
    cudnn: CudnnStandIn,
    monkeypatch: pytest.MonkeyPatch,
    first: tuple[str, str],
) -> None:
    """Whoever is built first."""
    ours = heuristics.recommend
    monkeypatch.setattr(heuristics, "recommend", lambda *asked: [BACKEND, *ours(*asked)])
    store = tmp_path / "store"
    for provider in first:
        build(graph_files[:1], store, provider)
    pointer = pointers(store)["up"]
    parts = pointer["providers"]
    assert pointer["records"] == [*parts["cudnn"]["records"], *parts["native"]["records"]]


def test_a_builder_without_cudnn_changes_nothing(
    store_copy: Path, graph_files: list[Path], cudnn: CudnnStandIn
) -> None:
    build(graph_files, store_copy, "cudnn")
    cudnn.found = ABSENT
    before = tree_digest(store_copy)
    summary = build(graph_files, store_copy, "native", "cudnn")
    assert {(p, s) for _, p, s in statuses(summary)} == {
        ("native", "cached"), ("cudnn", "declined")}  # fmt: skip
    assert summary.exit_code() == 0  # the graphs have plans of a provider that was asked
    assert {r.reasons for r in summary.graphs if r.provider == "cudnn"} == {(ABSENT.reason,)}
    alone = build(graph_files, store_copy, "cudnn")
    assert alone.exit_code() == 3 and alone.exit_code(["cpu"]) == 0
    assert tree_digest(store_copy) == before


def test_a_graph_that_cudnn_declines(
    store_copy: Path, graph_files: list[Path], cudnn: CudnnStandIn
) -> None:
    cudnn.declines = {3, 4}
    summary = build(graph_files[:1], store_copy, "cudnn")
    reasons = (
        "cudnn.eng3: not for this graph",
        "cudnn.eng4[KERNEL_CFG=3]: not for this graph",
    )
    assert summary.graphs[0].reasons == reasons and summary.exit_code() == 3
    pointer = pointers(store_copy)["up"]
    assert pointer["status"] == "built" and len(pointer["records"]) == 1
    assert pointer["reasons"] == [f"cudnn: {reason}" for reason in reasons]
    again = build(graph_files[:1], store_copy, "cudnn")
    assert again.graphs[0].reasons == reasons and len(cudnn.asked) == 1
    store = runtime.open(store_copy)
    assert store.plan("up").engine == "gemm.host.blocked"
    with pytest.raises(cudnnGraphNotSupportedError, match=r"KERNEL_CFG=3\]: not for this graph"):
        store.plan("up", provider="cudnn")
    with pytest.raises(NotInStoreError, match="no plan of 'cudnn' for 'down'; .* of: native"):
        store.plan("down", provider="cudnn")


def test_another_cudnn_makes_its_plans_anew(
    store_copy: Path, graph_files: list[Path], cudnn: CudnnStandIn
) -> None:
    build(graph_files, store_copy, "cudnn")
    cudnn.found = replace(FOUND, version="9.20.0")
    assert {s for _, _, s in statuses(build(graph_files, store_copy, "cudnn"))} == {"built"}
    assert len(cudnn.asked) == 4


def test_an_error_of_cudnn_fails_its_row_alone(
    store_copy: Path,
    graph_files: list[Path],
    cudnn: CudnnStandIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDNN_AOT_DEBUG", raising=False)

    def fails(*args: Any) -> Any:
        raise RuntimeError("CUDNN_STATUS_INTERNAL_ERROR")

    monkeypatch.setattr(planning, "entries_of", fails)
    summary = build(graph_files[:1], store_copy, "native", "cudnn")
    assert [r.status for r in summary.graphs] == [Status.CACHED, Status.FAILED]
    assert "INTERNAL_ERROR" in summary.graphs[1].reasons[0] and summary.exit_code() == 1


def test_a_damaged_blob_is_made_again(
    store_copy: Path, graph_files: list[Path], cudnn: CudnnStandIn
) -> None:
    summary = build(graph_files[:1], store_copy, "cudnn")
    ((blob, _),) = summary.graphs[0].blobs
    path = store_copy / "blobs/sha256" / blob[:2] / blob
    path.chmod(0o644)
    path.write_bytes(b"blub")
    assert "hash to" in str(StoreReader(store_copy).verify()[0])
    path.unlink()
    assert f"its blob {blob} is missing" in str(StoreReader(store_copy).verify()[0])
    assert build(graph_files[:1], store_copy, "cudnn").graphs[0].status is Status.BUILT
    assert StoreReader(store_copy).verify() == []


def test_a_plan_of_cudnn_needs_it_before_anything_loads(
    store_copy: Path,
    graph_files: list[Path],
    cudnn: CudnnStandIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    summary = build(graph_files[:1], store_copy, "cudnn")
    ((blob, _),) = summary.graphs[0].blobs
    (store_copy / "blobs/sha256" / blob[:2] / blob).unlink()  # reading it would be another error
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RequirementError, match=r"pip install 'cudnn-aot\[cudnn\]'"):
        runtime.open(store_copy).plan("up", provider="cudnn")


def test_what_ls_and_show_say(
    store_copy: Path, graph_files: list[Path], cudnn: CudnnStandIn
) -> None:
    build(graph_files[:1], store_copy, "cudnn")
    shown = run_cli("show", "up", "--store", store_copy)
    assert shown.returncode == 0 and "plans        cudnn 1, native 1" in shown.stdout
    listed = json.loads(run_cli("ls", "--store", store_copy, "--json").stdout)["plans"]
    (up,) = (plan for plan in listed if plan["name"] == "up")
    assert up["engine"] == "gemm.host.blocked"
    assert up["providers"] == {"native": {"plans": 1, "reasons": []},
                               "cudnn": {"plans": 1, "reasons": []}}  # fmt: skip
    assert run_cli("verify", "--store", store_copy).returncode == 0


def test_show_of_a_plan_of_cudnn_s_alone(
    tmp_path: Path, graph_files: list[Path], cudnn: CudnnStandIn
) -> None:
    store = tmp_path / "store"
    build(graph_files[:1], store, "cudnn")
    shown = run_cli("show", "up", "--store", store)
    assert shown.returncode == 0, shown.stderr
    for text in ("cudnn.eng4 KERNEL_CFG=3", "cudnn 9.19.0", "branch cudnn: blob 0", "plans  "):
        assert text in shown.stdout, shown.stdout


def test_the_command_says_what_happened_to_each_provider(
    store_copy: Path, graph_files: list[Path]
) -> None:
    """With the real question: the cpu target has no GPU wherever this runs."""
    done = run_cli("build", *graph_files, "-t", "cpu", "--store", store_copy,
                   "--engines", "native,cudnn")  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:5] == ["graph", "target", "provider", "status", "engine"]
    rows = [line.split()[:4] for line in lines[1:5]]
    assert ["up", "cpu", "native", "cached"] in rows and ["up", "cpu", "cudnn", "declined"] in rows
    assert "declined: up for cpu: cudnn: cuDNN runs on GPUs" in done.stderr
    alone = run_cli("build", *graph_files, "-t", "cpu", "--store", store_copy,
                    "--engines", "cudnn")  # fmt: skip
    assert alone.returncode == 3
    wrong = run_cli("build", *graph_files, "-t", "cpu", "--store", store_copy, "--engines", "trt")
    assert wrong.returncode == 2 and "got 'trt', want one or more of native, cudnn" in wrong.stderr


def test_engines_must_be_known(tmp_path: Path, graph_files: list[Path]) -> None:
    with pytest.raises(UsageError, match="engines: got 'x'"):
        build(graph_files, tmp_path / "store", "native", "x")
    assert not (tmp_path / "store").exists()


def test_a_pointer_of_before_there_were_providers() -> None:
    old = {"status": "built", "plan_key": "k", "records": ["r"], "graph": "g", "reasons": []}
    native = {"plan_key": "k", "records": ["r"], "reasons": []}
    assert providers_of(old) == {"native": native}
    made = records.provider("c", ["s"])
    assert records.with_provider("g", ORDER, "cudnn", made, old) == {
        "status": "built",
        "records": ["r", "s"],
        "graph": "g",
        "reasons": [],
        "providers": {"native": native, "cudnn": made},
    }


def test_the_reasons_of_all_who_have_no_plan() -> None:
    declined = records.pointer("g", {
        "cudnn": records.provider("c", [], ["no engine"]),
        "native": records.provider("n", [], ["gemm.sm90.persistent: dtype"]),
    })  # fmt: skip
    assert declined["status"] == "declined" and declined["records"] == []
    assert declined["reasons"] == ["gemm.sm90.persistent: dtype", "cudnn: no engine"]


def test_two_builders_of_one_graph_lose_nothing(tmp_path: Path) -> None:
    """Each reads the pointer under its lock, so neither writes over what the other added."""
    key = "0" * 64
    with StoreWriter(tmp_path / "store") as one, StoreWriter(tmp_path / "store") as two:
        for writer, name in ((one, "native"), (two, "cudnn")):
            part = records.provider(name, [])
            assert writer.update_pointer(
                "cpu",
                key,
                lambda known, n=name, p=part: records.with_provider("9" * 64, ORDER, n, p, known),
            )
        assert not two.update_pointer("cpu", key, lambda known: known or {})
        assert set(one.reader.pointer("cpu", key)["providers"]) == {"native", "cudnn"}
