"""``gemm.sm90.gemv``: few rows on Hopper, weights streamed once by the CUDA cores.

Beside the fast branch, for A and B along K, a plan has the one that takes any strides, as those of
``gemm.sm90.persistent`` have.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from cudnn_aot.cache.spec import kernel_spec
from cudnn_aot.compiler.graph.extents import extent_expr
from cudnn_aot.compiler.planning import expressions as ex
from cudnn_aot.compiler.planning.engine import Engine, Lowering, Refusal
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import cudnnGraphNotSupportedError
from cudnn_aot.recipes.gemm import lowering, tma
from cudnn_aot.recipes.gemm.capability import GemmCapability
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.sm90 import add_any_stride_branch

TEMPLATE = "gemm.kernels.gemv:matmul"
K_MULTIPLE = 8  # a 16-byte load
MAX_ROWS = 4  # that a block takes at once; with more rows B is read again
LOADS = (2, 4, 8)  # of B in flight per lane: columns x unroll


@dataclass(frozen=True, slots=True)
class GemvConfig:
    """A schedule: rows and columns of a warp, the warps that share them along K, and the steps of
    K whose loads are in flight.
    """

    rows: int
    columns: int
    k_warps: int
    unroll: int

    def why_not(self) -> str | None:
        """None for a schedule that the kernel has, else the knob that is off, in a sentence."""
        for knob, menu, value in zip(KNOBS, MENU, _values(self), strict=True):
            if value not in menu:
                return f"{knob.name} is {value}, want one of {', '.join(map(str, menu))}"
        return None


_values = operator.attrgetter(*(field.name for field in fields(GemvConfig)))
# In the order of the fields.
KNOBS = (knob_type.TILE_ROWS, knob_type.TILE_COLS, knob_type.SPLIT_K_SLC, knob_type.STAGES)
MENU = ((1, 2, MAX_ROWS), (1, 2, 4), (1, 2, 4, 8), (1, 2, 4))


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


def lower_stream(
    facts: GemmFacts, template: str, params: Mapping[str, int], k_multiple: int, target: Target
) -> Lowering:
    """A branch with the kernel of this template, and behind it the one for any strides."""
    builder = lowering.TableBuilder(facts, "cuda")
    k = extent_expr(facts.k)
    for variant in lowering.variants(facts):
        if not variant.outputs:
            builder.add(f"nothing{variant.name}", variant.guard, [], [])
            continue
        parts = lowering.kernel_parts(facts, variant)
        spec = {"ab_dtype": facts.a.dtype, **params, "epilogue": parts.epilogue}
        kernel = builder.kernel(kernel_spec(template, spec, target))
        guard = ex.all_of(
            variant.guard,
            ex.lt(0, k),
            ex.divides(k_multiple, k),
            tma.guard(facts.a, -1),
            tma.guard(facts.b, -2),
        )
        args = [{"arg": "launch"}, *parts.operands, *parts.tail]
        steps = [{"step": "kernel", "kernel": kernel, "args": args}]
        builder.add(f"stream{variant.name}", guard, [], steps)
        add_any_stride_branch(builder, facts, variant, parts, target)
    return Lowering(tuple(builder.kernels), builder.table())


class GemmSm90Gemv(Engine):
    """One pass over B for up to four rows; fp32 FMA."""

    name = "gemm.sm90.gemv"
    caps = (
        StreamCapability(
            kind="cuda",
            sm_lo=90,
            sm_hi=90,
            is_arch_specific=True,
            dtypes=("BFLOAT16", "HALF"),
            alignment_bytes=tma.ALIGN_BYTES,
            k_multiple=K_MULTIPLE,
        ),
    )

    def configs(self, facts: GemmFacts, target: Target) -> Iterable[GemvConfig]:
        if lowering.bounds(facts.m, facts.symbols)[0] > MAX_ROWS:
            return ()
        every = (GemvConfig(*values) for values in itertools.product(*MENU))
        return [config for config in every if config.columns * config.unroll in LOADS]

    def knobs_to_public(self, knobs: GemvConfig) -> dict[knob_type, int]:
        return dict(zip(KNOBS, _values(knobs), strict=True))

    def knobs_from_public(self, knobs: Mapping[knob_type, int]) -> GemvConfig:
        if knobs.keys() != set(KNOBS):
            got = ", ".join(sorted(knob.name for knob in knobs)) or "none"
            want = ", ".join(knob.name for knob in KNOBS)
            raise cudnnGraphNotSupportedError(f"engine {self.name}: got knobs {got}, want {want}")
        config = GemvConfig(*(knobs[knob] for knob in KNOBS))
        if reason := config.why_not():
            raise cudnnGraphNotSupportedError(f"engine {self.name}: {reason}")
        return config

    def lower(self, facts: GemmFacts, knobs: GemvConfig, target: Target) -> Lowering | Refusal:
        params = {
            "rows": knobs.rows,
            "columns": knobs.columns,
            "k_warps": knobs.k_warps,
            "unroll": knobs.unroll,
        }
        return lower_stream(facts, TEMPLATE, params, K_MULTIPLE, target)
