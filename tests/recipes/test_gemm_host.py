"""The host kernel against numpy in float64: dtypes, loops, epilogues, odd and zero extents,
strides, batch.
"""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from kernel_ffi import CUDA, Buffer, Kernel

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.reference.storage import from_storage, to_storage
from cudnn_aot.recipes.gemm.capability import MAX_INT8_K

NUMPY = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "BFLOAT16": np.dtype(ml_dtypes.bfloat16),
    "FP8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "FP8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "INT8": np.dtype(np.int8),
    "INT32": np.dtype(np.int32),
}
# Half an ulp of the output dtype, and for fp32 the accumulation of a few hundred products.
TOLERANCE = {"FLOAT": 2e-5, "HALF": 6e-4, "BFLOAT16": 5e-3}


def plain(*dtypes):
    return {"inputs": [], "nodes": [], "outputs": [{"value": 0, "dtype": d} for d in dtypes]}


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
FP8 = ("FP8_E4M3", "FP8_E5M2")
NARROW = {  # each output type, and what a chain reads through a tensor of it
    "inputs": [],
    "nodes": [["cast", [0], {"dtype": dtype}] for dtype in (*FP8, "INT8")],
    "outputs": [
        *({"value": 0, "dtype": dtype} for dtype in (*FP8, "INT8")),
        *({"value": value, "dtype": "FLOAT"} for value in (1, 2, 3)),
    ],
}
QUANTIZED = {  # the sums themselves, as stores round them, and scaled by a row and a number
    "inputs": [{"dtype": "FLOAT", "kind": "row"}, {"dtype": "FLOAT", "kind": "value"}],
    "nodes": [["scale", [0, 1], {}], ["scale", [3, 2], {}]],
    "outputs": [
        {"value": 0, "dtype": "INT32"},
        *({"value": 0, "dtype": dtype} for dtype in ("FLOAT", "BFLOAT16", "INT8")),
        {"value": 4, "dtype": "FLOAT"},
        {"value": 4, "dtype": "INT8"},
    ],
}
# Types of A, B and the output.
PLAIN = {
    "float": ("FLOAT", "FLOAT", "FLOAT"),
    "half": ("HALF", "HALF", "HALF"),
    "bfloat16": ("BFLOAT16", "BFLOAT16", "BFLOAT16"),
    **{f"{a}_{b}": (a, b, "FLOAT") for a in FP8 for b in FP8},
}
KERNELS = {
    name: {"a_dtype": a, "b_dtype": b, "products": 1, "epilogue": epilogue}
    for name, (a, b, epilogue) in {
        **{name: (a, b, plain(out)) for name, (a, b, out) in PLAIN.items()},
        "chain": ("BFLOAT16", "BFLOAT16", CHAIN),
        "casts": ("FLOAT", "FLOAT", CASTS),
        "narrow": ("FLOAT", "FLOAT", NARROW),
        "quantized": ("INT8", "INT8", QUANTIZED),
    }.items()
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
    jobs.append(jobs[list(KERNELS).index("chain")] | {"name": "stored", "stored": True})
    compile_kernels(jobs, out)
    loaded = {}
    for name in (job["name"] for job in jobs):
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
    """Normal numbers; of INT8, all that it has."""
    if NUMPY[dtype].kind == "i":
        return rng.integers(-128, 128, shape).astype(NUMPY[dtype])
    return rng.standard_normal(shape).astype(NUMPY[dtype])


def poisoned(shape, dtype):
    return np.full(shape, 77 if NUMPY[dtype].kind == "i" else np.nan, NUMPY[dtype])


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
@pytest.mark.parametrize("name", PLAIN)
def test_plain(kernels, name, layout):
    rng = np.random.default_rng(1)
    kernel, (a_dtype, b_dtype, dtype) = kernels[name], PLAIN[name]
    for name, (m, n, k, la, lb) in SHAPES.items():
        lay_a, lay_b = LAYOUTS[layout]
        a = lay_a(batch_outermost(normal(rng, (m, k, la), a_dtype)))
        b = lay_b(batch_outermost(normal(rng, (n, k, lb), b_dtype)))
        out = batch_outermost(poisoned((m, n, max(la, lb)), dtype))
        assert kernel(buffer(a, a_dtype), buffer(b, b_dtype), buffer(out, dtype)) is None, name
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


@pytest.mark.parametrize("layout", ["dot", "axpy", "any"])
@pytest.mark.parametrize("dtype", FP8)
def test_every_fp8_number_is_read_exactly(kernels, dtype, layout):
    """All 256 encodings as A, times 1, and as B: subnormal numbers, zeros, infinities and NaN. Of
    nine addends eight are zeros, so vectors and what is left of them both see each.
    """
    encodings = np.arange(256, dtype=np.uint8).view(NUMPY[dtype])
    every = np.zeros((256, 9, 9), NUMPY[dtype])  # (encoding, where it stands, k)
    every[:, np.arange(9), np.arange(9)] = encodings[:, None]
    every = np.ascontiguousarray(every.reshape(-1, 9, 1))
    one = np.ones((1, 9, 1), NUMPY[dtype])
    want = np.repeat(encodings.astype(np.float32), 9)
    lay_a, lay_b = LAYOUTS[layout]
    for a, b in ((lay_a(every), lay_b(one)), (lay_a(one), lay_b(every))):
        out = poisoned((a.shape[0], b.shape[0], 1), "FLOAT")
        arguments = (buffer(a, dtype), buffer(b, dtype), buffer(out, "FLOAT"))
        assert kernels[f"{dtype}_{dtype}"](*arguments) is None
        np.testing.assert_array_equal(out.reshape(-1), want)


@np.errstate(all="ignore")
def test_narrow_outputs_round_to_even_and_saturate(kernels):
    """Every number of the types, the middles between two and what is next to them in fp32."""
    numbers = [np.arange(256, dtype=np.uint8).view(NUMPY[d]).astype(np.float32) for d in FP8]
    numbers = np.unique(np.concatenate([*numbers, np.arange(-130, 131, dtype=np.float32)]))
    numbers = numbers[np.isfinite(numbers)]
    middles = (numbers[1:] + numbers[:-1]) / 2
    x = np.concatenate([numbers, middles])
    x = np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf)])
    large = np.float32([449, 463.99, 464, 464.01, 480, 61440, 65536, 1e30, np.inf, 1e-30, 1e-44])
    x = np.concatenate([x, large, -large, [np.nan]]).astype(np.float32)
    a, b = x.reshape(-1, 1, 1), np.ones((1, 1, 1), np.float32)
    outs = [poisoned((x.size, 1, 1), entry["dtype"]) for entry in NARROW["outputs"]]
    arguments = [buffer(a, "FLOAT"), buffer(b, "FLOAT")]
    arguments += [buffer(o, e["dtype"]) for o, e in zip(outs, NARROW["outputs"], strict=True)]
    assert kernels["narrow"](*arguments) is None
    for dtype, stored, read in zip((*FP8, "INT8"), outs[:3], outs[3:], strict=True):
        want = to_storage(x, data_type[dtype])
        got = stored.reshape(-1).view(want.dtype)
        is_nan = np.isnan(x) & (dtype != "INT8")
        np.testing.assert_array_equal(got[~is_nan], want[~is_nan])
        values = from_storage(want, data_type[dtype])
        np.testing.assert_array_equal(read.reshape(-1), values)
        np.testing.assert_array_equal(stored.reshape(-1).astype(np.float32), values)


def quantized(kernels, a, b, row, number):
    """The outputs of that kernel, which all of them have (M, N, 1)."""
    shape = (a.shape[0], b.shape[0], 1)
    outs = [poisoned(shape, entry["dtype"]) for entry in QUANTIZED["outputs"]]
    wide = buffer(np.broadcast_to(row.reshape(1, -1, 1), shape), "FLOAT")
    wide = Buffer(wide.address, wide.dtype, shape, (0, wide.strides[1], wide.strides[2]))
    arguments = [buffer(a, "INT8"), buffer(b, "INT8"), wide, number]
    arguments += [buffer(o, e["dtype"]) for o, e in zip(outs, QUANTIZED["outputs"], strict=True)]
    assert kernels["quantized"](*arguments) is None
    return outs


@pytest.mark.parametrize("layout", ["dot", "axpy", "any"])
def test_int8_is_summed_exactly_and_scaled_in_fp32(kernels, layout):
    rng = np.random.default_rng(3)
    lay_a, lay_b = LAYOUTS[layout]
    for m, n, k in ((7, 18, 1001), (8, 32, 64), (1, 33, 3), (5, 16, 0)):
        a, b = lay_a(normal(rng, (m, k, 1), "INT8")), lay_b(normal(rng, (n, k, 1), "INT8"))
        row = rng.uniform(0.5, 2.0, n).astype(np.float32)
        sums, *stored, scaled, again = quantized(kernels, a, b, row, 1e-4)
        want = product(a, b)
        np.testing.assert_array_equal(sums, want)
        for got, dtype in zip(stored, ("FLOAT", "BFLOAT16", "INT8"), strict=True):
            exact = to_storage(want.astype(np.float32), data_type[dtype])
            np.testing.assert_array_equal(got.view(exact.dtype), exact)
        exact = want * row[:, None].astype("f8") * float(np.float32(1e-4))
        np.testing.assert_allclose(scaled, exact, rtol=3 * 2.0**-24)  # three roundings to fp32
        np.testing.assert_array_equal(again, to_storage(scaled, data_type.INT8))


@pytest.mark.parametrize("layout", ["dot", "axpy", "any"])
def test_the_largest_sums_of_int8(kernels, layout):
    """As long as they may be: the first fits INT32 by 16384, and the last is no fp32."""
    k = MAX_INT8_K
    lay_a, lay_b = LAYOUTS[layout]
    a, b = np.full((3, k, 1), -128, np.int8), np.full((17, k, 1), -128, np.int8)
    a[1], a[2, -1] = 127, 1
    b[16, -1] = 127
    want = product(a, b)
    assert want[0, 0] == 2**31 - 2**14 and want[2, 16] % 2 == 1
    a, b = lay_a(a), lay_b(b)
    sums, floats, *_ = quantized(kernels, a, b, np.ones(17, np.float32), 1.0)
    np.testing.assert_array_equal(sums, want)
    np.testing.assert_array_equal(floats, want.astype(np.float32))


def test_wrapper_refuses_wrong_operands(kernels):
    """Equal symbols and static zero strides are checked by the compiled wrapper, in one line."""
    a, b, out = (np.zeros(s, np.float32) for s in ((4, 8, 1), (6, 7, 1), (4, 6, 1)))
    error = kernels["float"](*(buffer(t, "FLOAT") for t in (a, b, out)))
    assert error is not None and "shape[1]" in error and "\n" not in error
    error = kernels["float"](buffer(a, "FLOAT"), buffer(a, "FLOAT"))
    assert error is not None and "3" in error


def test_a_stored_wrapper_says_what_the_dsl_says(kernels):
    """Of everything that may be wrong with an argument, to the letter."""
    memory = np.zeros((64, 64, 8), np.float32)  # more than any call gets at
    a = b = replace(buffer(memory, "BFLOAT16"), shape=(4, 8, 2))
    full = replace(a, shape=(4, 4, 2))
    row = replace(full, strides=(0, 1, 4))
    col = replace(full, dtype="FLOAT", strides=(1, 0, 4))
    scalar = replace(full, dtype="FLOAT", strides=(0, 0, 1))
    outs = [replace(full, dtype=dtype) for dtype in ("BFLOAT16", "FLOAT", "HALF")]
    right = [a, b, row, col, replace(full, dtype="HALF"), scalar, 2.0, *outs]
    calls = [[], right[:-1], [*right, 1]]
    for i, argument in enumerate(right):
        wrong: list = [replace(a, dtype="INT64"), 7]
        if isinstance(argument, Buffer):
            wrong = [1.5, *(replace(argument, dtype=dtype) for dtype in ("INT8", "DOUBLE"))]
            wrong += [replace(argument, address=argument.address + 1)]
            wrong += [replace(argument, device=CUDA)]
            wrong += [replace(argument, shape=(4, 4), strides=(4, 1))]
            for axis in range(3):
                behind = slice(axis + 1, None)
                for extent in (3, 2**31):
                    shape = (*argument.shape[:axis], extent, *argument.shape[behind])
                    wrong.append(replace(argument, shape=shape))
                strides = (*argument.strides[:axis], 3, *argument.strides[behind])
                wrong.append(replace(argument, strides=strides))
        calls += [[*right[:i], each, *right[i + 1 :]] for each in wrong]
    said = set()
    for call in calls:
        errors = [kernels[name](*call) for name in ("chain", "stored")]
        assert errors[0] == errors[1]
        said.add(errors[0])
    assert len(said) > 60, said
