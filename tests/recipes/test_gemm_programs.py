"""Graphs of 8-bit operands, and of a result that others read rounded, from their file to a result:
`build`, `run`, and calls as programs make them.
"""

from __future__ import annotations

import json
from pathlib import Path

import gemm_graphs
import ml_dtypes
import numpy as np
import pytest
from cli_process import run_cli, write_graph
from graph_tables import PEER

import cudnn_aot as cudnn
from cudnn_aot import runtime

E4M3 = ml_dtypes.float8_e4m3fn
BATCH, M, N, K = 2, 4, 33, 72


def real_bmm(folder: Path) -> Path:
    """FlashInfer's FP8 batched matmul with two scales, at extents that a test can afford."""
    text = json.loads((PEER / "real_programs" / "fi_bmm_fp8_b64.json").read_text())
    tensors = {tensor["name"]: tensor for tensor in text["tensors"]}
    tensors["a"] |= {"dim": [BATCH, M, K], "stride": [M * K, K, 1]}
    tensors["b"] |= {"dim": [BATCH, K, N], "stride": [K * N, 1, K]}
    path = folder / "bmm.json"
    path.write_text(json.dumps(text))
    return path


def int8_matmul() -> cudnn.pygraph:
    """INT32 sums, and INT8 of them scaled by a row."""
    dt = cudnn.data_type
    g = cudnn.pygraph("int8", dt.INT8, dt.FLOAT, dt.FLOAT)
    a = g.tensor(name="a", dim=[1, 5, 37])
    b = g.tensor(name="b", dim=[1, 37, 11])
    sums = g.matmul(a, b, compute_data_type=dt.INT32)
    sums.set_output(True).set_data_type(dt.INT32).set_name("sums")
    scaled = g.mul(sums, g.tensor(name="scale", dim=[1, 1, 11], data_type=dt.FLOAT))
    scaled.set_output(True).set_data_type(dt.INT8)
    return g


def read_rounded() -> cudnn.pygraph:
    """A product in BFLOAT16, which a call may leave out, what its rounding lost, and the largest
    magnitude in it.
    """
    dt = cudnn.data_type
    g = gemm_graphs.graph("read_rounded")
    sums = g.matmul(gemm_graphs.operand(g, "a", M, K), gemm_graphs.operand(g, "b", K, N))
    short = g.identity(sums.set_data_type(dt.FLOAT)).set_data_type(dt.BFLOAT16)
    short.set_output(True, optional=True).set_uid(10)
    g.sub(sums, short).set_output(True).set_data_type(dt.FLOAT).set_uid(11)
    gemm_graphs.fold(g, short, "AMAX", "mn", M, N).set_uid(12)
    return g


def branches() -> cudnn.pygraph:
    """Branches on values that were BFLOAT16, read and rounded: of one that LLVM moves ahead of a
    branch it rounds what was loaded again, by a function that no serving process has.
    """
    g = gemm_graphs.graph("branches")
    a, b = gemm_graphs.operand(g, "a", M, K), gemm_graphs.operand(g, "b", K, N)
    loss = g.matmul(a, b).set_data_type(cudnn.data_type.BFLOAT16)
    x = g.bias(loss, g.tensor(name="x", dim=[1, 1, 1]))
    gemm_graphs.fold(g, x, "MIN", "m", M, N)
    y = g.elu_backward(x, loss)
    y.set_output(True).set_data_type(cudnn.data_type.HALF).set_name("Y")
    return g


# Scales of blocks in each loop of the host's kernel, of rows, columns and both, with a last block
# that is shorter.
BLOCKS = [
    gemm_graphs.block_scaled("along_k", 9, 131, 200, batch=2),
    gemm_graphs.block_scaled("along_n", 9, 37, 72, rows=(4, 1), depth=32, b_transposed=False),
    gemm_graphs.block_scaled("a_alone", 6, 33, 48, rows=(1, None), depth=16),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    graphs = [int8_matmul(), read_rounded(), branches(), *BLOCKS]
    files = [real_bmm(folder), *(write_graph(folder, graph) for graph in graphs)]
    done = run_cli("build", *files, "--target", "cpu", "--store", folder / "store")
    assert done.returncode == 0, done.stderr
    return folder / "store"


def test_every_plan_is_right(store: Path) -> None:
    done = run_cli("run", "--all", "--store", store, "--json")
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    names = ["bmm", "int8", "read_rounded", "branches", *(graph.name for graph in BLOCKS)]
    assert {item["name"]: item["correct"] for item in runs} == dict.fromkeys(names, True)


@pytest.mark.parametrize("is_bound", [True, False])
def test_others_read_a_result_as_it_is_stored(store: Path, is_bound: bool) -> None:
    """Whether it is stored or not. Sums of integers are exact in fp32, so that rounding is all
    that they lose.
    """
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-20, 21, (1, *shape)).astype("f8") for shape in ((M, K), (K, N)))
    short = np.zeros((1, M, N), ml_dtypes.bfloat16)
    lost, largest = np.zeros((1, M, N), np.float32), np.zeros((1, 1, 1), np.float32)
    plan = runtime.open(store, target="cpu").plan("read_rounded")
    bindings = {11: lost, 12: largest} | ({10: short.view(np.uint16)} if is_bound else {})
    operands = (operand.astype(ml_dtypes.bfloat16).view(np.uint16) for operand in (a, b))
    workspace = np.zeros(plan.workspace_bytes(), np.uint8)
    plan.execute(bindings | dict(zip((1, 2), operands, strict=True)), workspace=workspace)
    rounded = (a @ b).astype(ml_dtypes.bfloat16)
    assert np.any(rounded.astype("f8") != a @ b)
    np.testing.assert_array_equal(short, rounded if is_bound else np.zeros_like(rounded))
    np.testing.assert_array_equal(lost, a @ b - rounded.astype("f8"))
    assert largest.item() == np.abs(rounded.astype("f8")).max()


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)], ids=["0-d", "one", "declared"])
def test_a_program_binds_scales_of_any_rank(store: Path, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    a = rng.standard_normal((BATCH, M, K)).astype(E4M3)
    b = rng.standard_normal((BATCH, N, K)).astype(E4M3)
    scales = [np.full(shape, value, np.float32) for value in (0.5, 3.0)]
    result = np.zeros((BATCH, M, N), np.uint16)
    plan = runtime.open(store, target="cpu").plan("bmm")
    b_view = b.view(np.uint8).transpose(0, 2, 1)
    plan.execute({1: a.view(np.uint8), 2: b_view, 3: scales[0], 4: scales[1], 7: result})
    want = 1.5 * np.einsum("lmk,lnk->lmn", a.astype("f8"), b.astype("f8"))
    got = result.view(ml_dtypes.bfloat16).astype("f8")
    np.testing.assert_allclose(got, want, rtol=2.0**-8, atol=1e-4)  # half a step of bfloat16
