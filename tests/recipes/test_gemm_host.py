"""The host kernel against numpy in float64: dtypes, loops, epilogues, odd and zero extents,
strides, batch.
"""

from __future__ import annotations

import math
import subprocess

import ml_dtypes
import numpy as np
import pytest
from kernel_ffi import Buffer, Kernel

NUMPY = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "BFLOAT16": np.dtype(ml_dtypes.bfloat16),
}
# Half an ulp of the output dtype, and for fp32 the accumulation of a few hundred products.
TOLERANCE = {"FLOAT": 2e-5, "HALF": 6e-4, "BFLOAT16": 5e-3}


def plain(dtype):
    return {"inputs": [], "nodes": [], "outputs": [{"value": 0, "dtype": dtype}]}


CHAIN = {
    "inputs": [
        {"dtype": "BFLOAT16", "kind": "row"},
        {"dtype": "FLOAT", "kind": "col"},
        {"dtype": "HALF", "kind": "full"},
        {"dtype": "FLOAT", "kind": "scalar"},
        {"dtype": "FLOAT", "kind": "value"},
    ],
    "nodes": [
        ["bias", [0, 1], {}],
        ["gelu", [6], {}],
        ["cast", [7], {"dtype": "BFLOAT16"}],
        ["mul", [8, 2], {}],
        ["add", [9, 3], {}],
        ["scale", [10, 4], {}],
        ["scale", [11, 5], {}],
    ],
    "outputs": [
        {"value": 12, "dtype": "BFLOAT16"},
        {"value": 7, "dtype": "FLOAT"},
        {"value": 6, "dtype": "HALF"},
    ],
}
CASTS = {
    "inputs": [],
    "nodes": [["cast", [0], {"dtype": dtype}] for dtype in ("BFLOAT16", "HALF", "BOOLEAN")],
    "outputs": [{"value": v, "dtype": "FLOAT"} for v in range(1, 4)],
}
KERNELS = {
    "float": {"ab_dtype": "FLOAT", "products": 1, "epilogue": plain("FLOAT")},
    "half": {"ab_dtype": "HALF", "products": 1, "epilogue": plain("HALF")},
    "bfloat16": {"ab_dtype": "BFLOAT16", "products": 1, "epilogue": plain("BFLOAT16")},
    "chain": {"ab_dtype": "BFLOAT16", "products": 1, "epilogue": CHAIN},
    "casts": {"ab_dtype": "FLOAT", "products": 1, "epilogue": CASTS},
}
RUNTIME_SYMBOLS = {
    "TVMFFIErrorSetRaisedFromCStrParts",
    "TVMFFIErrorSetRaisedFromCStr",
    "_GLOBAL_OFFSET_TABLE_",
}
LIBM = {"expf", "exp", "memset", "memcpy"}


@pytest.fixture(scope="module")
def kernels(compile_kernels, tmp_path_factory):
    out = tmp_path_factory.mktemp("host")
    jobs = [
        {"name": name, "template": "gemm.kernels.host:matmul", "params": params, "arch": ""}
        for name, params in KERNELS.items()
    ]
    compile_kernels(jobs, out)
    loaded = {}
    for name in KERNELS:
        symbols = subprocess.run(
            ["nm", "-u", out / f"{name}.o"], capture_output=True, text=True, check=True
        )
        undefined = {word for word in symbols.stdout.split() if word != "U"}
        assert undefined <= RUNTIME_SYMBOLS | LIBM, name
        subprocess.run(
            ["cc", "-shared", "-o", out / f"{name}.so", out / f"{name}.o", "-lm"], check=True
        )
        loaded[name] = Kernel(out / f"{name}.so")
    return loaded


def buffer(array, dtype):
    return Buffer(
        array.ctypes.data, dtype, array.shape, tuple(s // array.itemsize for s in array.strides)
    )


def normal(rng, shape, dtype):
    return rng.standard_normal(shape).astype(NUMPY[dtype])


def poisoned(shape, dtype):
    return np.full(shape, np.nan, NUMPY[dtype])


def product(a, b):
    """(M, K, La) x (N, K, Lb) -> (M, N, L) in float64."""
    batch = max(a.shape[2], b.shape[2])
    a, b = (np.broadcast_to(x.astype("f8"), (*x.shape[:2], batch)) for x in (a, b))
    return np.einsum("mkl,nkl->mnl", a, b)


def close(got, want, dtype):
    want = np.asarray(want)
    got = got.astype("f8")
    scale = np.maximum(np.abs(want), 1.0)
    assert np.all(np.abs(got - want) <= TOLERANCE[dtype] * scale), np.max(
        np.abs(got - want) / scale
    )


# One row per regime: (M, N, K, La, Lb).
SHAPES = {
    "whole blocks": (8, 32, 64, 1, 1),
    "odd everything": (7, 19, 37, 1, 1),
    "one row, as in decode": (1, 33, 40, 1, 1),
    "k below the vector": (5, 3, 3, 1, 1),
    "batch": (5, 18, 16, 3, 3),
    "broadcast b": (6, 17, 24, 3, 1),
    "broadcast a": (6, 17, 24, 1, 2),
    "k = 0 gives zeros": (3, 4, 0, 1, 1),
    "no rows": (0, 4, 8, 1, 1),
    "no columns": (4, 0, 8, 1, 1),
}
# K-contiguous pairs take the dot loop, N-contiguous B the axpy loop, the rest the general one.
LAYOUTS = {
    "dot": (lambda a: a, lambda b: b),
    "axpy": (lambda a: a, lambda b: np.swapaxes(np.swapaxes(b, 0, 1).copy(), 0, 1)),
    "axpy, a m-major": (
        lambda a: np.swapaxes(np.swapaxes(a, 0, 1).copy(), 0, 1),
        lambda b: np.swapaxes(np.swapaxes(b, 0, 1).copy(), 0, 1),
    ),
    "any": (lambda a: np.repeat(a, 2, axis=1)[:, ::2], lambda b: np.repeat(b, 3, axis=1)[:, ::3]),
    "negative": (lambda a: a[::-1, ::-1].copy()[::-1, ::-1], lambda b: b),
}


def batch_outermost(array):
    """The same values with the batch axis outermost in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 2, 0)), 0, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["FLOAT", "HALF", "BFLOAT16"])
def test_plain(kernels, dtype, layout):
    rng = np.random.default_rng(1)
    kernel = kernels[dtype.lower()]
    for name, (m, n, k, la, lb) in SHAPES.items():
        lay_a, lay_b = LAYOUTS[layout]
        a = lay_a(batch_outermost(normal(rng, (m, k, la), dtype)))
        b = lay_b(batch_outermost(normal(rng, (n, k, lb), dtype)))
        out = batch_outermost(poisoned((m, n, max(la, lb)), dtype))
        assert kernel(buffer(a, dtype), buffer(b, dtype), buffer(out, dtype)) is None, name
        close(out, product(a, b), dtype)


def gelu(x):
    return x * 0.5 * np.vectorize(math.erfc, otypes=["f8"])(-x / math.sqrt(2))


def test_chain_with_every_operand_kind(kernels):
    """A row, a column, a matrix, a device and a host scalar; three outputs of three dtypes."""
    rng = np.random.default_rng(2)
    for m, n, k, batch in ((9, 21, 40, 2), (1, 7, 8, 1), (4, 16, 0, 1)):
        a, b = normal(rng, (m, k, batch), "BFLOAT16"), normal(rng, (n, k, 1), "BFLOAT16")
        row, col = normal(rng, (1, n, 1), "BFLOAT16"), normal(rng, (m, 1, batch), "FLOAT")
        full, scalar = normal(rng, (m, n, batch), "HALF"), normal(rng, (1, 1, 1), "FLOAT")
        aux = [np.broadcast_to(x, (m, n, batch)) for x in (row, col, full, scalar)]
        outs = [poisoned((m, n, batch), entry["dtype"]) for entry in CHAIN["outputs"]]
        arguments = [buffer(a, "BFLOAT16"), buffer(b, "BFLOAT16")]
        arguments += [buffer(x, e["dtype"]) for x, e in zip(aux, CHAIN["inputs"], strict=False)]
        arguments += [
            -0.75,
            *(buffer(x, e["dtype"]) for x, e in zip(outs, CHAIN["outputs"], strict=True)),
        ]
        # An axis of a broadcast operand has stride 0 also where numpy says otherwise (extent 1).
        fixed = {2: (0,), 3: (1,), 5: (0, 1)}
        for index, axes in fixed.items():
            t = arguments[index]
            strides = tuple(0 if axis in axes else s for axis, s in enumerate(t.strides))
            arguments[index] = Buffer(t.address, t.dtype, t.shape, strides)
        assert kernels["chain"](*arguments) is None
        r, c, f, s = (x.astype("f8") for x in aux)
        biased = product(a, b) + r
        active = gelu(biased)
        rounded = active.astype(np.float32).astype(NUMPY["BFLOAT16"]).astype("f8")
        want = [(rounded * c + f) * s * -0.75, active, biased]
        # The rounding inside the chain may fall on the other side of a tie: one ulp of bf16.
        close(outs[0], want[0], "BFLOAT16")
        close(outs[1], want[1], "FLOAT")
        close(outs[2], want[2], "HALF")


@np.errstate(all="ignore")
def test_casts_are_exact(kernels):
    """Ties, overflow, infinities and NaN. K = 1 and B = 1 make the accumulator the input itself."""
    ties = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x33000000, 0x3F801000], np.uint32)
    x = np.concatenate([np.linspace(-12, 12, 97), [0.0, 1e-30, 1e30, np.inf, -np.inf, np.nan]])
    x = np.concatenate([ties.view(np.float32), x.astype(np.float32)])
    a, b = x.reshape(-1, 1, 1), np.ones((1, 1, 1), np.float32)
    outs = [poisoned((x.size, 1, 1), "FLOAT") for _ in CASTS["outputs"]]
    assert kernels["casts"](*(buffer(t, "FLOAT") for t in (a, b, *outs))) is None
    for got, dtype in zip(outs, ("BFLOAT16", "HALF"), strict=False):
        want = x.astype(NUMPY[dtype]).astype(np.float32)
        np.testing.assert_array_equal(got.reshape(-1), want)
    np.testing.assert_array_equal(outs[2].reshape(-1), (x != 0).astype(np.float32))


def test_wrapper_refuses_wrong_operands(kernels):
    """Equal symbols and static zero strides are checked by the compiled wrapper, in one line."""
    a, b, out = (np.zeros(s, np.float32) for s in ((4, 8, 1), (6, 7, 1), (4, 6, 1)))
    error = kernels["float"](*(buffer(t, "FLOAT") for t in (a, b, out)))
    assert error is not None and "shape[1]" in error and "\n" not in error
    error = kernels["float"](buffer(a, "FLOAT"), buffer(a, "FLOAT"))
    assert error is not None and "3" in error
