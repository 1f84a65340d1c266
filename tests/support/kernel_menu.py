"""Parameters of the GEMM family's GPU kernels that tests compile: every tile once of each kind of
sums, what meets in registers or shared memory together, and the chains and folds of it.
"""

from __future__ import annotations

import itertools

import pointwise_graphs

from cudnn_aot.recipes.pointwise import TRACED
from cudnn_aot.recipes.reductions import FOLDED
from cudnn_aot.recipes.trace import pointwise

# What a plan makes of a matmul alone: its store rounds the sums.
BARE = {"inputs": [], "nodes": [], "outputs": [{"value": 0, "dtype": "BFLOAT16"}]}
# Every operand kind, three output dtypes, a chain with transcendental ops.
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
        ["swish", [9], {"swish_beta": 1.5}],
        ["add", [10, 3], {}],
        ["scale", [11, 4], {}],
        ["scale", [12, 5], {}],
        ["relu", [13], {"upper_clip": 6.0}],
    ],
    "outputs": [
        {"value": 14, "dtype": "BFLOAT16"},
        {"value": 7, "dtype": "FLOAT"},
        {"value": 6, "dtype": "HALF"},
    ],
}


def every_op() -> dict:
    """The sum of every op applied to the accumulators, a device scalar and a row, and applied to
    scalars alone: what the DSL spells differently for vectors and for scalars.
    """
    inputs = [{"dtype": "FLOAT", "kind": kind} for kind in ("scalar", "row", "value")]
    nodes: list = []
    total = 0  # the accumulators
    for vector, scalar, other in ((0, 1, 2), (1, 3, 3)):
        for name in sorted(TRACED):
            arguments = [vector, scalar, other][: pointwise.OPS[name].arity]
            nodes.append([name, arguments, pointwise_graphs.ATTRIBUTES.get(name, {})])
            nodes.append(["add", [total, len(inputs) + len(nodes)], {}])
            total = len(inputs) + len(nodes)
    return {"inputs": inputs, "nodes": nodes, "outputs": [{"value": total, "dtype": "FLOAT"}]}


def params(
    tile,
    cluster=(1, 1, 1),
    stream_k=False,
    store="tma",
    majors="kk",
    ab="BFLOAT16",
    e=BARE,
    b=None,
    products=1,
    a_boxes=None,
    few=False,
    scales=None,
    pingpong=False,
    runs=1,
):
    made = {
        "a_dtype": ab,
        "b_dtype": b or ab,
        "products": products,
        "a_major": majors[0],
        "b_major": majors[1],
        "tile": list(tile),
        "cluster": list(cluster),
        "a_boxes": a_boxes or ([64, 16] if few else [tile[0]]),
        "few_rows": few,
        "stream_k": stream_k,
        "pingpong": pingpong,
        "store": store,
        "epilogue": e,
    }
    if scales is not None:
        made["scales"] = {"depth": 128, "rows": scales}
    return made | {"batch_runs": runs} if runs > 1 else made


def menu() -> dict[str, dict]:
    """Every tile once of each kind of sums, the forms spread over them: each cluster, split, store,
    load of A, pair of majors and dtype is there, and those that meet in registers or shared memory
    are together.
    """
    rows = {}
    for dtype, forms in FORMS.items():
        for (tile_m, tile_n), (name, fields) in forms.items():
            tile = (tile_m, tile_n, TILE_K[dtype])
            names = [dtype.lower()] * (dtype == "INT8") + [name] * bool(name)
            label = "_".join(["x".join(map(str, tile)), *names])
            rows[label] = params(tile, **{"ab": dtype} | fields)
    rows["pingpong_chain"] = params((128, 160, 64), **PAIR_B, **PINGPONG, e=CHAIN)
    rows["matrices"] = params((128, 256, 64), **PAIR_B, e=MATRICES)
    for name, e in (("gelu", BIAS_GELU), ("residual", RESIDUAL), ("pow", POWERS)):
        rows[f"pingpong_{name}"] = params((128, 160, 64), **PAIR_B, **PINGPONG, e=e)
    # Beside as many sums as there can be.
    full = {"pingpong_full_gelu": BIAS_GELU, "pingpong_full_residual": RESIDUAL}
    for name, e in (full | {"pingpong_full_folds_chain": CHAIN_FOLDS}).items():
        rows[name] = params((128, 192, 64), **PAIR_B, **PINGPONG, e=e)
    # The first 16-bit matrix that a chain reads comes through the pipeline of the operands.
    rows["piped"] = params((128, 256, 64), **PAIR_B, e=piped(RESIDUAL))
    rows["piped_matrices"] = params((128, 160, 64), **PAIR_A, e=piped(MATRICES))
    rows["piped_chain_few"] = params((64, 48, 64), **FEW, e=piped(CHAIN))
    rows["piped_direct_chain"] = params((64, 96, 64), **DIRECT, ab="HALF", e=piped(CHAIN))
    rows["piped_fp8_folds"] = params((128, 224, 128), ab="FP8_E4M3", e=piped(BIAS_GRADIENT))
    rows["piped_int8"] = params((128, 192, 128), **PAIR_B, ab="INT8", e=piped(RESIDUAL))
    rows["piped_gated"] = params((128, 128, 64), **PAIR_B, e=piped(GATED_RESIDUAL), products=2)
    rows["piped_crowded"] = params((128, 256, 64), **PAIR_B, e=piped(CROWDED))
    rows["crowded"] = params((128, 256, 64), **PAIR_B, e=CROWDED)
    rows["crowded_pingpong"] = params((128, 160, 64), **PAIR_B, **PINGPONG, e=CROWDED)
    rows["crowded_stream"] = params((128, 128, 64), **STREAM, e=CROWDED)
    rows["pingpong_folds"] = params((128, 128, 64), **PAIR_B, **PINGPONG, e=PINGPONG_FOLDS)
    rows["pingpong_gated"] = params((128, 96, 64), **PAIR_B, **PINGPONG, e=SWIGLU, products=2)
    fp8 = {"ab": "FP8_E4M3", "scales": [1, 128]}
    rows["blocks_256"] = params((128, 256, 128), **PAIR_B, **fp8)
    rows["blocks_224_of_32"] = params((128, 224, 128), **fp8 | {"scales": [1, 32]})
    rows["blocks_256_of_a"] = params((128, 256, 128), **fp8 | {"scales": [1, None]})
    rows["blocks_192_bytes_chain"] = params((128, 192, 128), **fp8, e=BYTES)
    return rows


def piped(epilogue: dict) -> dict:
    """The same with its first matrix of 16 bits piped."""
    inputs = [dict(entry) for entry in epilogue["inputs"]]
    first = next(e for e in inputs if e["kind"] == "full" and e["dtype"] in ("BFLOAT16", "HALF"))
    first["kind"] = "piped"
    return {**epilogue, "inputs": inputs}


GATED_RESIDUAL = {
    "inputs": [{"dtype": "HALF", "kind": "full"}],
    "nodes": [["swish", [0], {}], ["mul", [3, 1], {}], ["add", [4, 2], {}]],
    "outputs": [{"value": 5, "dtype": "BFLOAT16"}],
}
SWIGLU = {
    "inputs": [],
    "nodes": [["swish", [0], {}], ["mul", [2, 1], {}]],
    "outputs": [{"value": 3, "dtype": "BFLOAT16"}],
}
MATRICES = {
    "inputs": [{"dtype": "BFLOAT16", "kind": kind} for kind in ("row", "full", "full")],
    "nodes": [["bias", [0, 1], {}], ["gelu", [4], {}], ["add", [5, 2], {}], ["add", [6, 3], {}]],
    "outputs": [{"value": 7, "dtype": "BFLOAT16"}],
}
# Chains that are unrolled: by many blocks of little code, or by few of much.
BIAS_GELU = {
    "inputs": [{"dtype": "BFLOAT16", "kind": "row"}],
    "nodes": [["bias", [0, 1], {}], ["gelu", [2], {}]],
    "outputs": [{"value": 3, "dtype": "BFLOAT16"}],
}
RESIDUAL, POWERS = (
    {
        "inputs": [{"dtype": "BFLOAT16", "kind": "full"}],
        "nodes": [[name, [0, 1], {}]],
        "outputs": [{"value": 2, "dtype": "BFLOAT16"}],
    }
    for name in ("add", "pow")
)
# What a row, a column and the result reach, of the result with a scale of each row.
PINGPONG_FOLDS = {
    "inputs": [{"dtype": "FLOAT", "kind": "col"}],
    "nodes": [["mul", [0, 1], {}], ["cast", [2], {"dtype": "BFLOAT16"}]],
    "outputs": [
        {"value": 2, "dtype": "BFLOAT16"},
        *(
            {"value": 3, "dtype": "FLOAT", "reduce": {"mode": "AMAX", "axes": axes}}
            for axes in ("m", "n", "mn")
        ),
    ],
}
# 8-bit in and out.
BYTES = {
    "inputs": [{"dtype": "FP8_E5M2", "kind": "full"}],
    "nodes": [["add", [0, 1], {}]],
    "outputs": [{"value": 2, "dtype": "FP8_E4M3"}, {"value": 0, "dtype": "INT8"}],
}
# With a scale of each product and of the result.
SWIGLU_FP8 = {
    "inputs": [{"dtype": "FLOAT", "kind": "scalar"}] * 3,
    "nodes": [
        ["mul", [0, 2], {}],
        ["mul", [1, 3], {}],
        ["swish", [5], {}],
        ["mul", [7, 6], {}],
        ["mul", [8, 4], {}],
    ],
    "outputs": [{"value": 9, "dtype": "FP8_E4M3"}],
}
# Every output type, and casts to the narrow ones.
NARROW = {
    "inputs": [{"dtype": "FP8_E4M3", "kind": "full"}],
    "nodes": [["cast", [0], {"dtype": "FP8_E5M2"}], ["mul", [2, 1], {}]],
    "outputs": [
        {"value": value, "dtype": dtype}
        for value, dtype in ((3, "FP8_E4M3"), (2, "FP8_E5M2"), (3, "INT8"), (0, "BFLOAT16"))
    ],
}


# Both sums, as they are and folded, and what they are together.
SUMS = {
    "inputs": [],
    "nodes": [["mul", [0, 1], {}]],
    "outputs": [
        *({"value": 0, "dtype": dtype} for dtype in ("INT32", "FLOAT", "INT8")),
        {"value": 1, "dtype": "INT32"},
        {"value": 1, "dtype": "FLOAT", "reduce": {"mode": "ADD", "axes": "m"}},
        {"value": 2, "dtype": "FLOAT", "reduce": {"mode": "MAX", "axes": "mn"}},
    ],
}
# What an INT8 matmul is: its sums; those with a scale of each row and column, and a bias; and the
# same in 8 bits.
SUM = {"inputs": [], "nodes": [], "outputs": [{"value": 0, "dtype": "INT32"}]}
DEQUANTIZED = {
    "inputs": [
        {"dtype": "FLOAT", "kind": "col"},
        {"dtype": "FLOAT", "kind": "row"},
        {"dtype": "BFLOAT16", "kind": "row"},
    ],
    "nodes": [["mul", [0, 1], {}], ["mul", [4, 2], {}], ["bias", [5, 3], {}]],
    "outputs": [{"value": 6, "dtype": "BFLOAT16"}],
}
REQUANTIZED = {
    **DEQUANTIZED,
    "outputs": [{"value": 6, "dtype": "INT8"}, {"value": 0, "dtype": "INT32"}],
}
GATED_INT8 = {
    "inputs": [{"dtype": "FLOAT", "kind": kind} for kind in ("col", "row", "row")],
    "nodes": [
        ["mul", [0, 2], {}],
        ["mul", [5, 3], {}],
        ["mul", [1, 2], {}],
        ["mul", [7, 4], {}],
        ["swish", [6], {}],
        ["mul", [9, 8], {}],
    ],
    "outputs": [{"value": 10, "dtype": "BFLOAT16"}],
}


PAIR_B, PAIR_A = {"cluster": (2, 1, 1)}, {"cluster": (1, 2, 1)}  # what two blocks share
HALVES, QUARTERS = {"cluster": (1, 1, 2)}, {"cluster": (1, 1, 4)}  # of K
FEW, PINGPONG = {"few": True}, {"pingpong": True}
STREAM, DIRECT = {"stream_k": True}, {"store": "direct"}
TILE_K = {"BFLOAT16": 64, "FP8_E4M3": 128, "INT8": 128}
# By the type of A and a tile's rows and columns: a name, and what is not as usual.
FORMS: dict[str, dict[tuple[int, int], tuple[str, dict]]] = {
    "BFLOAT16": {
        (128, 256): ("chain", {**PAIR_B, "e": CHAIN}),
        (128, 224): ("mn", {**PAIR_A, "majors": "mn"}),
        (128, 192): ("direct", {**PAIR_B, **DIRECT}),
        (128, 160): ("halves", {**HALVES, "ab": "HALF"}),
        (128, 128): ("gated", {**PAIR_B, "majors": "kn", "e": SWIGLU, "products": 2}),
        (128, 96): ("few_gated", {**FEW, "e": SWIGLU, "products": 2}),
        (128, 64): ("few_quarters_chain", {**FEW, **QUARTERS, "e": CHAIN}),
        (128, 32): ("mk", {**PAIR_B, "majors": "mk"}),
        (64, 256): ("few_quarters", FEW | QUARTERS),
        (64, 224): ("half_pingpong", {**PAIR_A, **PINGPONG, "ab": "HALF"}),
        (64, 192): ("quarters_direct", {**QUARTERS, **DIRECT, "majors": "mn"}),
        (64, 160): ("gated_direct_pingpong", {**DIRECT, **PINGPONG, "e": SWIGLU, "products": 2}),
        (64, 128): ("stream_chain", {**STREAM, "e": CHAIN}),
        (64, 96): ("few_pair_pingpong", FEW | PAIR_B | PINGPONG),
        (64, 64): ("", {}),
        (64, 48): ("few_chain", {**FEW, "e": CHAIN}),
        (64, 32): ("few_halves", FEW | HALVES | DIRECT),
    },
    "FP8_E4M3": {
        (128, 256): ("", PAIR_B),
        (128, 224): ("", PAIR_A),
        (128, 192): ("bytes_chain", {"e": BYTES}),
        (128, 160): ("halves", HALVES),
        (128, 128): (
            "gated_blocks",
            {**PAIR_B, "e": SWIGLU_FP8, "products": 2, "scales": [1, 128, 128]},
        ),
        (128, 96): ("stream", {**STREAM, "b": "FP8_E5M2"}),
        (128, 64): ("few_quarters", FEW | QUARTERS),
        (128, 32): ("direct", {**DIRECT, "ab": "FP8_E5M2"}),
        (64, 256): ("", PAIR_A),
        (64, 224): ("few_halves", {**FEW, **HALVES, "b": "FP8_E5M2"}),
        (64, 192): ("quarters_bytes_chain", {**QUARTERS, "e": BYTES}),
        (64, 160): ("few_pair", FEW | PAIR_B),
        (64, 128): ("few_gated", {**FEW, "e": SWIGLU_FP8, "products": 2}),
        (64, 96): ("halves_direct", HALVES | DIRECT),
        (64, 64): (
            "stream_direct_blocks",
            {**STREAM, **DIRECT, "b": "FP8_E5M2", "scales": [128, 64]},
        ),
        (64, 48): ("few_direct", FEW | DIRECT),
        (64, 32): ("few", FEW),
    },
    "INT8": {
        (128, 256): ("", {**PAIR_B, "e": SUM}),
        (128, 224): ("scaled", {**PAIR_A, "e": DEQUANTIZED}),
        (128, 192): ("pingpong", {**PAIR_B, **PINGPONG, "e": SUM}),
        (128, 160): ("scaled_pingpong", {**PAIR_B, **PINGPONG, "e": DEQUANTIZED}),
        (128, 128): ("gated", {**PAIR_B, "e": GATED_INT8, "products": 2}),
        (128, 96): ("few_folds", {**FEW, "e": SUMS, "products": 2}),
        (128, 64): ("few_quarters_scaled", {**FEW, **QUARTERS, "e": DEQUANTIZED}),
        (128, 32): ("direct", {**DIRECT, "e": REQUANTIZED}),
        (64, 256): ("few_quarters", {**FEW, **QUARTERS, "e": SUM}),
        (64, 224): ("direct_pingpong", {**PAIR_A, **DIRECT, **PINGPONG, "e": SUM}),
        (64, 192): ("quarters_bytes", {**QUARTERS, "e": REQUANTIZED}),
        (64, 160): ("gated_few", {**FEW, "e": GATED_INT8, "products": 2}),
        (64, 128): ("stream_scaled", {**STREAM, "e": DEQUANTIZED}),
        (64, 96): ("halves", {**HALVES, "e": SUM}),
        (64, 64): ("stream_direct", {**STREAM, **DIRECT, "e": SUM}),
        (64, 48): ("few_bytes", {**FEW, "e": REQUANTIZED}),
        (64, 32): ("few_halves_direct", {**FEW, **HALVES, **DIRECT, "e": SUM}),
    },
}


def every_fold() -> dict:
    """Every reduction of one value, some along rows, some along columns, some along both."""
    reduced = zip(FOLDED, itertools.cycle(("m", "n", "mn")), strict=False)
    outputs = [
        {"value": 0, "dtype": "FLOAT", "reduce": {"mode": mode, "axes": axes}}
        for mode, axes in reduced
    ]
    return {"inputs": [], "nodes": [], "outputs": outputs}


# A gated FFN with the largest magnitude of its result, and both products.
GATED = {
    "inputs": [{"dtype": "BFLOAT16", "kind": "row"}],
    "nodes": [
        ["bias", [0, 2], {}],
        ["swish", [3], {}],
        ["mul", [4, 1], {}],
        ["cast", [5], {"dtype": "BFLOAT16"}],
    ],
    "outputs": [
        {"value": 5, "dtype": "BFLOAT16"},
        {"value": 6, "dtype": "FLOAT", "reduce": {"mode": "AMAX", "axes": "mn"}},
        {"value": 0, "dtype": "FLOAT"},
        {"value": 1, "dtype": "HALF"},
    ],
}
# Gated in FP8 with scales by value, with what its magnitudes reach; and, as a result of one element
# may have, outputs that are a scale itself.
GATED_FP8 = {
    "inputs": [{"dtype": "FLOAT", "kind": "value"}] * 2,
    "nodes": [
        ["scale", [0, 2], {}],
        ["swish", [4], {}],
        ["scale", [1, 3], {}],
        ["mul", [5, 6], {}],
    ],
    "outputs": [
        {"value": 7, "dtype": "BFLOAT16"},
        {"value": 7, "dtype": "FLOAT", "reduce": {"mode": "AMAX", "axes": "mn"}},
        {"value": 2, "dtype": "HALF"},
        {"value": 3, "dtype": "FLOAT", "reduce": {"mode": "MAX", "axes": "n"}},
    ],
}


def reduced(value, mode, axes):
    return {"value": value, "dtype": "FLOAT", "reduce": {"mode": mode, "axes": axes}}


# What a FP8 matrix is made of: the largest magnitude, and what is scaled to 8 bits.
AMAX = {
    "inputs": [{"dtype": "FLOAT", "kind": "scalar"}],
    "nodes": [["mul", [0, 1], {}]],
    "outputs": [{"value": 2, "dtype": "FP8_E4M3"}, reduced(0, "AMAX", "mn")],
}
# The gradient of a bias, beside that of what it was added to.
BIAS_GRADIENT = {
    "inputs": [{"dtype": "BFLOAT16", "kind": "full"}],
    "nodes": [["relu_backward", [0, 1], {}], ["cast", [2], {"dtype": "BFLOAT16"}]],
    "outputs": [{"value": 2, "dtype": "BFLOAT16"}, reduced(3, "ADD", "m")],
}
ROWS = {
    "inputs": [],
    "nodes": [["cast", [0], {"dtype": "BFLOAT16"}]],
    "outputs": [{"value": 0, "dtype": "BFLOAT16"}, reduced(1, "MAX", "n")],
}
ALONE = {"inputs": [], "nodes": [], "outputs": [reduced(0, "ADD", "m")]}
CHAIN_FOLDS = {
    **CHAIN,
    "outputs": [
        *CHAIN["outputs"],
        reduced(14, "ADD", "m"),
        reduced(7, "AMAX", "mn"),
        reduced(6, "MIN", "n"),
    ],
}


def folds() -> dict[str, dict]:
    """The tiles with the most registers, every width of a block of columns, and each form that has
    a say in what is folded.
    """
    fp8 = {"ab": "FP8_E4M3"}
    return {
        "folds_amax": params((128, 256, 64), **PAIR_B, e=AMAX),
        "folds_bias_gradient": params((128, 256, 64), **PAIR_B, e=BIAS_GRADIENT),
        "folds_rows": params((128, 224, 64), **PAIR_B, e=ROWS),
        "folds_alone": params((128, 256, 64), **PAIR_B, e=ALONE),
        "folds_every": params((128, 256, 64), **PAIR_A, e=every_fold()),
        "folds_every_quarters": params((64, 64, 64), **QUARTERS, **FEW, e=every_fold()),
        "folds_direct_chain": params((128, 256, 64), **PAIR_B, **DIRECT, e=CHAIN_FOLDS),
        "folds_split": params((128, 128, 64), **STREAM, e=BIAS_GRADIENT),
        "folds_halves": params((128, 160, 64), **HALVES, e=ROWS),
        "folds_gated": params((128, 128, 64), **PAIR_B, products=2, e=GATED),
        "folds_fp8_amax": params((128, 256, 128), **PAIR_B, **fp8, e=AMAX),
        "folds_fp8_gated": params((128, 128, 128), products=2, **fp8, e=GATED_FP8),
        "folds_int8_amax": params((128, 256, 128), **PAIR_B, ab="INT8", e=AMAX),
        "folds_blocks": params((128, 128, 128), **fp8, e=AMAX, scales=[1, 128]),
        "folds_blocks_direct_chain": params(
            (128, 192, 128), **DIRECT, **fp8, e=CHAIN_FOLDS, scales=[1, 128]
        ),
    }


# Four matrices, what is stored in three types, and what of each is folded.
CROWDED = {
    "inputs": [
        {"dtype": "BFLOAT16", "kind": "row"},
        *({"dtype": dtype, "kind": "full"} for dtype in ("BFLOAT16", "HALF", "FLOAT", "BFLOAT16")),
    ],
    "nodes": [
        ["bias", [0, 1], {}],
        ["gelu", [6], {}],
        ["add", [7, 2], {}],
        ["add", [8, 3], {}],
        ["add", [9, 4], {}],
        ["add", [10, 5], {}],
    ],
    "outputs": [
        {"value": 6, "dtype": "FLOAT"},
        {"value": 7, "dtype": "HALF"},
        {"value": 11, "dtype": "BFLOAT16"},
        reduced(6, "MIN", "n"),
        reduced(7, "AMAX", "mn"),
        reduced(11, "ADD", "m"),
    ],
}


SIMT = {
    name: {"a_dtype": a, "b_dtype": b, "products": products, "epilogue": epilogue}
    for name, (a, b, products, epilogue) in {
        "simt": ("FLOAT", "FLOAT", 1, BARE),
        "simt_chain": ("BFLOAT16", "BFLOAT16", 1, CHAIN),
        "simt_fp8_pair_chain": ("FP8_E5M2", "FP8_E4M3", 1, NARROW),
        "simt_every_op": ("FLOAT", "FLOAT", 1, every_op()),
        "simt_every_fold": ("FLOAT", "FLOAT", 1, every_fold()),
        "simt_gated": ("BFLOAT16", "BFLOAT16", 2, GATED),
        "simt_fp8_gated": ("FP8_E4M3", "FP8_E5M2", 2, GATED_FP8),
        "simt_int8_pair": ("INT8", "INT8", 2, SUMS),
    }.items()
}
SIMT["simt_every_fold_of_heads"] = SIMT["simt_every_fold"] | {"batch_runs": 2}
SIMT["simt_fp8_blocks"] = SIMT["simt_fp8_gated"] | {"scales": {"depth": 32, "rows": [1, 128, None]}}
FOLD = {
    "fold_avg": {"mode": "AVG", "dtype": "BFLOAT16"},
    "fold_norm2": {"mode": "NORM2", "dtype": "FLOAT"},
    "fold_max": {"mode": "MAX", "dtype": "HALF"},
    "fold_max_of_heads": {"mode": "MAX", "dtype": "HALF", "batch_runs": 2},
}
GEMV = {
    name: {"ab_dtype": "HALF", "rows": r, "columns": c, "k_warps": k, "unroll": u, "epilogue": e}
    for name, (r, c, k, u, e) in {
        "gemv_large": (4, 4, 8, 2, BARE),
        "gemv_chain": (2, 1, 2, 2, CHAIN),
    }.items()
}
GEMV["gemv_chain_of_heads"] = GEMV["gemv_chain"] | {"batch_runs": 2}


def runs() -> dict[str, dict]:
    """Of batches whose axes do not merge: each way to load, split K, store, and read the chain's
    tensors, with as many sums as there can be and with the most axes.
    """
    fp8 = {"ab": "FP8_E4M3", "runs": 2}
    return {
        "heads_chain": params((128, 256, 64), **PAIR_B, e=CHAIN, runs=2),
        "heads_full_residual": params((128, 192, 64), **PAIR_B, **PINGPONG, e=RESIDUAL, runs=2),
        "heads_crowded": params((128, 256, 64), **PAIR_B, e=CROWDED, runs=2),
        "heads_few": params((64, 96, 64), **FEW, e=CHAIN, runs=2),
        "heads_direct": params((128, 192, 64), **DIRECT, runs=2),
        "heads_split": params((128, 128, 64), **STREAM, e=BIAS_GRADIENT, runs=2),
        "heads_halves": params((128, 160, 64), **HALVES, e=ROWS, runs=2),
        "heads_gated": params((128, 128, 64), **PAIR_B, products=2, e=GATED, runs=2),
        "heads_blocks": params((128, 256, 128), **PAIR_B, **fp8, scales=[1, 128]),
        "three_runs": params((128, 256, 64), **PAIR_A, e=CHAIN, runs=3),
        "three_runs_folds": params((128, 256, 64), **PAIR_B, e=AMAX, runs=3),
        "three_runs_blocks": params((128, 192, 128), **fp8 | {"runs": 3}, e=BYTES, scales=[1, 128]),
    }


TEMPLATES = {
    "sm90:matmul": menu() | folds() | runs(),
    "simt:matmul": SIMT,
    "fold:fold": FOLD,
    "gemv:matmul": GEMV,
}
