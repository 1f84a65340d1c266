"""Tuning files that come with a family: ranked by without being asked, and part of plan keys."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gemm_graphs
import moe_graphs
import pytest
from standin import FAMILY, TUNED, installed, relu_graph

from cudnn_aot.compiler.build.sources import Source
from cudnn_aot.compiler.build.why import explain
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import manifest, shipped
from cudnn_aot.compiler.planning.facts import facts_for
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.planning.plan import plan_configs, plan_graph, plan_key
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.planning.tuning import Tuning, read_entries
from cudnn_aot.compiler.target.target import known_targets, load_target
from cudnn_aot.errors import RequirementError

H200, H100 = load_target("h200"), load_target("h100")
ENGINE = "gemm.sm90.persistent"
WIDE = {
    "TILE_M": 64, "TILE_N": 256, "TILEK": 64, "TILE_CGA_M": 1, "TILE_CGA_N": 1, "SPLIT_K_SLC": 1,
    "STREAM_K": 0, "WARP_SPEC_CFG": 0,
}  # fmt: skip
NARROW, SPLIT = {**WIDE, "TILE_N": 64}, {**WIDE, "TILE_N": 128, "SPLIT_K_SLC": 4}
ROWS = {"M": {"min": 1, "max": 8192}}
Ship = Callable[..., Path]


def layer(m: Any = 64) -> Graph:
    symbols = ROWS if m == "M" else None
    return gemm_graphs.plain("g", m, 4096, 4096, symbols=symbols).freeze()


def entry(m: int, *knobs: dict[str, int]) -> dict[str, Any]:
    """What a file says of `layer` at so many rows."""
    facts = facts_for(layer(m), manifest.resolve("gemm.analyze:analyze"))
    return {
        "family": "gemm",
        "target": "h200",
        "layout_class": facts.layout_class,
        "extents": facts.extents,
        "plans": [{"engine": ENGINE, "knobs": each} for each in knobs],
    }


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ship:
    """Ship these entries with GEMM for the H200, each time in a new file."""
    files: list[Path] = []

    def write(*entries: dict[str, Any]) -> Path:
        files.append(tmp_path / f"h200_{len(files)}.json")
        files[-1].write_text(json.dumps({"format": 1, "entries": entries}))
        return files[-1]

    def find(family: manifest.Family, target: str) -> Path | None:
        return files[-1] if files and (family.name, target) == ("gemm", "h200") else None

    monkeypatch.setattr(shipped, "shipped_file", find)
    return write


def names_and_whys(plans: PlanList) -> list[tuple[str, str]]:
    return [(plans.name(place), plans.entry(place).why) for place in range(len(plans))]


def test_what_is_shipped_is_first_and_says_so(ship: Ship) -> None:
    ranked = names_and_whys(PlanList(layer(), H200))
    ship(entry(64, WIDE, SPLIT))
    plans = PlanList(layer(), H200)
    assert [why for _, why in names_and_whys(plans)].count("measured on h200 (shipped)") == 2
    assert plan_graph(layer(), H200).knobs == WIDE and plans.lower(1).knobs == SPLIT
    assert {name for name, _ in ranked} <= {name for name, _ in names_and_whys(plans)}
    assert plan_configs(layer(), H200)[0].knobs == WIDE  # what a store for `tune` has first
    assert names_and_whys(PlanList(layer(65), H200))[0][1] != "measured on h200 (shipped)"
    assert plan_graph(layer(), H100).knobs != WIDE  # another target


def test_ranges_are_what_is_shipped(ship: Ship) -> None:
    ship(entry(16, SPLIT), entry(32, SPLIT), entry(64, WIDE))
    plans = PlanList(layer("M"), H200)
    whys = {words: why for words, _, why in plans.ranges(0)}
    assert whys["M=4..32"] == "measured on h200 at M=16, 32 (shipped)"
    assert whys["M=33..256"] == "measured on h200 at M=64 (shipped)"
    assert plans.entry(0).why == "measured on h200 at M=16, 32, 64 (shipped)"
    assert [part.knobs for part in plan_graph(layer("M"), H200).ranges][1:3] == [SPLIT, WIDE]


def test_values_that_a_symbol_may_not_have_count_too(ship: Ship) -> None:
    """Two tiles of 64 rows have 65 as well as 128."""
    ship(entry(64, SPLIT), entry(128, WIDE))
    symbols = {"M": {"min": 1, "max": 100}}
    plans = PlanList(gemm_graphs.plain("g", "M", 4096, 4096, symbols=symbols).freeze(), H200)
    whys = {words: why for words, _, why in plans.ranges(0)}
    assert whys["M=16..64"] == "measured on h200 at M=64 (shipped)"
    assert whys["M=65..100"] == "measured on h200 at M=128 (shipped)"
    ship(entry(16, SPLIT), entry(256, WIDE))  # more than twice the largest
    plans = PlanList(gemm_graphs.plain("g", "M", 4096, 4096, symbols=symbols).freeze(), H200)
    assert plans.entry(0).why == "measured on h200 at M=16 (shipped)"


def test_a_file_of_ones_own_takes_the_place_of_what_is_shipped(ship: Ship) -> None:
    ranked = names_and_whys(PlanList(layer(), H200))
    ship(entry(16, SPLIT), entry(64, WIDE, SPLIT))
    own = Tuning([entry(64, NARROW)])
    mine = names_and_whys(PlanList(layer(), H200, tuning=own))
    assert mine[0][1] == "measured" and "measured on h200 (shipped)" not in dict(mine).values()
    assert plan_graph(layer(), H200, tuning=own).knobs == NARROW
    # Of other extents what is shipped counts still, between those of one's own too.
    plans = PlanList(layer("M"), H200, tuning=own)
    assert plans.entry(0).why == "measured on h200 at M=16 (shipped); measured at M=64"
    whys = {words: why for words, _, why in plans.ranges(0)}
    assert whys["M=4..16"] == "measured on h200 at M=16 (shipped)"
    assert whys["M=17..256"] == "measured at M=64"
    # One without plans leaves a graph to the heuristics.
    assert names_and_whys(PlanList(layer(), H200, tuning=Tuning([entry(64)]))) == ranked


def test_what_was_not_measured_is_ranked_as_ever(ship: Ship) -> None:
    graphs = [layer(65), gemm_graphs.chain("g", "M", 4096, 4096, "relu", symbols=ROWS)]
    ranked = [names_and_whys(PlanList(graph, H200)) for graph in graphs]
    ship(entry(64, WIDE), entry(16, SPLIT))
    assert [names_and_whys(PlanList(graph, H200)) for graph in graphs] == ranked


def test_what_tma_cannot_load_has_nothing_that_was_measured(ship: Ship) -> None:
    """All schedules are one kernel there, of any strides."""
    ship(entry(64, WIDE), entry(16, SPLIT))
    for m in (64, "M"):
        g = gemm_graphs.graph("g", symbols=ROWS if m == "M" else None)
        a = g.tensor(name="A", dim=[1, m, 4096], stride=[f"{m}*4097", 4097, 1])
        y = g.matmul(a, gemm_graphs.operand(g, "B", 4096, 4096, transposed=True))
        y.set_output(True).set_data_type(gemm_graphs.BF16)
        first, *_ = names_and_whys(PlanList(g.freeze(), H200))
        assert first[1].startswith("no TMA: stride 4097 of 'A' on axis 1"), m


def test_why_explains_by_it(ship: Ship) -> None:
    ship(entry(64, WIDE))
    explained = explain(Source("f", "g", layer().key(), layer()), H200)
    assert explained.plans[0].why == "measured on h200 (shipped)"
    assert explained.chosen is not None and explained.chosen.place == 1


def test_another_file_is_another_key_of_its_family_and_target(ship: Ship) -> None:
    of_others = (layer(), H100), (moe_graphs.grouped(), H200), (layer(), load_target("cpu"))
    others = [plan_key(*each) for each in of_others]
    keys = [plan_key(layer(), H200)]
    for entries in ([entry(64, WIDE)], [entry(64, NARROW)], [entry(16, NARROW)], []):
        ship(*entries)
        keys.append(plan_key(layer(), H200))
    assert len(set(keys)) == len(keys)
    assert [plan_key(*each) for each in of_others] == others


def test_a_key_has_what_ones_own_file_says_beside(ship: Ship) -> None:
    ship(entry(64, WIDE))
    key = plan_key(layer(), H200)
    assert plan_key(layer(), H200, tuning=Tuning([entry(16, NARROW)])) == key
    assert plan_key(layer(), H200, tuning=Tuning([])) == key
    others = [plan_key(layer(), H200, tuning=Tuning([e])) for e in (entry(64), entry(64, NARROW))]
    assert len({key, *others}) == 3


def test_a_key_reads_no_entries(ship: Ship, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unchanged graph is recognised without what planning needs: its facts and the file."""
    ship(entry(64, WIDE))
    key = plan_key(layer(), H200)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(shipped, "load_tuning", refuse)
    monkeypatch.setattr("cudnn_aot.compiler.planning.plan.facts_for", refuse)
    assert plan_key(layer(), H200) == key
    with pytest.raises(AssertionError, match="it was read"):
        PlanList(layer(), H200)


def test_a_file_that_is_none_is_named(ship: Ship) -> None:
    path = ship()
    path.write_text("{")
    with pytest.raises(RequirementError) as damaged:
        PlanList(layer(), H200)
    assert str(damaged.value).startswith(f"tuning file '{path}' is not JSON: ")
    assert str(damaged.value).endswith("; it comes with cudnn-aot: reinstall that")
    path.unlink()  # between a look and the next
    for plan in (plan_key, plan_graph):
        with pytest.raises(RequirementError, match="No such file or directory; it comes with"):
            plan(layer(), H200)


def test_a_file_lies_beside_the_heuristics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch)
    plain = plan_graph(relu_graph(), load_target("cpu"))
    (tmp_path / "tuning").mkdir()
    fast = {"engine": "standin.tuned", "knobs": {"TILE_M": 256, "STAGES": 3}}
    about = {"family": "standin", "target": "cpu", "layout_class": "relu", "extents": {}}
    document = {"format": 1, "entries": [{**about, "plans": [fast]}]}
    (tmp_path / "tuning" / "cpu.json").write_text(json.dumps(document))
    shipped.shipped_file.cache_clear()
    monkeypatch.setattr(manifest, "folder", lambda package: tmp_path)
    planned = plan_graph(relu_graph(), load_target("cpu"))
    shipped.shipped_file.cache_clear()
    assert plain.engine_id != planned.engine_id == TUNED
    assert shipped.shipped_file.__wrapped__(FAMILY, "cpu") == tmp_path / "tuning" / "cpu.json"


FILES = [
    (family, path)
    for family in manifest.FAMILIES
    for path in sorted(shipped.shipped_folder(family).glob("*"))
]


def test_gemm_ships_one_for_the_h200() -> None:
    gemm = manifest.FAMILIES[0]
    assert (gemm, shipped.shipped_file(gemm, "h200")) in FILES


@pytest.mark.parametrize(("family", "path"), FILES, ids=lambda value: getattr(value, "name", ""))
def test_nothing_of_a_file_is_passed_over(family: manifest.Family, path: Path) -> None:
    """It is of this target and family alone, and its engines have its knobs still."""
    assert path.suffix == ".json" and path.stem in known_targets()
    engines = {slot.name: manifest.resolve(slot.factory)() for slot in family.engines}
    for said in read_entries(path):
        assert (said["family"], said["target"]) == (family.name, path.stem) and said["plans"]
        for plan in said["plans"]:
            knobs = {knob_type[name]: value for name, value in plan["knobs"].items()}
            engine = engines[plan["engine"]]
            assert engine.knobs_to_public(engine.knobs_from_public(knobs)) == knobs
            assert plan["us"] > 0


def test_all_works_with_a_full_file(ship: Ship, tmp_path: Path) -> None:
    """As many entries as are measured of models; the times are made up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[3] / "bench")
        tuned = importlib.import_module("tuned")
    tuned.write_graphs(tmp_path / "graphs", sorted(tuned.MODELS))
    graphs = [
        graph_json.loads(path.read_text()) for path in sorted((tmp_path / "graphs").iterdir())
    ]
    said, draw = [], random.Random(0)
    for graph in graphs:
        facts = PlanList(graph, H200, needs_compiler=False).facts
        _, k, n = graph.tensors[graph.nodes[0].inputs["B"].uid].dim
        for m in tuned.ROWS:
            plans = PlanList(gemm_graphs.plain("g", m, n, k), H200, needs_compiler=False)
            places = draw.sample(range(6), 4)
            about = entry_at(facts, m)
            listed = [named(plans, place) | {"us": draw.uniform(10, 11)} for place in places]
            said.append({**about, "plans": sorted(listed, key=lambda plan: plan["us"])})
    path = ship()
    path.write_text(tuned.text_of(tuned.shipped(said)))
    entries = read_entries(path)
    assert len(entries) == len(graphs) * len(tuned.ROWS)
    first = {tuple(sorted(e["extents"].items())): e["plans"][0]["knobs"] for e in entries}
    for graph in graphs:
        plans = PlanList(graph, H200)
        taken = plans.lower(0)
        for m in tuned.ROWS:
            extents = entry_at(plans.facts, m)["extents"]
            (part,) = [p for p in taken.ranges if p.bounds["M"][0] <= m <= p.bounds["M"][1]]
            assert part.knobs == first[tuple(sorted(extents.items()))]
        assert len(taken.ranges) <= len(tuned.ROWS) + 1


def entry_at(facts: Any, m: int) -> dict[str, Any]:
    extents = facts.extents_at({"M": m})
    about = {"family": "gemm", "target": "h200", "layout_class": facts.layout_class}
    return {**about, "extents": extents}


def named(plans: PlanList, place: int) -> dict[str, Any]:
    _, knobs = plans.engine_and_knobs(place)
    engine = plans.name(place).partition("[")[0]
    return {"engine": engine, "knobs": {knob.name: value for knob, value in knobs.items()}}
