"""The rows of attention: q, k, v are ``[B, H, S, D]`` with any strides; k, v may have fewer heads.

Each op keeps the keywords of its method of the cuDNN frontend, which differ between methods
(``sliding_window_length`` and ``diagonal_band_left_bound`` in `sdpa`, ``sliding_window`` and
``left_bound`` in `sdpa_fp8`); `rules.attention.band` reads them all. ``attn_scale`` is a number or
a tensor. ``dropout`` is a tuple: ``(probability, seed, offset)``, or of tensors ``(mask, scale)``
and ``(mask, scale, scale_inv)``.
"""

from __future__ import annotations

from typing import Any

from cudnn_aot.compiler.graph.attr import BOOL, FLOAT, FUNCTION, INT, Attr, one_of
from cudnn_aot.compiler.graph.enums import (
    attention_implementation,
    data_type,
    diagonal_alignment,
)
from cudnn_aot.compiler.graph.op import (
    Dim,
    NodeView,
    Op,
    Output,
    Port,
    Rule,
    Shape,
    Spelling,
    Style,
    When,
    ports,
)
from cudnn_aot.compiler.graph.rules import attention, attention_backward
from cudnn_aot.compiler.graph.shapes import constant, like

# Outputs.


def _result(view: NodeView) -> Dim | None:
    q, v = view.dim("q"), view.dim("v")
    return (*q[:-1], v[-1]) if q and v else None


def _row_of(view: NodeView) -> Dim | None:
    q = view.dim("q")
    return (*q[:-1], 1) if q else None


def _with_stats(view: NodeView) -> bool:
    """``generate_stats`` decides if given; else a forward for training has them."""
    asked = view.attr("generate_stats")
    return bool(asked) if asked is not None else not view.attr("is_inference")


def _generate_stats(view: NodeView) -> dict[str, Any]:
    return {"generate_stats": _with_stats(view) or None}


_O = Output("O", Shape("[B, H of q, S of q, D of v]", _result))
_STATS = Output(
    "Stats",
    Shape("[B, H of q, S of q, 1]", _row_of),
    When("generate_stats, or if that is not given not is_inference", _with_stats),
    data_type.FLOAT,
)


def _amax(*names: str) -> tuple[Output, ...]:
    return tuple(Output(name, constant(1, 1, 1, 1)) for name in names)


def _gradients() -> tuple[Output, ...]:
    return tuple(Output(f"d{port.upper()}", like(port)) for port in ("q", "k", "v"))


# Keywords: ports that are tensors, attributes that are not.


def _optional(*names: str, **flags: bool) -> tuple[Port, ...]:
    return tuple(Port(name, optional=True, is_keyword_only=True, **flags) for name in names)


def _written(*names: str, **flags: bool) -> tuple[Port, ...]:
    return _optional(*names, is_result=True, **flags)


_SCALE = (Attr("attn_scale", FLOAT, is_baked=False),)
_PADDING = (Attr("use_padding_mask", BOOL, False),)
_CAUSAL = (
    Attr("use_causal_mask", BOOL, False),
    Attr("use_causal_mask_bottom_right", BOOL, False),
)
_ALIGNMENT = (Attr("diagonal_alignment", one_of(diagonal_alignment), diagonal_alignment.TOP_LEFT),)
_BAND = (Attr("diagonal_band_left_bound", INT), Attr("diagonal_band_right_bound", INT))
_BOUNDS = (Attr("left_bound", INT), Attr("right_bound", INT))
_TOTALS = (Attr("max_total_seq_len_q", INT), Attr("max_total_seq_len_kv", INT))
_PAGES = (Attr("paged_attention_max_seq_len_kv", INT),)
_FORWARD = (Attr("is_inference", BOOL, True), Attr("generate_stats", BOOL))
_STATS_ASKED = Spelling(
    "whether there are Stats: `generate_stats`, not `is_inference`",
    ("is_inference", "generate_stats"),
    _generate_stats,
)
_UNFUSE = (Attr("unfuse_fma", BOOL, False),)
_LOG2 = (Attr("stats_use_log2", BOOL, False),)
_DETERMINISTIC = (Attr("use_deterministic_algorithm", BOOL, False),)
_PROBABILITY = (Attr("dropout_0", FLOAT, is_parameter=False),)
_IMPLEMENTATION = (
    Attr("implementation", one_of(attention_implementation), attention_implementation.AUTO),
)
# The softmax's precision, and whether Q already holds attn_scale * log2(e): the cuDNN backend has
# a field for neither.
_SOFTMAX = (
    Attr(
        "softmax_precision",
        one_of(data_type),
        choices=(data_type.FLOAT, data_type.HALF),
        is_python_only=True,
    ),
    Attr("attn_scale_prefolded", BOOL, False, is_python_only=True),
)

_LENGTHS = _optional("seq_len_q", "seq_len_kv")
_CUMULATIVE = _optional("cu_seq_len_q", "cu_seq_len_kv")
_TABLES = _optional("paged_attention_k_table", "paged_attention_v_table")
_DROPOUT = (Port("dropout", optional=True, is_list=True, is_keyword_only=True),)


def _row(
    name: str,
    node_type: str,
    operands: str,
    outputs: tuple[Output, ...],
    keywords: tuple[Port, ...],
    *attrs: tuple[Attr, ...],
    rules: tuple[Rule, ...] = (),
) -> Op:
    return Op(
        name,
        (*ports(*operands.split()), *_optional("attn_scale"), *keywords),
        outputs,
        tuple(attr for group in attrs for attr in group),
        node_type,
        Style.CAPTURED,
        rules,
        spellings=(attention.BAND, *((_STATS_ASKED,) if _FORWARD in attrs else ())),
    )


ROWS = (
    _row(
        "sdpa",
        "SDPA",
        "q k v",
        (_O, _STATS),
        (
            *_optional("bias", "block_mask"),
            *_LENGTHS,
            *_DROPOUT,
            *_TABLES,
            *_optional("sink_token"),
            *_CUMULATIVE,
            *_optional("kv_mask", is_python_only=True),
            *_written("rng_dump", "score_max", "score_sum_exp"),
        ),
        _FORWARD,
        _SCALE,
        (Attr("use_alibi_mask", BOOL, False),),
        _PADDING,
        _CAUSAL,
        (Attr("sliding_window_length", INT),),
        _ALIGNMENT,
        _BAND,
        _PAGES,
        _TOTALS,
        (Attr("score_mod", FUNCTION),),
        _IMPLEMENTATION,
        _UNFUSE,
        _LOG2,
        _PROBABILITY,
        _SOFTMAX,
        rules=attention.SDPA,
    ),
    _row(
        "sdpa_backward",
        "SDPA_BWD",
        "q k v o dO stats",
        _gradients(),
        (
            *_optional("bias"),
            *_LENGTHS,
            *_DROPOUT,
            *_optional("sink_token"),
            *_written("dBias", "dSink_token", "rng_dump"),
        ),
        _SCALE,
        (Attr("use_alibi_mask", BOOL, False),),
        _PADDING,
        _TOTALS,
        _CAUSAL,
        (Attr("sliding_window_length", INT),),
        _ALIGNMENT,
        _BAND,
        _DETERMINISTIC,
        (Attr("score_mod", FUNCTION), Attr("score_mod_bprop", FUNCTION)),
        _PROBABILITY,
        _SOFTMAX,
        rules=attention_backward.SDPA_BACKWARD,
    ),
    _row(
        "sdpa_fp8",
        "SDPA_FP8",
        "q k v descale_q descale_k descale_v descale_s scale_s scale_o",
        (_O, _STATS, *_amax("Amax_S", "Amax_O")),
        (
            *_optional("bias"),
            *_LENGTHS,
            *_DROPOUT,
            *_TABLES,
            *_optional("sink_token"),
            *_CUMULATIVE,
            *_written("rng_dump", "score_max", "score_sum_exp"),
            *_written("sf_o", is_python_only=True),
        ),
        _FORWARD,
        _SCALE,
        (Attr("use_alibi_mask", BOOL, False),),
        _PADDING,
        _CAUSAL,
        (Attr("sliding_window", INT),),
        _ALIGNMENT,
        _BOUNDS,
        _PAGES,
        _TOTALS,
        (Attr("fn", FUNCTION),),
        _UNFUSE,
        _IMPLEMENTATION,
        _LOG2,
        _PROBABILITY,
        _SOFTMAX,
        rules=attention.SDPA_FP8,
    ),
    _row(
        "sdpa_fp8_backward",
        "SDPA_FP8_BWD",
        "q k v o dO stats descale_q descale_k descale_v descale_o descale_dO descale_s descale_dP "
        "scale_s scale_dQ scale_dK scale_dV scale_dP",
        (*_gradients(), *_amax("amax_dQ", "amax_dK", "amax_dV", "amax_dP")),
        (*_LENGTHS, *_DROPOUT, *_optional("sink_token"), *_written("dSink_token")),
        _SCALE,
        _PADDING,
        _CAUSAL,
        _ALIGNMENT,
        _BOUNDS,
        _DETERMINISTIC,
        _TOTALS,
        _PROBABILITY,
        _SOFTMAX,
        rules=attention_backward.SDPA_FP8_BACKWARD,
    ),
    _row(
        "sdpa_mxfp8",
        "SDPA_MXFP8",
        "q k v descale_q descale_k descale_v",
        (_O, _STATS, *_amax("Amax_O")),
        (
            *_optional("sink_token"),
            *_LENGTHS,
            *_CUMULATIVE,
            *_TABLES,
            *_optional("scale_o", is_python_only=True),
            *_written("sf_o", is_python_only=True),
        ),
        _FORWARD,
        _SCALE,
        _CAUSAL,
        _ALIGNMENT,
        _BAND,
        _UNFUSE,
        _IMPLEMENTATION,
        _PADDING,
        _TOTALS,
        _PAGES,
        _SOFTMAX,
        rules=attention.SDPA_MXFP8,
    ),
    _row(
        "sdpa_mxfp8_backward",
        "SDPA_MXFP8_BWD",
        "q q_T k k_T v o_f16 dO_f16 dO dO_T stats descale_q descale_q_T descale_k descale_k_T "
        "descale_v descale_dO descale_dO_T",
        (*_gradients(), *_amax("amax_dQ", "amax_dK", "amax_dV")),
        (*_LENGTHS, *_DROPOUT, *_optional("sink_token"), *_written("dSink_token")),
        _SCALE,
        _PADDING,
        _CAUSAL,
        _ALIGNMENT,
        _BOUNDS,
        _DETERMINISTIC,
        _TOTALS,
        _PROBABILITY,
        _SOFTMAX,
        rules=attention_backward.SDPA_MXFP8_BACKWARD,
    ),
)
