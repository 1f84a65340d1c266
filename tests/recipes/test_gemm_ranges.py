"""Schedules of a GEMM by ranges of a symbolic M, and every schedule of the domain."""

from __future__ import annotations

import functools
import itertools
import json
from dataclasses import replace

import gemm_graphs
import pytest
from gemm_facts import facts_of
from hypothesis import given, settings
from hypothesis import strategies as st
from table_model import declared

import cudnn_aot as cudnn
from cudnn_aot import _native
from cudnn_aot.cache import source
from cudnn_aot.cache.canonical import canonical_bytes
from cudnn_aot.compiler.planning.engine import PlanConfig
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.planning.ranges import Ranges, by_rows, narrow_facts
from cudnn_aot.compiler.planning.tuning import load_tuning
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import UsageError, cudnnGraphNotSupportedError
from cudnn_aot.recipes.gemm import lowering
from cudnn_aot.recipes.gemm.config import (
    CLUSTER_SPLITS,
    SM90_CLUSTERS,
    SM90_TILES,
    GemmConfig,
    TileClass,
    tile_class,
)
from cudnn_aot.recipes.gemm.gemv import GemmSm90Gemv
from cudnn_aot.recipes.gemm.heuristics import RANGE_ENDS
from cudnn_aot.recipes.gemm.kernels import sm90_config as kernel
from cudnn_aot.recipes.gemm.model import best_sm90
from cudnn_aot.recipes.gemm.sm90 import FEW_ROWS, GemmSm90Persistent, tma_params

H200 = load_target("h200")
ENGINE = 20_000
ENGINES = {20_000: GemmSm90Persistent(), 20_002: GemmSm90Gemv()}


def listed(graph) -> PlanList:
    return PlanList(graph, H200)


def ranges_of(plans: PlanList) -> list[tuple[int, int, GemmConfig]]:
    """Bounds and schedule of every range of the first plan; none where it has no ranges."""
    entry = plans.entry(0)
    if not isinstance(entry, Ranges):
        return []
    return [(*part.bounds[0][1:], part.plan.knobs) for part in entry.parts]


def rows(name, low, high, **fields):
    return {name: {"min": low, "max": high} | fields}


# The M axis in terms of the symbol, its domain, N and K. M from 0 and from 1, with a coefficient,
# of multiples only, within one tile, a domain of one value, and with K long enough to split.
GRAPHS = {
    "from-0": lambda: gemm_graphs.plain("g", "M", 4096, 4096, symbols=rows("M", 0, 8192)),
    "from-1": lambda: gemm_graphs.chain("g", "M", 1000, 520, "gelu", symbols=rows("M", 1, 8192)),
    "twice-S": lambda: gemm_graphs.plain("g", "2*S", 1024, 8192, symbols=rows("S", 0, 4096)),
    "large-coefficient": lambda: gemm_graphs.plain(
        "g", "128*S", 1024, 8192, symbols=rows("S", 0, 64)
    ),
    "multiples": lambda: gemm_graphs.plain(
        "g", "M", 4096, 4096, symbols=rows("M", 0, 8192, multiple_of=48)
    ),
    "all-large": lambda: gemm_graphs.plain("g", "M", 512, 16384, symbols=rows("M", 900, 4096)),
    "hint-inside": lambda: gemm_graphs.plain(
        "g", "M", 4096, 4096, symbols=rows("M", 1, 8192, hint=100)
    ),
    "two-symbols": lambda: gemm_graphs.plain(
        "g", "M", "N", 4096, symbols=rows("M", 1, 8192) | rows("N", 8, 8192, hint=4096)
    ),
}


@pytest.fixture(scope="module")
def plan_lists():
    return {name: listed(make()) for name, make in GRAPHS.items()}


@pytest.mark.parametrize("name", GRAPHS)
def test_ranges_cover_the_domain_and_neighbours_differ(plan_lists, name):
    plans = plan_lists[name]
    (symbol,) = plans.facts.m.symbols
    domain = plans.graph.symbols[symbol]
    parts = ranges_of(plans)
    assert len(parts) > 1
    assert (parts[0][0], parts[-1][1]) == (domain.min, domain.max)
    for (_, end, config), (start, _, next_config) in itertools.pairwise(parts):
        assert start == end + 1 and config != next_config
        assert end * plans.facts.m.coef <= max(RANGE_ENDS) and not end % domain.multiple_of
    for low, high, _ in parts:  # each serves a legal number of rows, and not of no rows alone
        legal = [v for v in range(max(low, 1), high + 1) if not v % domain.multiple_of]
        assert legal


@pytest.mark.parametrize("name", GRAPHS)
def test_the_table_of_ranges_runs_what_each_ranges_own_table_runs(plan_lists, name):
    plans = plan_lists[name]
    entry = plans.entry(0)
    merged = plans.lower(0)
    own = [
        ENGINES[part.plan.engine_id].lower(narrow_facts(plans.facts, part), part.plan.knobs, H200)
        for part in entry.parts
    ]
    native = _native.Plan(json.loads(json.dumps(merged.table)))
    (symbol,) = plans.facts.m.symbols
    domain = plans.graph.symbols[symbol]
    out = max(operand["uid"] for operand in merged.table["operands"])
    others = {other: plans.graph.symbols[other].planned for other in plans.graph.symbols}

    @settings(max_examples=12, deadline=None)
    @given(st.data())
    def check(data):
        part = data.draw(st.integers(0, len(entry.parts) - 1))
        _, low, high = entry.parts[part].bounds[0]
        value = data.draw(st.sampled_from([low, high]) | st.integers(low, high))
        symbols = others | {symbol: value}
        aside = {"address": (1 << 20) + 2}
        changes = data.draw(
            st.sampled_from([{}, {"u1": aside}, {f"u{out}": aside}, {"u2": {"address": 1 << 4}}])
        )
        call = declared(merged.table, symbols, **changes)
        branch = call.branch(merged.table)
        assert kernels_of(merged, branch) == kernels_of(own[part], call.branch(own[part].table))
        taken = merged.table["branches"][branch]
        want = own[part].table["branches"][call.branch(own[part].table)]
        assert call.workspace_bytes(taken) == call.workspace_bytes(want)
        assert [arguments(call, step) for step in taken["steps"]] == [
            arguments(call, step) for step in want["steps"]
        ]
        if not value % domain.multiple_of:
            # No device is asked: the workspace bound goes by symbols alone.
            assert native.workspace_bytes(symbols) >= call.workspace_bytes(taken)

    check()


def kernels_of(lowered, branch):
    steps = lowered.table["branches"][branch]["steps"]
    return [lowered.kernels[step["kernel"]] for step in steps if step["step"] == "kernel"]


def arguments(call, step):
    """What a step does in a call, without the place of its kernel."""
    if step["step"] != "kernel":
        return step | {"bytes": call.value(step["bytes"])}
    return [
        arg
        | {part: [call.value(e) for e in arg[part]] for part in ("dim", "stride") if part in arg}
        for arg in step["args"]
    ]


@pytest.mark.parametrize("name", GRAPHS)
def test_every_listed_plan_replays_to_itself(plan_lists, name):
    plans = plan_lists[name]
    before = len(plans)
    names = [plans.name(index) for index in range(before)]
    assert len(set(names)) == before
    for index in range(before):
        assert plans.append(*plans.engine_and_knobs(index)) == index
    fresh = listed(GRAPHS[name]())
    assert [fresh.name(index) for index in range(len(fresh))] == names


def test_what_ranges_share_is_made_once(monkeypatch):
    """The epilogue in the keys of all kernels, and the look at their sources."""
    looked = []
    real = source._current
    monkeypatch.setattr(source, "_current", lambda *place: looked.append(place[0]) or real(*place))
    plans = listed(GRAPHS["from-1"]())
    kernels = plans.lower(0).kernels
    assert len(plans.entry(0).parts) > 2 and len(kernels) > 2
    assert sorted(looked) == sorted({kernel.template for kernel in kernels})
    epilogues = [kernel.params["epilogue"] for kernel in kernels]
    assert len({id(epilogue) for epilogue in epilogues}) == len({*epilogues}) <= 2  # one is piped


def test_epilogues_that_are_equal_in_python_are_not_taken_for_each_other(plan_lists):
    """1 and 1.0 are different attributes, so they are of different kernels."""
    facts = plan_lists["from-1"].facts
    (variant,) = lowering.variants(facts)
    found = []
    for value in (1, 1.0, True):
        nodes = tuple(replace(node, attrs=(("x", value),)) for node in facts.epilogue.nodes)
        changed = replace(facts, epilogue=replace(facts.epilogue, nodes=nodes))
        found.append(lowering.kernel_parts(changed, variant).epilogue)
    assert found[0] != found[1] != found[2] != found[0]
    assert len({canonical_bytes(each) for each in found}) == 3


def test_a_plan_of_ranges_counts_those_that_it_has(plan_lists):
    """Neighbours with the same schedule are one range."""
    for plans in plan_lists.values():
        if isinstance(plans.entry(0), Ranges):
            (symbol,) = plans.facts.m.symbols
            count = len(plans.entry(0).parts)
            want = f"the best for each of {count} ranges of {symbol}"
            assert plans.entry(0).why == want


def test_a_coefficient_is_counted_in_the_ends_of_ranges(plan_lists):
    """Ranges end at rows of M, not at values of the symbol."""
    parts = ranges_of(listed(gemm_graphs.plain("g", "M", 1024, 8192, symbols=rows("M", 0, 8192))))
    by_two = ranges_of(plan_lists["twice-S"])
    ends = [high for _, high, _ in parts if high >= 2]
    assert ends == [2 * high for _, high, _ in by_two]


def test_a_hint_decides_the_range_that_it_lies_in():
    def best(hint):
        fields = {} if hint is None else {"hint": hint}
        plans = listed(gemm_graphs.plain("g", "M", 1024, 512, symbols=rows("M", 1, 8192, **fields)))
        return plans.facts, {low: (high, config) for low, high, config in ranges_of(plans)}

    _, without = best(None)
    chosen = set()
    for hint in (1500, 8000):
        facts, with_hint = best(hint)
        last = max(low for low in with_hint if low <= hint)
        assert hint <= with_hint[last][0]
        assert facts.extents == {"batch": 1, "m": hint, "n": 1024, "k": 512}
        assert with_hint[last][1] == best_sm90([facts.extents], H200.sm_count)
        chosen.add(with_hint[last][1])
        below = {low: part for low, part in without.items() if part[0] <= 1024}
        assert below and below.items() <= with_hint.items()  # the other ranges do not see it
    assert len(chosen) == 2


def test_one_schedule_for_the_whole_domain_is_one_plan():
    for symbols in (rows("M", 1, 16), rows("M", 2000, 2000), rows("M", 0, 0)):
        plans = listed(gemm_graphs.plain("g", "M", 64, 64, symbols=symbols))
        assert ranges_of(plans) == []
        plans.lower(0)
    assert ranges_of(listed(gemm_graphs.plain("g", "M*M", 64, 64, symbols=rows("M", 1, 64)))) == []
    constant = listed(gemm_graphs.plain("g", 64, 4096, 4096))
    assert not any(isinstance(entry, Ranges) for entry in constant.entries)


def test_rows_outside_the_domain_are_refused_by_name_and_range():
    from cudnn_aot.errors import RefusedError

    graph = gemm_graphs.plain("g", "2*S", 1024, 8192, symbols=rows("S", 3, 4096))
    table = listed(graph).lower(0).table | {"device": "cpu"}
    text = json.dumps(table).replace('["attr", "sm_count"]', "132")
    plan = _native.Plan(json.loads(text), None)
    bound = dict.fromkeys((o["uid"] for o in table["operands"]), 1 << 20)
    assert plan.resolve(bound, workspace=1 << 20, symbols={"S": 3})["branch"]
    for value in (0, 2, 4097, 2**31):
        with pytest.raises(RefusedError, match=rf"symbol 'S': got {value}, want 3 to 4096"):
            plan.resolve(bound, workspace=1 << 20, symbols={"S": value})


# --- the domain of schedules ---------------------------------------------------------------------

# Not at all, in a cluster, and to the k tile.
SPLITS = ((1, 0), (2, 0), (4, 0), (1, 1))


def every_config(tile) -> list[GemmConfig]:
    """Of a tile every schedule that the kernel has of 16-bit elements."""
    made = (
        GemmConfig(*tile, *cluster, *split, pingpong)
        for cluster, split, pingpong in itertools.product(SM90_CLUSTERS, SPLITS, (0, 1))
    )
    return [
        each
        for each in made
        if each.why_not() is None and each.why_not_for(TileClass(2, 1)) is None
    ]


def test_the_domain_is_what_the_kernel_is_written_for():
    """A schedule is refused exactly where the kernel refuses the parameters that it gets."""
    assert {8 * width: tiles for width, tiles in SM90_TILES.items()} == kernel.TILES
    dt = cudnn.data_type
    tiles = tuple(itertools.chain(*SM90_TILES.values(), [(192, 128, 64), (64, 48, 64)]))
    clusters = (*SM90_CLUSTERS, (2, 2), (4, 1))
    splits = (*SPLITS, (3, 0), (8, 0), (2, 1))
    known = set()
    makers = [
        functools.partial(make, io=io)
        for make in (gemm_graphs.plain, gemm_graphs.gated)
        for io in (dt.HALF, dt.FP8_E5M2)
    ]
    for whole in (True, False):
        folds = gemm_graphs.EVERY_AXES
        makers.append(functools.partial(gemm_graphs.reduced, folds=folds, whole=whole))
    blocks = ((1, 128), (128, 64), (1, None), (None, 256))
    makers += [functools.partial(gemm_graphs.block_scaled, rows=rows) for rows in blocks]
    makers += [gemm_graphs.block_amax, gemm_graphs.sums, gemm_graphs.gated_int8]
    makers.append(functools.partial(gemm_graphs.sums, largest=True))
    for make in makers:
        for rows in (300, 30):  # whose A comes in loads of a tile's rows, and of 16
            facts = listed(make("g", rows, 512, 4096)).facts
            (variant,) = lowering.variants(facts)
            parts = lowering.kernel_parts(facts, variant)
            every = itertools.product(tiles, clusters, splits, (0, 1))
            for tile, cluster, split, pingpong in every:
                config = GemmConfig(*tile, *cluster, *split, pingpong)
                params = tma_params(facts, config, parts, ("k", "k"), "tma")
                ours = config.why_not() or config.why_not_for(tile_class(facts))
                try:
                    theirs = None
                    parsed = kernel.Config.parse(params)
                except ValueError as error:
                    theirs = str(error)
                assert (ours is None) is (theirs is None), (config, ours, theirs)
                if theirs is None:
                    known.add((tile_class(facts), config))
                    in_parts = rows == 30 and cluster[1] == 1
                    assert parsed.a_boxes == ((64, 16) if in_parts else (tile[0],))
    made = {TileClass(*each) for each in itertools.product((2, 1), (1, 2))}
    made |= {TileClass(1, 1, columns) for columns in (128, 64, 0, 256)}
    made |= {TileClass(2, 1, folds_rows=True), TileClass(1, 1, 128, folds_rows=True)}
    made |= {TileClass(1, products, is_integer=True) for products in (1, 2)}
    made.add(TileClass(1, 1, folds_rows=True, is_integer=True))
    assert {each for each, _ in known} == made


@pytest.fixture(scope="module")
def any_m() -> PlanList:
    return listed(gemm_graphs.chain("g", "M", 512, 1024, "gelu", symbols=rows("M", 0, 4096)))


@pytest.mark.parametrize("tile", SM90_TILES[2], ids=lambda tile: "x".join(map(str, tile)))
def test_every_config_lowers_and_names_itself(any_m, tile):
    """A schedule changes kernels, steps and workspace; operands, checks and symbols never."""
    base = any_m.lower(0).table
    configs = every_config(tile)
    assert len(configs) >= len(SM90_CLUSTERS)
    for config in configs:
        index = any_m.append(ENGINE, config.to_public())
        planned = any_m.lower(index)
        assert planned.knobs == {knob.name: value for knob, value in config.to_public().items()}
        plan = _native.Plan(json.loads(json.dumps(planned.table)))
        assert plan.workspace_bytes(None) == any_m.workspace_bytes(index)
        assert (plan.workspace_bytes(None) > 0) is (config.stream_k == 1)
        for tma in [spec.params for spec in planned.kernels if "tile" in spec.params]:
            assert tuple(tma["tile"]) == config.tile
            assert tuple(tma["cluster"]) == (config.cluster_m, config.cluster_n, config.cluster_k)
            assert tma["stream_k"] is (config.stream_k == 1)
            assert tma["pingpong"] is (config.pingpong == 1)
        for part in ("operands", "checks", "symbols", "device", "version"):
            assert planned.table[part] == base[part]


def test_ranges_are_ranked_at_values_that_the_symbol_may_have():
    symbols = rows("M", 1, 1000, multiple_of=48)
    facts = facts_of(gemm_graphs.plain("g", "M", 512, 1024, symbols=symbols))
    asked = []

    def best(values, name):
        asked.extend(values)
        return PlanConfig(len(asked))

    safe = PlanConfig(0)
    assert by_rows(facts.m, facts.symbols, (16, 64, 256), best, safe)
    assert {48, 96, 960} < set(asked) and all(value % 48 == 0 for value in asked)


def test_each_way_to_split_k_has_a_kernel(any_m):
    kernels = set()
    for splits, stream_k in SPLITS:
        config = GemmConfig(64, 128, 64, 1, 1, splits, stream_k)
        kernels.add(any_m.lower(any_m.append(ENGINE, config.to_public())).kernels)
    assert len(kernels) == len(SPLITS)


@pytest.mark.parametrize(
    ("tile_m", "make", "in_parts"),
    [
        (64, lambda: gemm_graphs.plain("g", 17, 512, 1024), True),
        (64, lambda: gemm_graphs.plain("g", 1, 512, 1024), True),
        (128, lambda: gemm_graphs.plain("g", 64, 512, 1024), True),
        (64, lambda: gemm_graphs.plain("g", "M", 512, 1024, symbols=rows("M", 1, 64)), True),
        (64, lambda: gemm_graphs.plain("g", "M", 512, 1024, symbols=rows("M", 0, FEW_ROWS)), True),
        # Whole tiles, for every value of the symbol.
        (64, lambda: gemm_graphs.plain("g", 64, 512, 1024), False),
        (128, lambda: gemm_graphs.plain("g", 128, 512, 1024), False),
        (64, lambda: gemm_graphs.plain("g", "64*S", 512, 1024, symbols=rows("S", 1, 2)), False),
        # Long: of most tiles all rows are there.
        (64, lambda: gemm_graphs.plain("g", FEW_ROWS + 1, 512, 1024), False),
        (128, lambda: gemm_graphs.plain("g", "M", 512, 1024, symbols=rows("M", 1, 4096)), False),
        # A along M has no box of fewer rows.
        (64, lambda: gemm_graphs.other_majors("g", 24, 512, 1024, True, True), False),
    ],
)
def test_tiles_of_a_that_may_not_be_full_are_loaded_in_parts(tile_m, make, in_parts):
    plans = listed(make())
    for cluster, split in itertools.product(SM90_CLUSTERS, ((1, 0), (2, 0), (1, 1))):
        config = GemmConfig(tile_m, 64, 64, *cluster, *split)
        if config.why_not():
            continue
        kernels = plans.lower(plans.append(ENGINE, config.to_public())).kernels
        *_, tma = [spec.params for spec in kernels if "tile" in spec.params]
        # Of A that two blocks share, each loads half of the tile's rows.
        assert tma["a_boxes"] == ((64, 16) if in_parts and cluster[1] == 1 else (tile_m,))


@pytest.mark.parametrize(
    ("most", "prefetches"), [(1, True), (FEW_ROWS, True), (FEW_ROWS + 1, False)]
)
def test_b_is_asked_of_l2_ahead_where_reading_it_is_most_of_the_time(most, prefetches):
    """Whether M is known or only its bound; stream-K follows a fill, not the kernel before."""
    symbolic = gemm_graphs.plain("g", "M", 512, 1024, symbols=rows("M", 0, most))
    for graph in (gemm_graphs.plain("g", most, 512, 1024), symbolic):
        plans = listed(graph)
        for stream_k in (0, 1):
            config = GemmConfig(64, 64, 64, 1, 1, 1, stream_k)
            kernels = plans.lower(plans.append(ENGINE, config.to_public())).kernels
            *_, tma = [spec.params for spec in kernels if "tile" in spec.params]
            assert tma["few_rows"] is (prefetches and not stream_k)


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda: gemm_graphs.plain("g", "M", 512, 1024, symbols=rows("M", 1, 4096)), FEW_ROWS),
        (
            lambda: gemm_graphs.plain("g", "48*S", 512, 1024, symbols=rows("S", 0, 100)),
            FEW_ROWS // 48,
        ),
    ],
    ids=["M", "multiples"],
)
def test_one_schedule_for_few_rows_and_many_loads_each_in_its_way(make, most):
    """So what is measured at few rows of a symbol is the kernel that a range of few rows has."""
    plans = listed(make())
    planned = plans.lower(plans.append(ENGINE, GemmConfig(64, 64, 64, 1, 1, 2).to_public()))
    few, many = [spec.params for spec in planned.kernels if "tile" in spec.params]
    assert few["few_rows"] and few["a_boxes"] == (64, 16)
    assert not many["few_rows"] and many["a_boxes"] == (64,)
    ((name, _),) = plans.facts.symbols.items()
    for value, branch in ((1, "tma_few"), (most, "tma_few"), (most + 1, "tma")):
        assert declared(planned.table, {name: value}).branch(planned.table) == branch
    # Tiles that are whole whatever the rows, and stream-K, load alike.
    whole = GemmConfig(64, 64, 64, 1, 2, 1, 1)
    planned = plans.lower(plans.append(ENGINE, whole.to_public()))
    assert len([spec for spec in planned.kernels if "tile" in spec.params]) == 1


@pytest.mark.parametrize(
    ("extent", "multiple"), [("300*S", 1), ("S", 320)], ids=["multiples", "multiple_of"]
)
def test_no_rows_are_not_few(extent, multiple):
    """They are the only ones below `FEW_ROWS`, and need no kernel."""
    symbols = rows("S", 0, 6400, multiple_of=multiple)
    plans = listed(gemm_graphs.plain("g", extent, 512, 1024, symbols=symbols))
    planned = plans.lower(plans.append(ENGINE, GemmConfig(64, 64, 64, 1, 1, 2).to_public()))
    assert [*planned.table["branches"]] == ["empty", "tma", "any_stride"]


@pytest.mark.parametrize("splits", CLUSTER_SPLITS)
def test_a_k_of_fewer_tiles_than_blocks_that_split_it_goes_to_the_branch_for_any_strides(splits):
    """Each block of a cluster has work; stream-K leaves a short K whole."""
    symbols = rows("K", 8, 4096, multiple_of=8)
    plans = listed(gemm_graphs.plain("g", 64, 512, "K", symbols=symbols))
    tile = (64, 64, 64)

    def branch(config, k):
        table = plans.lower(plans.append(ENGINE, config.to_public())).table
        return declared(table, {"K": k}).branch(table)

    in_cluster = GemmConfig(*tile, 1, 1, splits)
    last_too_short = (splits - 1) * 64
    for k in (8, last_too_short):
        assert branch(in_cluster, k) == "any_stride"
    for k in (last_too_short + 8, splits * 64, 4096):
        assert branch(in_cluster, k) == "tma"
    for k in (8, last_too_short, 4096):
        assert branch(GemmConfig(*tile, 1, 1, 1), k) == "tma"
        assert branch(GemmConfig(*tile, 1, 1, 1, 1), k) == "stream_k"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"TILE_M": 96}, cudnnGraphNotSupportedError, "tile 96x128x64 is not one of 128x256x64"),
        ({"TILEK": 32}, cudnnGraphNotSupportedError, "tile 64x128x32 is not one of"),
        ({"TILE_CGA_M": 2, "TILE_CGA_N": 2}, cudnnGraphNotSupportedError, "cluster 2x2 is not"),
        ({"SPLIT_K_SLC": 0}, cudnnGraphNotSupportedError, "0 splits of K in a cluster, want 1 or"),
        (
            {"SPLIT_K_SLC": 3},
            cudnnGraphNotSupportedError,
            "3 splits of K in a cluster, want 1 or 2 or 4",
        ),
        ({"STREAM_K": 2}, cudnnGraphNotSupportedError, "STREAM_K is 2, want 0 or 1"),
        (
            {"SPLIT_K_SLC": 2, "STREAM_K": 1},
            cudnnGraphNotSupportedError,
            "SPLIT_K_SLC is 2 and STREAM_K is 1, want one way to split K",
        ),
        ({"SPLIT_K_BUF": 0}, cudnnGraphNotSupportedError, "it has no knob SPLIT_K_BUF"),
        (
            {"SPLIT_K_SLC": 2, "TILE_CGA_M": 2},
            cudnnGraphNotSupportedError,
            "a cluster splits K or shares operands, not both: want TILE_CGA_M and _N 1",
        ),
        (
            {"SPLIT_K_SLC": 4, "TILE_N": 96},
            cudnnGraphNotSupportedError,
            "TILE_N is 96, want a multiple of 16 per block",
        ),
        ({"STAGES": 4}, cudnnGraphNotSupportedError, "it has no knob STAGES"),
        ({"TILE_N": None}, cudnnGraphNotSupportedError, "knob TILE_N is missing"),
        ({"TILE_M": 64.0}, UsageError, "knob TILE_M: got 64.0, want an integer"),
        ({"TILE_X": 1}, UsageError, "unknown knob 'TILE_X'"),
    ],
    ids=str,
)
def test_knobs_outside_the_domain_are_typed_errors(any_m, change, error, message):
    knobs = {k.name: v for k, v in GemmConfig(64, 128, 64, 1, 1, 1).to_public().items()} | change
    with pytest.raises(error, match=message):
        any_m.append(ENGINE, {name: value for name, value in knobs.items() if value is not None})


def test_every_knob_must_be_there():
    complete = GemmConfig(64, 128, 64, 1, 1, 1).to_public()
    assert (
        tuple(complete) == GemmConfig.KNOBS
        and GemmConfig.from_public(complete).to_public() == complete
    )
    for knob in GemmConfig.KNOBS:
        with pytest.raises(ValueError, match=f"knob {knob.name} is missing"):
            GemmConfig.from_public({k: v for k, v in complete.items() if k is not knob})
    assert knob_type.TILEK in complete


def test_a_plan_measured_at_one_extent_displaces_no_ranges_far_from_it(tmp_path):
    """Of a class one member was measured; the ranges serve the others, as they did."""
    graph = gemm_graphs.chain("g", "M", 1024, 512, "relu", symbols={"M": {"min": 1, "max": 4096}})
    plans = PlanList(graph, H200)
    last = GemmConfig(64, 256, 64, 2, 1, 1).to_public()
    entry = {
        "family": "gemm",
        "target": "h200",
        "layout_class": plans.facts.layout_class,
        "extents": plans.facts.extents,
        "plans": [
            {
                "engine": "gemm.sm90.persistent",
                "knobs": {knob.name: value for knob, value in last.items()},
            }
        ],
    }
    file = tmp_path / "tuning.json"
    file.write_text(json.dumps({"format": 1, "entries": [entry]}))
    tuned = PlanList(graph, H200, tuning=load_tuning(file))
    assert tuned.entries[1] == plans.entries[0] and isinstance(tuned.entries[0], Ranges)
    *others, measured = tuned.ranges(0)
    assert measured[0] == "M=1024..4096" and measured[2] == "measured at M=4096"
    assert tuned.engine_and_knobs(0)[1]["M=1024..4096"][1] == last
    model_s = plans.ranges(0)
    assert [each[1:] for each in others] == [each[1:] for each in model_s[: len(others)]]
    assert tuned.engine_and_knobs(2)[1] == last
