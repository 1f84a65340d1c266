"""Which grouped matmuls the kernel for Hopper's tensor cores may serve: what a declaration rules
out, and which calls of the rest.
"""

from __future__ import annotations

from cudnn_aot.compiler.graph.extents import extent_expr
from cudnn_aot.compiler.planning import expressions as ex
from cudnn_aot.recipes.gemm import tma
from cudnn_aot.recipes.moe.facts import MoeFacts
from cudnn_aot.recipes.operand import ALIGN_BYTES, FP8_DTYPES, bounds, is_multiple

WEIGHT_AXES = {"k": -2, "n": -1}


def why_not(facts: MoeFacts) -> str | None:
    """None where the kernel may serve some call, else the reason why it serves none."""
    token, out, symbols = facts.token, facts.out, facts.symbols
    if bounds(token.dim[-1], symbols)[1] == 0:
        return "K is 0"
    if token.stride[-1] != 1:
        return f"{token.name!r} is not contiguous along K"
    if reason := tma.why_not_operand(token, -1, symbols):
        return reason
    step = tma.step_elements(token)
    if facts.mode == "GATHER" and not is_multiple(token.dim[-1], step, symbols):
        return (
            f"rows of {token.name!r} are gathered, and K {token.dim[-1]} need not be a multiple of "
            f"{ALIGN_BYTES} bytes"
        )
    if reason := _why_not_weight(facts):
        return reason
    if out.stride[-1] != 1:
        return f"the rows of {out.name!r} are not contiguous"
    return None


def _why_not_weight(facts: MoeFacts) -> str | None:
    if weight_major(facts) is not None:
        return None
    weight = facts.weight
    majors = [major for major, axis in WEIGHT_AXES.items() if weight.stride[axis] == 1]
    if not majors:
        return f"{weight.name!r} has no contiguous axis"
    if weight.dtype in FP8_DTYPES and "k" not in majors:
        return f"{weight.name!r} is FP8 and not contiguous along K"
    return tma.why_not_operand(weight, WEIGHT_AXES[majors[0]], facts.symbols)


def weight_major(facts: MoeFacts) -> str | None:
    """The axis of weight, ``k`` or ``n``, along which TMA loads it; None if it cannot."""
    weight = facts.weight
    for major in ("k",) if weight.dtype in FP8_DTYPES else ("k", "n"):
        axis = WEIGHT_AXES[major]
        if weight.stride[axis] == 1 and tma.why_not_operand(weight, axis, facts.symbols) is None:
            return major
    return None


def stores_chunks(facts: MoeFacts) -> bool:
    """Whether rows of the output are stored 16 bytes at a time, and not by elements."""
    return tma.why_not_operand(facts.out, -1, facts.symbols) is None


def guard(facts: MoeFacts) -> ex.Predicate:
    """Which calls the kernel takes."""
    token, weight, out = facts.token, facts.weight, facts.out
    major, k = weight_major(facts), extent_expr(token.dim[-1])
    assert major is not None
    stores = (
        tma.guard(out, -1)
        if stores_chunks(facts)
        else ex.eq(ex.stride(out.uid, len(out.dim) - 1), 1)
    )
    return ex.all_of(
        ex.lt(0, k) if bounds(token.dim[-1], facts.symbols)[0] == 0 else True,
        tma.guard(token, -1),
        tma.guard(weight, WEIGHT_AXES[major]),
        stores,
    )
