"""``gemm.host.blocked``: the GEMM family on a CPU. Correct for any strides; blocked where both
inner strides are 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_aot.cache.spec import kernel_spec
from cudnn_aot.compiler.planning import expressions as ex
from cudnn_aot.compiler.planning.engine import Engine, Lowering, Refusal
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm import lowering
from cudnn_aot.recipes.gemm.capability import ANY_STRIDE, GemmCapability
from cudnn_aot.recipes.gemm.facts import GemmFacts
from cudnn_aot.recipes.gemm.lowering import Json, Variant

TEMPLATE = "gemm.kernels.host:matmul"
TOTAL_BYTES = 8


class GemmHostBlocked(Engine):
    """One thread, the pointwise chain applied to each block of the result in fp32."""

    name = "gemm.host.blocked"
    caps = (GemmCapability(kind="cpu", **ANY_STRIDE),)

    def lower(self, facts: GemmFacts, knobs: Any, target: Target) -> Lowering | Refusal:
        builder = lowering.TableBuilder(facts, "cpu")
        for variant in lowering.variants(facts):
            steps: list[Json] = []
            totals = _totals(facts, variant)
            if variant.outputs:
                parts = lowering.kernel_parts(facts, variant)
                params = lowering.matmul_params(facts, parts)
                args = parts.operands + parts.tail + [total.view for total in totals]
                kernel = builder.kernel(kernel_spec(TEMPLATE, params, target))
                steps = [{"step": "kernel", "kernel": kernel, "args": args}]
            workspace = [total.slice for total in totals]
            builder.add(f"blocked{variant.name}", variant.guard, workspace, steps)
        return Lowering(tuple(builder.kernels), builder.table())


@dataclass(frozen=True, slots=True)
class _Total:
    """What a reduction has folded so far: a slice of the workspace, and the kernel's view of it."""

    slice: Json
    view: Json


def _totals(facts: GemmFacts, variant: Variant) -> list[_Total]:
    """Of each output that is reduced, in fp64: a value for each element of the output."""
    p = lowering.problem(facts)
    totals = []
    for output in variant.outputs:
        if (reduction := output.reduction) is None:
            continue
        rows, columns = (
            1 if axis in reduction.axes else extent for axis, extent in (("m", p.m), ("n", p.n))
        )
        name = f"totals{output.operand.uid}"
        view = {
            "arg": "tensor",
            "slice": name,
            "dtype": "DOUBLE",
            "dim": [p.m, p.n, *p.runs],
            "stride": [
                0 if "m" in reduction.axes else columns,
                0 if "n" in reduction.axes else 1,
                *p.dense(ex.mul(rows, columns)),
            ],
        }
        size = ex.mul(TOTAL_BYTES, rows, columns, p.batch)
        totals.append(_Total({"name": name, "bytes": size, "align": TOTAL_BYTES}, view))
    return totals
