"""The host kernel's products of one A and its reductions against numpy in float64; and the two
graphs of the frontend that have them, built and run for the CPU.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path

import gemm_graphs
import ml_dtypes
import numpy as np
import pytest
from cli_process import run_cli, write_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_ffi import Buffer, Kernel

from cudnn_aot.recipes.reductions import FOLDED

NUMPY = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "BFLOAT16": np.dtype(ml_dtypes.bfloat16),
    "FP8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "FP8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "INT8": np.dtype(np.int8),
    "INT32": np.dtype(np.int32),
    "DOUBLE": np.dtype(np.float64),
}
# Half an ulp of the output dtype, and for fp32 the accumulation of a few hundred products.
TOLERANCE = {"FLOAT": 2e-5, "HALF": 6e-4, "BFLOAT16": 5e-3}
AXES = {"m": (0,), "n": (1,), "mn": (0, 1)}


def reduced(value, mode, axes, dtype="FLOAT"):
    return {"value": value, "dtype": dtype, "reduce": {"mode": mode, "axes": axes}}


# swish(gate + bias) * up, with both products and what its rows add up to.
GATED = {
    "inputs": [{"dtype": "FLOAT", "kind": "row"}],
    "nodes": [["bias", [0, 2], {}], ["swish", [3], {}], ["mul", [4, 1], {}]],
    "outputs": [
        {"value": 5, "dtype": "BFLOAT16"},
        {"value": 0, "dtype": "FLOAT"},
        {"value": 1, "dtype": "FLOAT"},
        reduced(5, "ADD", "n"),
    ],
}
# Every mode, and two of them along all axes: each takes its time to compile.
FOLDS = [*zip(FOLDED, itertools.cycle(AXES), strict=False)]
FOLDS += [(mode, axes) for mode in ("ADD", "AMAX") for axes in AXES if (mode, axes) not in FOLDS]
# Nothing but reductions is written.
FOLDED_ONLY = {"inputs": [], "nodes": [], "outputs": [reduced(0, *f) for f in FOLDS]}
# Sums in narrow types of a value rounded to one of them.
NARROW = {
    "inputs": [],
    "nodes": [["cast", [0], {"dtype": "BFLOAT16"}]],
    "outputs": [reduced(1, "ADD", "m", "BFLOAT16"), reduced(1, "AVG", "mn", "HALF")],
}
# swish(gate * s) * (up * t), s and t tensors of one value, and what its magnitudes reach.
SCALED = {
    "inputs": [{"dtype": "FLOAT", "kind": "scalar"}] * 2,
    "nodes": [
        ["scale", [0, 2], {}],
        ["swish", [4], {}],
        ["scale", [1, 3], {}],
        ["mul", [5, 6], {}],
    ],
    "outputs": [{"value": 7, "dtype": "BFLOAT16"}, reduced(7, "AMAX", "mn")],
}
# The sums of both products as they are, folded, and their fp32 product.
SUMS = {
    "inputs": [],
    "nodes": [["mul", [0, 1], {}]],
    "outputs": [
        {"value": 0, "dtype": "INT32"},
        {"value": 1, "dtype": "INT32"},
        {"value": 2, "dtype": "FLOAT"},
        reduced(1, "ADD", "m"),
        reduced(0, "AMAX", "mn", "BFLOAT16"),
    ],
}
KERNELS = {
    name: {"a_dtype": a, "b_dtype": b, "products": products, "epilogue": epilogue}
    for name, (a, b, products, epilogue) in {
        "gated_bfloat16": ("BFLOAT16", "BFLOAT16", 2, GATED),
        "gated_float": ("FLOAT", "FLOAT", 2, GATED),
        "folds": ("FLOAT", "FLOAT", 1, FOLDED_ONLY),
        "narrow": ("BFLOAT16", "BFLOAT16", 1, NARROW),
        "scaled_fp8": ("FP8_E4M3", "FP8_E5M2", 2, SCALED),
        "sums_int8": ("INT8", "INT8", 2, SUMS),
    }.items()
}


@pytest.fixture(scope="module")
def kernels(compile_kernels, tmp_path_factory):
    out = tmp_path_factory.mktemp("fused")
    jobs = [
        {"name": name, "template": "gemm.kernels.host:matmul", "params": params, "arch": ""}
        for name, params in KERNELS.items()
    ]
    compile_kernels(jobs, out)
    loaded = {}
    for name in KERNELS:
        subprocess.run(
            ["cc", "-shared", "-o", out / f"{name}.so", out / f"{name}.o", "-lm"], check=True
        )
        loaded[name] = Kernel(out / f"{name}.so")
    return loaded


def buffer(array, dtype):
    return spread(array, array.shape, dtype, ())


def spread(array, shape, dtype, axes):
    """A buffer of the result's shape that is one value along some axes."""
    strides = [s // array.itemsize for s in array.strides]
    strides = tuple(0 if axis in axes else s for axis, s in enumerate(strides))
    return Buffer(array.ctypes.data, dtype, shape, strides)


def poisoned(shape, dtype):
    return np.full(shape, 77 if dtype.kind == "i" else np.nan, dtype)


def run(kernels, name, a, bs, aux=()):
    """Every output of a call, poisoned before: totals and outputs must be written, not added to."""
    params = KERNELS[name]
    m, n, batch = a.shape[0], bs[0].shape[0], max(a.shape[2], bs[0].shape[2])
    outs, arguments, totals = [], [], []
    for entry in params["epilogue"]["outputs"]:
        axes = AXES[entry["reduce"]["axes"]] if "reduce" in entry else ()
        shape = tuple(1 if i in axes else extent for i, extent in enumerate((m, n, batch)))
        outs.append(poisoned(shape, NUMPY[entry["dtype"]]))
        arguments.append(spread(outs[-1], (m, n, batch), entry["dtype"], axes))
        if axes:
            totals.append((np.full(shape, np.nan), axes))
    matrices = [buffer(a, params["a_dtype"]), *(buffer(b, params["b_dtype"]) for b in bs)]
    folding = [spread(total, (m, n, batch), "DOUBLE", axes) for total, axes in totals]
    assert kernels[name](*matrices, *aux, *arguments, *folding) is None
    return outs


def product(a, b):
    """(M, K, La) x (N, K, Lb) -> (M, N, L) in float64."""
    batch = max(a.shape[2], b.shape[2])
    a, b = (np.broadcast_to(x.astype("f8"), (*x.shape[:2], batch)) for x in (a, b))
    return np.einsum("mkl,nkl->mnl", a, b)


def folded(x, mode, axes):
    """float64, ``x`` (M, N, L)."""
    count = np.prod([x.shape[axis] for axis in axes])
    options = {"axis": axes, "keepdims": True}
    with np.errstate(invalid="ignore"):
        return {
            "ADD": lambda: x.sum(**options),
            "MIN": lambda: x.min(**options, initial=np.inf),
            "MAX": lambda: x.max(**options, initial=-np.inf),
            "AMAX": lambda: np.abs(x).max(**options, initial=0),
            "AVG": lambda: x.sum(**options) / np.float64(count),
            "NORM1": lambda: np.abs(x).sum(**options),
            "NORM2": lambda: np.sqrt((x * x).sum(**options)),
        }[mode]()


def close(got, want, dtype, terms=1):
    """Up to the rounding of the values that are added up, each at its own place."""
    got, want = got.astype("f8"), np.asarray(want)
    scale = TOLERANCE[dtype] * np.maximum(np.abs(want), 1.0) * np.sqrt(max(terms, 1))
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        assert np.all(same | (np.abs(got - want) <= scale)), (got - want, scale)


# K-contiguous operands take the dot loop, N-contiguous B the axpy loop, a mixture the general one.
def along_k(x):
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 2, 0)), 0, 2)


def along_rows(x):
    return np.swapaxes(along_k(np.swapaxes(x, 0, 1)), 0, 1)


LAYOUTS = {
    "dot": (along_k, along_k),
    "axpy": (along_rows, along_rows),
    "different majors": (along_k, along_rows),
}
# One row per regime: (M, N, K, La, Lb).
SHAPES = {
    "whole blocks": (8, 32, 64, 1, 1),
    "odd everything": (7, 19, 37, 1, 1),
    "one row": (1, 33, 40, 1, 1),
    "batch": (5, 18, 16, 3, 3),
    "broadcast b": (6, 17, 24, 3, 1),
    "k = 0": (3, 4, 0, 1, 1),
    "no rows": (0, 4, 8, 1, 1),
    "no columns": (4, 0, 8, 1, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["FLOAT", "BFLOAT16"])
def test_gated(kernels, dtype, layout):
    rng = np.random.default_rng(1)
    for m, n, k, la, lb in SHAPES.values():
        a = along_k(rng.standard_normal((m, k, la)).astype(NUMPY[dtype]))
        bs = [lay(rng.standard_normal((n, k, lb)).astype(NUMPY[dtype])) for lay in LAYOUTS[layout]]
        bias = rng.standard_normal((1, n, 1)).astype(np.float32)
        batch = max(la, lb)
        aux = spread(bias, (m, n, batch), "FLOAT", (0, 2))
        outs = run(kernels, f"gated_{dtype.lower()}", a, bs, [aux])
        gate, up = (product(a, b) for b in bs)
        biased = gate + bias
        y = biased / (1 + np.exp(-biased)) * up
        close(outs[0], y, "BFLOAT16")
        close(outs[1], gate, "FLOAT")
        close(outs[2], up, "FLOAT")
        # The terms' own rounding error is of their size, not of their sum's.
        size = np.abs(y).sum(axis=1, keepdims=True)
        assert np.all(np.abs(outs[3] - y.sum(axis=1, keepdims=True)) <= 2e-5 * np.maximum(size, 1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gated_of_fp8(kernels, layout):
    """A and B of different FP8 types, with scales of the whole tensors."""
    rng = np.random.default_rng(5)
    for m, n, k, la, lb in SHAPES.values():
        a = along_k(rng.standard_normal((m, k, la)).astype(NUMPY["FP8_E4M3"]))
        shape = (n, k, lb)
        bs = [lay(rng.standard_normal(shape).astype(NUMPY["FP8_E5M2"])) for lay in LAYOUTS[layout]]
        scales = [np.full((1, 1, 1), value, np.float32) for value in (0.25, 1.75)]
        aux = [spread(scale, (m, n, max(la, lb)), "FLOAT", (0, 1, 2)) for scale in scales]
        out, largest = run(kernels, "scaled_fp8", a, bs, aux)
        gate, up = (product(a, b) * scale for b, scale in zip(bs, (0.25, 1.75), strict=True))
        want = gate / (1 + np.exp(-gate)) * up
        close(out, want, "BFLOAT16")
        close(largest, folded(want, "AMAX", (0, 1)), "FLOAT")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_of_int8_are_exact_and_folded(kernels, layout):
    """Those of the second product as well, beside what is computed of both in fp32."""
    rng = np.random.default_rng(6)
    for m, n, k, la, lb in SHAPES.values():
        a = along_k(rng.integers(-128, 128, (m, k, la)).astype(np.int8))
        bs = [lay(rng.integers(-128, 128, (n, k, lb)).astype(np.int8)) for lay in LAYOUTS[layout]]
        outs = run(kernels, "sums_int8", a, bs)
        one, two = (product(a, b) for b in bs)
        np.testing.assert_array_equal(outs[0], one)
        np.testing.assert_array_equal(outs[1], two)
        close(outs[2], one * two, "FLOAT")
        # Below 2**24: fp32 has every one of these sums.
        np.testing.assert_array_equal(outs[3], two.sum(axis=0, keepdims=True))
        close(outs[4], folded(one, "AMAX", (0, 1)), "BFLOAT16")


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 13), st.integers(0, 37), st.integers(0, 20), st.integers(1, 3)),
    layout=st.sampled_from(sorted(LAYOUTS)),
    special=st.sampled_from([None, np.nan, np.inf]),
    seed=st.integers(0, 99),
)
def test_every_fold(kernels, shape, layout, special, seed):
    """Any extents, 0 among them; NaN goes through every mode."""
    m, n, k, batch = shape
    rng = np.random.default_rng(seed)
    a = along_k(rng.standard_normal((m, k, batch)).astype(np.float32))
    b = LAYOUTS[layout][1](rng.standard_normal((n, k, 1)).astype(np.float32))
    if special is not None and m and k:
        a[m // 2, 0, 0] = special
    outs = run(kernels, "folds", a, [b])
    with np.errstate(invalid="ignore"):
        c = product(a, b)
    for (mode, axes), out in zip(FOLDS, outs, strict=True):
        close(out, folded(c, mode, AXES[axes]), "FLOAT", terms=m * n)


def test_sums_in_narrow_types_of_what_was_rounded(kernels):
    rng = np.random.default_rng(3)
    a = rng.standard_normal((70, 24, 2)).astype(NUMPY["BFLOAT16"])
    b = rng.standard_normal((9, 24, 1)).astype(NUMPY["BFLOAT16"])
    sums, mean = run(kernels, "narrow", a, [b])
    rounded = product(a, b).astype(np.float32).astype(NUMPY["BFLOAT16"]).astype("f8")
    close(sums, rounded.sum(axis=0, keepdims=True), "BFLOAT16")
    close(mean, rounded.mean(axis=(0, 1), keepdims=True), "HALF")


def test_a_sum_of_a_million_equal_values_loses_none(kernels):
    """In fp32, one by one, the last of them would be rounded away or up, all the same way."""
    a, b = np.full((1024, 1, 1), 1.1, np.float32), np.full((1024, 1, 1), 1.3, np.float32)
    outs = run(kernels, "folds", a, [b])
    got = outs[FOLDS.index(("ADD", "mn"))].item()
    want = float(np.float32(1.1) * np.float32(1.3)) * 1024 * 1024
    assert abs(got - want) <= 1e-7 * want


# --- the frontend's graphs -----------------------------------------------------------------------

FRONTEND = Path(__file__).parents[1] / "data/peer_graphs/cudnn_frontend_1_32"


def smaller(name, extents):
    """The text of a graph file with other extents, and the strides that follow from them."""
    sizes = dict(extents)
    for one in extents:
        sizes |= {one * other: extents[one] * extents[other] for other in extents}

    def changed(value, key=""):
        if isinstance(value, dict):
            return {k: changed(v, k) for k, v in value.items()}
        if isinstance(value, list):
            is_extents = key in ("dim", "stride")
            return [sizes.get(v, v) if is_extents else changed(v) for v in value]
        return value

    return json.dumps(changed(json.loads((FRONTEND / f"{name}.json").read_text())))


EXTENTS = {
    "gemm_swiglu_dual": {2048: 37, 4096: 72, 11008: 90},
    "gemm_colsum": {1024: 77},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frontend")
    files = [folder / f"{name}.json" for name in EXTENTS]
    for path in files:
        path.write_text(smaller(path.stem, EXTENTS[path.stem]))
    any_rows = {"M": {"min": 0, "max": 64}}
    folds = [("ADD", "m"), ("MIN", "mn"), ("AVG", "n")]
    graph = gemm_graphs.reduced("folds", "M", 33, 40, folds, batch=2, symbols=any_rows)
    files.append(write_graph(folder, graph))
    done = run_cli("build", *files, "--target", "cpu", "--store", folder / "store")
    assert done.returncode == 0, done.stderr
    return folder / "store"


@pytest.mark.parametrize("name", EXTENTS)
def test_graphs_of_the_frontend(store, name):
    done = run_cli("run", name, "--target", "cpu", "--store", store, "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["runs"]
    assert row["correct"] and row["worst_error"] <= 1.0


@pytest.mark.parametrize("rows", [0, 1, 21])
def test_folds_of_any_number_of_rows(store, rows):
    """The table sends a call without rows to the kernel, which writes what is left of none."""
    done = run_cli("run", "folds", "-t", "cpu", "--symbol", f"M={rows}", "--store", store)
    assert done.returncode == 0, done.stdout + done.stderr
