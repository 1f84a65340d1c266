"""Which schedule is ranked first for few rows, by what was measured."""

from __future__ import annotations

import dataclasses
import itertools
import math

import gemm_graphs
import pytest
from gemm_facts import facts_of
from hypothesis import example, given
from hypothesis import strategies as st

from cudnn_aot.compiler.graph.enums import heur_mode
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.recipes.gemm import few_rows
from cudnn_aot.recipes.gemm.config import GemmConfig, GemvConfig, TileClass, tile_class
from cudnn_aot.recipes.gemm.few_rows import Row, Table
from cudnn_aot.recipes.gemm.few_rows_table import TABLES

H200 = load_target("h200")
KINDS = (GemmConfig, GemvConfig)
TABLE = TABLES[TileClass(2, 1)]
SAID = "on an H200, by the table of few rows"


def extents(m, n, k):
    return {"batch": 1, "m": m, "n": n, "k": k}


@pytest.mark.parametrize("tiles", TABLES, ids=str)
def test_a_table_is_of_schedules_that_there_are(tiles):
    table = TABLES[tiles]
    for row in table.rows:
        assert row.config.why_not() is None
        if isinstance(row.config, GemmConfig):
            assert row.config.why_not_for(tiles) is None
        items = [point[0] for point in row.points]
        assert items == sorted(set(items)) and len(items) >= 15
        assert all(slope > 0 for _, _, slope in row.points)
    assert len({(row.rows, row.config) for row in table.rows}) == len(table.rows)
    # Of every number of rows some, of the least of columns and K too.
    for m in range(1, few_rows.MOST_ROWS + 1):
        for k in few_rows.K_RANGE:
            assert table.rank([extents(m, few_rows.LEAST_COLUMNS, k)], KINDS)


EVERY_ROW = [row for table in TABLES.values() for row in table.rows]


@pytest.mark.parametrize("row", EVERY_ROW[::7], ids=lambda row: f"{row.rows} {row.config}")
def test_times_are_those_of_the_table_and_between_them(row):
    """At a number of items that was measured, its line in K; beyond the most, in proportion."""
    step = items_of_columns(row)
    columns = row.config.tile_n if step else 8 // row.config.k_warps * row.config.columns
    step = step or 1

    def microseconds(items: int, k: int) -> float:
        return row.microseconds(items // step * columns, k)

    for items, fixed, slope in row.points:
        assert microseconds(items, 4096) == pytest.approx(fixed + 4 * slope)
    most, fixed, slope = row.points[-1]
    assert microseconds(2 * most, 1024) == pytest.approx(2 * (fixed + slope))
    for (low, *first), (high, *last) in itertools.pairwise(row.points):
        if high <= low + 2 * step:
            continue
        between = microseconds(low + step, 1024)
        if low % few_rows.SM_COUNT == 0:  # one more is a wave more
            assert between == pytest.approx(sum(last))
        else:
            assert min(sum(first), sum(last)) <= between <= max(sum(first), sum(last))


def items_of_columns(row: Row) -> int:
    """Of a tile's columns: tiles of all rows, times the blocks that split K; 0 for the GEMV."""
    config = row.config
    if isinstance(config, GemvConfig):
        return 0
    return {64: {16: 1, 64: 1, 128: 2, 256: 4}, 128: {128: 1, 256: 2}}[config.tile_m][
        row.rows
    ] * config.splits


def test_a_row_serves_what_was_measured_of_it():
    points = ((1, 0.0, 1.0),)
    gemv = Row(1, GemvConfig(1, 1, 4, 4), points)
    assert gemv.serves(1, 4096) and not gemv.serves(2, 4096)
    assert not gemv.serves(1, 4088)  # a pass of its loads is 4096 of K
    split = Row(16, GemmConfig(64, 64, 64, 1, 1, 4), points)
    assert split.serves(16, 1024) and not split.serves(16, 1016)
    served = {rows: [m for m in range(1, 257) if Row(rows, SINGLE, points).serves(m, 1024)]
              for rows in (16, 64, 128, 256)}  # fmt: skip
    ends = itertools.pairwise((0, 16, 64, 128, 256))
    assert list(served.values()) == [list(range(low + 1, high + 1)) for low, high in ends]


SINGLE = GemmConfig(64, 64, 64, 1, 1, 1)


def test_no_rows_are_served_like_one():
    for k in few_rows.K_RANGE:
        none, one = ([extents(m, 4096, k)] for m in (0, 1))
        assert TABLE.rank(none, KINDS) == TABLE.rank(one, KINDS) != []


def ranges_of(n, k, low=0, high=4096):
    graph = gemm_graphs.plain("g", "M", n, k, symbols={"M": {"min": low, "max": high}})
    return PlanList(graph, H200).ranges(0)


def test_ranges_of_few_rows_are_those_of_the_table():
    """One row, those of one load of A, of one tile and of several, where they differ."""
    ends = set()
    for n in (2560, 4096, 5120, 6144, 14336, 28672):
        for text, name, why in ranges_of(n, 4096):
            low, high = map(int, text.removeprefix("M=").split(".."))
            assert why.endswith(SAID) is (high <= few_rows.MOST_ROWS), (n, text, why)
            ends.add(high)
            if high <= few_rows.MOST_ROWS:
                every = (low, math.isqrt(low * high), high)
                cases = [extents(m, n, 4096) for m in every]
                first = TABLE.rank(cases, KINDS)[0]
                knobs = [f"{knob.name}={value}" for knob, value in first.to_public().items()]
                assert all(knob in name for knob in knobs)
    assert {1, 16, 64, 128, 256} < ends


def test_where_one_schedule_does_for_all_rows_the_table_says_which():
    graph = gemm_graphs.plain("g", "M", 14336, 4096, symbols={"M": {"min": 2, "max": 16}})
    plans = PlanList(graph, H200, modes=[heur_mode.A])
    assert not plans.ranges(0)
    assert plans.entries[0].why.endswith(SAID)
    assert plans.entries[0].knobs == TABLE.rank([extents(16, 14336, 4096)], KINDS)[0]


@given(st.integers(1, 256), st.integers(1024, 70000), st.integers(1024, 16384))
@example(1, 3329, 1024)  # two whose times differ in the last bit, and whose lags do not
def test_the_ranking_is_by_time(m, n, k):
    ranked, by_config = TABLE.rank([extents(m, n, k)], KINDS), TABLE.times(m, n, k)
    times = [by_config[config] for config in ranked]
    assert times == sorted(times) and all(0 < us < math.inf for us in times)
    assert set(ranked) == set(by_config)
    for config, us in by_config.items():
        (row,) = [row for row in TABLE.rows if row.config == config and row.serves(m, k)]
        assert row.microseconds(n, k) == us
    tiles = [config for config in ranked if isinstance(config, GemmConfig)]
    assert TABLE.rank([extents(m, n, k)], (GemmConfig,)) == tiles


def test_several_cases_are_ranked_by_how_far_they_lag():
    """A schedule that is the best nowhere may lag the least, and one that lacks a case is none."""
    slow, fair, gone = (GemmConfig(64, n, 64, 1, 1, 1) for n in (32, 64, 128))
    table = Table((
        Row(16, slow, ((1, 0.0, 1.0),)),
        Row(16, fair, ((1, 0.0, 1.1),)),
        Row(16, gone, ((1, 0.0, 0.1),)),
        Row(64, slow, ((1, 0.0, 2.0),)),
        Row(64, fair, ((1, 0.0, 1.0),)),
    ))  # fmt: skip
    cases = [extents(16, 32, 1024), extents(64, 32, 1024)]
    assert table.rank(cases, KINDS) == [fair, slow]
    assert table.rank(cases[:1], KINDS)[0] == gone


# (M, N, K): what was the fastest, or within 2 % of it, in another run than the table's
# (bench/NOTES.md).
MEASURED = {
    (1, 6144, 4096): {(48, 1), (96, 2)},
    (1, 4096, 14336): {(64, 2), (1, 2, 4, 2), (1, 1, 4, 4)},
    (16, 2560, 8192): {(96, 2)},
    (16, 4096, 4096): {(64, 2)},
    (16, 6144, 4096): {(48, 1), (96, 2)},
    (16, 14336, 4096): {(64, 1)},
    (16, 19456, 8192): {(96, 1)},
    (64, 4096, 4096): {(64, 2)},
}


@pytest.mark.parametrize("shape", MEASURED, ids=lambda shape: "x".join(map(str, shape)))
def test_what_was_the_fastest_is_planned_first(shape):
    plan = plan_graph(gemm_graphs.plain("g", *shape), H200)
    knobs = {knob_type[name]: value for name, value in plan.knobs.items()}
    if plan.engine_name == "gemm.sm90.gemv":
        chosen = dataclasses.astuple(GemvConfig.from_public(knobs))
    else:
        config = GemmConfig.from_public(knobs)
        chosen = (config.tile_n, config.splits)
    assert chosen in MEASURED[shape]


def test_the_table_is_asked_for_what_it_is_of():
    """Of matrices along K, 16-bit or FP8, and one matmul or two; of INT8 those of FP8, and all else
    is modelled.
    """

    def whys(graph, target=H200):
        entries = PlanList(graph, target, modes=[heur_mode.A]).entries
        rows = facts_of(graph).m
        said = f" us for {rows} row{'s' * (rows > 1)} "
        return {entry.why.partition(said)[2] for entry in entries if hasattr(entry, "why")}

    plain = gemm_graphs.plain
    assert SAID in whys(plain("g", 16, 4096, 4096))
    assert SAID in whys(plain("g", 64, 4096, 4096, io=gemm_graphs.HALF))
    assert SAID in whys(gemm_graphs.chain("g", 1, 4096, 4096, "gelu"))
    assert SAID in whys(plain("g", 256, 4096, 4096))
    assert SAID in whys(gemm_graphs.scaled("g", 16, 4096, 4096))
    assert SAID in whys(gemm_graphs.gated("g", 16, 4096, 4096))
    assert SAID in whys(gemm_graphs.gated("g", 16, 4096, 4096, io=gemm_graphs.E4M3))
    assert f"of FP8 {SAID}" in whys(gemm_graphs.sums("g", 16, 4096, 4096))
    assert f"of FP8 {SAID}" in whys(gemm_graphs.gated_int8("g", 16, 4096, 4096))
    for graph in (
        plain("g", 257, 4096, 4096),
        plain("g", 16, 1016, 4096),
        plain("g", 16, 4096, 1016),
        plain("g", 16, 4096, 16392),
        plain("g", 16, 4096, 4096, batch=2),
        gemm_graphs.block_scaled("g", 16, 4096, 4096),
        gemm_graphs.other_majors("g", 16, 4096, 4096, True, True),
        gemm_graphs.other_majors("g", 16, 4096, 4096, False, False),
        plain("g", 16, 4096, 4098),  # whose rows TMA cannot describe
    ):
        assert SAID not in whys(graph), graph
    assert SAID not in whys(plain("g", 16, 4096, 4096), load_target("h20"))  # has 78 SMs
    assert tile_class(facts_of(plain("g", 16, 4096, 4096))) == TileClass(2, 1)


def test_no_plan_is_listed_twice():
    for m in (1, 2, 16, 64):
        entries = PlanList(gemm_graphs.plain("g", m, 4096, 4096), H200, modes=[heur_mode.A]).entries
        plans = [(entry.engine_id, entry.knobs) for entry in entries]
        assert len(set(plans)) == len(plans)


@pytest.mark.parametrize(
    ("batch_b", "is_read_once"), [(None, True), (1, False)], ids=["each", "shared"]
)
def test_a_b_that_a_batch_shares_stays_in_l2(batch_b, is_read_once):
    """Each of its matrices of few rows reads all of it again."""
    graph = gemm_graphs.plain("g", 64, 4096, 8192, batch=32, batch_b=batch_b)
    assert plan_graph(graph, H200).kernels[0].params["few_rows"] is is_read_once
