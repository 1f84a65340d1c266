"""The family of grouped matmuls without a compiler: facts, capability rows, and what a lowering
says.
"""

from __future__ import annotations

from dataclasses import replace

import moe_graphs
import pytest
from table_model import declared

import cudnn_aot as cudnn
from cudnn_aot import _native
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.planning.ranges import Ranges
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError
from cudnn_aot.recipes.moe.any_stride import MoeSm90AnyStride
from cudnn_aot.recipes.moe.capability import MODES
from cudnn_aot.recipes.moe.config import MoeConfig
from cudnn_aot.recipes.moe.facts import ROUTE, analyze
from cudnn_aot.recipes.moe.heuristics import RANGE_ENDS, SM90_PERSISTENT
from cudnn_aot.recipes.moe.sm90 import MoeSm90Persistent

H200, CPU = load_target("h200"), load_target("cpu")
BF16, FLOAT, INT64 = (getattr(cudnn.data_type, name) for name in ("BFLOAT16", "FLOAT", "INT64"))
ROWS = {"M": {"min": 0, "max": 4096, "hint": 100}}


def facts_of(graph):
    graph.freeze()
    facts = analyze(graph)
    assert not isinstance(facts, Refusal), facts.reason
    return facts


@pytest.mark.parametrize(
    ("experts", "offsets", "groups"),
    [(4, 4, 4), (4, 5, 4), (4, 12, 12), (4, 13, 12), (1, 2, 1), (1, 5, 4)],
    ids=["starts", "boundaries", "rounds", "rounds-and-end", "one", "one-expert-many-groups"],
)
def test_groups_follow_from_how_many_offsets_there_are(experts, offsets, groups):
    assert facts_of(moe_graphs.grouped(experts=experts, offsets=offsets)).groups == groups


def test_facts_of_each_mode():
    assert ROUTE.keys() == {mode.name for mode in cudnn.moe_grouped_matmul_mode}
    for mode in MODES:
        facts = facts_of(moe_graphs.grouped(mode))
        want = {"tokens": 12 if mode == "GATHER" else 24, "rows": 24, "n": 20, "k": 16}
        assert facts.extents == {**want, "experts": 4, "offsets": 5}
        assert [operand.name for operand in facts.route] == [
            "token_index", "token_ks"
        ][: MODES.index(mode)]  # fmt: skip
        assert [operand.uid for operand in facts.operands()] == sorted(
            operand.uid for operand in facts.operands()
        )
        assert facts.layout_class.startswith(f"{mode} BFLOAT16xBFLOAT16 kn [INT32")
        described = facts.describe()
        assert described["mode"] == mode and described["groups"] == "4"
        assert ("top_k" in described) == (mode == "SCATTER")


def test_symbols_follow_from_extents():
    symbols = {"M": {"min": 0, "max": 4096}, "T": {"min": 8, "max": 64, "multiple_of": 8}}
    facts = facts_of(moe_graphs.grouped("GATHER", rows="M", tokens="T", symbols=symbols))
    assert facts.extents["rows"] == 4096
    assert facts.symbols_at(facts.extents_at({"M": 7, "T": 16})) == {"M": 7, "T": 16}
    assert facts.symbols_at({**facts.extents_at({"M": 7}), "tokens": 20}) == {"M": 7, "T": 20}
    assert facts.symbols_at({**facts.extents, "n": 21}) is None


def with_relu():
    g = moe_graphs.grouped()
    g.relu(g.nodes[0].outputs["OUT_0"]).set_output(True)
    return g


def two_products():
    g = moe_graphs.grouped()
    (node,) = g.nodes
    g.moe_grouped_matmul(*node.inputs.values()).set_output(True)
    return g


def reordered():
    g = moe_graphs.grouped(io=cudnn.data_type.FP8_E4M3, rows=128, k=128)
    g.nodes[0].inputs["token"].set_reordering_type(cudnn.tensor_reordering.F8_128x4)
    return g


def weight_of_another_type():
    g = moe_graphs.grouped()
    g.nodes[0].inputs["weight"].set_data_type(FLOAT)
    return g


E = {"E": {"min": 2, "max": 8}}


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (with_relu, "is relu beside 'moe_grouped_matmul.0', want one moe_grouped_matmul alone"),
        (two_products, "is moe_grouped_matmul beside 'moe_grouped_matmul.0'"),
        (lambda: moe_graphs.grouped("COMBINE"), "mode COMBINE is not in NONE/GATHER/SCATTER"),
        (reordered, "'token' has the reordering F8_128x4, want strides alone"),
        (weight_of_another_type, "token is BFLOAT16 and weight is FLOAT, want the same dtype"),
        (
            lambda: moe_graphs.grouped(out=cudnn.data_type.INT8),
            "output is INT8, want one of BFLOAT16/HALF/FLOAT/FP8_E4M3/FP8_E5M2",
        ),
        (
            lambda: moe_graphs.grouped(experts="E", symbols=E),
            "5 offsets for E experts, want two numbers",
        ),
        (
            lambda: moe_graphs.grouped(rows="2*M", symbols={"M": {"min": 0, "max": 2**30}}),
            "tokens may reach 2147483648, want at most 2147483647",
        ),
    ],
    ids=["chain", "two", "combine", "reordered", "types", "int8", "open-groups", "rows"],
)
def test_what_no_engine_takes_is_declined_with_its_reason(build, reason):
    with pytest.raises(cudnnGraphNotSupportedError) as declined:
        plan_graph(build(), CPU)
    assert reason in str(declined.value)


def test_the_gpu_engine_serves():
    planned = plan_graph(moe_graphs.grouped(), H200)
    assert planned.engine_name == "moe.sm90.any_stride"
    assert [kernel.template for kernel in planned.kernels] == ["moe.kernels.simt:grouped_matmul"]


EVERY_GRAPH = (*moe_graphs.TEST_GRAPHS, *moe_graphs.TENSOR_CORE_GRAPHS)


@pytest.mark.parametrize("make", EVERY_GRAPH, ids=lambda make: make().name)
def test_every_graph_of_the_gpu_tests_has_a_plan(make):
    for target in (H200, CPU):
        assert plan_graph(make(), target).kernels


# --- lowering ------------------------------------------------------------------------------------


def arguments(table, branch):
    """Of the last step, before which SCATTER on a GPU has one that zeroes."""
    return table["branches"][branch]["steps"][-1]["args"]


@pytest.mark.parametrize("mode", MODES)
def test_a_launch_that_reads_the_offsets_where_they_are(mode):
    facts = facts_of(moe_graphs.grouped(mode, rows="M", symbols=ROWS, integers=INT64))
    lowering = MoeSm90AnyStride().lower(facts, None, H200)
    table = lowering.table
    assert _native.Plan(table, None).workspace_bytes(None) == 0
    uid = {operand["name"]: operand["uid"] for operand in table["operands"]}
    route = ("token_index", "token_ks")[: MODES.index(mode)]
    named = ("token", "weight", "first_token_offset", *route, "y")
    args = arguments(table, "any_stride")
    assert args[:2] == [{"arg": "launch"}, {"arg": "int", "value": 4}]
    assert [arg["operand"] for arg in args if arg["arg"] == "tensor"] == [
        uid[name] for name in named
    ]
    assert [arg["value"] for arg in args[2:] if arg["arg"] == "int"] == [2] * (mode == "SCATTER")
    *zero, kernel = lowering.kernels
    assert list(kernel.params["route_dtypes"]) == ["INT64"] * len(route)
    assert [each.template for each in zero] == ["moe.kernels.simt:zero"] * (mode == "SCATTER")
    assert declared(table, {"M": 0}).branch(table) == "empty"
    assert declared(table, {"M": 1}).branch(table) == "any_stride"


def test_views_are_the_operands_turned():
    facts = facts_of(moe_graphs.grouped())
    table = MoeSm90AnyStride().lower(facts, None, H200).table
    token, weight, offsets, out = (
        arg for arg in arguments(table, "any_stride") if arg["arg"] == "tensor"
    )
    call = declared(table, {})
    spelled = [
        [[call.value(e) for e in view[field]] for field in ("dim", "stride")]
        for view in (token, weight, offsets, out)
    ]
    assert spelled == [
        [[24, 16], [16, 1]],
        [[20, 16, 4], [1, 20, 320]],
        [[5], [1]],
        [[24, 20], [20, 1]],
    ]


def test_extents_of_two_symbols_have_to_be_equal_at_a_call():
    symbols = {name: {"min": 1, "max": 64} for name in ("K", "L")}
    g = moe_graphs.grouped(k="K", symbols=symbols)
    g.nodes[0].inputs["weight"].set_dim([4, "L", 20]).set_stride(["20*L", 20, 1])
    table = plan_graph(g, CPU).table
    weight = next(o["uid"] for o in table["operands"] if o["name"] == "weight")
    assert table["checks"] == [{"rule": "equal", "operand": weight, "a": "L", "b": "K"}]


def test_an_input_that_the_mode_does_not_read_is_bound_and_not_passed():
    g = cudnn.pygraph(io_data_type=BF16, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
    token, weight = g.tensor(dim=[1, 24, 16]), g.tensor(dim=[4, 16, 20])
    offset = g.tensor(dim=[5, 1, 1], data_type=INT64)
    index = g.tensor(dim=[1, 24, 1], data_type=INT64, name="unread")
    g.moe_grouped_matmul(token, weight, offset, index).set_output(True)
    table = plan_graph(g, CPU).table
    assert "unread" in [operand["name"] for operand in table["operands"]]
    assert len(arguments(table, "blocked")) == 5


# --- on the tensor cores --------------------------------------------------------------------------

TILE = MoeConfig(64, 128, 64)


def persistent(graph, knobs=TILE):
    lowering = MoeSm90Persistent().lower(facts_of(graph), knobs, H200)
    _native.Plan(lowering.table, None)
    return lowering


@pytest.mark.parametrize("make", moe_graphs.TENSOR_CORE_GRAPHS, ids=lambda make: make().name)
def test_its_graphs_of_the_gpu_tests_run_on_it(make):
    """A branch of the tensor cores comes first, and one that takes any call is behind it."""
    planned = plan_graph(make(), H200)
    assert planned.engine_name == "moe.sm90.persistent"
    table = planned.table
    _native.Plan(table, None)
    kinds = [row["branch"].split()[0] for row in table["dispatch"]]  # ahead of the range
    assert [kind for kind in dict.fromkeys(kinds) if kind != "empty"] == ["tma", "any_stride"]
    for rows in (1, 300) if table["symbols"] else (0,):
        call = declared(table, dict.fromkeys(table["symbols"], rows))
        assert call.branch(table).startswith("tma")


@pytest.mark.parametrize("mode", MODES)
def test_the_launch_on_tensor_cores(mode):
    g = moe_graphs.grouped(mode, rows="M", n=24, symbols=ROWS)
    lowering = persistent(g)
    table = lowering.table
    zero = ["moe.kernels.simt:zero"] * (mode == "SCATTER")
    assert [kernel.template for kernel in lowering.kernels] == [
        *zero, "moe.kernels.sm90:grouped_matmul", "moe.kernels.simt:grouped_matmul"
    ]  # fmt: skip
    steps = table["branches"]["tma"]["steps"]
    assert [step["kernel"] for step in steps] == list(range(len(zero) + 1))
    assert [step["kernel"] for step in table["branches"]["any_stride"]["steps"]] == [
        *range(len(zero)), len(zero) + 1
    ]  # fmt: skip
    *head, groups = steps[-1]["args"][:3]
    assert head == [{"arg": "launch"}, {"arg": "int", "value": ["attr", "sm_count"]}]
    assert groups == {"arg": "int", "value": 4}
    assert steps[-1]["args"][2:] == table["branches"]["any_stride"]["steps"][-1]["args"][1:]
    given = lowering.kernels[len(zero)].params
    assert (given["tile"], given["b_major"], given["store"]) == ((64, 128, 64), "n", "tma")
    assert given["a_boxes"] == ((64,) if mode == "GATHER" else (64, 16))


@pytest.mark.parametrize(
    ("name", "strides", "offset", "branch"),
    [
        ("token", None, 0, "tma"),
        ("token", (1000, 24, 1), 0, "tma"),
        ("token", (1000, 20, 1), 0, "any_stride"),  # a row of no whole 16 bytes
        ("token", (1000, 1, 24), 0, "any_stride"),
        ("token", None, 2, "any_stride"),  # an address of no whole 16 bytes
        ("weight", (16 * 24, 1, 16), 0, "any_stride"),  # along K, where N was declared
        ("weight", (500, 24, 1), 0, "any_stride"),
        ("y", (1000, 26, 1), 0, "any_stride"),
        ("y", None, 8, "any_stride"),
        ("first_token_offset", (2, 1, 1), 4, "tma"),
    ],
)
def test_strides_and_addresses_of_the_call_choose(name, strides, offset, branch):
    table = persistent(moe_graphs.grouped(n=24)).table
    call = declared(table, {})
    uid = next(o["uid"] for o in table["operands"] if o["name"] == name)
    buffer = call.operands[uid]
    call.operands[uid] = replace(
        buffer, stride=strides or buffer.stride, address=buffer.address + offset
    )
    assert call.branch(table) == branch


def test_rows_of_no_whole_16_bytes_are_stored_by_elements():
    lowering = persistent(moe_graphs.grouped(n=21, weight_major="k"))
    params = lowering.kernels[0].params
    assert (params["store"], params["b_major"]) == ("direct", "k")
    call = declared(lowering.table, {})
    assert call.branch(lowering.table) == "tma"


def test_one_expert_has_no_step_to_the_next():
    table = persistent(moe_graphs.grouped(n=24, experts=1, offsets=2)).table
    call = declared(table, {})
    uid = next(o["uid"] for o in table["operands"] if o["name"] == "weight")
    buffer = call.operands[uid]
    call.operands[uid] = replace(buffer, stride=(7, *buffer.stride[1:]))
    assert call.branch(table) == "tma"
    weight = next(a for a in arguments(table, "tma") if a.get("operand") == uid)
    assert [call.value(e) for e in weight["stride"]] == [1, 24, 0]


def test_a_symbolic_k_is_looked_at_in_the_call():
    symbols = {"K": {"min": 0, "max": 64, "multiple_of": 8}}
    table = persistent(moe_graphs.grouped("GATHER", k="K", n=24, symbols=symbols)).table
    assert declared(table, {"K": 8}).branch(table) == "tma"
    assert declared(table, {"K": 0}).branch(table) == "any_stride"
    # Strides that K has no say in.
    g = moe_graphs.grouped(k="K", n=24, symbols=symbols)
    (node,) = g.nodes
    node.inputs["token"].set_stride([24 * 64, 64, 1])
    node.inputs["weight"].set_stride([24 * 64, 1, 64])
    table = persistent(g).table
    assert declared(table, {"K": 8}).branch(table) == "tma"
    assert declared(table, {"K": 0}).branch(table) == "any_stride"


E4M3, E5M2, HALF = (getattr(cudnn.data_type, name) for name in ("FP8_E4M3", "FP8_E5M2", "HALF"))


def with_strides(port, strides, **fields):
    g = moe_graphs.grouped(n=24, **fields)
    (node,) = g.nodes
    (node.inputs.get(port) or node.outputs["OUT_0"]).set_stride(strides)
    return g


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: moe_graphs.grouped(io=FLOAT), "token is FLOAT, want one of BFLOAT16/HALF/FP8"),
        (
            lambda: moe_graphs.grouped(n=32, io=E4M3),
            "'weight' is FP8 and not contiguous along K",
        ),
        (
            lambda: moe_graphs.grouped(n=20),
            "stride 20 of 'weight' on axis 1 is not a multiple of 16 bytes",
        ),
        (
            lambda: moe_graphs.grouped(k=20, n=24),
            "stride 20 of 'token' on axis 1 is not a multiple of 16 bytes",
        ),
        (lambda: with_strides("token", [384, 1, 24]), "'token' is not contiguous along K"),
        (lambda: with_strides("weight", [1000, 48, 2]), "'weight' has no contiguous axis"),
        (lambda: with_strides("y", [480, 1, 24]), "the rows of 'y' are not contiguous"),
        (
            lambda: with_strides("token", [288, 24, 1], mode="GATHER", k=20),
            "rows of 'token' are gathered, and K 20 need not be a multiple of 16 bytes",
        ),
        (lambda: moe_graphs.grouped(k=0, n=24), "K is 0"),
    ],
)  # fmt: skip
def test_what_the_tensor_cores_do_not_take_says_why(build, reason):
    facts = facts_of(build())
    declined = MoeSm90Persistent().check_support(facts, H200)
    assert declined is not None and declined.reason.startswith(reason)
    assert plan_graph(build(), H200).engine_name == "moe.sm90.any_stride"


def test_fp8_of_two_types_is_multiplied_and_stored_as_any_type():
    for out in (BF16, HALF, FLOAT, E4M3, E5M2):
        g = moe_graphs.grouped(io=E4M3, weight_type=E5M2, out=out, weight_major="k", n=24)
        params = persistent(g, MoeConfig(64, 128, 128)).kernels[0].params
        assert (params["token_dtype"], params["weight_dtype"]) == ("FP8_E4M3", "FP8_E5M2")
        assert params["out_dtype"] == out.name


@pytest.mark.parametrize(
    ("rows", "tile_m"), [(1, 64), (16, 64), (8 * 32, 64), (8 * 256, 128), (1 << 15, 128)]
)
def test_rows_of_a_group_decide_the_tile(rows, tile_m):
    for experts, offsets in ((8, 9), (1, 9), (4, 9)):
        g = moe_graphs.grouped(rows=rows, k=4096, n=14336, experts=experts, offsets=offsets)
        first, *_ = PlanList(g, H200).entries
        assert first.engine_id == SM90_PERSISTENT and first.knobs.tile_m == tile_m, experts
        assert first.why.startswith("modelled ")


def test_ranges_of_a_symbolic_number_of_rows_have_tiles_of_their_own():
    symbols = {"M": {"min": 0, "max": 1 << 16}}
    g = moe_graphs.grouped(rows="M", k=4096, n=14336, experts=8, offsets=9, symbols=symbols)
    plans = PlanList(g, H200)
    ranges = plans.entries[0]
    assert isinstance(ranges, Ranges)
    tiles = [part.plan.knobs.tile_m for part in ranges.parts]
    assert tiles[0] == 64 and tiles[-1] == 128 and tiles == sorted(tiles)
    edges = [part.bounds[0][1:] for part in ranges.parts]
    assert edges[0][0] == 0 and edges[-1][1] == 1 << 16
    assert {end for _, end in edges[:-1]} <= {8 * end for end in RANGE_ENDS}
    table = plans.lower(0).table
    branches = {declared(table, {"M": rows}).branch(table) for rows in (4, 2000)}
    assert len(branches) == 2


def test_every_tile_is_measured_and_spelled_by_knobs():
    engine = MoeSm90Persistent()
    for io, tile_k in ((BF16, 64), (E4M3, 128)):
        g = moe_graphs.grouped(io=io, k=128, n=32, weight_major="k")
        configs = list(engine.configs(facts_of(g), H200))
        assert {config.tile for config in configs} == {
            (m, n, tile_k) for m in (64, 128) for n in range(32, 257, 32)
        }
        plans = PlanList(g, H200)
        for config in configs:
            public = engine.knobs_to_public(config)
            assert {knob.name: value for knob, value in public.items()} == {
                "TILE_M": config.tile_m, "TILE_N": config.tile_n, "TILEK": tile_k
            }  # fmt: skip
            assert engine.knobs_from_public(public) == config
            assert plans.lower(plans.append(SM90_PERSISTENT, public)).kernels
    with pytest.raises(cudnnGraphNotSupportedError, match="tile 96x64x64 is not one of"):
        engine.knobs_from_public(MoeConfig(96, 64, 64).to_public())
    other = engine.lower(facts_of(moe_graphs.grouped(n=24)), MoeConfig(64, 64, 128), H200)
    assert isinstance(other, Refusal) and "of 2-byte elements" in other.reason


def test_the_fallback_is_the_smallest_of_everything():
    plans = PlanList(moe_graphs.grouped(n=24), H200, modes=[cudnn.heur_mode.FALLBACK])
    assert [entry.engine_id for entry in plans.entries] == [SM90_PERSISTENT, 20_100]
    assert plans.entries[0].knobs == TILE
