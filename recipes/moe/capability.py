"""Capability rows of the engines for a mixture of experts: what an engine accepts, and the reason
when it does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from cudnn_aot.compiler.planning.capability import Capability
from cudnn_aot.recipes.moe.facts import MoeFacts
from cudnn_aot.recipes.operand import FP8_DTYPES, INT32_MAX, bounds

DTYPES = ("BFLOAT16", "HALF", "FLOAT", *FP8_DTYPES)
MODES = ("NONE", "GATHER", "SCATTER")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeCapability(Capability[MoeFacts]):
    """``dtypes`` are those of token and weight; sums are fp32."""

    dtypes: tuple[str, ...] = DTYPES
    out_dtypes: tuple[str, ...] = DTYPES
    layouts: tuple[str, ...] = ("any strides",)
    features: tuple[str, ...] = (
        f"modes {', '.join(MODES)}",
        "token and weight of different FP8 types",
        "offsets and indices INT32 or INT64",
        "symbolic rows, N and K",
    )

    def why_not_facts(self, facts: MoeFacts) -> str | None:
        if facts.mode not in MODES:
            return f"mode {facts.mode} is not in {'/'.join(MODES)}: it adds rows to one another"
        token, weight, out = facts.token.dtype, facts.weight.dtype, facts.out.dtype
        if token != weight and not {token, weight} <= set(FP8_DTYPES):
            return f"token is {token} and weight is {weight}, want the same dtype"
        for name, dtype, wanted in (
            ("token", token, self.dtypes),
            ("output", out, self.out_dtypes),
        ):
            if dtype not in wanted:
                return f"{name} is {dtype}, want one of {'/'.join(wanted)}"
        if facts.compute_dtype != "FLOAT":
            return f"compute data type {facts.compute_dtype} is not FLOAT"
        if facts.groups is None:
            experts, count = facts.weight.dim[0], facts.offsets.dim[0]
            return (
                f"{count} offsets for {experts} experts, want two numbers: they say whether the "
                "last offset is an end"
            )
        for name, extent in facts.named_extents.items():
            if bounds(extent, facts.symbols)[1] > INT32_MAX:
                most = bounds(extent, facts.symbols)[1]
                return f"{name} may reach {most}, want at most {INT32_MAX}"
        return None
