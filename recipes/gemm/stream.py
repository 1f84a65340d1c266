"""The engines that stream weights for few rows on Hopper: B is read once, whatever the tile.

Beside the fast branch, for A and B along K, a plan has the one that takes any strides, as those of
``gemm.sm90.persistent`` have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from cudnn_aot.cache.spec import kernel_spec
from cudnn_aot.compiler.graph.enums import numerical_note
from cudnn_aot.compiler.graph.extents import extent_expr
from cudnn_aot.compiler.planning import expressions as ex
from cudnn_aot.compiler.planning.engine import Lowering, Refusal
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm import lowering, tma
from cudnn_aot.recipes.gemm.any_stride import add_any_stride_branch
from cudnn_aot.recipes.gemm.capability import GemmCapability
from cudnn_aot.recipes.gemm.config import GemvConfig, SkinnyConfig, StreamSchedule
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.sm90 import SM90, ScheduledEngine
from cudnn_aot.recipes.operand import bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCapability(GemmCapability):
    """``k_multiple``: of what K is a multiple."""

    layouts: tuple[str, ...] = ("A and B contiguous along K",)
    k_multiple: int

    def why_not_facts(self, facts: GemmFacts) -> str | None:
        reason = GemmCapability.why_not_facts(self, facts)
        if reason is not None:
            return reason
        if facts.majors() != ("k", "k"):
            return f"A and B are {'/'.join(facts.majors() or ('no', 'no'))}-major, want k/k"
        for operand, axis in ((facts.a, -1), (facts.b, -2)):
            if reason := tma.why_not_operand(operand, axis, facts):
                return reason
        if not lowering.is_multiple(facts.k, self.k_multiple, facts.symbols):
            return f"K is {facts.k}, want a multiple of {self.k_multiple}"
        return None


class _Stream(ScheduledEngine):
    """What they have in common.

    Attributes:
        template: of the kernel.
        max_rows: that a block takes at once; with more rows B is read again.
    """

    template: ClassVar[str]
    max_rows: ClassVar[int]
    caps: ClassVar[tuple[StreamCapability, ...]]
    schedule: ClassVar[type[StreamSchedule]]

    def params(self, knobs: StreamSchedule) -> dict[str, int]:
        """Those of the kernel."""
        raise NotImplementedError

    def configs(self, facts: GemmFacts, target: Target) -> Iterable[StreamSchedule]:
        has_few = bounds(facts.m, facts.symbols)[0] <= self.max_rows
        return self.schedule.measured() if has_few else ()

    def lower(self, facts: GemmFacts, knobs: StreamSchedule, target: Target) -> Lowering | Refusal:
        builder = lowering.TableBuilder(facts, "cuda")
        k, (row,) = extent_expr(facts.k), self.caps
        for variant, parts in builder.variants():
            params = {"ab_dtype": facts.a.dtype, **self.params(knobs), "epilogue": parts.epilogue}
            kernel = builder.kernel(kernel_spec(self.template, params, target))
            guard = ex.all_of(
                variant.guard,
                ex.lt(0, k),
                ex.divides(row.k_multiple, k),
                tma.guard(facts.a, -1),
                tma.guard(facts.b, -2),
            )
            args = [{"arg": "launch"}, *parts.operands, *parts.tail]
            steps = [{"step": "kernel", "kernel": kernel, "args": args}]
            builder.add(f"stream{variant.name}", guard, [], steps)
            add_any_stride_branch(builder, facts, variant, parts, target)
        return Lowering(tuple(builder.kernels), builder.table())


class GemmSm90Gemv(_Stream):
    """One pass over B for up to four rows; fp32 FMA."""

    name = "gemm.sm90.gemv"
    template = "gemm.kernels.gemv:matmul"
    max_rows = 4
    schedule = GemvConfig
    caps = (StreamCapability(**SM90, k_multiple=8),)  # a 16-byte load

    def params(self, knobs: StreamSchedule) -> dict[str, int]:
        assert isinstance(knobs, GemvConfig)
        return {
            "rows": knobs.rows,
            "columns": knobs.columns,
            "k_warps": knobs.k_warps,
            "unroll": knobs.unroll,
        }


class GemmSm90Skinny(_Stream):
    """One pass over B for up to 64 rows; ``mma.sync`` with fp32 accumulation."""

    name = "gemm.sm90.skinny"
    template = "gemm.kernels.skinny:matmul"
    max_rows = 64
    schedule = SkinnyConfig
    caps = (StreamCapability(**SM90, k_multiple=32),)  # what a warp takes in one step
    numerical_notes = frozenset({numerical_note.TENSOR_CORE})

    def params(self, knobs: StreamSchedule) -> dict[str, int]:
        assert isinstance(knobs, SkinnyConfig)
        return {
            "row_tiles": knobs.tile_rows // 8,
            "column_tiles": knobs.tile_columns // 16,
            "k_warps": knobs.k_warps,
            "unroll": knobs.unroll,
        }
