"""Capability rows of the GEMM engines: what an engine accepts, and the reason when it does not.

A row is the only place that says so: planning, listing and documentation read the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm.facts import VALUE, GemmFacts
from cudnn_aot.recipes.gemm.lowering import INT32_MAX, bounds, unmergeable_batch

EPILOGUE_DTYPES = ("BFLOAT16", "HALF", "FLOAT")
EPILOGUE_OPS = (
    "add", "bias", "cast", "gelu", "gelu_approx_tanh", "identity", "mul", "relu", "scale",
    "sigmoid", "swish", "tanh",
)  # fmt: skip
# Each optional output doubles the kernels of a plan.
MAX_OPTIONAL_OUTPUTS = 2
# Kernel arguments beyond these would not fit the parameter space that the kernels assume.
MAX_EPILOGUE_TENSORS = 12
# The chain is traced into the kernel; beyond this, compile time and instruction cache suffer.
MAX_EPILOGUE_NODES = 64


@dataclass(frozen=True, slots=True)
class Capability:
    """One row: a kind of machine (for CUDA an architecture range) and the types served there.

    ``sm_lo`` and ``sm_hi`` are ``major * 10 + minor``, both inclusive.
    """

    kind: str
    ab_dtypes: tuple[str, ...]
    sm_lo: int = 0
    sm_hi: int = 0

    def why_not(self, facts: GemmFacts, target: Target) -> str | None:
        """None when the row takes the graph on the target, else one sentence."""
        if target.kind != self.kind:
            return f"target {target.name} is a {target.kind} target, want {self.kind}"
        if self.kind == "cuda":
            sm = int("".join(c for c in target.gpu_arch.removeprefix("sm_") if c.isdigit()))
            if not self.sm_lo <= sm <= self.sm_hi or not target.gpu_arch.endswith("a"):
                return f"arch {target.gpu_arch} is not in sm_{self.sm_lo}a..sm_{self.sm_hi}a"
        if facts.a.dtype != facts.b.dtype:
            return f"A is {facts.a.dtype} and B is {facts.b.dtype}, want the same dtype"
        if facts.a.dtype not in self.ab_dtypes:
            return f"dtype {facts.a.dtype} is not in {'/'.join(self.ab_dtypes)}"
        return _common_why_not(facts)


def _common_why_not(facts: GemmFacts) -> str | None:
    """What no GEMM kernel of ours takes, on any machine."""
    if facts.compute_dtypes != ("FLOAT",):
        return f"compute data type {'/'.join(facts.compute_dtypes)} is not FLOAT"
    for node in facts.epilogue.nodes:
        if node.op not in EPILOGUE_OPS:
            return f"op {node.op} is not in {'/'.join(EPILOGUE_OPS)}"
    tensors = [*facts.epilogue.inputs, *facts.epilogue.outputs]
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
    optional = sum(operand.optional for operand, _ in facts.epilogue.outputs)
    if optional > MAX_OPTIONAL_OUTPUTS:
        return f"{optional} optional outputs, want at most {MAX_OPTIONAL_OUTPUTS}"
    for name, extent in (("M", facts.m), ("N", facts.n), ("K", facts.k)):
        if bounds(extent, facts.symbols)[1] > INT32_MAX:
            return f"{name} may reach {bounds(extent, facts.symbols)[1]}, want at most {INT32_MAX}"
    return unmergeable_batch(facts)


def first_refusal(caps: tuple[Capability, ...], facts: GemmFacts, target: Target) -> Refusal | None:
    """None when one of the rows takes the graph, else the reasons of all of them."""
    reasons = [row.why_not(facts, target) for row in caps]
    if any(reason is None for reason in reasons):
        return None
    return Refusal("; ".join(dict.fromkeys(reason for reason in reasons if reason)))
