"""Capability rows of the GEMM engines: what an engine accepts, and the reason when it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_aot.compiler.planning.capability import Capability
from cudnn_aot.recipes.gemm.facts import CAST, VALUE, EpilogueOutput, GemmFacts
from cudnn_aot.recipes.operand import FP8_DTYPES, INT32_MAX, bounds, in_words
from cudnn_aot.recipes.pointwise import UNTRACED
from cudnn_aot.recipes.reductions import FOLDED, UNFOLDED

EPILOGUE_DTYPES = ("BFLOAT16", "HALF", "FLOAT")
# Of A and B of a kernel that widens every element on its own, and of its epilogue's tensors.
ANY_DTYPES = (*EPILOGUE_DTYPES, *FP8_DTYPES, "INT8")
# Of what a reduction leaves: its second step stores no others.
REDUCED_DTYPES = EPILOGUE_DTYPES
# Each optional output doubles the kernels of a plan.
MAX_OPTIONAL_OUTPUTS = 2
# Kernel arguments beyond these would not fit the parameter space that the kernels assume. A number
# passed by value is four bytes, and the nodes that read them are not many.
MAX_EPILOGUE_TENSORS = 12
# The chain is traced into the kernel; beyond this, compile time and instruction cache suffer.
MAX_EPILOGUE_NODES = 64
# Each product has accumulators of its own in a thread's registers.
MAX_PRODUCTS = 2
# Of batch axes, each an axis of every tensor: TMA describes five, two of which are the matrix's.
MAX_BATCH_RUNS = 3
# Of K, that a kernel on the CUDA cores multiplies at a time: blocks with a scale are of whole ones.
SCALE_DEPTH_STEP = 16
# Sums of so many products of INT8 always fit INT32.
MAX_INT8_K = INT32_MAX // 2**14

FEATURES = (
    f"chain of any pointwise op but {', '.join(UNTRACED)}",
    "several outputs",
    f"{MAX_OPTIONAL_OUTPUTS} optional outputs",
    f"batch, broadcast or strided, whose axes are up to {MAX_BATCH_RUNS} runs of equal steps",
    "scales of A and B, of rows, columns or all, ahead of the matmul",
    "symbolic extents",
)

# Of every row of an engine for Hopper.
SM90: dict[str, Any] = {"kind": "cuda", "sm_lo": 90, "sm_hi": 90, "is_arch_specific": True}
# Of a row whose kernels fuse whatever facts say: they have several accumulators, fold, and widen
# every element of the epilogue on their own.
FUSED: dict[str, Any] = {
    "epilogue_dtypes": ANY_DTYPES,
    "products": MAX_PRODUCTS,
    "folds": True,
    "scales": True,
    "features": (
        *FEATURES,
        f"{MAX_PRODUCTS} matmuls of one A",
        f"reductions of the result along rows, columns or both: {', '.join(FOLDED)}",
        "A and B of different FP8 types",
        "FP8 and INT8 in the epilogue, whose outputs saturate",
        f"INT8 summed in INT32, K up to {MAX_INT8_K}",
        "FP8 with a FLOAT scale for each block of rows and K",
    ),
}
# The same where A and B may have any strides and types.
ANY_STRIDE: dict[str, Any] = {"dtypes": ANY_DTYPES, **FUSED}


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCapability(Capability[GemmFacts]):
    """``dtypes`` are those of A and B. Products of INT8 are summed in INT32, all others in fp32.

    Attributes:
        epilogue_dtypes: those of every other tensor.
        products: how many matmuls of one A a kernel computes at most.
        folds: whether it reduces the result.
        absent: types that are not among ``dtypes``, each with the reason.
        scales: whether it takes scales of blocks of A and B.
    """

    epilogue_dtypes: tuple[str, ...] = EPILOGUE_DTYPES
    products: int = 1
    folds: bool = False
    absent: tuple[tuple[str, str], ...] = ()
    scales: bool = False
    layouts: tuple[str, ...] = ("any strides",)
    features: tuple[str, ...] = FEATURES

    def why_not_facts(self, facts: GemmFacts) -> str | None:
        facts = facts.as_declared()
        a, b = facts.a, facts.b
        for port, matrix in (("A", a), ("B", b)):
            if matrix.dtype not in self.dtypes:
                got = f"{port} {matrix.name!r} is {matrix.dtype}"
                why = dict(self.absent).get(matrix.dtype)
                return f"{got}, want one of {'/'.join(self.dtypes)}" + (f": {why}" if why else "")
        if a.dtype != b.dtype and not {a.dtype, b.dtype} <= {*FP8_DTYPES}:
            return f"A {a.name!r} is {a.dtype} and B {b.name!r} is {b.dtype}, want the same dtype"
        return (
            self._why_not_fused(facts)
            or _why_not_scaled(facts, self.scales)
            or _why_not_arithmetic(facts)
            or _why_not_dtypes(facts, self.epilogue_dtypes)
            or _common_why_not(facts)
        )

    def _why_not_fused(self, facts: GemmFacts) -> str | None:
        count = facts.epilogue.products
        if count > self.products:
            return f"{count} matmuls of one A, want at most {self.products}"
        for b in facts.other_b:
            if b.dtype != facts.b.dtype:
                return f"{facts.b.name!r} is {facts.b.dtype} and {b.name!r} is {b.dtype}, want one"
        for output in facts.epilogue.outputs:
            if (reduction := output.reduction) is None:
                continue
            if not self.folds:
                return f"{output.operand.name!r} is a reduction of the result, want none"
            if reduction.mode in UNFOLDED:
                name, mode = output.operand.name, reduction.mode
                return f"{name!r} is a reduction {mode}, which no kernel folds: {UNFOLDED[mode]}"
        return None


def _why_not_scaled(facts: GemmFacts, is_taken: bool) -> str | None:
    matrices = zip((facts.a, *facts.every_b), facts.scales, strict=True)
    scaled = [(matrix, scale) for matrix, scale in matrices if scale is not None]
    for matrix, scale in scaled:
        name, dtype = scale.operand.name, scale.operand.dtype
        if not is_taken:
            return f"{matrix.name!r} has a scale for each block, want none"
        if matrix.dtype not in FP8_DTYPES:
            return f"{matrix.name!r} has a scale for each block and is {matrix.dtype}, want FP8"
        if dtype != "FLOAT":
            return f"scales {name!r} are {dtype}, want FLOAT"
        batch, own = matrix.dim[:-2], scale.operand.dim[:-2]
        if any(have not in (1, want) for have, want in zip(own, batch, strict=True)):
            return (
                f"scales {name!r} have the batch {in_words(own)}, want that of {matrix.name!r}, "
                f"{in_words(batch)}, or 1 on its axes"
            )
        if scale.depth % SCALE_DEPTH_STEP:
            return (
                f"{name!r} has a scale for each {scale.depth} of K, "
                f"want a multiple of {SCALE_DEPTH_STEP}"
            )
    if len({scale.depth for _, scale in scaled}) > 1:
        depths = " and ".join(f"{scale.depth} in {scale.operand.name!r}" for _, scale in scaled)
        return f"blocks along K have {depths}, want one number"
    return None


def _why_not_arithmetic(facts: GemmFacts) -> str | None:
    is_integer = facts.a.dtype == "INT8"
    for each in facts.arithmetic:
        want = "INT32" if is_integer and each.is_product else "FLOAT"
        if each.dtype != want:
            of = ", a matmul of INT8," if want == "INT32" else ""
            return f"node {each.node!r}{of} has compute data type {each.dtype}, want {want}"
    if is_integer and (k := bounds(facts.k, facts.symbols)[1]) > MAX_INT8_K:
        return f"K may reach {k}, want at most {MAX_INT8_K}: sums of INT8 products are INT32"
    return None


def _why_not_dtypes(facts: GemmFacts, known: tuple[str, ...]) -> str | None:
    """Judges the types of the tensors of the epilogue.

    INT32 is that of a matmul's own result alone: pointwise ops and reductions are fp32, which does
    not hold it.
    """
    between = (*known, "BOOLEAN")  # truth values have no representation of their own at a call
    for node in facts.epilogue.nodes:
        if node.op == CAST and (dtype := dict(node.attrs)["dtype"]) not in between:
            return f"{node.name!r}, between ops, is {dtype}, want one of {'/'.join(between)}"
    for operand, kind in facts.epilogue.inputs:
        if operand.dtype not in known:
            return f"{operand.name!r} is {operand.dtype}, want one of {'/'.join(known)}"
        if kind == VALUE and operand.dtype != "FLOAT":
            return f"{operand.name!r} is a {operand.dtype} passed by value, want FLOAT"
    for output in facts.epilogue.outputs:
        operand = output.operand
        wanted = known if output.reduction is None else REDUCED_DTYPES
        if operand.dtype not in wanted and not _is_sum(facts, output):
            return f"{operand.name!r} is {operand.dtype}, want one of {'/'.join(wanted)}"
    return None


def _is_sum(facts: GemmFacts, output: EpilogueOutput) -> bool:
    """Whether an output is a matmul's own result, in the type that it is summed in."""
    is_product = output.reduction is None and output.value < facts.epilogue.products
    return is_product and output.operand.dtype == facts.accumulators[output.value]


def _common_why_not(facts: GemmFacts) -> str | None:
    """What no GEMM kernel of ours takes, on any machine."""
    for node in facts.epilogue.nodes:
        if node.op in UNTRACED:
            return f"node {node.name!r} is {node.op}, which no kernel traces: {UNTRACED[node.op]}"
    if len(facts.epilogue.nodes) > MAX_EPILOGUE_NODES:
        count = len(facts.epilogue.nodes)
        return f"{count} pointwise steps after the matmul, want at most {MAX_EPILOGUE_NODES}"
    kinds = [kind for _, kind in facts.epilogue.inputs if kind != VALUE]
    tensors = len(kinds) + len(facts.epilogue.outputs)
    if tensors > MAX_EPILOGUE_TENSORS:
        return f"{tensors} epilogue tensors, want at most {MAX_EPILOGUE_TENSORS}"
    optional = sum(output.operand.optional for output in facts.epilogue.outputs)
    if optional > MAX_OPTIONAL_OUTPUTS:
        return f"{optional} optional outputs, want at most {MAX_OPTIONAL_OUTPUTS}"
    for name, extent in (("M", facts.m), ("N", facts.n), ("K", facts.k)):
        if bounds(extent, facts.symbols)[1] > INT32_MAX:
            return f"{name} may reach {bounds(extent, facts.symbols)[1]}, want at most {INT32_MAX}"
    return _why_not_batch(facts)


def _why_not_batch(facts: GemmFacts) -> str | None:
    if (count := len(facts.batch_runs)) <= MAX_BATCH_RUNS:
        return None
    reasons = dict.fromkeys(run.why for run in facts.batch_runs[1:])
    return (
        f"the batch axes {in_words(facts.batch)} are {count} runs of equal steps, want at most "
        f"{MAX_BATCH_RUNS}: {'; '.join(reasons)}"
    )
