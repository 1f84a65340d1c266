"""Results whose columns lie together: kernels store rows, so they compute the transpose."""

from __future__ import annotations

import gemm_graphs
import numpy as np
import pytest
from cpu_runs import assert_right, build_for_cpu
from gemm_facts import facts_of
from graph_strategies import graphs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_model import declared

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError

CPU, H200 = load_target("cpu"), load_target("h200")


def with_columns(graph):
    for tensor in graph.outputs():
        batch, rows, columns = tensor.dim
        tensor.set_dim([batch, rows, columns]).set_stride([rows * columns, 1, rows])
    return graph


def test_the_transpose_is_one_of_b_by_a():
    graph = gemm_graphs.by_columns("g", 200, 328, 136)
    facts = facts_of(graph)
    assert facts.is_transposed
    assert (facts.a.name, facts.b.name, facts.m, facts.n) == ("B", "A", 328, 200)
    assert facts.majors() == ("k", "k")
    kinds = {operand.name: kind for operand, kind in facts.epilogue.inputs}
    assert kinds == {"factors": "row", "bias": "col", "residual": "full"}
    # Of ADD along m, AMAX along n, NORM2 along both.
    assert [each.axes for each in facts.epilogue.reductions] == ["n", "m", "mn"]


def test_a_person_reads_of_the_graph_as_it_is():
    described = facts_of(gemm_graphs.by_columns("g", 200, 328, 136)).describe()
    assert (described["M"], described["N"]) == ("200", "328")
    assert described["A"] == "BFLOAT16 [1, 200, 136] stride [27200, 136, 1]"
    assert described["epilogue input 'bias'"].startswith("row, ")
    assert described["computed as"].startswith("the transpose")
    assert "computed as" not in facts_of(gemm_graphs.plain("g", 64, 64, 64)).describe()


def test_reasons_are_of_the_graph_as_it_is():
    """Also of what the rows of a kernel decide."""
    plans = PlanList(with_columns(gemm_graphs.other_majors("g", 8, 512, 1024, False, False)), H200)
    assert plans.support["gemm.sm90.gemv"] == "A and B are k/n-major, want k/k"
    few = PlanList(with_columns(gemm_graphs.plain("g", 4096, 2, 2048)), H200)
    assert " us for 2 columns on an H200" in few.entries[0].why
    (ranges, *_) = PlanList(gemm_graphs.of_any_columns("g", 4096, 2048), H200).entries
    assert " us for 16 columns on an H200" in ranges.parts[0].plan.why


def test_each_number_of_columns_is_of_its_range():
    """Columns are the rows of kernels, which ranges are of."""
    graph = gemm_graphs.of_any_columns("g", 4096, 2048)
    (ranges, *_) = PlanList(graph, H200).entries
    plan = plan_graph(graph, H200)
    assert len(ranges.parts) > 1
    for part in ranges.parts:
        ((name, low, high),) = part.bounds
        for columns in (max(low, 1), high):
            branch = declared(plan.table, {name: columns}).branch(plan.table)
            assert branch.endswith(f" N={low}..{high}")
    assert declared(plan.table, {"N": 0}).branch(plan.table).startswith("empty")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: gemm_graphs.plain("g", 64, 72, 64), "rows"),
        (lambda: with_columns(gemm_graphs.gated("g", 64, 72, 64)), "two products of one A"),
        (lambda: with_columns(gemm_graphs.block_scaled("g", 64, 128, 128)), "scales"),
        (lambda: gemm_graphs.reduced("g", 64, 72, 64, [("ADD", "m")], whole=False), "no matrix"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_stays_as_it_is(make, why):
    assert not facts_of(make()).is_transposed, why


def test_one_matrix_by_rows_keeps_the_others_as_they_are():
    graph = gemm_graphs.by_columns("g", 200, 328, 136)
    y = next(tensor for tensor in graph.tensors.values() if tensor.name == "Y")
    y.set_stride([200 * 328, 328, 1])
    assert not facts_of(graph).is_transposed


def test_it_is_served_by_the_kernels_of_its_transpose():
    """On tensor cores, and stored by TMA: no kernel is its own."""
    columns = with_columns(gemm_graphs.plain("g", 256, 4096, 512))
    rows = gemm_graphs.plain("g", 4096, 256, 512)
    one, other = plan_graph(columns, H200), plan_graph(rows, H200)
    assert one.kernels == other.kernels and one.knobs == other.knobs
    assert declared(one.table, {}).branch(one.table) == "tma"
    (step,) = one.table["branches"]["tma"]["steps"]
    assert one.kernels[step["kernel"]].params["store"] == "tma"
    uids = {operand["name"]: operand["uid"] for operand in one.table["operands"]}
    bound = declared(one.table, {})
    a, b = step["args"][2:4]
    assert (a["operand"], b["operand"]) == (uids["B"], uids["A"])
    assert [bound.value(each) for each in a["stride"][:2]] == [512, 1]
    assert [bound.value(each) for each in b["stride"][:2]] == [512, 1]
    assert [bound.value(each) for each in step["args"][4]["stride"][:2]] == [256, 1]


@pytest.mark.parametrize("name", ["columns", "columns_any_m", "columns_fp8_batch", "columns_odd"])
def test_graphs_of_columns_have_tensor_cores_where_they_are_aligned(name):
    (make,) = [make for make in gemm_graphs.TEST_GRAPHS if make().name == name]
    plan = plan_graph(make(), H200)
    for m in (8, 16, 2048) if name == "columns_any_m" else (0,):
        symbols = {"M": m} if name == "columns_any_m" else {}
        branch = declared(plan.table, symbols).branch(plan.table)
        assert branch == ("any_stride" if name == "columns_odd" else "tma"), m


def offsets(dim, stride):
    """Of every element, in elements."""
    steps = np.meshgrid(*map(np.arange, dim), indexing="ij") if dim else []
    return sum(index * step for index, step in zip(steps, stride, strict=True))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs(), m=st.sampled_from([1, 2, 16, 64]))
def test_kernels_see_the_matrices_of_the_graph_or_of_its_transpose(graph, m):
    """A ``(M, K, L)``, B ``(N, K, L)``, and each tensor of the epilogue spread ``(M, N, L)``."""
    for target in (CPU, H200):
        try:
            table = plan_graph(graph_json.loads(graph_json.dumps(graph)), target).table
        except cudnnGraphNotSupportedError:
            continue
        facts = facts_of(graph)
        values = {"M": m} if graph.symbols else {}
        call, extents = declared(table, values), facts.as_declared().extents_at(values)
        shape = [extents[name] for name in ("batch", "m", "n")]
        for name, branch in table["branches"].items():
            if "_rows" in name:  # tests/recipes/test_gemm_batch.py
                continue
            for step in branch["steps"]:
                views = [each for each in step["args"] if each["arg"] == "tensor"]
                for place, view in enumerate(views):
                    held = call.operands[view["operand"]]
                    want = offsets(held.dim, held.stride)
                    if place > 1:
                        want = np.broadcast_to(want, shape)
                    # B has its columns first, and so has a transpose what is not B.
                    is_turned = facts.is_transposed != (place == 1)
                    want = want.transpose(2, 1, 0) if is_turned else want.transpose(1, 2, 0)
                    seen = ([call.value(e) for e in view[name]] for name in ("dim", "stride"))
                    assert np.array_equal(offsets(*seen), want), (view, held)


def of_one_axis(name, m, n, k):
    """A bias that has the columns as its only axis."""
    g = gemm_graphs.graph(name)
    a, b = gemm_graphs.operand(g, "A", m, k), gemm_graphs.operand(g, "B", k, n)
    bias = g.tensor(name="bias", dim=[n], stride=[1], data_type=gemm_graphs.FLOAT)
    g.bias(g.matmul(a, b, name="mm"), bias).set_output(True).set_data_type(gemm_graphs.BF16)
    return with_columns(g)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    few = {"M": {"min": 0, "max": 64}}
    graphs = [
        gemm_graphs.by_columns("columns", 37, 24, 40),
        gemm_graphs.by_columns("any_m", "M", 19, 33, io=gemm_graphs.HALF, batch=2, symbols=few),
        gemm_graphs.by_columns("fp8", 17, 80, 48, io=gemm_graphs.E4M3, out=gemm_graphs.BF16),
        with_columns(gemm_graphs.sums("int8", 33, 20, 50)),
        with_columns(gemm_graphs.other_majors("majors", 24, 40, 32, True, False)),
        of_one_axis("of_one_axis", 18, 26, 24),
        with_columns(gemm_graphs.plain("shared_b", 9, 21, 16, batch=3, batch_b=1)),
    ]
    return build_for_cpu(folder, graphs)


@pytest.mark.parametrize("name", ["columns", "fp8", "int8", "majors", "of_one_axis", "shared_b"])
def test_values(store, name):
    assert_right(store, name)


@pytest.mark.parametrize("m", [0, 1, 2, 31, 64])
def test_values_of_any_number_of_rows(store, m):
    assert_right(store, "any_m", M=m)
