"""Rules of the attention ops' gradients, beside those that both directions share."""

from __future__ import annotations

from cudnn_aot.compiler.graph.op import NodeView, Refusal, Rule, unsupported
from cudnn_aot.compiler.graph.rules.attention import (
    LEFT,
    SPELLINGS,
    block_scales,
    common,
    head_dims,
    tensor_scales,
)
from cudnn_aot.compiler.graph.rules.domain import may_be_at_most
from cudnn_aot.compiler.graph.rules.tables import at_least, extents, needs, wired

_RESULTS = ("dQ", "dK", "dV")


def more_than_one_score(view: NodeView) -> Refusal | None:
    """there is more than one query or more than one key"""
    queries, keys = view.dim("q")[2], view.dim("v")[2]
    if not may_be_at_most(view, 2, queries) and not may_be_at_most(view, 2, keys):
        return unsupported("q", f"{queries} query and {keys} key", "more than one of either")
    return None


def _results(*likes: str) -> Rule:
    """O, its gradient and what goes with them; `likes` are further ports of O's extents."""
    return extents(
        {
            "q": "B H S_q D",
            "v": "B H_v S_kv D_v",
            **dict.fromkeys(likes, "B H S_q D_v"),
            "stats": "B H S_q 1",
            "dBias": "B? H? S_q? S_kv?",
            "dSink_token": "1 H 1 1",
        }
    )


def _backward(o: str, *others: str) -> tuple[Rule, ...]:
    """`o`: the port that carries O; `others`: further operands of rank 4."""
    return (
        *common("q", "k", "v", o, "dO", *_RESULTS, *others),
        more_than_one_score,
        at_least(LEFT[0], 1, *LEFT[1:]),
        needs(wired("dSink_token"), wired("sink_token")),
    )


SDPA_BACKWARD: tuple[Rule, ...] = (
    *_backward("o"),
    _results("o", "dO"),
    head_dims(8),
)
SDPA_FP8_BACKWARD: tuple[Rule, ...] = (
    *_backward("o"),
    _results("o", "dO"),
    *SPELLINGS,
    head_dims(16),
    *tensor_scales(
        *(f"descale_{port}" for port in ("q", "k", "v", "o", "dO", "s", "dP")),
        *(f"scale_{port}" for port in ("s", "dQ", "dK", "dV", "dP")),
    ),
)
SDPA_MXFP8_BACKWARD: tuple[Rule, ...] = (
    *_backward("o_f16"),
    _results("o_f16", "dO_f16", "dO", "dO_T"),
    extents({"q": "B H S_q D", "q_T": "B H S_q D", "k": "B H_k S_kv D", "k_T": "B H_k S_kv D"}),
    *SPELLINGS,
    block_scales(
        {
            "descale_q": ("q", 3),
            "descale_q_T": ("q", 2),
            "descale_k": ("k", 3),
            "descale_k_T": ("k", 2),
            "descale_v": ("v", 2),
            "descale_dO": ("dO", 3),
            "descale_dO_T": ("dO", 2),
        }
    ),
)
