"""Rules of the linear-attention ops; their ports are packed over tokens.

``T`` tokens, ``N`` sequences, heads ``H`` of q, ``H_k`` of k, ``HV`` of v and ``HO`` of the gates,
the results and the states. Contradictions of attributes and ports are those that no kernel of the
cuDNN frontend takes, and of its kind of error; that extents agree is what the ops mean.
"""

from __future__ import annotations

from collections.abc import Mapping

from cudnn_aot.compiler.graph.extents import Extent, mul
from cudnn_aot.compiler.graph.op import NodeView, Refusal, Rule, unsupported, wrong
from cudnn_aot.compiler.graph.rules.domain import may_be_at_most, may_divide
from cudnn_aot.compiler.graph.rules.tables import (
    INTEGERS,
    WIDE_FLOATS,
    Fact,
    excludes,
    extents,
    floats,
    given,
    needs,
    on,
    types,
    wired,
)
from cudnn_aot.compiler.graph.shapes import larger, minus

# Extents.

_OPERANDS = {
    "g": "T HO",
    "q": "T H K",
    "k": "T H_k K",
    "v": "T HV V",
    "beta": "T HO",
    "a": "HO",
    "initial_state": "rows HO V K",
    "d_final_state": "N HO V K",
    "state_checkpoints": "checkpoints HO V K",
    "dO": "T HO V",
    "a_log": "HO",
    "dt_bias": "HO",
    "d": "HO | HO V",
    "z": "T HO V",
    "O_pre": "T HO V",
    "state_indices": "N",
}
_CHANNELS = {"g": "T HO K", "dt_bias": "HO K"}  # a gate for each key channel
# What differs by op: `gdp` has rows of updates, flat or by token.
_OWN: dict[str, Mapping[str, str]] = {
    "gdn": {},
    "kda": _CHANNELS,
    "gdn2": {**_CHANNELS, "beta": "T HO K", "w": "T HO V"},
    "gdp": {"k": "R H_k K | T n H_k K", "v": "R HV V | T n HV V", "beta": "R HO | T n HO"},
    "mamba2": {},
}


def _sequences(view: NodeView) -> Extent | None:
    """N: ``cu_seqlens`` has one more."""
    dim = view.dim("cu_seqlens")
    return minus(dim[0], 1) if dim else None


def _heads(view: NodeView) -> Extent | None:
    """HO: the larger number of heads of q and v; what the gates have, in a summary."""
    q, v = view.dim("q"), view.dim("v")
    return larger(q[-2], v[-2]) if len(q) > 1 and len(v) > 1 else None


def _state_rows(view: NodeView) -> Extent | None:
    """Rows of ``initial_state``: N, or any number in a pool that ``state_indices`` address."""
    return None if view.has("state_indices") else _sequences(view)


def _updates(view: NodeView) -> Extent:
    return int(given(view, "num_householder") or 1)


def _update_rows(view: NodeView) -> Extent | None:
    dim = view.dim("g")
    return mul(dim[0], _updates(view)) if dim else None


def agreeing_extents(family: str) -> Rule:
    return extents(
        {"cu_seqlens": "offsets", **_OPERANDS, **_OWN[family]},
        N=_sequences,
        HO=_heads,
        rows=_state_rows,
        n=_updates,
        R=_update_rows,
    )


def heads_divide(view: NodeView) -> Refusal | None:
    """the heads of q, k and v divide those of the gates"""
    gates = view.dim("g")[1]
    for port in ("q", "k", "v"):
        dim = view.dim(port)
        if dim and not may_divide(view, dim[-2], gates):
            return unsupported(port, f"{dim[-2]} heads", f"a divisor of the {gates} of g")
    return None


# Attributes and ports that go together.


def step_limits(view: NodeView) -> Refusal | None:
    """dt_min is at most dt_max"""
    low, high = view.attr("dt_min"), view.attr("dt_max")
    if high is not None and low > high:
        return Refusal(f"attribute dt_min: got {low}, want at most dt_max {high}", True)
    return None


def checkpoint_interval(view: NodeView) -> Refusal | None:
    """checkpoint_every_n_tokens is at least 0"""
    every = view.attr("checkpoint_every_n_tokens")
    if every < 0:
        return Refusal(f"attribute checkpoint_every_n_tokens: got {every}, want at least 0", True)
    return None


def update_count(view: NodeView) -> Refusal | None:
    """num_householder is at least 1"""
    count = view.attr("num_householder")
    if count < 1:
        return Refusal(f"attribute num_householder: got {count}, want at least 1", True)
    return None


_SAFE_GATE = on("safe_gate")
_LINEAR = Fact(
    "gate_domain 'linear'",
    lambda view: given(view, "gate_domain") == "linear",
    "attribute gate_domain",
)
_OVERWRITE = on("overwrite_initial_state")
_CHECKPOINTS = Fact(
    "checkpoint_every_n_tokens above 0",
    lambda view: bool(given(view, "checkpoint_every_n_tokens")),
    "attribute checkpoint_every_n_tokens",
)
_GATES: tuple[Rule, ...] = (
    needs(wired("a_log"), _SAFE_GATE, unsupported=True),
    needs(wired("dt_bias"), _SAFE_GATE, unsupported=True),
    excludes(_LINEAR, _SAFE_GATE, unsupported=True),
    needs(on("gate_lower_bound"), _SAFE_GATE, unsupported=True),
    needs(on("allow_neg_eigval"), on("use_beta_sigmoid"), unsupported=True),
)
_FORWARD: tuple[Rule, ...] = (
    needs(wired("state_indices"), wired("initial_state"), unsupported=True),
    checkpoint_interval,
    needs(_OVERWRITE, wired("initial_state", "final_state"), unsupported=True),
)
_BACKWARD: tuple[Rule, ...] = (
    checkpoint_interval,
    needs(_CHECKPOINTS, wired("state_checkpoints"), unsupported=True),
    needs(_OVERWRITE, wired("d_final_state", "d_initial_state"), unsupported=True),
)
_STEPS: tuple[Rule, ...] = (step_limits,)
_PRE_GATE: tuple[Rule, ...] = (needs(on("output_pre_gate"), wired("z"), unsupported=True),)
_GATED_RESULT: tuple[Rule, ...] = (
    needs(wired("O_pre"), wired("z"), unsupported=True),
    needs(wired("z"), wired("O_pre"), unsupported=True),
)


def some_offset(view: NodeView) -> Refusal | None:
    """cu_seqlens has an offset for each sequence and one for the end"""
    offsets = view.dim("cu_seqlens")[0]
    if not may_be_at_most(view, 1, offsets):
        return wrong("cu_seqlens", f"{offsets} offsets", "at least 1")
    return None


_FLOATS = floats(*(port for port in (*_OPERANDS, "w", "O") if port != "state_indices"))
_BETA = types("beta", allowed=WIDE_FLOATS)
_OFFSETS = types("cu_seqlens", "state_indices", allowed=INTEGERS)


def _rows(family: str) -> dict[str, tuple[Rule, ...]]:
    """The rules of the four ops of a family, by op."""
    shapes = (agreeing_extents(family), some_offset, heads_divide, _OFFSETS, _FLOATS, _BETA)
    if family == "mamba2":
        return {
            "mamba2": (*_STEPS, *_FORWARD, *_PRE_GATE, *shapes),
            "mamba2_bwd": (*_STEPS, *_BACKWARD, *_GATED_RESULT, *shapes),
            "mamba2_summary": (*_STEPS, *shapes),
            "mamba2_summary_bwd": (*_STEPS, *shapes),
        }
    gates = (update_count, *_GATES) if family == "gdp" else _GATES
    return {
        family: (*gates, *_FORWARD, *shapes),
        f"{family}_bwd": (*gates, *_BACKWARD, *shapes),
        f"{family}_summary": (*gates, *shapes),
        f"{family}_summary_bwd": (*gates, *shapes),
    }


RULES: dict[str, tuple[Rule, ...]] = {
    op: rules for family in _OWN for op, rules in _rows(family).items()
}
