"""Capability rows of the GEMM engines: what an engine accepts, and the reason when it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_aot.compiler.planning.capability import Capability
from cudnn_aot.recipes.gemm.facts import CAST, VALUE, GemmFacts
from cudnn_aot.recipes.gemm.lowering import unmergeable_batch
from cudnn_aot.recipes.operand import INT32_MAX, bounds
from cudnn_aot.recipes.pointwise import UNTRACED
from cudnn_aot.recipes.reductions import FOLDED, UNFOLDED

EPILOGUE_DTYPES = ("BFLOAT16", "HALF", "FLOAT")
# Of a tensor between two ops. Truth values have no representation of their own at a call.
VIRTUAL_DTYPES = (*EPILOGUE_DTYPES, "BOOLEAN")
# Each optional output doubles the kernels of a plan.
MAX_OPTIONAL_OUTPUTS = 2
# Kernel arguments beyond these would not fit the parameter space that the kernels assume.
MAX_EPILOGUE_TENSORS = 12
# The chain is traced into the kernel; beyond this, compile time and instruction cache suffer.
MAX_EPILOGUE_NODES = 64
# Each product has accumulators of its own in a thread's registers.
MAX_PRODUCTS = 2

FEATURES = (
    f"chain of any pointwise op but {', '.join(UNTRACED)}",
    "several outputs",
    f"{MAX_OPTIONAL_OUTPUTS} optional outputs",
    "batch, broadcast or strided",
    "symbolic extents",
)

# Of a row whose kernels have several accumulators and fold.
FUSED: dict[str, Any] = {
    "products": MAX_PRODUCTS,
    "folds": True,
    "features": (
        *FEATURES,
        f"{MAX_PRODUCTS} matmuls of one A",
        f"reductions of the result along rows, columns or both: {', '.join(FOLDED)}",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCapability(Capability[GemmFacts]):
    """``dtypes`` are those of A and B; everything accumulates in fp32.

    Attributes:
        products: how many matmuls of one A a kernel computes at most.
        folds: whether it reduces the result.
    """

    products: int = 1
    folds: bool = False
    layouts: tuple[str, ...] = ("any strides",)
    features: tuple[str, ...] = FEATURES

    def why_not_facts(self, facts: GemmFacts) -> str | None:
        if facts.a.dtype != facts.b.dtype:
            return f"A is {facts.a.dtype} and B is {facts.b.dtype}, want the same dtype"
        if facts.a.dtype not in self.dtypes:
            return f"dtype {facts.a.dtype} is not in {'/'.join(self.dtypes)}"
        return self._why_not_fused(facts) or _common_why_not(facts)

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
                reason = UNFOLDED[reduction.mode]
                return f"reduction {reduction.mode} is not folded by a kernel: {reason}"
        return None


def _common_why_not(facts: GemmFacts) -> str | None:
    """What no GEMM kernel of ours takes, on any machine."""
    if facts.compute_dtypes != ("FLOAT",):
        return f"compute data type {'/'.join(facts.compute_dtypes)} is not FLOAT"
    for node in facts.epilogue.nodes:
        if node.op in UNTRACED:
            return f"op {node.op} is not traced into a kernel: {UNTRACED[node.op]}"
        if node.op == CAST and (dtype := dict(node.attrs)["dtype"]) not in VIRTUAL_DTYPES:
            return f"a tensor between ops is {dtype}, want one of {'/'.join(VIRTUAL_DTYPES)}"
    outputs = [output.operand for output in facts.epilogue.outputs]
    tensors = [*facts.epilogue.inputs, *((operand, "output") for operand in outputs)]
    for operand, kind in tensors:
        if operand.dtype not in EPILOGUE_DTYPES:
            return f"{operand.name!r} is {operand.dtype}, want one of {'/'.join(EPILOGUE_DTYPES)}"
        if kind == VALUE and operand.dtype != "FLOAT":
            return f"{operand.name!r} is a {operand.dtype} passed by value, want FLOAT"
    if len(facts.epilogue.nodes) > MAX_EPILOGUE_NODES:
        count = len(facts.epilogue.nodes)
        return f"{count} pointwise steps after the matmul, want at most {MAX_EPILOGUE_NODES}"
    if len(tensors) > MAX_EPILOGUE_TENSORS:
        return f"{len(tensors)} epilogue tensors, want at most {MAX_EPILOGUE_TENSORS}"
    optional = sum(operand.optional for operand in outputs)
    if optional > MAX_OPTIONAL_OUTPUTS:
        return f"{optional} optional outputs, want at most {MAX_OPTIONAL_OUTPUTS}"
    for name, extent in (("M", facts.m), ("N", facts.n), ("K", facts.k)):
        if bounds(extent, facts.symbols)[1] > INT32_MAX:
            return f"{name} may reach {bounds(extent, facts.symbols)[1]}, want at most {INT32_MAX}"
    return unmergeable_batch(facts)
