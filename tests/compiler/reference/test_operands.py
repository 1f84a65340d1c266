"""Operands of every op: they fit the op, their results are finite, and they repeat."""

import copy

import gemm_graphs
import moe_graphs
import numpy as np
import pytest
from op_graphs import OPS, bare, example
from rule_graphs import VALID, build, changed

import cudnn_aot
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.extents import SymExpr
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.reference import layout
from cudnn_aot.compiler.reference.execute import execute, random_operands, uses
from cudnn_aot.compiler.reference.operands import (
    Site,
    follows_own_shape,
    maker_of,
    random_values,
)
from cudnn_aot.compiler.reference.ops import REFERENCES, apply
from cudnn_aot.compiler.reference.storage import round_to
from cudnn_aot.errors import InvalidGraphError, cudnnGraphNotSupportedError

HALF, FLOAT, INT32 = data_type.HALF, data_type.FLOAT, data_type.INT32
# Ops whose operands' extents depend on each other beyond what a generic example knows: built below.
SPECIAL = {"sdpa_mxfp8", "sdpa_mxfp8_backward", "gdn2_bwd"}


def graph_of(io: data_type = HALF) -> Graph:
    return Graph("", io, FLOAT, FLOAT)


def outputs(*tensors) -> None:
    for tensor in tensors:
        if tensor is not None:
            tensor.set_output(True)


def run(graph: Graph, seed: int = 0) -> tuple[dict, dict]:
    """Operands and results; both finite, exact in their types, and the same each time."""
    values = random_operands(graph, seed=seed)
    again = random_operands(graph, seed=seed)
    for tensor in graph.inputs():
        got = values[tensor.uid]
        assert np.isfinite(got).all(), tensor
        assert np.array_equal(round_to(got, tensor.data_type), got), tensor
        assert np.array_equal(again[tensor.uid], got), tensor
    return values, execute(graph, values)


def test_every_row_has_a_reference() -> None:
    assert set(REFERENCES) == set(OPS)


@pytest.mark.parametrize("op", [op for op in OPS if op not in SPECIAL])
def test_every_op_runs_on_its_random_operands(op: str) -> None:
    graph = example(bare(op))
    values, results = run(graph)
    assert set(results) == {tensor.uid for tensor in graph.outputs()}
    for uid, result in results.items():
        tensor = graph.tensors[uid]
        assert result.shape == tuple(tensor.dim), tensor
        assert np.isfinite(result).all(), tensor
        assert np.array_equal(round_to(result, tensor.data_type), result), tensor
    assert values.keys() == {tensor.uid for tensor in graph.inputs()}


def attention_operands(graph: Graph, s: int = 24, t: int = 40) -> dict:
    return {
        "q": graph.tensor([3, 4, s, 16], name="q"),
        "k": graph.tensor([3, 2, t, 16], name="k"),
        "v": graph.tensor([3, 2, t, 8], name="v"),
    }


def lengths(graph: Graph) -> dict:
    made = {
        name: graph.tensor([3, 1, 1, 1], data_type=INT32, name=name)
        for name in ("seq_len_q", "seq_len_kv")
    }
    return {**made, "use_padding_mask": True}


def test_sequence_lengths_and_page_tables_are_valid() -> None:
    graph = graph_of()
    pool = {name: graph.tensor([40, 2, 4, 16], name=name) for name in ("k", "v")}
    tables = {
        f"paged_attention_{side}_table": graph.tensor([3, 1, 10, 1], data_type=INT32)
        for side in "kv"
    }
    rows = lengths(graph)
    q = graph.tensor([3, 4, 24, 16])
    o, _ = graph.sdpa(q=q, **pool, **tables, **rows, paged_attention_max_seq_len_kv=38)
    outputs(o)
    values, results = run(graph)
    for name, limit in (("seq_len_q", 24), ("seq_len_kv", 38)):
        got = values[rows[name].uid].reshape(-1)
        assert got[0] == limit and ((got >= 1) & (got <= limit)).all()
    for table in tables.values():
        pages = values[table.uid].reshape(-1)
        assert pages.min() >= 0 and pages.max() < 40 and len(set(pages)) == 30
    (result,) = results.values()
    assert result.any() and not result[1, :, int(values[rows["seq_len_q"].uid][1, 0, 0, 0]) :].any()


def test_a_backward_graph_gets_statistics_of_its_own_operands() -> None:
    graph = graph_of(FLOAT)
    made = attention_operands(graph)
    q = made["q"]
    o, grad = graph.tensor([3, 4, 24, 8]), graph.tensor([3, 4, 24, 8])
    stats = graph.tensor([3, 4, 24, 1])
    gradients = graph.sdpa_backward(
        **made, o=o, dO=grad, stats=stats, use_causal_mask=True, attn_scale=0.25
    )
    outputs(*gradients)
    values, _ = run(graph)
    operands = {name: values[tensor.uid] for name, tensor in made.items()}
    want = apply("sdpa", operands, use_causal_mask=True, attn_scale=0.25)
    np.testing.assert_allclose(values[stats.uid], want["Stats"], rtol=1e-6)
    np.testing.assert_allclose(values[o.uid], want["O"], rtol=1e-6, atol=1e-6)
    assert q.uid in values


@pytest.mark.parametrize("multiplier", [1, 64])
def test_packed_batches_are_the_padded_ones(multiplier: int) -> None:
    graph = graph_of()
    rows = lengths(graph)
    made = {}
    for name, heads, width, s in (("q", 4, 16, 24), ("k", 2, 16, 40), ("v", 2, 8, 40)):
        stride = [s * heads * width, width, heads * width, 1]
        made[name] = graph.tensor([3, heads, s, width], stride, name=name)
        factor = 1 if multiplier == 1 else heads * width
        offset = graph.tensor([4, 1, 1, 1], data_type=INT32, name=f"{name} offsets")
        made[name].set_ragged_offset(offset).set_ragged_offset_multiplier(factor)
    o, stats = graph.sdpa(**made, **rows, generate_stats=True, use_causal_mask=True)
    outputs(o, stats)
    values, want = run(graph)
    packed = dict(values)
    for name, tensor in made.items():
        kind = "q" if name == "q" else "kv"
        real = values[rows[f"seq_len_{kind}"].uid].reshape(-1)
        starts = values[tensor.ragged_offset.uid].reshape(-1)
        token = tensor.stride[2] // tensor.ragged_offset_multiplier
        assert np.array_equal(np.diff(starts), real * token) and starts[0] == 0
        packed[tensor.uid] = layout.pack_ragged(
            values[tensor.uid], real, starts, tensor.stride, tensor.ragged_offset_multiplier
        )
        assert packed[tensor.uid].size == real.sum() * tensor.stride[2]
    got = execute(graph, packed)
    assert all(np.array_equal(got[uid], want[uid]) for uid in want)


def test_scales_may_be_given_as_their_128x4_blob() -> None:
    graph = graph_of()
    x = graph.tensor([1, 256, 64], data_type="FP8_E4M3")
    scale = graph.tensor([1, 256, 4], data_type="FP8_E8M0", reordering_type="F8_128x4")
    y = graph.identity(graph.block_scale_dequantize(x, scale, block_size=[1, 16]))
    outputs(y)
    values, want = run(graph)
    assert (values[scale.uid] > 0).all()
    blob = layout.to_128x4(values[scale.uid])
    got = execute(graph, {**values, scale.uid: blob})
    assert np.array_equal(got[y.uid], want[y.uid])
    with pytest.raises(InvalidGraphError, match="got 512 scales, want 1024"):
        execute(graph, {**values, scale.uid: blob[:512]})


@pytest.mark.parametrize("mode", ["NONE", "GATHER", "SCATTER", "COMBINE"])
@pytest.mark.parametrize("with_end", [False, True])
def test_routing_is_a_permutation_in_sorted_groups(mode: str, with_end: bool) -> None:
    graph = graph_of(FLOAT)
    rows, tokens, top_k = 24, 12, 2
    token = graph.tensor([1, tokens if mode == "GATHER" else rows, 8])
    weight = graph.tensor([4, 8, 6])
    offset = graph.tensor([4 + with_end, 1, 1], data_type=INT32)
    places = {}
    if mode != "NONE":
        places["token_index"] = graph.tensor([1, rows, 1], data_type=INT32)
    if mode in ("SCATTER", "COMBINE"):
        places["token_ks"] = graph.tensor([1, rows, 1], data_type=INT32)
    if mode == "COMBINE":
        places["top_k_scores"] = graph.tensor([1, tokens, top_k])
    y = graph.moe_grouped_matmul(token, weight, offset, **places, mode=mode, top_k=top_k)
    outputs(y)
    values, results = run(graph)
    edges = values[offset.uid].reshape(-1)
    assert edges[0] == 0 and (np.diff(edges) >= 0).all() and edges[-1] <= rows
    assert not with_end or edges[-1] == rows
    if mode in ("SCATTER", "COMBINE"):
        pairs = values[places["token_index"].uid] * top_k + values[places["token_ks"].uid]
        assert sorted(pairs.reshape(-1)) == list(range(rows))
        assert results[y.uid].any(axis=-1).all()
    assert 0.3 < results[y.uid].std() < 3


@pytest.mark.parametrize("backward", [False, True])
def test_mxfp8_attention(backward: bool) -> None:
    graph = graph_of()
    e4m3, e8m0 = data_type.FP8_E4M3, data_type.FP8_E8M0
    b, h, s, d = 1, 2, 128, 64
    along_d, along_s = [b, h, 128, 4], [b, h, 4, 128]
    ports = ["q", "k", "v"] + (["q_T", "k_T", "dO", "dO_T"] if backward else [])
    made = {port: graph.tensor([b, h, s, d], data_type=e4m3, name=port) for port in ports}
    for port in ports:
        by_s = port.endswith("_T") or port == "v"
        dim = along_s if by_s else along_d
        made[f"descale_{port}"] = graph.tensor(dim, None, e8m0, reordering_type="F8_128x4")
    if backward:
        made["o_f16"], made["dO_f16"] = graph.tensor([b, h, s, d]), graph.tensor([b, h, s, d])
        made["stats"] = graph.tensor([b, h, s, 1], data_type=FLOAT)
        outputs(*graph.sdpa_mxfp8_backward(**made, attn_scale=0.125))
    else:
        outputs(*graph.sdpa_mxfp8(**made, attn_scale=0.125, generate_stats=True))
    _, results = run(graph)
    assert all(np.isfinite(result).all() for result in results.values())


@pytest.mark.parametrize("attrs", [{}, {"gate_domain": "linear"}, {"safe_gate": True}])
@pytest.mark.parametrize("family", ["gdn", "kda", "gdn2", "gdp"])
def test_delta_rules_stay_bounded_over_long_sequences(family: str, attrs: dict) -> None:
    graph = graph_of(FLOAT)
    t, h, k, v, n = 300, 2, 8, 8, 4
    channels = [] if family in ("gdn", "gdp") else [k]
    made = {
        "q": graph.tensor([t, h, k]),
        "k": graph.tensor([t, h, k]),
        "v": graph.tensor([t, h, v]),
        "g": graph.tensor([t, h, *channels]),
        "beta": graph.tensor([t, h, k] if family == "gdn2" else [t, h]),
    }
    if family == "gdn2":
        made["w"] = graph.tensor([t, h, v])
    made["cu_seqlens"] = graph.tensor([n + 1], data_type=INT32)
    made["initial_state"] = graph.tensor([9, h, v, k])
    made["state_indices"] = graph.tensor([n], data_type=INT32)
    outs = getattr(graph, family)(**made, output_final_state=True, **attrs)
    outputs(*outs)
    values, results = run(graph)
    bounds = values[made["cu_seqlens"].uid]
    assert bounds[0] == 0 and bounds[-1] == t and (np.diff(bounds) >= 0).all()
    assert len(set(values[made["state_indices"].uid])) == n
    gate = values[made["g"].uid]
    if not attrs:
        assert (gate <= 0).all()
    if "gate_domain" in attrs:
        assert ((gate > 0) & (gate <= 1)).all()
    assert all(np.abs(result).max() < 50 for result in results.values())


def test_gdn2_bwd() -> None:
    graph = graph_of(FLOAT)
    t, h, d = 20, 2, 4
    wide = {name: graph.tensor([t, h, d], name=name) for name in ("q", "k", "v", "g", "beta", "w")}
    bounds, grad = graph.tensor([3], data_type=INT32), graph.tensor([t, h, d])
    outputs(*graph.gdn2_bwd(**wide, cu_seqlens=bounds, dO=grad))
    _, results = run(graph)
    assert len(results) == 6 and all(result.any() for result in results.values())


def test_norm_backward_operands_fit_the_input() -> None:
    graph = graph_of(FLOAT)
    x, grad = graph.tensor([6, 32]), graph.tensor([6, 32])
    scale, mean, inv = graph.tensor([1, 32]), graph.tensor([6, 1]), graph.tensor([6, 1])
    outputs(*graph.layernorm_backward(grad, x, scale, mean, inv))
    values, _ = run(graph)
    np.testing.assert_allclose(values[mean.uid][:, 0], values[x.uid].mean(axis=1), atol=1e-6)
    deviation = values[x.uid].std(axis=1)
    np.testing.assert_allclose(values[inv.uid][:, 0], 1 / deviation, rtol=1e-4)


def test_domains_are_kept() -> None:
    graph = graph_of(FLOAT)
    x, y, mask = graph.tensor([1000]), graph.tensor([1000]), graph.tensor([1000])
    outputs(graph.binary_select(graph.log(x), graph.rsqrt(y), mask))
    values, results = run(graph)
    assert (values[x.uid] > 0).all() and (values[y.uid] > 0).all()
    assert set(values[mask.uid]) == {0.0, 1.0}
    assert all(np.isfinite(result).all() for result in results.values())


def empty_cases(op):
    """The valid graph of an op with one of its extents 0, wherever that extent stands."""
    base = changed(op, {})
    extents = {extent for tensor in tensors_of(base) for extent in tensor["dim"]}
    for extent in sorted(extents):
        for axis in (None, 0, 1, 2, 3):
            spec = copy.deepcopy(base)
            for tensor in tensors_of(spec):
                tensor["dim"] = [
                    0 if n == extent and axis in (None, place) else n
                    for place, n in enumerate(tensor["dim"])
                ]
            yield spec


def tensors_of(value):
    if isinstance(value, dict):
        if "dim" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value encountered")
@pytest.mark.parametrize("op", VALID)
def test_what_has_no_elements_runs_if_it_is_valid(op):
    for spec in empty_cases(op):
        graph = build(cudnn_aot, spec)
        try:
            graph.validate()
        except (InvalidGraphError, cudnnGraphNotSupportedError):
            continue
        for uid, result in execute(graph, random_operands(graph)).items():
            assert result.shape == graph.tensors[uid].dim


@pytest.mark.parametrize("matrix", [data_type.FP8_E4M3, data_type.HALF])
def test_what_scales_fp8_is_of_order_one(matrix: data_type) -> None:
    """Its sums have an absolute error, which larger scales would multiply past the tolerance."""
    graph = graph_of(FLOAT)
    wide = graph.tensor(name="A", dim=[1, 64, 64], data_type=matrix)
    scale = graph.tensor(name="scale", dim=[1, 64, 1])
    outputs(graph.mul(wide, scale))
    values, _ = run(graph)
    drawn = np.abs(values[scale.uid])
    assert (0.25 <= drawn.min() and drawn.max() <= 1.0) == (matrix is data_type.FP8_E4M3)


@pytest.mark.parametrize("op", [op for op in OPS if op not in SPECIAL])
def test_what_follows_its_own_shape_is_the_same_beside_any_others(op: str) -> None:
    """So a weight need not be made again for other values of a symbol."""
    graph = example(bare(op))
    values = random_operands(graph, seed=3)
    for tensor in graph.inputs():
        places = uses(graph, tensor)
        if not all(follows_own_shape(node.op, port) for node, port in places):
            continue
        if tensor.pass_by_value is not None or any(
            t.ragged_offset is tensor for t in graph.tensors.values()
        ):
            continue
        rng = np.random.Generator(np.random.SFC64((3, tensor.uid)))
        shape = tuple(tensor.dim)
        made = [(maker_of(node.op, port), node, port) for node, port in places]
        make, node, port = next((each for each in made if each[0]), (None, None, ""))
        if make is None:
            alone = random_values(shape, tensor.data_type, rng)
        else:
            alone = round_to(make(Site(node, port, shape, rng, None, None)), tensor.data_type)
        assert np.array_equal(values[tensor.uid], alone), tensor


@pytest.mark.parametrize("rows", [(1, 5), (5, 1), (4, 4)])
def test_operands_that_are_taken_from_earlier_are_what_they_would_be(rows: tuple) -> None:
    symbols = {"M": {"min": 1, "max": 64}}
    graphs = [
        gemm_graphs.chain("g", "M", 24, 16, "gelu", symbols=symbols),
        gemm_graphs.plain("g", "M", 24, 16, io="INT8", out="INT32", symbols=symbols),
        gemm_graphs.by_columns("g", "M", 24, 16, symbols=symbols),
        moe_graphs.grouped("GATHER", rows="M", tokens=8, symbols=symbols),
    ]
    first, then = ({"M": value} for value in rows)
    for graph in graphs:
        earlier = random_operands(graph, first, 7)
        values = random_operands(graph, then, 7, earlier)
        want = random_operands(graph, then, 7)
        assert values.keys() == want.keys()
        assert all(np.array_equal(values[uid], want[uid]) for uid in want)
        weights = [t for t in graph.inputs() if not any(isinstance(e, SymExpr) for e in t.dim)]
        assert any(values[t.uid] is earlier[t.uid] for t in weights)
        assert [t for t in graph.inputs() if values[t.uid] is not earlier[t.uid]]
