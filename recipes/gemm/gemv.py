"""``gemm.sm90.gemv``: a matmul of a few rows on Hopper, that reads B once.

Beside the fast branch, for A and B along K, a plan has the one that takes any strides, as those of
``gemm.sm90.persistent`` have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cudnn_aot.cache.spec import kernel_spec
from cudnn_aot.compiler.graph.extents import extent_expr
from cudnn_aot.compiler.planning import expressions as ex
from cudnn_aot.compiler.planning.engine import Lowering, Refusal
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm import lowering, tma
from cudnn_aot.recipes.gemm.any_stride import add_any_stride_branch
from cudnn_aot.recipes.gemm.batch import forms
from cudnn_aot.recipes.gemm.capability import SM90, GemmCapability
from cudnn_aot.recipes.gemm.config import GemvConfig
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.sm90 import ScheduledEngine
from cudnn_aot.recipes.operand import ALIGN_BYTES, bounds, is_multiple

TEMPLATE = "gemm.kernels.gemv:matmul"
K_MULTIPLE = 8  # elements of a 16-byte load
MAX_ROWS = 4  # that a block takes at once; with more, B is read again


@dataclass(frozen=True, slots=True, kw_only=True)
class GemvCapability(GemmCapability):
    """Of a kernel that loads A and B 16 bytes at a time along K."""

    layouts: tuple[str, ...] = ("A and B contiguous along K",)

    def why_not_facts(self, facts: GemmFacts) -> str | None:
        reason = GemmCapability.why_not_facts(self, facts)
        if reason is not None:
            return reason
        if facts.majors() != ("k", "k"):
            majors = facts.as_declared().majors() or ("no", "no")
            return f"A and B are {'/'.join(majors)}-major, want k/k"
        for operand, axis in ((facts.a, -1), (facts.b, -2)):
            if reason := tma.why_not_operand(operand, axis, facts.symbols, facts.batch_runs):
                return reason
        if not is_multiple(facts.k, K_MULTIPLE, facts.symbols):
            return f"K is {facts.k}, want a multiple of {K_MULTIPLE}"
        return None


class GemmSm90Gemv(ScheduledEngine):
    """One pass over B for up to four rows; fp32 FMA."""

    name = "gemm.sm90.gemv"
    schedule = GemvConfig
    caps = (GemvCapability(dtypes=("BFLOAT16", "HALF"), alignment_bytes=ALIGN_BYTES, **SM90),)

    def configs(self, facts: GemmFacts, target: Target) -> Iterable[GemvConfig]:
        has_few = bounds((facts.stacked() or facts).m, facts.symbols)[0] <= MAX_ROWS
        return GemvConfig.measured() if has_few else ()

    def lower(self, facts: GemmFacts, knobs: GemvConfig, target: Target) -> Lowering | Refusal:
        builder = lowering.TableBuilder(facts, "cuda")
        k = extent_expr(facts.k)
        for variant, parts in builder.variants():
            for form in forms(facts, variant, parts):
                params = {
                    "ab_dtype": facts.a.dtype,
                    "rows": knobs.rows,
                    "columns": knobs.columns,
                    "k_warps": knobs.k_warps,
                    "unroll": knobs.unroll,
                    "epilogue": form.parts.epilogue,
                } | lowering.runs_params(facts)
                kernel = builder.kernel(kernel_spec(TEMPLATE, params, target))
                guard = ex.all_of(
                    variant.guard,
                    form.guard,
                    ex.lt(0, k),
                    ex.divides(K_MULTIPLE, k),
                    tma.guard(facts.a, -1, facts.batch_runs),
                    tma.guard(facts.b, -2, facts.batch_runs),
                )
                args = [{"arg": "launch"}, *form.parts.operands, *form.parts.tail]
                steps = [{"step": "kernel", "kernel": kernel, "args": args}]
                builder.add(f"gemv{form.name}{variant.name}", guard, [], steps)
            add_any_stride_branch(builder, facts, variant, parts, target)
        return Lowering(tuple(builder.kernels), builder.table())
