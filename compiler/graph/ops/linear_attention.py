"""The rows of the linear-attention ops: five recurrences, each with four rows.

All are packed over tokens: q and k ``[T, H, K]``, v ``[T, HV, V]``, gates ``[T, HO, ...]`` with
``HO = max(H, HV)``, ``cu_seqlens [N + 1]``, states ``[N, HO, V, K]``. ``<op>`` is the forward,
``<op>_bwd`` its backward, ``<op>_summary`` what a piece of a sequence does to the state, and
``<op>_summary_bwd`` the same for the state's gradient. `gdp` takes ``T * num_householder`` rows of
k, v and beta, or them token-major as ``[T, num_householder, ...]``. The cuDNN backend has none of
them.
"""

from __future__ import annotations

from cudnn_aot.compiler.graph.attr import BOOL, FLOAT, INT, LIMIT, STR, Attr
from cudnn_aot.compiler.graph.extents import Extent, mul
from cudnn_aot.compiler.graph.op import Dim, NodeView, Op, Output, Shape, Style, ports
from cudnn_aot.compiler.graph.rules.linear_attention import RULES
from cudnn_aot.compiler.graph.shapes import asked, larger, like, minus, whole, wired

# Shapes. Rank is checked by the semantic rules; a rule here answers None where it does not fit.


def _heads(view: NodeView) -> Extent | None:
    return larger(view.dim("q")[-2], view.dim("v")[-2])


def _sequences(view: NodeView) -> Extent | None:
    return minus(view.dim("cu_seqlens")[0], 1)


def _tokens(view: NodeView) -> Extent:
    """Rows of v, which may be token-major."""
    v = view.dim("v")
    return mul(v[0], v[1]) if len(v) == 4 else v[0]


def _fits(view: NodeView, **ranks: int) -> bool:
    return all(len(view.dim(port)) >= rank for port, rank in ranks.items())


def _result(view: NodeView) -> Dim | None:
    if not _fits(view, q=2, v=2):
        return None
    return whole([_tokens(view), _heads(view), view.dim("v")[-1]])


def _result_of_queries(view: NodeView) -> Dim | None:
    if not _fits(view, q=2, v=2):
        return None
    return whole([view.dim("q")[0], _heads(view), view.dim("v")[-1]])


def _final_state(view: NodeView) -> Dim | None:
    if not _fits(view, q=2, v=2, cu_seqlens=1):
        return None
    rows = _sequences(view)
    if view.has("state_indices") and view.dim("initial_state"):
        rows = view.dim("initial_state")[0]  # the caller's pool, written in place
    return whole([rows, _heads(view), view.dim("v")[-1], view.dim("q")[-1]])


def _checkpoints(view: NodeView) -> Dim | None:
    if not _fits(view, q=2, v=2, cu_seqlens=1):
        return None
    tokens, sequences = _tokens(view), _sequences(view)
    rows: Extent | None = None
    if isinstance(tokens, int) and isinstance(sequences, int):
        rows = max(tokens // view.attr("checkpoint_every_n_tokens") + sequences, 1)
    return whole([rows, _heads(view), view.dim("v")[-1], view.dim("q")[-1]])


def _piece(*last: tuple[str, int]) -> Shape:
    """``[N, HO]``, then the extents of (port, axis)."""

    def rule(view: NodeView) -> Dim | None:
        if not _fits(view, g=2, cu_seqlens=1, **{port: 1 for port, _ in last}):
            return None
        rest = [view.dim(port)[axis] for port, axis in last]
        return whole([_sequences(view), view.dim("g")[1], *rest])

    named = {"k": "K", "v": "V", "dO": "V"}
    return Shape(f"[{', '.join(['N', 'HO', *(named[port] for port, _ in last)])}]", rule)


_O = Shape("[T, HO, V]", _result)
_STATE = Shape("[N, HO, V, K], or as the pool that state_indices address", _final_state)
_CHECKPOINTS = Shape("[max(T // checkpoint_every_n_tokens + N, 1), HO, V, K]", _checkpoints)
_PIECE_STATE = _piece(("v", -1), ("k", -1))
_PIECE_GRADIENT = _piece(("dO", -1), ("k", -1))
_MATRIX = _piece(("k", -1), ("k", -1))
_NUMBER = _piece()

# Attributes.

_ATTRS = {
    attr.name: attr
    for attr in (
        Attr("num_householder", INT, 1),
        Attr("scale", FLOAT, is_baked=False),
        Attr("output_final_state", BOOL, False),
        Attr("output_transition", BOOL, False),
        Attr("use_qk_l2norm", BOOL, False),
        Attr("checkpoint_every_n_tokens", INT, 0),
        Attr("use_beta_sigmoid", BOOL, False),
        Attr("allow_neg_eigval", BOOL, False),
        Attr("beta_guard", BOOL, False),
        Attr("safe_gate", BOOL, False),
        Attr("gate_domain", STR, "log", choices=("log", "linear")),
        Attr("gate_lower_bound", FLOAT),
        Attr("dt_softplus", BOOL, True),
        Attr("dt_min", FLOAT, 0.0),
        Attr("dt_max", LIMIT),
        Attr("output_pre_gate", BOOL, False),
        Attr("batch_invariant", BOOL, False),
        Attr("overwrite_initial_state", BOOL, False),
    )
}


def _attrs(names: str) -> tuple[Attr, ...]:
    return tuple(_ATTRS[name] for name in names.split())


def _gradient(name: str, port: str, *, optional: bool = False, typed: bool = False) -> Output:
    """A gradient of an operand; ``typed`` ones have the operand's data type."""
    when = wired(port) if optional else None
    return Output(name, like(port), when, port if optional or typed else None)


def _row(
    name: str,
    inputs: str,
    outputs: tuple[Output, ...],
    attrs: str,
) -> Op:
    return Op(
        name,
        ports(*inputs.split()),
        outputs,
        _attrs(attrs),
        name.upper(),
        Style.STRUCTURED,
        RULES[name],
        is_python_only=True,
    )


_STATE_OUTPUTS = (
    Output("final_state", _STATE, asked("output_final_state")),
    Output("state_checkpoints", _CHECKPOINTS, asked("checkpoint_every_n_tokens")),
)


def _delta(
    name: str, *, w: str = "", extra: str = "", guard: str = "", bound: str = "", o: Shape = _O
) -> tuple[Op, ...]:
    """The rows of a gated delta rule.

    ``w``: the port of a second write strength; ``extra``, ``guard``, ``bound``: attributes that
    only some of them have, at their place in the order.
    """
    gate = f"use_beta_sigmoid allow_neg_eigval {guard} safe_gate gate_domain {bound}"
    run = "batch_invariant overwrite_initial_state"
    optional = "a_log? dt_bias?"
    w_gradient = (_gradient("dW", "w"),) if w else ()
    transition = Output("transition", _MATRIX, asked("output_transition"))
    return (
        _row(
            name,
            f"q k v g beta {w} cu_seqlens initial_state? {optional} state_indices?",
            (Output("O", o), *_STATE_OUTPUTS),
            f"{extra} scale output_final_state use_qk_l2norm checkpoint_every_n_tokens {gate} "
            f"{run}",
        ),
        _row(
            f"{name}_bwd",
            f"q k v g beta {w} cu_seqlens dO state_checkpoints? initial_state? d_final_state? "
            f"{optional}",
            (
                *(_gradient(f"d{port.upper()}", port) for port in ("q", "k", "v", "g")),
                _gradient("dBeta", "beta"),
                *w_gradient,
                _gradient("d_initial_state", "initial_state", optional=True),
                _gradient("d_a_log", "a_log", optional=True),
                _gradient("d_dt_bias", "dt_bias", optional=True),
            ),
            f"{extra} scale use_qk_l2norm checkpoint_every_n_tokens {gate} {run}",
        ),
        _row(
            f"{name}_summary",
            f"k v g beta {w} cu_seqlens initial_state? {optional}",
            (Output("final_state", _PIECE_STATE), transition),
            f"{extra} output_transition use_qk_l2norm {gate} batch_invariant",
        ),
        _row(
            f"{name}_summary_bwd",
            f"q k g beta cu_seqlens dO d_final_state? {optional}",
            (Output("d_initial_state", _PIECE_GRADIENT), transition),
            f"{extra} output_transition scale use_qk_l2norm {gate} batch_invariant",
        ),
    )


_STEP = "dt_softplus dt_min dt_max"
_DECAY = Output("transition", _NUMBER, asked("output_transition"))

_MAMBA2 = (
    _row(
        "mamba2",
        "q k v g a cu_seqlens initial_state? dt_bias? d? z? state_indices?",
        (
            Output("O", _O),
            *_STATE_OUTPUTS,
            Output("O_pre", _O, asked("output_pre_gate", "z")),
        ),
        f"output_final_state checkpoint_every_n_tokens {_STEP} output_pre_gate batch_invariant "
        "overwrite_initial_state",
    ),
    _row(
        "mamba2_bwd",
        "q k v g a cu_seqlens dO state_checkpoints? initial_state? d_final_state? dt_bias? d? z? "
        "O_pre?",
        (
            *(_gradient(f"d{port.upper()}", port) for port in ("q", "k", "v", "g")),
            _gradient("dA", "a", typed=True),
            _gradient("d_initial_state", "initial_state", optional=True),
            _gradient("d_dt_bias", "dt_bias", optional=True),
            _gradient("dD", "d", optional=True),
            _gradient("dZ", "z", optional=True),
        ),
        f"checkpoint_every_n_tokens {_STEP} batch_invariant overwrite_initial_state",
    ),
    _row(
        "mamba2_summary",
        "k v g a cu_seqlens initial_state? dt_bias?",
        (Output("final_state", _PIECE_STATE), _DECAY),
        f"output_transition {_STEP} batch_invariant",
    ),
    _row(
        "mamba2_summary_bwd",
        "q k g a cu_seqlens dO d_final_state? dt_bias?",
        (Output("d_initial_state", _PIECE_GRADIENT), _DECAY),
        f"output_transition {_STEP} batch_invariant",
    ),
)

ROWS = (
    *_delta("gdn"),
    *_delta("kda", bound="gate_lower_bound"),
    *_delta("gdn2", w="w", guard="beta_guard", bound="gate_lower_bound"),
    *_delta("gdp", extra="num_householder", o=Shape("[T of q, HO, V]", _result_of_queries)),
    *_MAMBA2,
)
