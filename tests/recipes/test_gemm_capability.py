"""What the engines of the GEMM family take, and the words in which they decline."""

from __future__ import annotations

import re

import gemm_graphs
import pytest
from gemm_facts import facts_of
from table_model import declared

import cudnn_aot as cudnn
from cudnn_aot.compiler.graph.ops import pointwise
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError
from cudnn_aot.recipes.pointwise import UNTRACED

H200, CPU = load_target("h200"), load_target("cpu")
BF16, HALF, FLOAT = cudnn.data_type.BFLOAT16, cudnn.data_type.HALF, cudnn.data_type.FLOAT
BOOLEAN = cudnn.data_type.BOOLEAN


def test_a_decline_names_every_engine():
    g = gemm_graphs.plain("g", 64, 64, 64, io=cudnn.data_type.INT8)  # summed in FLOAT
    with pytest.raises(cudnnGraphNotSupportedError) as declined:
        plan_graph(g, H200)
    text = str(declined.value)
    reason = "node 'mm', a matmul of INT8, has compute data type FLOAT, want INT32"
    assert f"gemm.sm90.persistent: {reason}" in text
    assert "gemm.sm90.gemv: A 'A' is INT8, want one of BFLOAT16/HALF" in text
    assert "gemm.host.blocked: target h200 is a cuda target, want cpu" in text
    assert f"gemm.sm90.any_stride: {reason}" in text
    assert plan_graph(gemm_graphs.plain("g", 64, 64, 64, io=FLOAT), CPU).engine_name == (
        "gemm.host.blocked"
    )


@pytest.mark.parametrize(
    ("batch", "strides", "want"),
    [
        ((2, 3), (2048, 4096), "on axis 0 is 2048, want 12288"),
        (("B", 3), (2048, "2048*B"), r"on axis 0 is 2048, want 6144\*B"),  # heads first
        ((2, "H"), (64, 128), r"on axis 0 is 64, want 128\*H"),
        (("B", "H"), ("4096*H", 2048), r"on axis 0 is 4096\*H, want 2048\*H"),  # every second
        (("B", "H"), ("2048*H", 2048), None),
        (("B", "ONE"), (7, 2048), None),  # no call has more than one element along both
        (("B", "TWO"), (4096, 2048), None),
        (("B", "H"), ("P", 2048), None),  # a call tells
    ],
)
@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
def test_batch_axes_that_merge_in_no_call_are_two(target, batch, strides, want):
    ranges = {"B": (1, 64), "H": (0, 64), "ONE": (0, 1), "TWO": (2, 2), "P": (1, 1 << 20)}
    used = (name for name in ranges if name in (*batch, *strides))
    symbols = {name: dict(zip(("min", "max"), ranges[name], strict=True)) for name in used}
    g = gemm_graphs.graph("g", symbols=symbols)
    a = g.tensor(name="A", dim=[*batch, 32, 64], stride=[*strides, 64, 1])
    b = g.tensor(name="B", dim=[1, 1, 64, 32])
    g.matmul(a, b).set_output(True)
    every = {kernel.params.get("batch_runs", 1) for kernel in plan_graph(g, target).kernels}
    described = facts_of(g).describe()
    if want is None:
        assert every == {1} and "batch runs" not in described
    else:
        assert every == {2} and re.search(want, described["batch runs"])


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize(
    ("dim", "kind"), [([48], "row"), ([1], "scalar"), ([1, 48], "row"), ([32, 1], "col")]
)
def test_an_input_of_the_epilogue_may_have_fewer_axes(target, rank, dim, kind):
    g = gemm_graphs.graph("g")
    batch = [3] * (rank - 2)
    a, b = g.tensor(name="A", dim=[*batch, 32, 64]), g.tensor(name="B", dim=[*batch, 64, 48])
    x = g.tensor(name="x", dim=dim)
    g.add(g.matmul(a, b), x).set_output(True)
    plan = plan_graph(g, target)
    for branch in plan.table["branches"].values():
        kernel, args = branch["steps"][0]["kernel"], branch["steps"][0]["args"]
        assert plan.kernels[kernel].params["epilogue"]["inputs"][0]["kind"] == kind
        (view,) = (arg for arg in args if arg.get("operand") == x.uid)
        strides = [declared(plan.table, {}).value(stride) for stride in view["stride"]]
        assert strides == [int(kind == "col"), int(kind == "row"), 0]


def test_batch_axes_that_merge_are_one_axis_and_checked_at_the_call():
    g = gemm_graphs.graph("g")
    a = g.tensor(name="A", dim=[2, 3, 32, 64])
    b = g.tensor(name="B", dim=[2, 3, 64, 32])
    g.matmul(a, b).set_output(True)
    plan = plan_graph(g, CPU)
    view = plan.table["branches"]["blocked"]["steps"][0]["args"][0]
    assert view["dim"] == [32, 64, 6]
    assert declared(plan.table, {}).value(view["stride"][2]) == 2048
    assert [(c["rule"], c["operand"]) for c in plan.table["checks"]] == [
        ("equal", 1), ("equal", 2), ("equal", 3),
    ]  # fmt: skip


BATCHES = {"B": {"min": 1, "max": 64}, "H": {"min": 1, "max": 64}}


@pytest.mark.parametrize(
    ("batch", "heads", "strides", "legal", "step"),
    [
        (2, 4, (8192, 2048), True, 2048),  # dense
        (2, 4, (32768, 8192), True, 8192),  # a slice of a longer pool: both axes step further
        (1, 4, (999, 8192), True, 8192),  # one sequence: its stride moves nothing
        (2, 1, (32768, 999), True, 32768),  # one head: the step is the outer axis's
        (1, 1, (999, 999), True, 999),
        (2, 4, (8192, 8192), False, 8192),
    ],
)
def test_unit_batch_axes_of_a_call_do_not_count(batch, heads, strides, legal, step):
    """A call whose batch happens to be 1 is as legal as any other."""
    g = gemm_graphs.graph("g", symbols=BATCHES)
    a = g.tensor(name="A", dim=["B", "H", 32, 64])
    b = g.tensor(name="B", dim=["B", "H", 64, 32])
    g.matmul(a, b).set_output(True)
    table = plan_graph(g, CPU).table
    own = {"u1": {"stride": (*strides, 64, 1)}}
    call = declared(table, {"B": batch, "H": heads}, **own)
    checks = [c for c in table["checks"] if c["operand"] == 1]
    assert all(call.value(c["a"]) == call.value(c["b"]) for c in checks) is legal
    view = table["branches"]["blocked"]["steps"][0]["args"][0]
    if batch * heads > 1:
        assert call.value(view["stride"][2]) == step


def test_a_long_chain_is_declined_before_it_is_compiled():
    g = gemm_graphs.graph("g")
    y = g.matmul(gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64))
    for _ in range(70):
        y = g.relu(y)
    y.set_output(True)
    with pytest.raises(cudnnGraphNotSupportedError, match="70 pointwise steps .* at most 64"):
        plan_graph(g, CPU)


def with_op(name, dtype=FLOAT, compute=None):
    """An op between the matmul and an add; ``dtype`` is of the tensor between the two."""
    g = gemm_graphs.graph("g")
    y = g.matmul(gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64))
    (row,) = [row for row in pointwise.ROWS if row.name == name]
    others = [gemm_graphs.operand(g, f"x{i}", 64, 64) for i in range(1, len(row.ports))]
    required = {"axis": 1} if name == "gen_index" else {a.name: 0.5 for a in row.attrs}
    between = getattr(g, name)(y, *others, **required, compute_data_type=compute)
    between.set_data_type(dtype)
    g.add(between, gemm_graphs.operand(g, "r", 64, 64)).set_output(True).set_data_type(BF16)
    return g


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
def test_every_pointwise_op_is_taken_or_declined_with_its_reason(target):
    for row in pointwise.ROWS:
        if row.name not in UNTRACED:
            assert plan_graph(with_op(row.name), target).kernels, row.name
            continue
        with pytest.raises(cudnnGraphNotSupportedError) as caught:
            plan_graph(with_op(row.name), target)
        assert f"is {row.name}, which no kernel traces: " in str(caught.value)
        assert UNTRACED[row.name] in str(caught.value)


@pytest.mark.parametrize(
    ("op", "dtype", "casts"),
    [
        ("sub", FLOAT, []),
        ("sub", BOOLEAN, ["BOOLEAN"]),
        ("cmp_lt", BOOLEAN, []),  # gives 1 or 0
        ("logical_not", BOOLEAN, []),
        ("binary_select", BOOLEAN, ["BOOLEAN"]),
        ("cmp_lt", BF16, ["BFLOAT16"]),
    ],
)
def test_a_tensor_between_ops_is_a_cast_where_its_type_may_change_a_value(op, dtype, casts):
    nodes = facts_of(with_op(op, dtype)).epilogue.nodes
    got = [dict(node.attrs)["dtype"] for node in nodes if node.op == "cast"]
    assert got == casts  # none of the output, which is BFLOAT16: no op reads it


def test_truth_values_may_be_computed_in_boolean_and_nothing_else_may():
    assert plan_graph(with_op("cmp_lt", BOOLEAN, compute=BOOLEAN), CPU).kernels
    with pytest.raises(
        cudnnGraphNotSupportedError,
        match=r"node 'binary_select.0' has compute data type BOOLEAN, want FLOAT",
    ):
        plan_graph(with_op("binary_select", compute=BOOLEAN), CPU)


def test_numbers_passed_by_value_are_no_tensors_of_the_epilogue():
    """Twelve outputs, and a constant for each node: kernels have room for numbers."""
    g = gemm_graphs.graph("g")
    y = g.matmul(gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64))
    for i in range(12):
        y = g.add(g.mul(y, g.tensor_scalar(0.5 + i)), g.tensor_scalar(0.25 - i))
        y.set_output(True).set_data_type(BF16)
    assert plan_graph(g, H200).engine_name == "gemm.sm90.persistent"
    g = gemm_graphs.graph("g")
    y = g.matmul(gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64))
    for i in range(12):
        y = g.add(y, gemm_graphs.operand(g, f"x{i}", 64, 64))
    y.set_output(True)
    with pytest.raises(cudnnGraphNotSupportedError, match="13 epilogue tensors, want at most 12"):
        plan_graph(g, H200)


def test_types_that_no_kernel_holds_are_declined():
    reason = "'floor.0::OUT_0', between ops, is INT32, want one of BFLOAT16/HALF/FLOAT"
    with pytest.raises(cudnnGraphNotSupportedError, match=reason):
        plan_graph(with_op("floor", cudnn.data_type.INT32), CPU)
    g = gemm_graphs.graph("g")
    y = g.matmul(gemm_graphs.operand(g, "A", 64, 64), gemm_graphs.operand(g, "B", 64, 64))
    mask = g.cmp_lt(y, gemm_graphs.operand(g, "x", 64, 64))
    mask.set_output(True).set_data_type(BOOLEAN).set_name("mask")
    with pytest.raises(cudnnGraphNotSupportedError, match="'mask' is BOOLEAN, want one of BFLOAT1"):
        plan_graph(g, CPU)
