"""The explanation of a plan says what `build` does, and the answer of a store says what differs."""

import dataclasses
import json
from pathlib import Path

import gemm_graphs
import pytest
from cli_process import linear_graph, write_graph
from cudnn_stand_in import ABSENT, FOUND, CudnnStandIn

from cudnn_aot.cache import layout, spec
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cli.why_text import describe
from cudnn_aot.compiler.build import driver, why
from cudnn_aot.compiler.build.nearest import nearest_entry
from cudnn_aot.compiler.build.sources import Source
from cudnn_aot.compiler.build.why_stored import Held, HeldPlan, StoreAnswer, explain_stored
from cudnn_aot.compiler.graph.difference import Difference
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning import plan as planning
from cudnn_aot.compiler.planning.cudnn import Cudnn
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.planning.tuning import Tuning, load_tuning
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import CompileError
from cudnn_aot.recipes.gemm import sm90

H200, CPU = load_target("h200"), load_target("cpu")
pytestmark = pytest.mark.usefixtures("nothing_shipped")


def source(graph: Graph) -> Source:
    graph.freeze()
    return Source(f"{graph.name}.json", graph.name, graph.key(), graph)


# --- the plan ------------------------------------------------------------------------------------


def test_the_choice_is_what_a_build_plans():
    for make in gemm_graphs.TEST_GRAPHS:
        explained = why.explain(source(make()), H200)
        planned = plan_graph(make(), H200)
        assert explained.chosen is not None and explained.chosen.place == 1
        assert [key for _, key in explained.chosen.kernels] == [s.key for s in planned.kernels]
        assert explained.plans[0].name.startswith(planned.engine_name) or explained.plans[0].ranges
        verdicts = {engine.name: engine.reason for engine in explained.engines}
        assert verdicts["gemm.sm90.persistent"] is None
        assert "cuda target" in verdicts["gemm.host.blocked"]
        json.dumps(explained.to_json())


@pytest.mark.parametrize("piped", [True, False])
def test_it_says_whose_addresses_decide_the_branch(piped: bool):
    """What TMA loads or stores: a residual too, where it comes as the matrices do."""
    stride = [4096 * 4096, 4096, 1] if piped else [4096 * 4096, 1, 4096]
    g = gemm_graphs.graph("g")
    a = gemm_graphs.operand(g, "A", 4096, 512)
    y = g.matmul(a, gemm_graphs.operand(g, "B", 512, 4096, transposed=True))
    y = g.add(y, g.tensor(name="residual", dim=[1, 4096, 4096], stride=stride))
    y.set_output(True).set_data_type(gemm_graphs.BF16).set_name("Y")
    wide = {"TILE_M": 128, "TILE_N": 256, "TILEK": 64, "TILE_CGA_M": 2, "TILE_CGA_N": 1}
    knobs = {**wide, "SPLIT_K_SLC": 1, "STREAM_K": 0, "WARP_SPEC_CFG": 0}
    plans = [{"engine": "gemm.sm90.persistent", "knobs": knobs}]
    about = why.explain(source(g), H200).tuning_entry
    explained = why.explain(source(g), H200, tuning=Tuning([{**about, "plans": plans}]))
    assert explained.chosen is not None and explained.plans[0].why == "measured"
    names = ["A", "B", *["residual"] * piped, "Y"]
    assert explained.to_json()["chosen"]["aligned"] == dict.fromkeys(names, 16)
    said = f"want addresses that are multiples of 16 bytes: {', '.join(map(repr, names))}."
    assert [line for line in describe(explained, None) if line.endswith(said)]


def test_every_plan_has_its_mode_and_reason():
    explained = why.explain(source(gemm_graphs.plain("g", 1, 6144, 4096)), H200)
    assert {plan.mode for plan in explained.plans} <= {"A", "FALLBACK"}
    assert explained.plans[0].mode == "A" and all(plan.why for plan in explained.plans)
    assert len({plan.name for plan in explained.plans}) == len(explained.plans)


def test_ranges_of_a_symbol_are_named_with_their_plans():
    graph = gemm_graphs.plain("g", "M", 6144, 4096, symbols={"M": {"max": 8192, "hint": 600}})
    explained = why.explain(source(graph), H200)
    ranges = explained.plans[0].ranges
    assert ranges[0].range == "M=1..16" and ranges[-1].range.endswith("..8192")
    assert ranges[0].name.startswith("gemm.sm90.persistent[")
    assert ranges[0].why.endswith(" us for 16 rows on an H200, by the table of few rows")
    assert ranges[-1].name.startswith("gemm.sm90.persistent[")
    assert [part.why for part in ranges if part.why.endswith("best at M=600")]  # the hint
    assert ranges[-1].why.startswith("the model's best at M=") and "8192" in ranges[-1].why
    assert explained.symbols == {"M": {"min": 1, "max": 8192, "multiple_of": 1, "ranked_for": 600}}


def test_a_plan_that_declines_is_passed_over_with_its_reason(monkeypatch: pytest.MonkeyPatch):
    real = sm90.GemmSm90Persistent.lower

    def lower(self, facts, knobs, target):
        first = knobs.tile_m == 64
        return Refusal("64 rows are out of order") if first else real(self, facts, knobs, target)

    graph = gemm_graphs.plain("g", 64, 6144, 4096)
    assert "TILE_M=64," in why.explain(source(graph), H200).plans[0].name
    monkeypatch.setattr(sm90.GemmSm90Persistent, "lower", lower)
    explained = why.explain(source(graph), H200)
    assert explained.chosen is not None and explained.chosen.place > 1
    declined = [plan.declined for plan in explained.plans]
    place = explained.chosen.place
    assert all("64 rows are out of order" in reason for reason in declined[: place - 1])
    assert declined[place - 1 :] == [None] * (len(declined) - place + 1)


def test_a_range_says_which_of_its_plans_declined(monkeypatch: pytest.MonkeyPatch):
    real = sm90.GemmSm90Persistent.lower

    def lower(self, facts, knobs, target):
        first = facts.symbols["M"].max < 8192 and knobs.tile_n != 128
        return Refusal("small and not 128 wide") if first else real(self, facts, knobs, target)

    graph = gemm_graphs.plain("g", "M", 6144, 4096, symbols={"M": {"max": 8192, "hint": 128}})
    before = why.explain(source(graph), H200)
    monkeypatch.setattr(sm90.GemmSm90Persistent, "lower", lower)
    after = why.explain(source(graph), H200)
    assert after.chosen is not None and after.chosen.place == before.chosen.place == 1
    assert [plan.mode for plan in after.plans] == [plan.mode for plan in before.plans]
    pairs = zip(before.plans[0].ranges, after.plans[0].ranges, strict=True)
    changed = [(first, then) for first, then in pairs if first != then]
    assert changed
    for first, then in changed:
        assert (first.range, "TILE_N=128" in first.name) == (then.range, False)
        assert "TILE_N=128" in then.name
        words = f"{first.name} declines: small and not 128 wide; the smallest of everything"
        assert then.why == words
    assert before.plans[0].ranges[-1] == after.plans[0].ranges[-1]


def test_a_graph_that_nothing_takes_is_explained():
    g = gemm_graphs.graph("g")
    g.relu(gemm_graphs.operand(g, "A", 16, 16)).set_output(True)
    explained = why.explain(source(g), H200)
    assert (explained.family, explained.chosen, explained.plans) == ("", None, ())
    assert explained.reasons == ("no engine family serves this combination of ops",)

    explained = why.explain(source(gemm_graphs.plain("g", 16, 16, 16, io="INT8")), H200)
    assert explained.family == "gemm" and explained.facts["A"].startswith("INT8")
    (gemm,) = (family for family in manifest.FAMILIES if family.name == "gemm")
    assert explained.chosen is None and len(explained.reasons) == len(gemm.engines)
    assert all(engine.reason for engine in explained.engines)


def test_what_makes_a_build_fail_is_said(monkeypatch: pytest.MonkeyPatch):
    def kernel_spec(*args):
        raise CompileError("the tools are not installed")

    monkeypatch.setattr(sm90, "kernel_spec", kernel_spec)
    explained = why.explain(source(gemm_graphs.plain("g", 64, 64, 64)), H200)
    assert explained.fault == "the tools are not installed"
    assert explained.chosen is None and explained.plans


def test_a_tuning_file_is_spoken_to_by_the_entry_that_is_shown(tmp_path: Path):
    asked = source(gemm_graphs.plain("g", 64, 512, 256))
    knobs = {"TILE_M": 64, "TILE_N": 256, "TILEK": 64, "TILE_CGA_M": 1, "TILE_CGA_N": 1}
    knobs |= {"SPLIT_K_SLC": 2, "STREAM_K": 0, "WARP_SPEC_CFG": 0}
    plan = {"engine": "gemm.sm90.persistent", "knobs": knobs}
    shown = why.explain(asked, H200).tuning_entry
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps({"format": 1, "entries": [{**shown, "plans": [plan]}]}))
    tuned = why.explain(asked, H200, load_tuning(path))
    assert tuned.plans[0].why == "measured" and "SPLIT_K_SLC=2" in tuned.plans[0].name


# --- the store -----------------------------------------------------------------------------------


def up(**changes) -> Source:
    return source(linear_graph("up", **{"n": 64, **changes}))


def is_absent(answer: StoreAnswer) -> bool:
    return {plan.held for plan in answer.plans} == {Held.ABSENT}


def test_what_is_current_is_said_with_its_plan(built_store: Path):
    answer = explain_stored(StoreReader(built_store), up(), CPU).of("native")
    assert (answer.held, answer.plan, answer.reasons) == (Held.CURRENT, "gemm.host.blocked", ())


def edited_sources(monkeypatch, tmp_path):
    real = spec.source_closure
    monkeypatch.setattr(
        spec, "source_closure", lambda t: dataclasses.replace(real(t), digest="edited")
    )


def other_tools(monkeypatch, tmp_path):
    real = spec.toolchain
    monkeypatch.setattr(spec, "toolchain", lambda flavor: {**real(flavor), "apache-tvm-ffi": "9.9"})


def edited_planner(monkeypatch, tmp_path):
    monkeypatch.setattr(planning, "_source_digest", lambda family: "edited")


def other_host(monkeypatch, tmp_path):
    return {"target": dataclasses.replace(CPU, host_level="x86-64-v2")}


def tuned(monkeypatch, tmp_path):
    about = why.explain(up(), CPU).tuning_entry
    plans = [{"engine": "gemm.host.blocked", "knobs": {}}]
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps({"format": 1, "entries": [{**about, "plans": plans}]}))
    return {"tuning": load_tuning(path)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (edited_sources, "the sources of kernel gemm.kernels.host:matmul have changed"),
        (other_tools, "apache-tvm-ffi is 9.9 now, kernel gemm.kernels.host:matmul was compiled"),
        (
            edited_planner,
            "the planner, the recipe or the measured plans shipped with it have",
        ),
        (other_host, "target cpu has host_level 'x86-64-v2' now, its kernels were made for"),
        (tuned, "the tuning file says something of this graph"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_stale_says_what_has_changed(
    built_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change, reason
):
    settings = {"target": CPU, **(change(monkeypatch, tmp_path) or {})}
    answer = explain_stored(StoreReader(built_store), up(), **settings).of("native")
    assert (answer.held, answer.plan) == (Held.STALE, "gemm.host.blocked")
    assert len(answer.reasons) == 1 and answer.reasons[0].startswith(reason)


def test_a_damaged_blob_is_named(store_copy: Path):
    reader = StoreReader(store_copy)
    record = json.loads(reader.blob(reader.pointer("cpu", up().key)["records"][0]))
    path = store_copy / layout.blob_path(record["kernels"][0]["blob"])
    path.chmod(0o644)
    path.write_bytes(b"other bytes")
    answer = explain_stored(reader, up(), CPU).of("native")
    assert answer.held is Held.DAMAGED and str(path) in answer.reasons[0]


def test_a_damaged_pointer_is_named(store_copy: Path):
    path = store_copy / layout.pointer_path("cpu", up().key)
    path.chmod(0o644)
    path.write_bytes(b"{}")
    answer = explain_stored(StoreReader(store_copy), up(), CPU).of("native")
    assert answer.held is Held.DAMAGED and str(path) in answer.reasons[0]


@pytest.mark.parametrize(
    ("asked", "name", "likeness", "first"),
    [
        ({"n": 72}, "up", "class", Difference("dim[2] of 'B'", "72", "64")),
        ({"max_rows": 99}, "up", "class", Difference("max of symbol M", "99", "4096")),
        ({"op": "tanh"}, "up", "name", Difference("ops", "matmul tanh", "matmul relu")),
    ],
    ids=["extent", "symbol", "op"],
)
def test_the_nearest_entry_and_what_differs(built_store: Path, asked, name, likeness, first):
    answer = explain_stored(StoreReader(built_store), up(**asked), CPU)
    assert is_absent(answer) and answer.nearest is not None
    assert (answer.nearest.name, answer.nearest.likeness) == (name, likeness)
    assert answer.nearest.differences[0] == first
    assert answer.nearest.serves_for is None


def test_a_symbolic_entry_that_serves_the_graph_is_the_nearest(built_store: Path):
    asked = gemm_graphs.graph("mine")
    a = asked.tensor([1, 17, 48], [48 * 17, 48, 1], uid=1, name="A")
    b = asked.tensor([1, 48, 64], [48 * 64, 1, 48], uid=2, name="B")
    asked.relu(asked.matmul(a, b)).set_uid(3).set_output(True)
    asked.freeze()
    nearest = nearest_entry(StoreReader(built_store), "cpu", "mine", asked)
    assert nearest is not None and nearest.name == "up"
    assert nearest.serves_for == {"M": 17}


def test_nothing_alike_and_nothing_at_all(built_store: Path):
    g = gemm_graphs.graph("g")
    g.relu(gemm_graphs.operand(g, "A", 16, 16)).set_output(True)
    answer = explain_stored(StoreReader(built_store), source(g), CPU)
    assert (is_absent(answer), answer.nearest, answer.graphs) == (True, None, 2)
    answer = explain_stored(StoreReader(built_store), up(), H200)
    assert (is_absent(answer), answer.nearest, answer.graphs) == (True, None, 0)
    assert answer.other_targets == ("cpu",)


def test_a_stored_decline_has_its_reasons(tmp_path: Path):
    graph = gemm_graphs.plain("g", 16, 16, 16, io="INT8", out="FLOAT")
    driver.build([write_graph(tmp_path, graph)], ["cpu"], tmp_path / "store")
    reader = StoreReader(tmp_path / "store")
    other = explain_stored(reader, source(graph), H200)
    assert (other.other_targets, other.declined_targets) == ((), ("cpu",))
    answer = explain_stored(reader, source(graph), CPU).of("native")
    assert answer.held is Held.CURRENT and answer.is_declined and answer.plan == ""
    assert any("INT8" in reason for reason in answer.reasons)


def test_cudnn_s_plans_are_shown_beside_ours(monkeypatch: pytest.MonkeyPatch):
    CudnnStandIn(monkeypatch)
    asked = source(gemm_graphs.plain("g", 512, 512, 4096))
    told = why.explain(asked, load_target("h200"), providers=("native", "cudnn"))
    assert told.backend == why.BackendAnswer(2, None)
    assert [(plan.mode, plan.name) for plan in told.plans if plan.name.startswith("cudnn")] == [
        ("A", "cudnn.eng3"),
        ("A", "cudnn.eng4[KERNEL_CFG=3]"),
    ]
    assert told.chosen is not None and told.chosen.place == 1
    theirs = why.explain(asked, load_target("h200"), providers=("cudnn",))
    assert theirs.chosen is not None and (theirs.chosen.place, theirs.chosen.blobs) == (2, 1)
    assert theirs.plans[0].declined == "not for this graph" and theirs.engines == ()


def test_a_store_is_asked_for_the_plan_of_every_provider(
    store_copy: Path, graph_files: list[Path], monkeypatch: pytest.MonkeyPatch
):
    stand_in = CudnnStandIn(monkeypatch)
    reader, name = StoreReader(store_copy), "cudnn.eng4[KERNEL_CFG=3]"

    def cudnn_s(asked: Cudnn | None = None) -> HeldPlan:
        answer = explain_stored(reader, up(), CPU, cudnn=asked)
        assert [plan.provider for plan in answer.plans] == ["native", "cudnn"]
        assert answer.of("native").held is Held.CURRENT and answer.nearest is None
        return answer.of("cudnn")

    assert cudnn_s(Cudnn()) == HeldPlan("cudnn", Held.ABSENT)
    driver.build(graph_files, ["cpu"], store_copy, engines=["cudnn"])
    assert cudnn_s(Cudnn()) == HeldPlan("cudnn", Held.CURRENT, name)
    unasked = cudnn_s()
    assert (unasked.held, unasked.plan) == (Held.WHOLE, name)
    assert unasked.reasons[0].startswith("cuDNN was not asked whether it is current")
    stand_in.found = ABSENT
    assert cudnn_s(Cudnn()) == HeldPlan("cudnn", Held.WHOLE, name, reasons=(ABSENT.reason,))
    stand_in.found = dataclasses.replace(FOUND, version="9.20.0")
    said = ("cuDNN is 9.20.0 now, and 9.19.0 made it",)
    assert cudnn_s(Cudnn()) == HeldPlan("cudnn", Held.STALE, name, reasons=said)
    stand_in.found = dataclasses.replace(FOUND, frontend_version="1.33.0")
    (reason,) = cudnn_s(Cudnn()).reasons
    assert "the frontend's version" in reason

    record = json.loads(reader.blob(reader.pointer("cpu", up().key)["records"][1]))
    path = store_copy / layout.blob_path(record["blobs"][0]["blob"])
    path.chmod(0o644)
    path.write_bytes(b"other bytes")
    stand_in.found = FOUND
    damaged = cudnn_s(Cudnn())
    assert damaged.held is Held.DAMAGED and str(path) in damaged.reasons[0]


def test_a_decline_of_cudnn_s_is_told(
    store_copy: Path, graph_files: list[Path], monkeypatch: pytest.MonkeyPatch
):
    CudnnStandIn(monkeypatch).declines = {3, 4}
    driver.build(graph_files, ["cpu"], store_copy, engines=["cudnn"])
    told = explain_stored(StoreReader(store_copy), up(), CPU, cudnn=Cudnn()).of("cudnn")
    assert (told.held, told.is_declined, told.plan) == (Held.CURRENT, True, "")
    assert "cudnn.eng3: not for this graph" in told.reasons


def test_a_store_says_which_hint_its_plan_was_made_for(tmp_path: Path):
    def rows(hint: int | None) -> Graph:
        fields = {} if hint is None else {"hint": hint}
        return gemm_graphs.plain("g", "M", 64, 48, symbols={"M": {"max": 4096, **fields}})

    driver.build([write_graph(tmp_path, rows(64))], ["cpu"], tmp_path / "store")
    reader = StoreReader(tmp_path / "store")
    assert explain_stored(reader, source(rows(64)), CPU).of("native").held is Held.CURRENT
    for hint, words in ((1536, "hint 1536"), (None, "no hint")):
        answer = explain_stored(reader, source(rows(hint)), CPU).of("native")
        assert answer.held is Held.STALE
        assert answer.reasons == (f"symbol M has {words} now, it was planned for hint 64",)
