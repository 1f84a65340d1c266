"""The grouped host kernel against the reference: modes, dtypes, loops, groups, strides; and that
numbers which no router gives touch nothing outside.
"""

from __future__ import annotations

import subprocess

import ml_dtypes
import moe_graphs
import numpy as np
import pytest
from cli_process import run_cli, write_graph
from graph_tables import PEER
from kernel_ffi import Buffer, Kernel

from cudnn_aot.compiler.reference.groups import group_count
from cudnn_aot.compiler.reference.ops import apply

NUMPY = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "BFLOAT16": np.dtype(ml_dtypes.bfloat16),
    "FP8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "FP8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
}
# Half an ulp of the output dtype, and for fp32 the accumulation of some tens of products.
TOLERANCE = {"FLOAT": 1e-5, "HALF": 6e-4, "BFLOAT16": 5e-3, "FP8_E5M2": 0.13}

# mode, types of token, weight, output and offsets, and of what routes rows.
KERNELS = {
    "none": ("NONE", "FLOAT", "FLOAT", "FLOAT", "INT32", ()),
    "gather": ("GATHER", "BFLOAT16", "BFLOAT16", "BFLOAT16", "INT32", ("INT64",)),
    "scatter": ("SCATTER", "HALF", "HALF", "HALF", "INT64", ("INT64", "INT32")),
    "fp8": ("NONE", "FP8_E4M3", "FP8_E5M2", "FP8_E5M2", "INT32", ()),
}


@pytest.fixture(scope="module")
def kernels(compile_kernels, tmp_path_factory):
    out = tmp_path_factory.mktemp("moe_host")
    names = ("mode", "token_dtype", "weight_dtype", "out_dtype", "offset_dtype", "route_dtypes")
    jobs = [
        {
            "name": name,
            "template": "moe.kernels.host:grouped_matmul",
            "params": dict(zip(names, row, strict=True)),
            "arch": "",
        }
        for name, row in KERNELS.items()
    ]
    compile_kernels(jobs, out)
    for name in KERNELS:
        command = ["cc", "-shared", "-o", out / f"{name}.so", out / f"{name}.o", "-lm"]
        subprocess.run(command, check=True)
    return {name: Kernel(out / f"{name}.so") for name in KERNELS}


def buffer(array, dtype):
    strides = tuple(s // array.itemsize for s in array.strides)
    return Buffer(array.ctypes.data, dtype, array.shape, strides)


def k_major(array):
    """Weights ``(N, K, E)`` with K contiguous, as ``[E, N, K]`` in memory."""
    return np.ascontiguousarray(array.transpose(2, 0, 1)).transpose(1, 2, 0)


def n_major(array):
    return np.ascontiguousarray(array.transpose(2, 1, 0)).transpose(2, 1, 0)


def stepped(array):
    """The same values, every other element of memory."""
    wide = np.zeros(tuple(2 * n for n in array.shape), array.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


LAYOUTS = {
    "dot": (lambda a: a, k_major),
    "axpy": (lambda a: a, n_major),
    "axpy, token m-major": (lambda a: np.asfortranarray(a), n_major),
    "any": (stepped, stepped),
}


class Case:
    """Operands of one call of a kernel; `call` gives what it made of a poisoned output."""

    def __init__(self, kernel, rows, n, k, experts, offsets, tokens=None, seed=0):
        self.name = kernel
        self.mode, *self.dtypes, self.offset_dtype, self.route_dtypes = KERNELS[kernel]
        token_dtype, weight_dtype, self.out_dtype = self.dtypes
        rng = np.random.default_rng(seed)
        tokens = rows if tokens is None else tokens
        self.rows, self.n = rows, n
        self.token = rng.standard_normal((tokens, k)).astype(NUMPY[token_dtype])
        self.weight = rng.standard_normal((n, k, experts)).astype(NUMPY[weight_dtype])
        self.offsets = np.asarray(offsets, NUMPY[self.offset_dtype])
        self.groups = group_count(len(offsets), experts)
        self.top_k = 2
        order = rng.permutation(rows)
        if self.mode == "GATHER":
            route = [rng.integers(0, max(tokens, 1), rows)]
        else:
            route = [order // self.top_k, order % self.top_k]
        self.route = [
            values.astype(NUMPY[dtype])
            for values, dtype in zip(route, self.route_dtypes, strict=False)
        ]

    def call(self, kernels, lay=lambda array: array):
        out = lay(np.full((self.rows, self.n), np.nan, NUMPY[self.out_dtype]))
        out[...] = np.nan
        arguments = [self.groups, *map(buffer, (self.token, self.weight), self.dtypes)]
        arguments.append(buffer(self.offsets, self.offset_dtype))
        arguments += map(buffer, self.route, self.route_dtypes)
        arguments += [self.top_k] * (self.mode == "SCATTER")
        assert kernels[self.name](*arguments, buffer(out, self.out_dtype)) is None
        return out

    def want(self):
        inputs = {
            "token": self.token.astype("f8")[None],
            "weight": self.weight.astype("f8").transpose(2, 1, 0),
            "first_token_offset": self.offsets,
        }
        inputs |= dict(zip(("token_index", "token_ks"), self.route, strict=False))
        result = apply("moe_grouped_matmul", inputs, mode=self.mode, top_k=self.top_k)
        return result["OUT_0"][0]

    def check(self, got, want):
        scale = np.maximum(np.abs(want), 1.0)
        worst = np.max(np.abs(got.astype("f8") - want) / scale, initial=0.0)
        assert worst <= TOLERANCE[self.out_dtype], worst


# One row per regime: rows, N, K, experts, offsets.
GROUPS = {
    "starts": (13, 32, 16, 3, [0, 4, 9]),
    "boundaries, rows on both sides": (13, 19, 37, 3, [1, 5, 5, 11]),
    "empty groups": (9, 7, 8, 4, [0, 0, 9, 9, 9]),
    "every group empty": (5, 4, 8, 2, [3, 3, 3]),
    "more groups than experts": (21, 17, 24, 2, [0, 3, 4, 9, 9, 15, 21]),
    "one expert": (6, 18, 12, 1, [0, 6]),
    "one row a group": (4, 33, 40, 4, [0, 1, 2, 3]),
    "k below the vector": (5, 3, 3, 2, [0, 2]),
    "k = 0 gives zeros": (3, 4, 0, 2, [0, 1]),
    "no rows": (0, 4, 8, 2, [0, 0, 0]),
    "no columns": (4, 0, 8, 2, [0, 1, 4]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_values(kernels, kernel, layout):
    lay_token, lay_weight = LAYOUTS[layout]
    for seed, (rows, n, k, experts, offsets) in enumerate(GROUPS.values()):
        tokens = 7 if kernel == "gather" else None
        case = Case(kernel, rows, n, k, experts, offsets, tokens, seed)
        case.token, case.weight = lay_token(case.token), lay_weight(case.weight)
        case.check(case.call(kernels), case.want())


@pytest.mark.parametrize("kernel", ["none", "gather", "scatter"])
def test_every_operand_may_have_gaps(kernels, kernel):
    """Between the elements of the offsets, of what routes rows and of the output, too; a gap of the
    output stays what it was.
    """
    case = Case(kernel, 13, 19, 20, 3, [1, 5, 5, 11], 7 if kernel == "gather" else None)
    want = case.want()
    case.offsets, case.route = stepped(case.offsets), [stepped(each) for each in case.route]
    out = case.call(kernels, stepped)
    case.check(out, want)
    assert not out.base[1::2].any() and not out.base[:, 1::2].any()


@pytest.mark.parametrize(
    ("offsets", "edges"),
    [
        ([-5, 4, 2, 99], [0, 4, 4, 9]),
        ([2**31 - 1, 0, 0, 0], [9, 9, 9, 9]),
        ([-(2**31), -1, 7, 7], [0, 0, 7, 7]),
    ],
)
@pytest.mark.parametrize("kernel", ["none", "scatter"])
def test_offsets_are_clamped_to_the_rows_and_to_those_before(kernels, kernel, offsets, edges):
    case = Case(kernel, 9, 20, 16, 3, offsets)
    got = case.call(kernels)
    case.offsets = np.asarray(edges, case.offsets.dtype)
    case.check(got, case.want())


def test_an_offset_beyond_32_bits_is_no_small_one(kernels):
    case = Case("scatter", 9, 20, 16, 3, [0, 2**32 + 1, 2**32 + 2, -(2**40)])
    got = case.call(kernels)
    case.offsets = np.array([0, 9, 9, 9])
    case.check(got, case.want())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_that_gathers_no_token_is_zero(kernels, layout):
    """Also where a token holds what a product with zero would keep."""
    lay_token, lay_weight = LAYOUTS[layout]
    case = Case("gather", 9, 20, 16, 3, [0, 2, 5, 8], tokens=4)
    case.token, case.weight = lay_token(case.token), lay_weight(case.weight)
    case.route[0][:] = [0, 1, 2, 3, 0, 1, 2, 3, 0]
    want = case.want()
    bad = {1: -1, 3: 4, 4: 2**31, 6: 2**32, 7: -(2**63)}
    case.route[0][list(bad)] = list(bad.values())
    want[list(bad)] = 0
    case.check(case.call(kernels), want)
    case.token[:] = np.nan
    got = case.call(kernels)
    assert not got[list(bad)].any() and np.isnan(got[0]).all()


def test_no_tokens_to_gather_from_give_zeros(kernels):
    case = Case("gather", 5, 6, 8, 2, [0, 2, 5], tokens=0)
    assert not case.call(kernels).astype("f8").any()


def test_a_row_that_is_scattered_nowhere_is_dropped(kernels):
    case = Case("scatter", 9, 20, 16, 3, [0, 2, 5, 9])
    want = case.want()
    targets = case.route[0] * case.top_k + case.route[1]
    bad = {1: -1, 3: 5, 6: 2**40, 8: -(2**62)}
    case.route[0][list(bad)] = list(bad.values())
    want[targets[list(bad)]] = 0
    case.check(case.call(kernels), want)


def test_of_rows_with_one_target_the_last_counts(kernels):
    case = Case("scatter", 9, 20, 16, 3, [0, 2, 5, 9])
    case.route[0][:], case.route[1][:] = 1, 0
    case.check(case.call(kernels), case.want())


def test_graphs_are_built_and_run(tmp_path):
    """A program's, and one whose number of rows is a symbol; the command checks the outputs against
    the reference.
    """
    symbols = {"M": {"min": 0, "max": 4096, "hint": 39}}
    scatter = write_graph(tmp_path, moe_graphs.grouped("SCATTER", rows="M", symbols=symbols))
    program = PEER / "real_programs" / "fi_grouped_mm_e8.json"
    store = ("--target", "cpu", "--store", tmp_path / "store")
    built = run_cli("build", program, scatter, *store)
    assert built.returncode == 0 and built.stdout.count("moe.host.blocked") == 2, built.stderr
    ran = run_cli("run", "--all", *store)
    assert ran.returncode == 0 and "2 of 2 plans correct" in ran.stdout, ran.stdout
    none = run_cli("run", "grouped_scatter", "--symbol", "M=0", *store)
    assert none.returncode == 0 and "1 of 1 plan correct" in none.stdout, none.stdout
