"""What the cuDNN frontend's C++ half calls the ops of the table: one row for each tag of a node.

Names and bits are those that release 1.32 writes. Where C++ keeps less than the Python builder was
given, the row says what stands for the rest: masks are written as bounds of a band, a padding as
what lies before and after, the value of a compile-time constant not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cudnn_aot.compiler.formats.json_reader import Value
from cudnn_aot.errors import cudnnGraphNotSupportedError


@dataclass(frozen=True, slots=True)
class Row:
    """How a node of one tag becomes one of the op table.

    Attributes:
        op: the op's name; for POINTWISE, found by the mode.
        ports: op's port by the file's, of either direction; others keep their name.
        attrs: op's attribute by the file's field.
        inert: fields whose value has no meaning of its own.
        finish: gives further attributes from the node's fields.
    """

    op: str
    ports: Mapping[str, str] = field(default_factory=dict)
    attrs: Mapping[str, str] = field(default_factory=dict)
    inert: frozenset[str] = frozenset()
    finish: Callable[[Mapping[str, Value]], dict[str, Any]] | None = None


def _named(**ports: str) -> dict[str, str]:
    return ports


_NORM = _named(
    X="input",
    DY="grad",
    SCALE="scale",
    BIAS="bias",
    EPSILON="epsilon",
    MEAN="mean",
    INV_VARIANCE="inv_var",
)
_NORM_BACKWARD = {**_NORM, "INV_VARIANCE": "inv_variance", "DSCALE": "DScale", "DBIAS": "DBias"}
_BATCHNORM = {
    **_NORM,
    "MOMENTUM": "momentum",
    "PREV_RUNNING_MEAN": "in_running_mean",
    "PREV_RUNNING_VAR": "in_running_var",
    "NEXT_RUNNING_MEAN": "next_running_mean",
    "NEXT_RUNNING_VAR": "next_running_var",
}
_PHASE = {"forward_phase": "norm_forward_phase"}


def _norm(op: str) -> Row:
    return Row(op, _NORM, _PHASE)


def _norm_backward(op: str) -> Row:
    return Row(op, _NORM_BACKWARD)


def integers(value: Value | None) -> tuple[int, ...]:
    """A list of integers; null and an absent field are an empty one."""
    if value is None or value.raw is None:
        return ()
    return tuple(item.integer() for item in value.items())


def _window(fields: Mapping[str, Value]) -> dict[str, Any]:
    """One padding where both sides have the same."""
    before, after = integers(fields.get("pre_padding")), integers(fields.get("post_padding"))
    if before == after:
        return {"padding": before or None}
    return {"pre_padding": before or None, "post_padding": after or None}


def _conv(op: str, **ports: str) -> Row:
    attrs = {"stride": "stride", "dilation": "dilation", "math_mode": "convolution_mode"}
    return Row(op, ports, attrs, frozenset({"pre_padding", "post_padding"}), _window)


def _slices(fields: Mapping[str, Value]) -> dict[str, Any]:
    """``slices`` are pairs of start and stop, ``slice_strides`` the steps, 1 unless given."""
    steps = integers(fields.get("slice_strides"))
    slices = []
    for place, pair in enumerate(fields["slices"].items() if "slices" in fields else ()):
        ends = integers(pair)
        if len(ends) != 2:
            pair.fail(f"got {len(ends)} values, want start and stop")
        slices.append((*ends, steps[place] if place < len(steps) else 1))
    return {"slices": slices}


def _refuse_combine(fields: Mapping[str, Value]) -> dict[str, Any]:
    """C++ writes the token and the scores of a COMBINE under one name, of which one is left."""
    mode = fields.get("mode")
    if mode is not None and mode.raw == "COMBINE":
        raise cudnnGraphNotSupportedError(
            f"{mode.path}: got COMBINE, whose top_k_scores this form does not tell from token"
        )
    return {}


_DROPOUT = _named(
    Seed="dropout_1",
    Offset="dropout_2",
    Dropout_mask="dropout_0",
    Dropout_scale="dropout_1",
    Dropout_scale_inv="dropout_2",
)
_ATTENTION_PORTS = {
    **_DROPOUT,
    **_named(
        Q="q",
        K="k",
        V="v",
        Q_T="q_T",
        K_T="k_T",
        Attn_scale="attn_scale",
        Bias="bias",
        Block_mask="block_mask",
        SEQ_LEN_Q="seq_len_q",
        SEQ_LEN_KV="seq_len_kv",
        CU_SEQ_LEN_Q="cu_seq_len_q",
        CU_SEQ_LEN_KV="cu_seq_len_kv",
        Page_table_K="paged_attention_k_table",
        Page_table_V="paged_attention_v_table",
        SINK_TOKEN="sink_token",
        RNG_DUMP="rng_dump",
        Max="score_max",
        Sum_exp="score_sum_exp",
        DSINK_TOKEN="dSink_token",
        Scale_S="scale_s",
        Scale_O="scale_o",
        Descale_S="descale_s",
    ),
    **{f"Descale_{name}": f"descale_{name[0].lower()}{name[1:]}" for name in ("Q", "K", "V")},
    **{f"Descale_{name}_T": f"descale_{name.lower()}_T" for name in ("Q", "K")},
    **{f"Descale_{name}": f"descale_{name}" for name in ("dO", "dO_T", "dP")},
    **{f"Scale_{name}": f"scale_{name}" for name in ("dQ", "dK", "dV", "dP")},
}
_BACKWARD_PORTS = {
    **_ATTENTION_PORTS,
    "O": "o",
    "Stats": "stats",
    "Descale_O": "descale_o",
    **{f"Amax_{name}": f"amax_{name}" for name in ("dQ", "dK", "dV", "dP")},
}
_MASK = {
    "attn_scale_value": "attn_scale",
    "alibi_mask": "use_alibi_mask",
    "padding_mask": "use_padding_mask",
    "dropout_probability": "dropout_0",
    "diagonal_alignment": "diagonal_alignment",
    "max_total_seq_len_q": "max_total_seq_len_q",
    "max_total_seq_len_kv": "max_total_seq_len_kv",
}
_FORWARD = {
    **_MASK,
    "generate_stats": "generate_stats",
    "max_seq_len_kv": "paged_attention_max_seq_len_kv",
    "unfuse_fma": "unfuse_fma",
    "stats_use_log2": "stats_use_log2",
}
_BACKWARD = {**_MASK, "is_deterministic_algorithm": "use_deterministic_algorithm"}
_BAND = {
    "left_bound": "diagonal_band_left_bound",
    "right_bound": "diagonal_band_right_bound",
}
_BOUNDS = {"left_bound": "left_bound", "right_bound": "right_bound"}
# What C++ derives: the type of the products, which of its two nodes serves, and the tag once more.
_DERIVED = frozenset({"mma_core_mode", "implementation", "is_mxfp8"})

TAGS: dict[str, Row] = {
    "MATMUL": Row("matmul", attrs={"padding_value": "padding"}),
    "POINTWISE": Row(
        "",
        attrs={
            "relu_lower_clip_slope": "negative_slope",
            "relu_lower_clip": "lower_clip",
            "relu_upper_clip": "upper_clip",
            "swish_beta": "swish_beta",
            "axis": "axis",
        },
    ),
    "RMS_NORM": _norm("rmsnorm"),
    "RMS_NORM_BPROP": Row(
        "rmsnorm_backward",
        _NORM_BACKWARD,
        finish=lambda fields: {"has_dbias": "DBIAS" in fields["outputs"].object()},
    ),
    "LAYER_NORM": _norm("layernorm"),
    "LAYER_NORM_BPROP": _norm_backward("layernorm_backward"),
    "ADA_LAYER_NORM": _norm("adalayernorm"),
    "ADA_LAYER_NORM_BPROP": _norm_backward("adalayernorm_backward"),
    "INSTANCE_NORM": _norm("instancenorm"),
    "INSTANCE_NORM_BPROP": _norm_backward("instancenorm_backward"),
    "BATCHNORM": Row("batchnorm", _BATCHNORM),
    "BATCHNORM_INFERENCE": Row("batchnorm_inference", {**_NORM, "INV_VARIANCE": "inv_variance"}),
    "DBN": _norm_backward("batchnorm_backward"),
    "GENSTATS": Row("genstats", _named(X="input")),
    "REDUCTION": Row("reduction", _named(X="input", Y="OUT_0"), {"mode": "mode"}),
    "BLOCK_SCALE_QUANTIZE": Row(
        "block_scale_quantize",
        _named(X="input"),
        {"block_size": "block_size", "axis": "axis"},
    ),
    "BLOCK_SCALE_DEQUANTIZE": Row(
        "block_scale_dequantize",
        _named(X="input", scale="descale", Y="OUT_0"),
        {"block_size": "block_size", "is_negative_scale": "is_negative_scale"},
    ),
    "MOE_GROUPED_MATMUL": Row(
        "moe_grouped_matmul",
        _named(
            Token="token",
            Weight="weight",
            FirstTokenOffset="first_token_offset",
            TokenIndex="token_index",
            TokenKs="token_ks",
            Output="OUT_0",
        ),
        {"mode": "mode", "top_k": "top_k"},
        finish=_refuse_combine,
    ),
    "MOE_GROUPED_MATMUL_BWD": Row(
        "moe_grouped_matmul_bwd",
        _named(
            DOutput="doutput",
            Token="token",
            FirstTokenOffset="first_token_offset",
            DWeight="dweight",
        ),
    ),
    "CONV_FPROP": _conv("conv_fprop", X="image", W="weight"),
    "CONV_DGRAD": _conv("conv_dgrad", DY="loss", W="filter"),
    "CONV_WGRAD": _conv("conv_wgrad", X="image", DY="loss"),
    "RESHAPE": Row("reshape", _named(X="input", Y="OUT_0"), {"reshape_mode": "reshape_mode"}),
    "SLICE": Row(
        "slice",
        _named(X="input", Y="OUT_0"),
        inert=frozenset({"slices", "slice_strides"}),
        finish=_slices,
    ),
    "TRANSPOSE": Row("transpose", _named(X="input", Y="OUT_0"), {"permutation": "permutation"}),
    "CONCATENATE": Row(
        "concatenate", _named(Y="OUT_0"), {"axis": "axis", "in_place_index": "in_place_index"}
    ),
    "ROPE": Row(
        "rope",
        _named(INPUT="input", FREQS="freqs", OUTPUT="OUT_0"),
        {"output_scale": "output_scale", "rope_dim": "rope_dim"},
    ),
    "ROPE_BWD": Row(
        "rope_backward",
        _named(DY="dY", FREQS="freqs", DX="OUT_0"),
        {"output_scale": "output_scale", "rope_dim": "rope_dim"},
    ),
    "SDPA": Row("sdpa", _ATTENTION_PORTS, {**_FORWARD, **_BAND}, _DERIVED),
    "SDPA_FP8_FWD": Row("sdpa_fp8", _ATTENTION_PORTS, {**_FORWARD, **_BOUNDS}, _DERIVED),
    "SDPA_MXFP8_FWD": Row("sdpa_mxfp8", _ATTENTION_PORTS, {**_FORWARD, **_BAND}, _DERIVED),
    "SDPA_BWD": Row("sdpa_backward", _BACKWARD_PORTS, {**_BACKWARD, **_BAND}, _DERIVED),
    "SDPA_FP8_BWD": Row("sdpa_fp8_backward", _BACKWARD_PORTS, {**_BACKWARD, **_BOUNDS}, _DERIVED),
    "SDPA_MXFP8_BWD": Row(
        "sdpa_mxfp8_backward",
        {**_BACKWARD_PORTS, "O": "o_f16", "dO_f16": "dO_f16"},
        {**_BACKWARD, **_BOUNDS},
        _DERIVED,
    ),
}
