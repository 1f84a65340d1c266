"""A batch that is multiplied by one B: kernels see one matrix that has the rows of all."""

from __future__ import annotations

from dataclasses import replace

import gemm_graphs
import numpy as np
import pytest
from gemm_facts import facts_of
from gemm_graphs import linear_layer, operand
from table_model import declared

from cudnn_aot.compiler.graph.extents import Symbol
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target

H200 = load_target("h200")
ANY = {"B": {"min": 0, "max": 512}, "M": {"min": 0, "max": 512}}


def symbols(*names):
    return {name: ANY[name] for name in names}


@pytest.mark.parametrize(("batch", "m"), [(8, 1), (3, 128)])
def test_it_is_served_by_the_kernel_and_schedule_of_one_matrix(batch, m):
    many = plan_graph(linear_layer("g", batch, m, 4096, 4096), H200)
    one = plan_graph(linear_layer("g", 1, batch * m, 4096, 4096), H200)
    assert many.knobs == one.knobs

    def kernel(plan, branch):
        return plan.kernels[plan.table["branches"][branch]["steps"][0]["kernel"]]

    assert kernel(many, "tma_rows") == kernel(one, "tma")
    assert declared(many.table, {}).branch(many.table) == "tma_rows"


def test_few_matrices_of_one_row_are_what_the_gemv_is_for():
    graph = gemm_graphs.plain("g", 1, 6144, 4096, batch=2, batch_b=1)
    plans = PlanList(graph, H200, engines=["gemm.sm90.gemv"])
    table = plans.lower(0).table
    assert declared(table, {}).branch(table) == "gemv_rows"


@pytest.mark.parametrize(
    ("graph", "how"),
    [
        (linear_layer("g", 8, 1, 4096, 4096), "the batch as one matrix of 8 rows, "),
        (linear_layer("g", 5, "M", 64, 64, symbols=symbols("M")), "one matrix of 5*M rows, "),
        (linear_layer("g", 1, 8, 4096, 4096), None),
        (gemm_graphs.plain("g", 8, 64, 64, batch=3), None),  # a B for each
    ],
)
def test_a_person_reads_of_how_many_rows_it_is(graph, how):
    described = facts_of(graph).describe()
    assert (described["M"], described["batch"]) == tuple(
        str(graph.outputs()[0].dim[axis]) for axis in (1, 0)
    )
    if how is None:
        assert "branches _rows" not in described
    else:
        assert how in described["branches _rows"]
        assert described["branches _rows"].endswith("all of it is multiplied by one B")


def test_a_person_reads_of_columns_where_columns_are_stored():
    graph = gemm_graphs.plain("g", 64, 1, 256, batch=1, batch_b=8)
    graph.outputs()[0].set_dim([8, 64, 1]).set_stride([64, 1, 64])
    described = facts_of(graph).describe()
    assert described["computed as"].startswith("the transpose")
    assert "one matrix of 8 columns, " in described["branches _rows"]
    assert described["branches _rows"].endswith("multiplied by one A")


@pytest.mark.parametrize(
    ("names", "ends"), [("M", (2, 8, 16, 32, 64, 128)), ("B", (1, 16, 64, 128, 256))]
)
def test_ranges_of_a_symbol_are_of_all_rows(names, ends):
    """A range ends where the rows of all eight matrices, or of as many of one row, do."""
    m, batch = ("M", 8) if names == "M" else (1, "B")
    table = plan_graph(linear_layer("g", batch, m, 4096, 4096, symbols=symbols(names)), H200).table
    at = {value: declared(table, {names: value}).branch(table) for value in range(1, 513)}
    assert all(branch.startswith("tma_rows") for branch in at.values())
    changes = {value for value in range(1, 512) if at[value] != at[value + 1]}
    assert changes <= set(ends) and len(changes) > 1


@pytest.mark.parametrize("batch", ["B", "M"])
def test_where_batch_and_rows_are_symbolic_ranges_are_of_the_rows_of_a_matrix(batch):
    domain = {batch: {"max": 512, "hint": 1}} | {"M": {"max": 512}}
    table = plan_graph(linear_layer("g", batch, "M", 4096, 4096, symbols=domain), H200).table
    given = [dict.fromkeys(domain, 1) | {"M": m} for m in (1, 512)]
    branches = [declared(table, each).branch(table) for each in given]
    assert branches[0] != branches[1]
    assert all(branch.startswith("tma_rows") for branch in branches)


@pytest.mark.parametrize(
    ("batch", "m", "largest", "as_a_batch"),
    [
        (8, 1, None, False),
        ("B", 1, {"B": 512}, False),
        (3, "M", {"M": 1}, False),
        ("B", 64, {"B": 1}, False),
        (3, 64, None, True),
        ("B", "M", {"B": 2, "M": 2}, True),
    ],
)
def test_no_branch_is_of_a_batch_whose_rows_always_follow(batch, m, largest, as_a_batch):
    """Rows of at most one matrix, or of matrices of at most one, cannot lie apart."""
    domain = {name: {"min": 0, "max": most} for name, most in (largest or {}).items()}
    graph = linear_layer("g", batch, m, 4096, 4096, symbols=domain)
    plans = PlanList(graph, H200, engines=["gemm.sm90.persistent"])
    branches = plans.lower(len(plans) - 1).table["branches"]
    assert ("tma" in branches) is as_a_batch
    assert {"tma_rows", "any_stride"} <= set(branches)


def test_facts_within_ranges_have_one_epilogue():
    """By which the parts of their kernels are remembered."""
    facts = facts_of(linear_layer("g", "B", 1, 72, 64, symbols=symbols("B")))
    low, high = (
        replace(facts, symbols={"B": Symbol(min=least, max=most)}).stacked()
        for least, most in ((1, 16), (17, 64))
    )
    assert low.epilogue is high.epilogue is not facts.epilogue


def of_every_matrix():
    """What is spread over the rows of a matrix differs from matrix to matrix."""
    g = gemm_graphs.graph("g")
    y = g.matmul(operand(g, "A", 64, 64, 3), operand(g, "B", 64, 72), name="mm")
    y = g.add(y, g.tensor(name="bias", dim=[3, 1, 72], stride=[72, 72, 1]))
    y.set_output(True).set_data_type(gemm_graphs.BF16)
    return g


def residual_of_all():
    g = gemm_graphs.graph("g")
    y = g.matmul(operand(g, "A", 64, 64, 3), operand(g, "B", 64, 72), name="mm")
    g.add(y, operand(g, "residual", 64, 72)).set_output(True).set_data_type(gemm_graphs.BF16)
    return g


def by_blocks(rows):
    g = gemm_graphs.graph("g")
    a, b = (
        operand(g, "A", 128, 128, 3, data_type=gemm_graphs.E4M3),
        operand(g, "B", 128, 128, transposed=True, data_type=gemm_graphs.E4M3),
    )
    scale = operand(g, "a_scale", 128 // rows, 1, 3, data_type=gemm_graphs.FLOAT)
    a = g.block_scale_dequantize(a, scale, block_size=[rows, 128])
    g.matmul(a, b, name="mm").set_output(True).set_data_type(gemm_graphs.BF16)
    return g


@pytest.mark.parametrize(
    ("make", "is_one"),
    [
        (lambda: linear_layer("g", 3, 64, 72, 64), True),
        (lambda: linear_layer("g", 1, 64, 72, 64), False),  # no batch
        (lambda: linear_layer("g", 3, 64, 72, 64, gap=8), False),
        (lambda: linear_layer("g", 3, 1, 72, 64, gap=8), True),  # rows may be apart
        (lambda: linear_layer("g", "B", "M", 72, 64, symbols=symbols("B", "M")), True),
        (lambda: gemm_graphs.plain("g", 64, 72, 64, batch=3), False),  # a B of each
        (lambda: gemm_graphs.reduced("g", 64, 72, 64, [("ADD", "m")], batch=3), False),
        (of_every_matrix, False),
        (residual_of_all, False),
        (lambda: by_blocks(1), True),
        (lambda: by_blocks(128), False),
    ],
)
def test_what_is_one_matrix(make, is_one):
    assert (facts_of(make()).stacked() is not None) is is_one


def test_a_batch_of_more_rows_than_an_int32_has_stays_one():
    many = {"B": {"min": 1, "max": 2**20}, "M": {"min": 1, "max": 2**20}}
    graph = gemm_graphs.plain("g", "M", 64, 64, batch="B", batch_b=1, symbols=many)
    assert facts_of(graph).stacked() is None


def test_of_one_row_what_differs_by_matrix_differs_by_row():
    facts = facts_of(linear_layer("g", 8, 1, 72, 64)).stacked()
    assert (facts.m, facts.batch) == (8, (1,))
    kinds = {tensor.name: kind for tensor, kind in facts.epilogue.inputs}
    assert kinds == {"bias": "row", "residual": "full"}
    g = gemm_graphs.graph("g")
    y = g.matmul(operand(g, "A", 1, 64, 8), operand(g, "B", 64, 72), name="mm")
    factors = g.tensor(name="factors", dim=[8, 1, 1], stride=[1, 1, 1], data_type=gemm_graphs.FLOAT)
    g.mul(y, factors).set_output(True).set_data_type(gemm_graphs.BF16)
    assert [kind for _, kind in facts_of(g).stacked().epilogue.inputs] == ["col"]


def offsets(dim, stride):
    """Of every element, in elements."""
    steps = np.meshgrid(*map(np.arange, dim), indexing="ij")
    return sum(index * step for index, step in zip(steps, stride, strict=True))


@pytest.mark.parametrize(
    ("batch", "m", "values"),
    [
        (3, 5, [{}]),
        (8, 1, [{}]),
        ("B", 1, [{"B": 1}, {"B": 7}]),
        (3, "M", [{"M": 1}, {"M": 9}]),
        ("B", "M", [{"B": 1, "M": 9}, {"B": 7, "M": 1}, {"B": 3, "M": 4}]),
    ],
)
def test_kernels_see_every_row_in_order(batch, m, values):
    names = [name for name in (batch, m) if isinstance(name, str)]
    table = plan_graph(linear_layer("g", batch, m, 72, 64, symbols=symbols(*names)), H200).table
    for given in values:
        call = declared(table, given)
        name = call.branch(table)
        assert "_rows" in name, given
        rows = given.get("B", batch) * given.get("M", m)
        views = [arg for arg in table["branches"][name]["steps"][0]["args"] if "operand" in arg]
        by_uid = {view["operand"]: [[call.value(e) for e in view[key]] for key in ("dim", "stride")]
                  for view in views}  # fmt: skip
        for entry in table["operands"]:
            if entry["uid"] not in by_uid:  # what is reduced is stored by another step
                continue
            held, seen = call.operands[entry["uid"]], offsets(*by_uid[entry["uid"]])
            own = offsets(held.dim, held.stride)
            if entry["name"] == "B":
                want = own.transpose(2, 1, 0)
            elif entry["name"] == "bias":
                want = np.broadcast_to(own, (1, rows, 72)).transpose(1, 2, 0)
            else:
                want = own.reshape(1, rows, own.shape[2]).transpose(1, 2, 0)
            assert np.array_equal(seen, want), (given, entry["name"])


def test_a_call_whose_matrices_lie_apart_is_served_as_a_batch():
    table = plan_graph(linear_layer("g", 3, 64, 72, 64), H200).table
    uids = {entry["name"]: entry["uid"] for entry in table["operands"]}
    apart = {f"u{uids['A']}": {"stride": (64 * 64 + 64, 64, 1)}}
    assert declared(table, {}).branch(table) == "tma_rows"
    assert declared(table, {}, **apart).branch(table) == "tma"
    misaligned = {f"u{uids['A']}": {"address": (1 << 20) + 2}}
    assert declared(table, {}, **misaligned).branch(table) == "any_stride"
