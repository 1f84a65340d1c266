"""Rules of the grouped products of a mixture of experts, as the cuDNN frontend has them.

Beside those, the operands' extents agree and what counts rows is of an integer type.
"""

from __future__ import annotations

from cudnn_aot.compiler.graph.enums import moe_grouped_matmul_mode as mode
from cudnn_aot.compiler.graph.extents import Extent, format_extents
from cudnn_aot.compiler.graph.op import NodeView, Refusal, Rule, wrong
from cudnn_aot.compiler.graph.rules.domain import may_be_at_most, may_equal
from cudnn_aot.compiler.graph.rules.tables import (
    INTEGERS,
    documented,
    extents,
    numbers,
    types,
)

# What routes rows, and the modes that read it.
_ROUTING = {
    "token_index": (mode.GATHER, mode.SCATTER, mode.COMBINE),
    "token_ks": (mode.SCATTER, mode.COMBINE),
    "top_k_scores": (mode.COMBINE,),
}


def routing(view: NodeView) -> Refusal | None:
    """token_index goes with GATHER, SCATTER, COMBINE; token_ks with the last two; top_k_scores with COMBINE alone"""  # noqa: E501
    chosen = view.attr("mode")
    for port, modes in _ROUTING.items():
        if chosen in modes and not view.has(port):
            return wrong(port, "nothing", f"a tensor for mode {chosen.name}")
    if chosen is not mode.COMBINE and view.has("top_k_scores"):
        return wrong("top_k_scores", f"a tensor for mode {chosen.name}", "COMBINE, or none")
    return None


def contraction(view: NodeView) -> Refusal | None:
    """the last axis of token and axis -2 of weight agree: K"""
    columns, rows = view.dim("token")[-1], view.dim("weight")[-2]
    if not may_equal(view, columns, rows):
        return wrong("weight", f"{rows} rows", f"{columns}, the columns of token")
    return None


def _offsets(experts_of: str) -> Rule:
    def rule(view: NodeView) -> Refusal | None:
        dim, expert_dim = view.dim("first_token_offset"), view.dim(experts_of)
        if not expert_dim:
            return None
        count, experts = dim[0], expert_dim[0]
        if not (isinstance(count, int) and isinstance(experts, int)):
            return None  # a count of groups stays open
        are_starts = experts > 1 and count > 0 and count % experts == 0
        are_boundaries = experts > 0 and count > 1 and (count - 1) % experts == 0
        if not (are_starts or are_boundaries):
            return wrong(
                "first_token_offset",
                f"{count} offsets for {experts} experts",
                "as many starts as groups, or one more, groups being a multiple of the experts "
                "(with one expert, one more)",
            )
        return None

    return documented(
        "first_token_offset has G starts or G + 1 boundaries, G a positive multiple of the "
        "experts; G + 1 for one expert",
        rule,
    )


_OPERANDS = extents(
    {
        "token": "1 M K",
        "weight": "E K N",
        "first_token_offset": "offsets 1 1 | offsets",
        "token_index": "1 rows 1",
        "token_ks": "1 M 1",
    },
)
_ROUTES = extents({"token": "1 M K", "token_index": "1 M 1"})


def routed_rows(view: NodeView) -> Refusal | None:
    """SCATTER, COMBINE: token_index [1, M, 1], as many rows as token"""
    return _ROUTES(view) if view.attr("mode") in _ROUTING["token_ks"] else None


def combined(view: NodeView) -> Refusal | None:
    """COMBINE: top_k_scores [1, tokens, top_k] with 1 <= top_k <= E"""
    if view.attr("mode") is not mode.COMBINE:
        return None
    top_k, experts = view.attr("top_k"), view.dim("weight")[0]
    if top_k < 1 or not may_be_at_most(view, top_k, experts):
        return Refusal(f"attribute top_k: got {top_k}, want 1 to the {experts} experts")
    scores = view.dim("top_k_scores")
    want: tuple[tuple[int, Extent], ...] = ((0, 1), (2, top_k))
    if len(scores) != 3 or any(not may_equal(view, scores[axis], n) for axis, n in want):
        return wrong("top_k_scores", f"dim {format_extents(scores)}", f"[1, tokens, {top_k}]")
    if scores[1] == 0:
        return wrong("top_k_scores", "0 tokens", "at least 1")
    return None


_GRADIENTS = extents(
    {
        "doutput": "1 rows N",
        "token": "1 M K",
        "first_token_offset": "offsets 1 1 | offsets",
    }
)


def gradient_rows(view: NodeView) -> Refusal | None:
    """doutput and token have the same rows; dweight is [E, K of token, N of doutput]"""
    grad, token, weight = view.dim("doutput"), view.dim("token"), view.dim("dweight")
    if not may_equal(view, grad[-2], token[-2]):
        return wrong("doutput", f"{grad[-2]} rows", f"{token[-2]}, as token")
    matrix = (token[-1], grad[-1])
    if weight and (
        len(weight) != 3
        or any(not may_equal(view, a, b) for a, b in zip(weight[1:], matrix, strict=True))
    ):
        return wrong(
            "dweight", f"dim {format_extents(weight)}", f"[experts, {matrix[0]}, {matrix[1]}]"
        )
    return None


MOE_GROUPED_MATMUL: tuple[Rule, ...] = (
    _offsets("weight"),
    routing,
    contraction,
    _OPERANDS,
    routed_rows,
    combined,
    numbers("token", "weight", "top_k_scores", "OUT_0"),
    types("first_token_offset", "token_index", "token_ks", allowed=INTEGERS),
)
MOE_GROUPED_MATMUL_BWD: tuple[Rule, ...] = (
    _GRADIENTS,
    gradient_rows,
    numbers("doutput", "token", "dweight"),
    _offsets("dweight"),
    types("first_token_offset", allowed=INTEGERS),
)
