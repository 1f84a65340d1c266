"""Batch axes that do not merge into one: kernels see an axis for each run of equal steps."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import batch_graphs
import gemm_graphs
import kernel_ffi
import kernel_menu
import numpy as np
import pytest
from cpu_runs import assert_right, build_for_cpu
from gemm_facts import facts_of
from hypothesis import given, settings
from hypothesis import strategies as st
from table_model import declared

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.planning.plan import plan_graph
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError

CPU, H200 = load_target("cpu"), load_target("h200")
ANY = {"M": {"min": 0, "max": 512}}


def runs_of(graph) -> list[tuple[int, ...]]:
    return [run.axes for run in facts_of(graph).batch_runs]


def product(a, b, batch_a, batch_b):
    """A matmul of these batches; an entry is an extent and the stride of its axis."""
    g = gemm_graphs.graph("g", symbols=ANY if "M" in (a, b) else None)
    (dim_a, stride_a), (dim_b, stride_b) = (zip(*each, strict=True) for each in (batch_a, batch_b))
    x = g.tensor(name="A", dim=[*dim_a, 32, 64], stride=[*stride_a, 64, 1])
    y = g.tensor(name="B", dim=[*dim_b, 64, 32], stride=[*stride_b, 1, 64])
    g.matmul(x, y, name="mm").set_output(True).set_data_type(gemm_graphs.BF16)
    return g


@pytest.mark.parametrize(
    ("make", "want"),
    [
        (lambda: gemm_graphs.plain("g", 64, 64, 64), [()]),
        (lambda: gemm_graphs.plain("g", 64, 64, 64, batch=3), [(-3,)]),
        (lambda: batch_graphs.spread("g", 64, 64, 64, [2, 3], [2, 3]), [(-4, -3)]),
        (lambda: batch_graphs.spread("g", 64, 64, 64, [2, 3], [1, 1]), [(-4, -3)]),
        (lambda: batch_graphs.spread("g", 64, 64, 64, [2, 1, 3], [2, 1, 3]), [(-5, -3)]),
        (lambda: batch_graphs.spread("g", 64, 64, 64, [2, 3], [1, 3]), [(-4,), (-3,)]),
        (lambda: batch_graphs.spread("g", 64, 64, 64, [2, 3, 4], [2, 3, 1]), [(-5, -4), (-3,)]),
        (lambda: batch_graphs.spread("g", 64, 64, 64, [2, 3, 4], [1, 3, 4]), [(-5,), (-4, -3)]),
        (lambda: batch_graphs.spread("g", 64, 64, 64, [2, 1, 4], [2, 3, 1]), [(-5,), (-4,), (-3,)]),
        (lambda: batch_graphs.scores("g", 64, 64, 64), [(-4,), (-3,)]),
        (lambda: batch_graphs.scores("g", 64, 64, 64, batch=1), [(-3,)]),
        # One row of every head lies behind the other.
        (lambda: batch_graphs.weighted("g", 1, 64, 1), [(-4, -3)]),
        # The same, as one call of many would have it.
        (lambda: batch_graphs.scores("g", "M", 64, 64, symbols=ANY), [(-4,), (-3,)]),
        (lambda: batch_graphs.grouped_queries("g", 64, 64, 64), [(-5,), (-4,), (-3,)]),
    ],
)  # fmt: skip
def test_the_fewest_runs(make, want):
    assert runs_of(make()) == want


def test_what_a_call_tells_is_taken_to_merge():
    """A stride with a symbol of its own may be that of one axis."""
    symbols = {name: {"min": 1, "max": 1 << 20} for name in ("P", "H")}
    g = gemm_graphs.graph("g", symbols=symbols)
    a = g.tensor(name="A", dim=[2, "H", 32, 64], stride=["P", 2048, 64, 1])
    g.matmul(a, g.tensor(name="B", dim=[1, 1, 64, 32])).set_output(True)
    assert runs_of(g) == [(-4, -3)]
    assert [check["rule"] for check in plan_graph(g, CPU).table["checks"]] == ["equal", "equal"]


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
def test_four_runs_are_declined_in_one_line(target):
    graph = batch_graphs.spread("g", 64, 64, 64, [2, 1, 4, 1], [1, 3, 1, 5])
    with pytest.raises(cudnnGraphNotSupportedError) as declined:
        plan_graph(graph, target)
    want = (
        "the batch axes [2, 3, 4, 5] are 4 runs of equal steps, want at most 3: 'A' is broadcast "
        "over some batch axes and not over others: it has [2, 1, 4, 1], want [2, 3, 4, 5], or 1 on "
        "every axis"
    )
    engine = "gemm.host.blocked" if target is CPU else "gemm.sm90.persistent"
    reasons = PlanList(graph, target).support
    assert reasons[engine] == want and "\n" not in want
    assert want in str(declined.value)


def test_a_person_reads_of_the_runs():
    described = facts_of(batch_graphs.scores("g", 64, 72, 128)).describe()
    assert described["batch"] == "2 x 3"
    assert described["batch runs"] == (
        "[2] x [3], as the batch axes of 'Q' are not one run of equal steps: its stride on axis 0 "
        "is 24576, want 384, the extent of axis 1 times its stride"
    )
    assert "batch runs" not in facts_of(gemm_graphs.plain("g", 64, 64, 64, batch=3)).describe()


def test_measured_plans_are_filed_by_the_runs():
    one = facts_of(batch_graphs.spread("g", 64, 64, 64, [2, 3], [2, 3])).layout_class
    two = facts_of(batch_graphs.spread("g", 64, 64, 64, [2, 3], [2, 1])).layout_class
    assert two == f"{one} in 2 runs"


@pytest.mark.parametrize("make", batch_graphs.BATCH_AXES_GRAPHS, ids=lambda make: make().name)
def test_tensor_cores_take_them_where_tma_does(make):
    graph = make()
    table = plan_graph(graph, H200).table
    values = dict.fromkeys(graph.symbols, 64)
    branch = declared(table, values).branch(table)
    assert branch.startswith("any_stride" if "odd" in graph.name else ("tma", "stream_k"))


def test_the_gemv_takes_few_rows_of_heads():
    graph = batch_graphs.scores("g", 1, 4104, 128, heads=8)
    plan = PlanList(graph, H200, engines=["gemm.sm90.gemv"]).lower(0)
    assert declared(plan.table, {}).branch(plan.table) == "gemv"
    assert [kernel.params["batch_runs"] for kernel in plan.kernels] == [2, 2]


def test_kernels_of_one_run_have_no_parameter_of_it():
    for batch_b in ([2, 3], [1, 1]):
        for target in (H200, CPU):
            graph = batch_graphs.spread("g", 64, 64, 64, [2, 3], batch_b)
            for kernel in plan_graph(graph, target).kernels:
                assert "batch_runs" not in kernel.params


def test_b_of_several_matrices_stays_in_l2():
    """Of few rows B is read first and evicted first, but not where matrices share it."""
    shared = batch_graphs.spread("g", 16, 1024, 1024, [2, 3], [2, 1], a_within=True)
    own = batch_graphs.spread("g", 16, 1024, 1024, [2, 1], [2, 3])
    few = [plan_graph(graph, H200).kernels[0].params["few_rows"] for graph in (shared, own)]
    assert few == [False, True]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_call_whose_strides_tma_does_not_take_is_served_by_others(axis):
    table = plan_graph(batch_graphs.scores("g", 64, 72, 128), H200).table
    (q,) = [entry for entry in table["operands"] if entry["name"] == "Q"]
    strides = list(q["stride"])
    assert declared(table, {}).branch(table) == "tma"
    for step, branch in ((strides[axis] + 8, "tma"), (strides[axis] + 4, "any_stride")):
        changed = tuple([*strides[:axis], step, *strides[axis + 1 :]])
        call = declared(table, {}, **{f"u{q['uid']}": {"stride": changed}})
        assert call.branch(table) == branch, step


def test_axes_within_a_run_are_checked_at_the_call():
    symbols = {"G": {"min": 1, "max": 16}}
    graph = batch_graphs.spread("g", 64, 64, 64, [2, "G", 4], [1, "G", 4], symbols=symbols)
    assert runs_of(graph) == [(-5,), (-4, -3)]
    table = plan_graph(graph, CPU).table
    (a,) = [entry["uid"] for entry in table["operands"] if entry["name"] == "A"]
    checks = [check for check in table["checks"] if check["operand"] == a]
    size = 64 * 64
    for strides, legal in (
        ((12 * size, 4 * size, size), True),
        ((99 * size, 4 * size, size), True),  # the outer run may be anywhere
        ((12 * size, 5 * size, size), False),
    ):
        call = declared(table, {"G": 3}, **{f"u{a}": {"stride": (*strides, 64, 1)}})
        assert all(call.value(c["a"]) == call.value(c["b"]) for c in checks) is legal
        view = table["branches"]["blocked"]["steps"][0]["args"][0]
        assert [call.value(each) for each in view["dim"]] == [64, 64, 12, 2]
        assert [call.value(each) for each in view["stride"]] == [64, 1, size, strides[0]]


def test_runs_are_those_of_every_call():
    """Rows of heads merge where there is one row, which is a range of its own; the checks of a
    range hold for every call.
    """
    domain = {"M": {"min": 1, "max": 512}}
    graph = batch_graphs.scores("g", "M", 4096, 4096, heads=2, symbols=domain)
    table = plan_graph(graph, H200).table
    assert table["checks"] == []
    assert len({declared(table, {"M": m}).branch(table) for m in (1, 512)}) > 1


@pytest.mark.parametrize(
    ("make", "run", "m"),
    [
        (lambda: batch_graphs.spread("g", 8, 64, 64, [2, 3], [1, 1]), (-4, -3), 48),
        (lambda: batch_graphs.spread("g", 8, 64, 64, [2, 3], [2, 1]), (-3,), 24),
        (lambda: batch_graphs.spread("g", 8, 64, 64, [2, 3], [1, 3]), None, 8),
        (lambda: batch_graphs.spread("g", 1, 64, 64, [2, 3], [1, 3]), (-4,), 2),  # rows lie apart
        (lambda: batch_graphs.spread("g", 8, 64, 64, [2, 1, 4], [2, 3, 1]), (-3,), 32),
        (lambda: batch_graphs.grouped_queries("g", 1, 64, 64, each=4), (-3,), 4),
        (lambda: batch_graphs.grouped_queries("g", 8, 64, 64, each=4), None, 8),
        (lambda: batch_graphs.spread("g", 8, 64, 64, [2, 3], [2, 1], a_within=True), None, 8),
        (lambda: batch_graphs.scores("g", 1, 64, 64), None, 1),  # a matrix of keys of each
        (lambda: batch_graphs.absorbed("g", 20, 64, 64), (-4,), 20),
    ],
)  # fmt: skip
def test_a_run_is_rows_where_all_of_it_is_multiplied_by_one_b(make, run, m):
    facts = facts_of(make())
    stacked = facts.stacked_run()
    assert (stacked and stacked.axes) == run
    assert (facts.stacked() or facts).m == m


def test_a_person_reads_which_of_the_batch_are_rows():
    described = facts_of(batch_graphs.spread("g", 8, 64, 64, [2, 3], [2, 1])).describe()
    assert described["branches _rows"] == (
        "[3] of the batch as one matrix of 24 rows, as all of it is multiplied by one B"
    )


def test_what_differs_by_matrix_of_a_run_differs_by_row():
    facts = facts_of(batch_graphs.absorbed("g", 20, 64, 64))
    kinds = {tensor.name: kind for tensor, kind in facts.stacked().epilogue.inputs}
    assert kinds == {"bias": "row", "factors": "col", "residual": "full"}


def test_ranges_are_of_the_rows_of_a_run():
    table = plan_graph(batch_graphs.absorbed("g", "M", 4096, 4096, symbols=ANY), H200).table
    branches = [declared(table, {"M": m}).branch(table) for m in (1, 512)]
    assert branches[0] != branches[1]
    assert all(branch.startswith("tma_rows") for branch in branches)


def test_a_call_whose_rows_lie_apart_along_a_run_is_served_as_a_batch():
    table = plan_graph(batch_graphs.spread("g", 8, 64, 64, [2, 3], [2, 1]), H200).table
    (a,) = [entry for entry in table["operands"] if entry["name"] == "A"]
    outer, inner, *steps = a["stride"]
    for strides, branch in (
        ((outer, inner), "tma_rows"),
        ((outer + 64, inner), "tma_rows"),
        ((outer, inner + 64), "tma"),
    ):
        changed = {f"u{a['uid']}": {"stride": (*strides, *steps)}}
        assert declared(table, {}, **changed).branch(table) == branch


# --- what kernels see ----------------------------------------------------------------------------


def places(view, batch, call):
    """Offsets of every element ``(batch, rows, columns)`` of an argument, as kernels find them:
    the number of a matrix along each axis of the batch, the innermost first, is that of the last
    where there is one.
    """
    dim, stride = ([call.value(each) for each in view[key]] for key in ("dim", "stride"))
    extents = [call.value(each) for each in batch]
    rows, columns = (np.arange(d) * s for d, s in zip(dim[:2], stride[:2], strict=True))
    found = []
    for number in range(math.prod(extents)):
        base, left = 0, number
        for extent, own, step in zip(extents, dim[2:], stride[2:], strict=True):
            base += min(left % extent, own - 1) * step
            left //= extent
        found.append(base + rows[:, None] + columns[None, :])
    return np.array(found)


def elements(dim, stride):
    steps = np.meshgrid(*map(np.arange, dim), indexing="ij") if dim else []
    return np.asarray(sum(index * step for index, step in zip(steps, stride, strict=True)))


@st.composite
def matrices(draw, name, dim, rows, columns, turned=False):
    """A tensor of such matrices, in any order in memory, with gaps or without."""
    step, stride = rows * columns + draw(st.sampled_from([0, 0, 0, 8])), [0] * len(dim)
    order = draw(st.sampled_from([range(len(dim))[::-1], None])) or draw(
        st.permutations(range(len(dim)))
    )
    for axis in order:
        stride[axis] = step
        step *= dim[axis] + draw(st.sampled_from([0, 0, 0, 1]))
    inner = [1, rows] if turned else [columns, 1]
    return {"name": name, "dim": [*dim, rows, columns], "stride": [*stride, *inner]}


def broadcast(batch):
    """These extents, or 1 in place of some or all of them."""
    some = st.tuples(*(st.sampled_from([extent, extent, 1]) for extent in batch))
    return st.one_of(some, st.just((1,) * len(batch)))


@st.composite
def products(draw):
    """A product, a tensor that is added to it, and the result, of any batches."""
    batch = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4))
    m, n, k = draw(st.sampled_from([1, 4])), 8, 16
    g = gemm_graphs.graph("g")
    b = draw(broadcast(batch))
    pairs = zip(batch, b, strict=True)
    # Both together have every extent.
    a = [extent if own != extent or draw(st.integers(0, 3)) else 1 for extent, own in pairs]
    left, right = draw(matrices("A", a, m, k)), draw(matrices("B", b, k, n))
    y = g.matmul(g.tensor(**left), g.tensor(**right), name="mm")
    rows = draw(st.sampled_from([1, m]))
    y = g.add(y, g.tensor(**draw(matrices("x", draw(broadcast(batch)), rows, n))))
    # Of columns that lie together the transpose is computed.
    result = draw(matrices("Y", batch, m, n, turned=draw(st.booleans())))
    y.set_output(True).set_dim(result["dim"]).set_stride(result["stride"])
    return g


@settings(max_examples=200, deadline=None)
@given(graph=products())
def test_kernels_find_every_matrix(graph):
    (out,) = graph.outputs()
    batch = out.dim[:-2]
    facts = facts_of(graph)
    for target in (CPU, H200):
        if len(facts.batch_runs) > 3:
            with pytest.raises(cudnnGraphNotSupportedError, match="4 runs of equal steps"):
                plan_graph(graph, target)
            continue
        table = plan_graph(graph, target).table
        call = declared(table, {})
        for branch, entry in table["branches"].items():
            (step,) = entry["steps"]
            views = [each for each in step["args"] if each["arg"] == "tensor"]
            run = facts.stacked_run() if "_rows" in branch else None
            for place, view in enumerate(views):
                held = call.operands[view["operand"]]
                shape = (*batch, *(held.dim[-2:] if place < 2 else out.dim[-2:]))
                want = np.broadcast_to(elements(held.dim, held.stride), shape)
                if facts.is_transposed != (place == 1):
                    want = want.swapaxes(-2, -1)
                want = as_rows(want, run.axes if run else (), has_rows=place != 1)
                assert np.array_equal(places(view, views[-1]["dim"][2:], call), want), (
                    branch,
                    view,
                )


def as_rows(places, axes, has_rows):
    """Offsets ``[batch.., rows, columns]`` as those of one matrix after the other, some axes of the
    batch of which are rows, or all alike along them.
    """
    if not has_rows:
        for axis in axes:
            places = places.take([0], axis)
    *others, columns = range(places.ndim)
    moved = [axis for axis in others if axis - places.ndim in axes]
    *kept, rows = (axis for axis in others if axis not in moved)
    places = places.transpose(*kept, *moved, rows, columns)
    rows = math.prod(places.shape[len(kept) : -1])
    return places.reshape(-1, rows, places.shape[-1])


# --- what TMA is told ----------------------------------------------------------------------------

# Of a descriptor, 32-bit words: strides in 16 bytes, of all axes but the first; extents less one.
STRIDES, EXTENTS = slice(3, 7), slice(8, 13)
LAUNCH = """
import json, sys
import kernel_ffi
kernel = kernel_ffi.Kernel(__import__("pathlib").Path(sys.argv[1]))
tensors = json.loads(sys.argv[2])
buffers = [kernel_ffi.Buffer(1 << 28, "BFLOAT16", *each, kernel_ffi.CUDA) for each in tensors]
error = kernel(1, 132, *buffers)
assert error is None, error
"""


@pytest.fixture(scope="module")
def launched(compile_kernels, tmp_path_factory):
    """A kernel's host side as a library, by the number of runs."""
    folder = tmp_path_factory.mktemp("launched")
    jobs = [
        {
            "name": f"runs{runs}",
            "template": "gemm.kernels.sm90:matmul",
            "params": kernel_menu.params((64, 64, 64), runs=runs),
            "arch": "sm_90a",
        }
        for runs in (1, 2, 3)
    ]
    compile_kernels(jobs, folder)
    source = Path(kernel_menu.__file__).with_name("descriptors.c")
    for job in jobs:
        path = folder / job["name"]
        files = [f"{path}.o", source, "-o", f"{path}.so"]
        subprocess.run([shutil.which("cc") or "cc", "-shared", "-fPIC", *files], check=True)
    return folder


@pytest.mark.parametrize(
    ("batch", "of_b"),
    [((6,), (1,)), ((3, 2), (1, 2)), ((3, 2), (3, 1)), ((3, 2, 4), (3, 1, 4))],
)
def test_a_descriptor_has_an_axis_for_each_run(launched, batch, of_b):
    """Heads of 64 columns lie within the rows; what is the same along an axis has no step there."""
    heads, m, n, k = batch[0], 200, 136, 64

    def matrices(rows, columns, extents):
        """Extents and strides, the innermost axis of the batch first."""
        steps = [columns, *(heads * columns * rows * 5**i for i in range(len(extents) - 1))]
        steps = [step if extent > 1 else 0 for step, extent in zip(steps, extents, strict=True)]
        return (rows, columns, *extents), (heads * columns, 1, *steps)

    tensors = [matrices(m, k, batch), matrices(n, k, of_b), matrices(m, n, batch)]
    library = launched / f"runs{len(batch)}.so"
    command = [sys.executable, "-c", LAUNCH, library, json.dumps(tensors)]
    paths = {"PYTHONPATH": str(Path(kernel_ffi.__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | paths)
    assert done.returncode == 0, done.stderr
    (grid,), *descriptors = json.loads(done.stdout)
    assert grid == min(132, 4 * 3 * math.prod(batch))
    for words, (dim, stride) in zip(descriptors, tensors, strict=True):
        rank = len(dim)
        assert words[EXTENTS][:rank] == [each - 1 for each in (dim[1], dim[0], *dim[2:])]
        assert words[STRIDES][: rank - 1] == [each // 8 for each in (stride[0], *stride[2:])]


# --- values --------------------------------------------------------------------------------------


def randomly(seed: int):
    """A graph of random batches, each of whose tensors is broadcast, permuted and spaced apart."""
    rng = random.Random(seed)
    batch = [rng.choice((1, 2, 3)) for _ in range(rng.choice((2, 3, 4)))]
    m, n, k = (rng.choice(sizes) for sizes in ((1, 5), (3, 18), (7, 16)))

    def tensor(name, rows, columns, dim, transposed=False):
        step, stride = rows * columns + rng.choice((0, 3)), [0] * len(dim)
        for axis in rng.sample(range(len(dim)), len(dim)):
            stride[axis] = step
            step *= dim[axis] + rng.choice((0, 0, 1))
        inner = [1, rows] if transposed else [columns, 1]
        return {"name": name, "dim": [*dim, rows, columns], "stride": [*stride, *inner]}

    def some(extents):
        return [rng.choice((extent, extent, 1)) for extent in extents]

    a = some(batch)
    b = [
        extent if extent != have else rng.choice((extent, 1))
        for extent, have in zip(batch, a, strict=True)
    ]
    g = gemm_graphs.graph(f"random{seed}", io=data_type.FLOAT)
    right = tensor("B", k, n, b, transposed=rng.random() < 0.5)
    y = g.matmul(g.tensor(**tensor("A", m, k, a)), g.tensor(**right), name="mm")
    y = g.add(y, g.tensor(**tensor("x", rng.choice((1, m)), n, some(batch))))
    result = tensor("Y", m, n, batch)
    y.set_output(True).set_name("Y").set_dim(result["dim"]).set_stride(result["stride"])
    folded = tensor("sums", m, 1, batch)
    y = g.reduction(y, mode=gemm_graphs.cudnn.reduction_mode.ADD, name="fold")
    y.set_output(True).set_name("sums").set_dim(folded["dim"]).set_stride(folded["stride"])
    return g


RANDOM = [graph for seed in range(60) if len(facts_of(graph := randomly(seed)).batch_runs) <= 3]
FEW = {"M": {"min": 0, "max": 64}}
GRAPHS = [
    *RANDOM,
    batch_graphs.scores("scores", 9, 7, 16, folds=gemm_graphs.EVERY_AXES),
    batch_graphs.scores("scores_any_m", "M", 7, 16, folds=gemm_graphs.EVERY_AXES, symbols=FEW),
    batch_graphs.scores("scores_fp8", 9, 7, 16, io=gemm_graphs.E4M3, out=gemm_graphs.BF16),
    batch_graphs.weighted("weighted_fused", 9, 20, 7, fused=True),
    batch_graphs.weighted("weighted_any_m", "M", 20, 7, fused=True, symbols=FEW),
    batch_graphs.spread("any_batch", 5, 18, 16, ["M", 1], ["M", 3], symbols=FEW),
    batch_graphs.spread("any_heads", 5, 18, 16, [2, "M"], [1, "M"], symbols=FEW),
    batch_graphs.grouped_queries("grouped_queries", 9, 7, 16),
]  # fmt: skip


def blocks_of_heads():
    """A scale for each block of A of every matrix, and of B of every head."""
    g = gemm_graphs.graph("blocks", gemm_graphs.E4M3)
    a = batch_graphs.of_batch(g, "A", 9, 40, [2, 3])
    b = batch_graphs.of_batch(g, "B", 40, 18, [1, 3], transposed=True)
    of_a = batch_graphs.of_batch(g, "a_scale", 9, 2, [2, 3], data_type=data_type.FLOAT)
    of_b = batch_graphs.of_batch(g, "b_scale", 2, 2, [1, 3], data_type=data_type.FLOAT)
    a = g.block_scale_dequantize(a, of_a, block_size=[1, 32])
    b = g.block_scale_dequantize(b, of_b, block_size=[32, 16])
    g.matmul(a, b, name="mm").set_output(True).set_data_type(gemm_graphs.BF16)
    return g


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return build_for_cpu(tmp_path_factory.mktemp("axes"), [*GRAPHS, blocks_of_heads()])


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_random_batches_have_every_number_of_runs(runs):
    assert sum(len(facts_of(graph).batch_runs) == runs for graph in RANDOM) >= 5


def test_values(store):
    assert_right(store, "blocks", *(graph.name for graph in GRAPHS if not graph.symbols))


@pytest.mark.parametrize("m", [0, 1, 5, 64])
def test_values_of_any_extent(store, m):
    assert_right(store, *(graph.name for graph in GRAPHS if graph.symbols), M=m)
