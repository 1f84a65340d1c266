"""GEMM graphs for the GPU tests and benches, built with the public API.

``python tests/support/gemm_graphs.py FOLDER`` writes them as graph files, for ``cudnn-aot build``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import cudnn_aot as cudnn
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph

BF16, HALF, FLOAT = cudnn.data_type.BFLOAT16, cudnn.data_type.HALF, cudnn.data_type.FLOAT
E4M3, E5M2 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FP8_E5M2
INT8, INT32 = cudnn.data_type.INT8, cudnn.data_type.INT32

# The shapes that the GEMM bench times beside torch.
BENCH_SHAPES = (
    (8192, 8192, 8192),
    (4096, 4096, 4096),
    (16384, 4096, 4096),
    (512, 4096, 4096),
    (64, 4096, 4096),
    (128, 256, 128),
)
# Those that bench/tensor_cores.py times: of FP8 and INT8, and of gated FFNs.
FP8_BENCH_SHAPES = ((8192, 8192, 8192), (4096, 4096, 4096), (512, 4096, 4096), (64, 4096, 4096))
INT8_BENCH_SHAPES = FP8_BENCH_SHAPES[:3]
BLOCK_BENCH_SHAPES = ((8192, 8192, 8192), (4096, 4096, 4096), (4096, 7168, 16384))
GATED_BENCH_SHAPES = ((4096, 14336, 4096), (512, 14336, 4096))
FUSED_BENCH_SHAPES = ((4096, 11008, 4096), (512, 4096, 4096))
AMAX_BENCH_SHAPE = (4096, 11008, 4096)


def graph(name: str, io=BF16, symbols=None) -> Graph:
    return cudnn.pygraph(
        name=name,
        io_data_type=io,
        intermediate_data_type=FLOAT,
        compute_data_type=FLOAT,
        symbols=symbols,
    )


def operand(g: Graph, name: str, rows, columns, batch=1, transposed=False, **fields):
    """A matrix with contiguous columns, or contiguous rows when ``transposed``."""
    size = f"{rows}*{columns}"
    inner = [1, rows] if transposed else [columns, 1]
    return g.tensor(name=name, dim=[batch, rows, columns], stride=[size, *inner], **fields)


def plain(name: str, m, n, k, io=BF16, out=None, batch=1, batch_b=None, symbols=None) -> Graph:
    g = graph(name, io, symbols)
    a = operand(g, "A", m, k, batch)
    b = operand(g, "B", k, n, batch if batch_b is None else batch_b, transposed=True)
    y = g.matmul(a, b, name="mm")
    y.set_output(True).set_data_type(out or io)
    return g


def chain(name: str, m, n, k, activation: str, io=BF16, symbols=None) -> Graph:
    """Row bias, an activation, and a residual matrix."""
    g = graph(name, io, symbols)
    a = operand(g, "A", m, k)
    b = operand(g, "B", k, n, transposed=True)
    bias = g.tensor(name="bias", dim=[1, 1, n], stride=[n, n, 1])
    residual = operand(g, "residual", m, n)
    y = g.bias(g.matmul(a, b, name="mm"), bias)
    y = g.add(getattr(g, activation)(y), residual)
    y.set_output(True).set_data_type(io)
    return g


def optional_output(name: str, m, n, k) -> Graph:
    """The value before the activation is an output that a call may leave out."""
    g = graph(name)
    a = operand(g, "A", m, k)
    b = operand(g, "B", k, n, transposed=True)
    before = g.matmul(a, b, name="mm")
    before.set_output(True, optional=True).set_data_type(FLOAT).set_name("before")
    after = g.relu(before)
    after.set_output(True).set_data_type(BF16).set_name("after")
    return g


def bias_and_auxiliaries(name: str, m, n, k) -> Graph:
    """Six operands: a bias, a residual to read, and the value before the activation to write."""
    g = graph(name)
    a = operand(g, "A", m, k)
    b = operand(g, "B", k, n, transposed=True)
    bias = g.tensor(name="bias", dim=[1, 1, n], stride=[n, n, 1])
    residual = operand(g, "residual", m, n)
    before = g.bias(g.matmul(a, b, name="mm"), bias)
    before.set_output(True).set_data_type(BF16).set_name("before")
    y = g.add(g.relu(before), residual)
    y.set_output(True).set_data_type(BF16).set_name("Y")
    return g


def column_and_scalars(name: str, m, n, k) -> Graph:
    """A column of factors, a device scalar and a number passed by value."""
    g = graph(name, HALF)
    a = operand(g, "A", m, k)
    b = operand(g, "B", k, n, transposed=True)
    column = g.tensor(name="column", dim=[1, m, 1], stride=[m, 1, 1], data_type=FLOAT)
    alpha = g.tensor(name="alpha", dim=[1, 1, 1], stride=[1, 1, 1], data_type=FLOAT)
    beta = g.tensor(
        name="beta", dim=[1, 1, 1], stride=[1, 1, 1], data_type=FLOAT, is_pass_by_value=True
    )
    y = g.scale(g.mul(g.matmul(a, b, name="mm"), column), alpha)
    y = g.scale(y, beta)
    y.set_output(True).set_data_type(HALF)
    return g


def scaled(
    name: str, m, n, k, types=(E4M3, E4M3), out=BF16, batch=1, by_column=True, symbols=None
) -> Graph:
    """A product of 8-bit matrices, times a number for each of them and a factor for each column."""
    g = graph(name, symbols=symbols)
    a = operand(g, "A", m, k, batch, data_type=types[0])
    b = operand(g, "B", k, n, batch, transposed=True, data_type=types[1])
    compute = INT32 if types[0] is INT8 else FLOAT
    y = g.matmul(a, b, name="mm", compute_data_type=compute)
    factors = {"a_scale": [1, 1, 1], "b_scale": [1, 1, 1], "column": [1, 1, n]}
    if not by_column:
        del factors["column"]
    for factor, dim in factors.items():
        y = g.mul(y, g.tensor(name=factor, dim=dim, stride=[dim[2], dim[2], 1], data_type=FLOAT))
    y.set_output(True).set_data_type(out).set_name("Y")
    return g


def scaled_before(
    name: str, m, n, k, types=(E4M3, E4M3), out=BF16, batch=1, each=(False, True), between=FLOAT,
    symbols=None,
) -> Graph:  # fmt: skip
    """A product of matrices that are times a number before, or with ``each`` times one for each row
    of A or column of B; of INT8 times one more after, for results of order one.
    """
    g = graph(name, symbols=symbols)
    a = operand(g, "A", m, k, batch, data_type=types[0])
    b = operand(g, "B", k, n, batch, transposed=True, data_type=types[1])
    dims = [1, m if each[0] else 1, 1], [1, 1, n if each[1] else 1]
    wide = []
    for matrix, dim in zip((a, b), dims, strict=True):
        stride = [f"{dim[1]}*{dim[2]}", dim[2], 1]
        scale = g.tensor(name=f"{matrix.name}_scale", dim=dim, stride=stride, data_type=FLOAT)
        wide.append(g.mul(scale, matrix, name=f"scale_{matrix.name}"))
        wide[-1].set_data_type(between).set_name(f"{matrix.name}_wide")
    y = g.matmul(*wide, name="mm")
    if types[0] is INT8:
        y = g.mul(y, g.tensor_scalar(1 / (INT8_VARIANCE * k**0.5), name="unit"))
    y.set_output(True).set_data_type(out).set_name("Y")
    return g


def block_scaled(
    name: str, m, n, k, rows=(1, 128), depth=128, types=(E4M3, E4M3), out=BF16, batch=1,
    b_transposed=True, symbols=None, along_m=False,
) -> Graph:  # fmt: skip
    """A product of FP8 matrices with a scale for each block: of ``depth`` elements of K, and of so
    many rows of A and of columns of B (None for no scales). Neighbours in memory are the scales of
    A along K, or with ``along_m`` along M.
    """
    g = graph(name, symbols=symbols)
    deep = -(-k // depth)
    a = operand(g, "A", m, k, batch, data_type=types[0])
    b = operand(g, "B", k, n, batch, transposed=b_transposed, data_type=types[1])
    if rows[0] is not None:
        count = m if rows[0] == 1 else -(-m // rows[0])
        scale = operand(g, "a_scale", count, deep, batch, transposed=along_m, data_type=FLOAT)
        a = g.block_scale_dequantize(a, scale, block_size=[rows[0], depth], name="dqa")
    if rows[1] is not None:
        count = n if rows[1] == 1 else -(-n // rows[1])
        scale = operand(g, "b_scale", deep, count, batch, transposed=True, data_type=FLOAT)
        b = g.block_scale_dequantize(b, scale, block_size=[depth, rows[1]], name="dqb")
    g.matmul(a, b, name="mm").set_output(True).set_data_type(out).set_name("Y")
    return g


def block_gated(name: str, m, n, k, symbols=None) -> Graph:
    """A gated FFN of FP8 with a scale for each 128 of K, of a row of A and 128 columns of a B."""
    g = graph(name, E4M3, symbols)
    deep, wide = -(-k // 128), -(-n // 128)
    a = operand(g, "A", m, k)
    scale = operand(g, "a_scale", m, deep, data_type=FLOAT)
    a = g.block_scale_dequantize(a, scale, block_size=[1, 128], name="dqa")
    products = []
    for name_b in ("Bg", "Bu"):
        b = operand(g, name_b, k, n, transposed=True)
        scale = operand(g, f"{name_b}_scale", deep, wide, transposed=True, data_type=FLOAT)
        b = g.block_scale_dequantize(b, scale, block_size=[128, 128], name=f"dq{name_b}")
        products.append(g.matmul(a, b, name=f"mm{name_b}"))
    y = g.mul(g.swish(products[0]), products[1])
    y.set_output(True).set_data_type(BF16).set_name("Y")
    return g


def fused(name: str, m, n, k, kind: str, symbols=None) -> Graph:
    """A product with a row bias and GELU, or with a residual matrix."""
    g = graph(name, symbols=symbols)
    y = g.matmul(operand(g, "A", m, k), operand(g, "B", k, n, transposed=True), name="mm")
    if kind == "gelu":
        y = g.gelu(g.add(y, g.tensor(name="bias", dim=[1, 1, n], stride=[n, n, 1])))
    else:
        y = g.add(y, operand(g, "residual", m, n))
    y.set_output(True).set_data_type(BF16).set_name("Y")
    return g


def with_residual(
    name: str, m, n, k, types=(BF16, BF16), activation="relu", batch=1, gap=0, more=False,
    symbols=None,
) -> Graph:  # fmt: skip
    """A product, of matrices of one type, after an activation and a residual matrix of another,
    whose rows have ``gap`` elements between them; with ``more`` times one more matrix, in fp32, and
    the largest magnitude of it all.
    """
    io, dtype = types
    g = graph(name, io, symbols)
    compute = INT32 if io is INT8 else FLOAT
    a, b = operand(g, "A", m, k, batch), operand(g, "B", k, n, batch, transposed=True)
    y = g.matmul(a, b, name="mm", compute_data_type=compute)
    if io is INT8:
        y = g.mul(y, g.tensor_scalar(1 / (INT8_VARIANCE * k**0.5), name="unit"))
    y, row = getattr(g, activation)(y), n + gap
    size = f"{m}*{row}"
    y = g.add(y, g.tensor(name="residual", dim=[batch, m, n], stride=[size, row, 1],
                          data_type=dtype))  # fmt: skip
    if more:
        y = g.mul(y, operand(g, "factors", m, n, batch, data_type=FLOAT))
    y.set_output(True).set_data_type(dtype).set_name("Y")
    if more:
        fold(g, y, "AMAX", "mn", m, n, batch)
    return g


def gated_residual(name: str, m, n, k, symbols=None) -> Graph:
    """A gated FFN and a residual matrix."""
    g = gated(name, m, n, k, symbols=symbols)
    (y,) = g.outputs()
    y.set_output(False).set_name("gated").set_data_type(FLOAT)
    y = g.add(y, operand(g, "residual", m, n))
    y.set_output(True).set_data_type(BF16).set_name("Y")
    return g


def gated(
    name: str, m, n, k, io=BF16, out=None, b_transposed=True, up_transposed=True, symbols=None
) -> Graph:
    """A gated FFN: swish of one product with A times another."""
    g = graph(name, io, symbols)
    a = operand(g, "A", m, k)
    gate = operand(g, "Bg", k, n, transposed=b_transposed)
    up = operand(g, "Bu", k, n, transposed=up_transposed)
    y = g.mul(g.swish(g.matmul(a, gate, name="gate")), g.matmul(a, up, name="up"))
    y.set_output(True).set_data_type(out or io).set_name("Y")
    return g


def reduced(name: str, m, n, k, folds, io=BF16, batch=1, whole=True, symbols=None) -> Graph:
    """A product, written if ``whole``, and reductions of it, ``(mode, axes)`` each."""
    g = graph(name, io, symbols)
    a, b = operand(g, "A", m, k, batch), operand(g, "B", k, n, batch, transposed=True)
    y = g.matmul(a, b, name="mm")
    y.set_output(whole).set_data_type(io).set_name("Y")
    for mode, axes in folds:
        fold(g, y, mode, axes, m, n, batch)
    return g


def fold(g, tensor, mode: str, axes: str, m, n, batch=1):
    """An output: what a reduction of a result leaves."""
    rows, columns = 1 if "m" in axes else m, 1 if "n" in axes else n
    folded = g.reduction(tensor, mode=cudnn.reduction_mode[mode], name=f"{mode}_{axes}")
    folded.set_dim([batch, rows, columns]).set_stride([f"{rows}*{columns}", columns, 1])
    return folded.set_output(True).set_data_type(FLOAT).set_name(f"{mode}_{axes}")


def quantized(name: str, m, n, k, io=BF16, out=E4M3, symbols=None) -> Graph:
    """A product, the largest magnitude in it, and what it is in 8 bits, times a scale."""
    g = graph(name, io, symbols)
    y = g.matmul(operand(g, "A", m, k), operand(g, "B", k, n, transposed=True), name="mm")
    fold(g, y, "AMAX", "mn", m, n)
    scale = g.tensor(name="scale", dim=[1, 1, 1], stride=[1, 1, 1], data_type=FLOAT)
    g.mul(y, scale).set_output(True).set_data_type(out).set_name("Y")
    return g


def bias_gradient(name: str, m, n, k, symbols=None) -> Graph:
    """The gradient through a GELU behind a bias, and that of the bias, the sum of its rows."""
    g = graph(name, symbols=symbols)
    loss = g.matmul(operand(g, "A", m, k), operand(g, "B", k, n, transposed=True), name="mm")
    y = g.gelu_backward(loss, operand(g, "x", m, n))
    y.set_output(True).set_data_type(BF16).set_name("Y")
    fold(g, y, "ADD", "m", m, n)
    return g


def crowded(name: str, m, n, k, out=BF16, symbols=None) -> Graph:
    """A GELU with four residual matrices, stored at three places in types of their own, and folded
    along each axis and both.
    """
    g = graph(name, symbols=symbols)
    y = g.matmul(operand(g, "A", m, k), operand(g, "B", k, n, transposed=True), name="mm")
    y = g.add(y, g.tensor(name="bias", dim=[1, 1, n], stride=[n, n, 1]))
    y.set_output(True).set_data_type(FLOAT).set_name("before")
    fold(g, y, "MIN", "n", m, n)
    y = g.gelu(y)
    y.set_output(True).set_data_type(HALF).set_name("after")
    fold(g, y, "AMAX", "mn", m, n)
    for i, dtype in enumerate((BF16, HALF, FLOAT, BF16)):
        y = g.add(y, operand(g, f"residual{i}", m, n, data_type=dtype))
    y.set_output(True).set_data_type(out).set_name("Y")
    fold(g, y, "ADD", "m", m, n)
    return g


def gated_amax(name: str, m, n, k, io=BF16, out=None, symbols=None) -> Graph:
    """A gated FFN with the largest magnitude of each of its rows, and of all."""
    g = gated(name, m, n, k, io, out, symbols=symbols)
    y = next(tensor for tensor in g.tensors.values() if tensor.name == "Y")
    for axes in ("n", "mn"):
        fold(g, y, "AMAX", axes, m, n)
    return g


def block_amax(name: str, m, n, k) -> Graph:
    """A product of FP8 with a scale for each block, and the largest magnitude of its columns."""
    g = block_scaled(name, m, n, k)
    y = next(tensor for tensor in g.tensors.values() if tensor.name == "Y")
    fold(g, y, "AMAX", "m", m, n)
    return g


def sums(name: str, m, n, k, batch=1, b_transposed=True, largest=False, symbols=None) -> Graph:
    """The INT32 sums of products of INT8; with ``largest``, the largest magnitude of each column of
    them.
    """
    g = graph(name, symbols=symbols)
    a = operand(g, "A", m, k, batch, data_type=INT8)
    b = operand(g, "B", k, n, batch, transposed=b_transposed, data_type=INT8)
    y = g.matmul(a, b, name="mm", compute_data_type=INT32)
    y.set_output(True).set_data_type(INT32).set_name("Y")
    if largest:
        fold(g, y, "AMAX", "m", m, n, batch)
    return g


INT8_VARIANCE = (2**16 - 1) / 12 + 0.25  # of all that INT8 has, each as likely


def _dequantized(g: Graph, a, b, row, column: str, m, n, k):
    """A product of INT8 matrices times a number for all, the scales ``row`` of its rows and those
    of its columns: about as large as what it is multiplied by.
    """
    y = g.matmul(a, b, name=f"mm_{column}", compute_data_type=INT32)
    y = g.mul(y, g.tensor_scalar(1 / (INT8_VARIANCE * k**0.5), name=f"unit_{column}"))
    of_columns = g.tensor(name=column, dim=[1, 1, n], stride=[n, n, 1], data_type=FLOAT)
    return g.mul(g.mul(y, row), of_columns)


def dequantized(name: str, m, n, k, out=BF16, step=1.0, symbols=None) -> Graph:
    """A product of INT8 matrices with a scale of each row and each column, and a bias, in steps."""
    g = graph(name, INT8, symbols)
    a, b = operand(g, "A", m, k), operand(g, "B", k, n, transposed=True)
    row = g.tensor(name="rows", dim=[1, m, 1], stride=[m, 1, 1], data_type=FLOAT)
    bias = g.tensor(name="bias", dim=[1, 1, n], stride=[n, n, 1], data_type=BF16)
    y = g.bias(_dequantized(g, a, b, row, "columns", m, n, k), bias)
    if step != 1.0:
        y = g.mul(y, g.tensor_scalar(1 / step, name="step"))
    y.set_output(True).set_data_type(out).set_name("Y")
    return g


def gated_int8(name: str, m, n, k, out=BF16, symbols=None) -> Graph:
    """A gated FFN of INT8, with a scale of each row and of each column of both products."""
    g = graph(name, INT8, symbols)
    a = operand(g, "A", m, k)
    row = g.tensor(name="rows", dim=[1, m, 1], stride=[m, 1, 1], data_type=FLOAT)
    gate, up = (
        _dequantized(g, a, operand(g, b, k, n, transposed=True), row, f"columns_{b}", m, n, k)
        for b in ("Bg", "Bu")
    )
    g.mul(g.swish(gate), up).set_output(True).set_data_type(out).set_name("Y")
    return g


def other_majors(name: str, m, n, k, a_transposed: bool, b_transposed: bool) -> Graph:
    g = graph(name)
    a = operand(g, "A", m, k, transposed=a_transposed)
    b = operand(g, "B", k, n, transposed=b_transposed)
    g.matmul(a, b, name="mm").set_output(True).set_data_type(BF16)
    return g


def linear_layer(name: str, batch, m, n, k, gap=0, symbols=None) -> Graph:
    """A batch of matrices times one B, with a bias, a residual and the largest magnitude of each
    row; ``gap`` elements lie between the matrices of the batch.
    """
    g = graph(name, symbols=symbols)

    def matrix(name, columns):
        stride = [m * columns + gap if gap else f"{m}*{columns}", columns, 1]
        return g.tensor(name=name, dim=[batch, m, columns], stride=stride)

    y = g.matmul(matrix("A", k), operand(g, "B", k, n, transposed=True), name="mm")
    y = g.bias(y, g.tensor(name="bias", dim=[1, 1, n], stride=[n, n, 1], data_type=FLOAT))
    y = g.add(y, matrix("residual", n))
    y.set_output(True).set_data_type(BF16).set_name("Y")
    fold(g, y, "AMAX", "n", m, n, batch)
    return g


def by_columns(name: str, m, n, k, io=BF16, out=None, batch=1, symbols=None) -> Graph:
    """A product whose columns lie together, and those of what is made of it: a factor of each row,
    a bias of each column, a residual whose rows lie together, and folds along each axis and both.
    """
    g = graph(name, io, symbols)
    a, b = operand(g, "A", m, k, batch), operand(g, "B", k, n, batch, transposed=True)
    y = g.matmul(a, b, name="mm")
    factors = g.tensor(name="factors", dim=[1, m, 1], stride=[m, 1, 1], data_type=FLOAT)
    bias = g.tensor(name="bias", dim=[1, 1, n], stride=[n, n, 1], data_type=FLOAT)
    before = g.bias(g.mul(y, factors), bias)
    before.set_output(True, optional=True).set_data_type(FLOAT).set_name("before")
    residual = operand(g, "residual", m, n, batch, data_type=BF16)
    y = g.add(g.relu(before), residual)
    y.set_output(True).set_data_type(out or io).set_name("Y")
    for each in (before, y):
        each.set_dim([batch, m, n]).set_stride([f"{m}*{n}", 1, m])
    for mode, axes in EVERY_AXES:
        fold(g, y, mode, axes, m, n, batch)
    return g


def of_any_columns(name: str, m, k, most=2048) -> Graph:
    """A product of any number of columns, which lie together."""
    g = graph(name, symbols={"N": {"min": 0, "max": most}})
    y = g.matmul(operand(g, "A", m, k), operand(g, "B", k, "N", transposed=True), name="mm")
    y.set_output(True).set_data_type(BF16).set_name("Y")
    y.set_dim([1, m, "N"]).set_stride([f"{m}*N", 1, m])
    return g


def linear(g, m=320, n=768, k=512):
    """A, B, bias and Y = relu(A @ B + bias), declared as programs do."""
    a = g.tensor(name="A", dim=[1, m, k], stride=[m * k, k, 1])
    b = g.tensor(name="B", dim=[1, k, n], stride=[k * n, n, 1])
    bias = g.tensor(name="bias", dim=[1, 1, n], stride=[n, n, 1])
    y = g.relu(g.bias(g.matmul(a, b), bias))
    y.set_output(True).set_name("Y").set_data_type(BF16)
    return a, b, bias, y


def in_process() -> Graph:
    """The graph that a program builds in process."""
    g = graph("in_process")
    linear(g)
    return g


ANY_M = {"M": {"min": 0, "max": 65536, "hint": 1024}}
ANY_K = {"K": {"min": 0, "max": 65536, "multiple_of": 16, "hint": 4096}}
# Modes of reductions, and the axes that they fold.
FOLDS = (("ADD", "m"), ("AMAX", "n"), ("MAX", "m"), ("MIN", "n"), ("NORM2", "mn"), ("AVG", "mn"))
MODES = ("ADD", "AVG", "MIN", "MAX", "AMAX", "NORM1", "NORM2")
EVERY_AXES = (("ADD", "m"), ("AMAX", "n"), ("NORM2", "mn"))

TEST_GRAPHS: tuple[Callable[[], Graph], ...] = (
    lambda: plain("dynamic_m", "M", 512, 256, symbols=ANY_M),
    lambda: chain("dynamic_m_chain", "M", 1000, 520, "gelu", symbols=ANY_M),
    # Two math warpgroups share each of several tiles.
    lambda: plain("turns_any_k", 4096, 4096, "K", symbols=ANY_K),
    lambda: fused("turns_residual_any_k", 1024, 4096, "K", "residual", symbols=ANY_K),
    lambda: sums("turns_int8_any_k", 512, 4096, "K", symbols=ANY_K),
    lambda: plain("odd_m_n", 201, 333, 264, out=FLOAT),
    lambda: plain("odd_k", 130, 96, 77),  # no TMA descriptor: the any-stride branch
    lambda: plain("zero_k", 8, 16, 0, out=FLOAT),
    lambda: with_residual("residual_odd_m", 1001, 4104, 520, activation="gelu"),
    lambda: with_residual("residual_any_m", "M", 1160, 200, symbols=ANY_M),
    lambda: with_residual("residual_batch_apart", 300, 2056, 136, (HALF, HALF), batch=3, gap=24),
    lambda: with_residual("residual_more", "M", 520, 264, more=True, symbols=ANY_M),
    lambda: with_residual("residual_fp8", "M", 1352, 1040, (E4M3, BF16), symbols=ANY_M),
    lambda: with_residual("residual_int8", 300, 1352, 1040, (INT8, HALF)),
    lambda: gated_residual("residual_gated", "M", 776, 264, symbols=ANY_M),
    lambda: by_columns("columns", 200, 328, 136),
    lambda: by_columns("columns_any_m", "M", 72, 520, io=HALF, symbols=ANY_M),
    lambda: by_columns("columns_fp8_batch", 136, 80, 272, io=E4M3, out=BF16, batch=3),
    lambda: by_columns("columns_odd", 67, 45, 77),  # no TMA descriptor
    lambda: plain("half_batch", 100, 136, 72, io=HALF, batch=5),
    lambda: linear_layer("batch_of_one_b", 3, 130, 136, 264),
    lambda: linear_layer("batch_of_one_b_apart", 3, 130, 136, 264, gap=64),
    lambda: linear_layer("batch_of_rows", "M", 1, 4104, 1032, symbols=ANY_M),
    lambda: linear_layer("batch_of_any_m", 5, "M", 136, 264, symbols=ANY_M),
    lambda: plain("broadcast_b", 130, 128, 64, batch=3, batch_b=1),
    lambda: chain("tanh_half", 257, 384, 128, "gelu_approx_tanh", io=HALF),
    lambda: chain("swish", 64, 512, 1024, "swish"),
    lambda: chain("sigmoid_odd_n", 64, 511, 1024, "sigmoid"),
    lambda: chain("tanh_small", 1, 128, 64, "tanh"),
    lambda: optional_output("optional_output", 192, 256, 128),
    lambda: column_and_scalars("column_and_scalars", 150, 256, 128),
    lambda: plain("split_k_in_cluster", 64, 1024, 8192),
    lambda: plain("stream_k", 16, 128, 32768),  # tiles in even parts
    lambda: plain("pingpong", 4200, 2056, 512, out=FLOAT),
    lambda: column_and_scalars("pingpong_column", 4200, 4104, 512),
    in_process,
    lambda: other_majors("m_major_n_major", 256, 384, 128, True, False),
    lambda: other_majors("m_major_k_major", 256, 384, 128, True, True),
    lambda: other_majors("k_major_n_major", 256, 384, 128, False, False),
    lambda: scaled("fp8", 200, 328, 144),
    lambda: scaled_before("fp8_dequantized", 200, 328, 144),
    lambda: scaled_before("fp8_dequantized_odd_k", 65, 40, 45, each=(True, True)),
    lambda: scaled("fp8_any_m", "M", 336, 1040, (E4M3, E5M2), symbols=ANY_M),
    lambda: scaled("fp8_batch", 130, 96, 272, (E5M2, E4M3), HALF, batch=5),
    lambda: scaled("fp8_deep", 300, 512, 4096, out=FLOAT),
    lambda: scaled("fp8_stream_k", 16, 512, 16384),
    lambda: scaled("fp8_to_e4m3", 200, 336, 528, out=E4M3),
    lambda: scaled("fp8_to_e5m2_odd_n", 65, 67, 144, (E5M2, E5M2), out=E5M2),
    lambda: scaled("fp8_odd_k", 130, 67, 45),  # no TMA descriptor
    lambda: plain("to_e4m3", 200, 144, 264, out=E4M3),
    lambda: sums("int8", 200, 328, 144),
    lambda: sums("int8_any_m", "M", 336, 1040, symbols=ANY_M),
    lambda: sums("int8_odd_m_n", 201, 333, 272),  # rows of no whole 16 bytes
    lambda: sums("int8_batch", 130, 96, 272, batch=5),
    lambda: sums("int8_deep", 129, 136, 131056),  # the most of whole 16 bytes
    lambda: sums("int8_folds", 200, 328, 144, largest=True),
    lambda: sums("int8_sums", 67, 45, 333, b_transposed=False, largest=True),
    lambda: sums("split_k_in_cluster_int8", 64, 1024, 8192),
    lambda: sums("int8_stream_k", 16, 512, 16384),
    lambda: sums("pingpong_int8", 4200, 4104, 512),
    lambda: scaled("int8_odd_k", 65, 96, 100, (INT8, INT8), FLOAT),  # no TMA descriptor
    lambda: scaled_before("int8_dequantized", 200, 328, 144, (INT8, INT8), each=(True, True)),
    lambda: dequantized("int8_scaled", 200, 328, 144),
    lambda: dequantized("int8_scaled_any_m", "M", 336, 1040, out=HALF, symbols=ANY_M),
    lambda: dequantized("int8_scaled_few_rows", 20, 4104, 4096),
    lambda: dequantized("int8_scaled_stream_k", 16, 512, 16384),
    lambda: dequantized("pingpong_int8_scaled", 4200, 4104, 528),
    lambda: dequantized("int8_to_int8", 200, 336, 528, out=INT8, step=2**-5),
    lambda: dequantized("int8_to_int8_odd_n", 65, 67, 144, out=INT8, step=2**-5),
    lambda: gated_int8("gated_int8", 200, 336, 144),
    lambda: gated_int8("gated_int8_any_m", "M", 328, 528, out=HALF, symbols=ANY_M),
    lambda: gated("gated", 200, 328, 136),
    lambda: gated("gated_any_m", "M", 336, 520, io=HALF, symbols=ANY_M),
    lambda: gated("gated_n_major", 65, 64, 40, b_transposed=False, up_transposed=False),
    lambda: gated("gated_majors", 65, 64, 40, b_transposed=False),  # no one kernel of TMA has both
    lambda: gated("gated_fp8", 200, 336, 144, io=E4M3),
    lambda: gated("gated_fp8_any_m", "M", 328, 528, io=E4M3, out=BF16, symbols=ANY_M),
)
# That tensor cores, or kernels that read by TMA, do not take.
ANY_STRIDE_GRAPHS: tuple[Callable[[], Graph], ...] = (
    lambda: reduced("folds_float", 200, 130, 72, FOLDS, io=FLOAT),
    lambda: reduced("folds_float_any_m", "M", 67, 40, FOLDS[:2], io=FLOAT, symbols=ANY_M),
    lambda: reduced("folds_float_alone", 129, 200, 64, FOLDS[4:], FLOAT, batch=3, whole=False),
    lambda: reduced("folds_norm1", 65, 72, 64, [("NORM1", "m"), ("NORM1", "n")], io=FLOAT),
    lambda: plain("float", 130, 96, 77, io=FLOAT),
)
FOLD_GRAPHS: tuple[Callable[[], Graph], ...] = (
    lambda: reduced("folds", 200, 130, 72, FOLDS),  # rows of no whole 16 bytes
    lambda: reduced("folds_m", 200, 328, 136, [(mode, "m") for mode in MODES]),
    lambda: reduced("folds_n", 200, 328, 136, [(mode, "n") for mode in MODES], io=HALF),
    lambda: reduced("folds_mn", 200, 328, 136, [(mode, "mn") for mode in MODES]),
    lambda: reduced("folds_any_m", "M", 67, 40, FOLDS[:2], symbols=ANY_M),
    lambda: crowded("crowded_any_m", "M", 520, 136, symbols=ANY_M),
    lambda: crowded("crowded_odd_n", 200, 333, 1032),
    lambda: crowded("crowded_fp8", 200, 336, 136, out=E4M3),
    lambda: reduced("folds_any_m_aligned", "M", 520, 264, EVERY_AXES, symbols=ANY_M),
    lambda: reduced("folds_alone", 129, 200, 64, FOLDS[4:], batch=3, whole=False),
    lambda: reduced("folds_alone_m", 129, 200, 64, [("ADD", "m")], batch=3, whole=False),
    lambda: reduced("folds_alone_n", "M", 328, 136, [("MAX", "n")], whole=False, symbols=ANY_M),
    lambda: reduced("folds_batch", 130, 136, 72, EVERY_AXES, io=HALF, batch=5),
    lambda: reduced("folds_odd_k", 65, 67, 77, EVERY_AXES),  # no TMA descriptor
    lambda: reduced("folds_split_k", 16, 128, 32768, EVERY_AXES),
    lambda: reduced("folds_split_k_in_cluster", 16, 512, 16384, EVERY_AXES),
    # Clusters of two, the last of which has a tile without rows.
    lambda: reduced("folds_many_tiles", 4160, 1096, 64, FOLDS),
    lambda: reduced("folds_large_tiles", 4160, 3080, 256, FOLDS),
    lambda: quantized("amax", 200, 336, 144),
    lambda: quantized("amax_fp8", 200, 336, 144, io=E4M3),
    lambda: quantized("amax_fp8_any_m", "M", 336, 528, io=E4M3, symbols=ANY_M),
    lambda: bias_gradient("bias_gradient", 300, 520, 264),
    lambda: bias_gradient("bias_gradient_any_m", "M", 328, 136, symbols=ANY_M),
    lambda: gated_amax("gated_amax", 200, 328, 136),
    lambda: gated_amax("gated_amax_fp8", "M", 336, 144, io=E4M3, out=BF16, symbols=ANY_M),
    lambda: block_amax("blocks_amax", 200, 328, 336),
)
BLOCK_SCALED_GRAPHS: tuple[Callable[[], Graph], ...] = (
    lambda: block_scaled("blocks", 200, 328, 336),
    lambda: block_scaled("blocks_any_m", "M", 336, 1040, types=(E4M3, E5M2), symbols=ANY_M),
    lambda: block_scaled("blocks_batch", 130, 136, 272, batch=3, out=HALF),
    lambda: block_scaled("blocks_of_columns", 130, 96, 272, rows=(128, 1)),
    lambda: block_scaled("blocks_of_a_alone", 130, 96, 272, rows=(1, None)),
    lambda: block_scaled("blocks_n_major", 130, 96, 144, b_transposed=False),
    lambda: block_scaled("blocks_of_64_columns", 200, 328, 336, rows=(128, 64), out=E4M3),
    lambda: block_scaled("blocks_stream_k", 16, 512, 16384),
    lambda: block_gated("blocks_gated", "M", 328, 336, symbols=ANY_M),
    lambda: block_scaled("blocks_of_32", 65, 96, 144, rows=(1, 32), depth=32),
    # Of wide tiles, the last of which ends outside.
    lambda: block_scaled("blocks_wide_of_32", 1500, 5128, 272, rows=(1, 32)),
    lambda: block_scaled("blocks_wide_of_a", 1500, 2056, 272, rows=(1, None)),
    lambda: block_scaled("blocks_few_rows", 20, 4104, 528, along_m=True),
)


def bench_graphs() -> list[Graph]:
    plains = [plain(f"bench_{m}x{n}x{k}", m, n, k) for m, n, k in BENCH_SHAPES]
    plains += [
        scaled(f"bench_fp8_{m}x{n}x{k}", m, n, k, by_column=False) for m, n, k in FP8_BENCH_SHAPES
    ]
    plains += [sums(f"bench_int8_{m}x{n}x{k}", m, n, k) for m, n, k in INT8_BENCH_SHAPES]
    plains += [
        block_scaled(f"bench_block_{m}x{n}x{k}", m, n, k, along_m=True)
        for m, n, k in BLOCK_BENCH_SHAPES
    ]
    for m, n, k in FUSED_BENCH_SHAPES:
        for kind in ("gelu", "residual"):
            plains.append(fused(f"bench_{kind}_{m}x{n}x{k}", m, n, k, kind))
    m, n, k = AMAX_BENCH_SHAPE
    plains.append(plain(f"bench_{m}x{n}x{k}", m, n, k))
    plains.append(quantized(f"bench_amax_{m}x{n}x{k}", m, n, k))
    for m, n, k in GATED_BENCH_SHAPES:
        plains.append(gated(f"bench_gated_{m}x{n}x{k}", m, n, k))
        plains.append(gated(f"bench_gated_fp8_{m}x{n}x{k}", m, n, k, io=E4M3, out=BF16))
    return [*plains, bias_and_auxiliaries("bench_128x256x128_bias_aux", 128, 256, 128)]


def main(folder: str) -> None:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    makers = (*TEST_GRAPHS, *ANY_STRIDE_GRAPHS, *FOLD_GRAPHS, *BLOCK_SCALED_GRAPHS)
    for g in [*(make() for make in makers), *bench_graphs()]:
        (out / f"{g.name}.json").write_text(graph_json.dumps(g), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
