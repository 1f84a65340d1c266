"""Rules of attention: what forward and backward ops share, and those of the forward ops.

They depend on no cuDNN version and no architecture: what a kernel takes is its engine's to say.
`common` is what both directions check in the same order; a rule that asks for a port or attribute
an op does not have holds for it. Most follow the cuDNN frontend, whose error kinds they keep:
``unsupported`` where it raises `cudnnGraphNotSupportedError`. The exceptions add what the meaning
of the op needs: extents that agree, integer types of lengths and tables, spellings that contradict.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cudnn_aot.compiler.graph.enums import data_type, diagonal_alignment, tensor_reordering
from cudnn_aot.compiler.graph.extents import Extent, format_extents, mul
from cudnn_aot.compiler.graph.op import NodeView, Refusal, Rule, Spelling, unsupported, wrong
from cudnn_aot.compiler.graph.rules.domain import may_be_at_most, may_divide
from cudnn_aot.compiler.graph.rules.tables import (
    INTEGERS,
    WIDE_FLOATS,
    Fact,
    at_least,
    documented,
    excludes,
    extents,
    floats,
    given,
    needs,
    on,
    one_element,
    types,
    wired,
)

LEFT = ("diagonal_band_left_bound", "left_bound", "sliding_window_length", "sliding_window")
RIGHT = ("diagonal_band_right_bound", "right_bound")
SCORE_MOD = ("score_mod", "fn")
MX_BLOCK = 32  # elements for each scale of an MXFP8 operand

# What masks a node has, in any of the ops' spellings.


class Band(NamedTuple):
    """The keys a query attends to, around the diagonal that starts at a corner of the scores.

    Attributes:
        left: it attends to fewer than this many keys up to its diagonal, or all for None.
        right: how many keys right of its diagonal it attends to, or all for None.
        corner: where the diagonal starts; the top left if there is no bound.
    """

    left: int | None
    right: int | None
    corner: diagonal_alignment


def band(view: NodeView) -> Band:
    """The band of a node. A bound of the band stands before a causal flag and a sliding window, a
    causal flag before the alignment, as in the cuDNN frontend."""
    left, right = given(view, *LEFT), given(view, *RIGHT)
    corner = given(view, "diagonal_alignment")
    is_bottom_right = given(view, "use_causal_mask_bottom_right")
    if is_bottom_right or given(view, "use_causal_mask"):
        right = 0 if right is None else right
        corner = diagonal_alignment.TOP_LEFT
        if is_bottom_right:
            corner = diagonal_alignment.BOTTOM_RIGHT
    elif left is None and right is None:
        corner = diagonal_alignment.TOP_LEFT
    return Band(left, right, corner)


def _as_bounds(view: NodeView) -> dict[str, Any]:
    found = band(view)
    left, right = (
        next(name for name in names if view.spec.has_attr(name)) for names in (LEFT, RIGHT)
    )
    return {left: found.left, right: found.right, "diagonal_alignment": found.corner}


BAND = Spelling(
    "the diagonal band: its bounds and `diagonal_alignment`, not a causal flag (right bound 0) nor "
    "a sliding window (left bound)",
    (
        "use_causal_mask",
        "use_causal_mask_bottom_right",
        "diagonal_alignment",
        *LEFT,
        *RIGHT,
    ),
    _as_bounds,
)


def _is_bottom_right(view: NodeView) -> bool:
    """A causal band that starts at the bottom right."""
    found = band(view)
    return found.right is not None and found.corner is diagonal_alignment.BOTTOM_RIGHT


def _is_ragged(view: NodeView) -> bool:
    tensors = (view.tensor(port) for port in ("q", "k", "v", "O", "o", "o_f16"))
    return any(tensor is not None and tensor.ragged_offset is not None for tensor in tensors)


def is_padded(view: NodeView) -> bool:
    return bool(given(view, "use_padding_mask"))


def is_paged(view: NodeView) -> bool:
    return any(view.has(f"paged_attention_{side}_table") for side in ("k", "v"))


def _has_lengths(view: NodeView, side: str) -> bool:
    return view.has(f"seq_len_{side}") or view.has(f"cu_seq_len_{side}")


def _with_dropout(view: NodeView) -> bool:
    return given(view, "dropout_0") is not None or view.has("dropout_0")


PADDING, ALIBI = on("use_padding_mask"), on("use_alibi_mask")
SCORE_FUNCTION = on(*SCORE_MOD)
BIAS, SINK = wired("bias"), wired("sink_token")
RIGHT_BOUND = Fact(
    "a right bound", lambda view: band(view).right is not None, "attribute right_bound"
)
WINDOW = Fact(
    "a left bound", lambda view: given(view, *LEFT) is not None, "attribute sliding_window"
)
BOTTOM_RIGHT = Fact("a bottom-right causal mask", _is_bottom_right, "attribute diagonal_alignment")
RAGGED = Fact("a ragged offset of q, k, v or o", _is_ragged, "port q")
PAGED = Fact("a page table", is_paged, "port paged_attention_k_table")
DROPOUT = Fact("dropout", _with_dropout, "port dropout")
_RAGGED_UNPADDED = Fact(
    "a ragged offset without use_padding_mask",
    lambda view: _is_ragged(view) and not is_padded(view),
    "port q",
)
_UNMASKED_LENGTHS = Fact(
    "a sequence length tensor",
    lambda view: any(_has_lengths(view, side) for side in ("q", "kv")),
    "port seq_len_q",
)
LENGTHS = Fact(
    "sequence lengths of both q and kv",
    lambda view: all(_has_lengths(view, side) for side in ("q", "kv")),
    "port seq_len_q",
)

# Extents.


def keys(view: NodeView) -> Extent | None:
    """S_kv: k's, or under page tables the declared maximum, if there is one."""
    if not is_paged(view):
        dim = view.dim("k")
        return dim[2] if len(dim) == 4 else None
    limit: int | None = given(view, "paged_attention_max_seq_len_kv")
    return limit


def _batch(view: NodeView) -> Extent | None:
    """The batch, which the cumulative lengths have one more of."""
    dim = view.dim("q")
    return dim[0] if dim else None


OPERANDS = extents(
    {
        "q": "B H S_q D",
        "k": "B_k H_k S_k D",
        "v": "B_k H_v S_k D_v",
        "bias": "B? H? S_q? S_kv?",
        "kv_mask": "B? 1 1 S_kv",
        "rng_dump": "B H S_q S_kv",
        "score_max": "B H S_q 1",
        "score_sum_exp": "B H S_q 1",
        "seq_len_q": "B 1 1 1 | B",
        "seq_len_kv": "B 1 1 1 | B",
        "paged_attention_k_table": "B 1 pages 1",
        "paged_attention_v_table": "B 1 pages 1",
        "sink_token": "1 H 1 1",
    },
    S_kv=keys,
    B_k=lambda view: None if is_paged(view) else _batch(view),
)


def cumulative_lengths(view: NodeView) -> Refusal | None:
    """extents: cu_seq_len_q and cu_seq_len_kv [B + 1, 1, 1, 1] or [B + 1]"""
    batches = view.dim("q")[0]
    for port in ("cu_seq_len_q", "cu_seq_len_kv"):
        dim = view.dim(port)
        if dim and (len(dim) not in (1, 4) or any(extent != 1 for extent in dim[1:])):
            return wrong(port, f"dim {format_extents(dim)}", "[B + 1, 1, 1, 1] or [B + 1]")
        if dim and isinstance(dim[0], int) and isinstance(batches, int) and dim[0] != batches + 1:
            return wrong(port, f"{dim[0]} offsets", f"{batches + 1}: one more than q has batches")
    return None


def unit_head_stride(*ports: str) -> Rule:
    """The head dim, the last axis, has stride 1 on these ports."""

    def rule(view: NodeView) -> Refusal | None:
        for port in ports:
            tensor = view.tensor(port)
            if tensor is not None and len(tensor.stride) == 4 and tensor.stride[3] != 1:
                return unsupported(port, f"stride {tensor.stride[3]} on axis 3", "1")
        return None

    return documented(f"stride 1 on the last axis of {', '.join(ports)}", rule)


def rank_of_four(*ports: str) -> Rule:
    """These ports have four axes."""

    def rule(view: NodeView) -> Refusal | None:
        for port in ports:
            dim = view.dim(port)
            if dim and len(dim) != 4:
                return wrong(port, f"dim {format_extents(dim)}", "four axes: [B, H, S, D]")
        return None

    return documented(f"rank 4 of {', '.join(ports)}", rule)


def heads_divide(view: NodeView) -> Refusal | None:
    """the heads of k and of v divide those of q"""
    heads = view.dim("q")[1]
    for port in ("k", "v"):
        count = view.dim(port)[1]
        if not may_divide(view, count, heads):
            return unsupported(port, f"{count} heads", f"a divisor of q's {heads}")
    return None


def head_dims(multiple: int) -> Rule:
    """The head dims D and D_v are multiples of a number."""

    def rule(view: NodeView) -> Refusal | None:
        for port in ("q", "v"):
            extent = view.dim(port)[3]
            if not may_divide(view, multiple, extent):
                return unsupported(port, f"head dim {extent}", f"a multiple of {multiple}")
        return None

    return documented(f"the head dims of q and v are multiples of {multiple}", rule)


def _no_more_queries_than_keys(fact: Fact) -> Rule:
    def rule(view: NodeView) -> Refusal | None:
        queries, count = view.dim("q")[2], keys(view)
        if count is None or not fact.holds(view) or is_padded(view):
            return None
        if not may_be_at_most(view, queries, count):
            return unsupported(
                "q",
                f"{queries} queries for {count} keys under {fact.text}",
                f"at most {count}: slice q, or use a padding mask",
            )
        return None

    return documented(f"{fact.text} without use_padding_mask needs S_q <= S_kv", rule)


# Masks.


def alibi_is_causal(view: NodeView) -> Refusal | None:
    """use_alibi_mask needs a right bound of 0 or a causal flag"""
    bound = band(view).right
    if given(view, "use_alibi_mask") and bound != 0:
        return Refusal(
            f"attribute use_alibi_mask: got right bound {bound}, want 0, or a causal mask",
            unsupported=True,
        )
    return None


def lengths_together(view: NodeView) -> Refusal | None:
    """sequence lengths are given for q and kv or for neither"""
    has_q, has_kv = (_has_lengths(view, side) for side in ("q", "kv"))
    if has_q == has_kv:
        return None
    have, lack = ("q", "kv") if has_q else ("kv", "q")
    return wrong(f"seq_len_{lack}", f"lengths of {have} alone", "seq_len or cu_seq_len of both")


def dropout_form(view: NodeView) -> Refusal | None:
    """dropout is (probability, seed, offset), (mask, scale) or (mask, scale, scale_inv)"""
    count = len(view.many_names("dropout"))
    if given(view, "dropout_0") is None:
        if view.has("dropout_0") and count not in (2, 3) or count and not view.has("dropout_0"):
            return wrong("dropout", f"{count} tensors", "(mask, scale) or (mask, scale, scale_inv)")
    elif view.has("dropout_0"):
        return wrong("dropout", "a probability and a mask", "one of the two")
    elif count != 2:
        return wrong("dropout", f"{count} tensors after the probability", "a seed and an offset")
    return None


def dropout_probability(view: NodeView) -> Refusal | None:
    """the dropout probability is at least 0 and below 1, where its scale 1 / (1 - p) ends"""
    probability = given(view, "dropout_0")
    if probability is not None and not 0 <= probability < 1:
        return wrong("dropout", f"probability {probability}", "at least 0 and below 1")
    return None


def one_scale(view: NodeView) -> Refusal | None:
    """attn_scale is a number or a tensor"""
    if view.has("attn_scale") and given(view, "attn_scale") is not None:
        return wrong("attn_scale", "a tensor and a number", "one of the two")
    return None


_BOTH_LENGTHS = tuple(
    excludes(wired(f"seq_len_{side}"), wired(f"cu_seq_len_{side}")) for side in ("q", "kv")
)

# One spelling for each mask; `sdpa_backward` takes several, of which `band` says what counts.
SPELLINGS: tuple[Rule, ...] = (
    excludes(on("use_causal_mask"), on("use_causal_mask_bottom_right"), on(*RIGHT)),
    excludes(on("use_causal_mask_bottom_right"), on(*RIGHT)),
    excludes(on(*LEFT[2:]), on(*LEFT[:2])),
)


def common(*ports: str) -> tuple[Rule, ...]:
    """What every attention op checks; `ports` are its operands and results of rank 4."""
    return (
        rank_of_four(*ports),
        OPERANDS,
        cumulative_lengths,
        unit_head_stride(*ports),
        *MASKS,
    )


# What is multiplied and added, by every name that the ops have for it.
_NUMBERS = floats(
    *("q", "q_T", "k", "k_T", "v", "o", "o_f16", "dO", "dO_f16", "dO_T", "stats", "bias"),
    *("sink_token", "O", "dQ", "dK", "dV", "score_max", "score_sum_exp"),
)

MASKS: tuple[Rule, ...] = (
    heads_divide,
    alibi_is_causal,
    types("bias", refused=(data_type.BOOLEAN,), unsupported=True),
    *_BOTH_LENGTHS,
    needs(PADDING, LENGTHS),
    needs(_UNMASKED_LENGTHS, PADDING, SCORE_FUNCTION),
    lengths_together,
    types("seq_len_q", "seq_len_kv", "cu_seq_len_q", "cu_seq_len_kv", allowed=INTEGERS),
    needs(on("max_total_seq_len_q"), RAGGED, unsupported=True),
    needs(on("max_total_seq_len_kv"), RAGGED, unsupported=True),
    dropout_form,
    dropout_probability,
    one_scale,
    _no_more_queries_than_keys(BOTTOM_RIGHT),
    excludes(BOTTOM_RIGHT, BIAS, ALIBI, DROPOUT, _RAGGED_UNPADDED, unsupported=True),
    _no_more_queries_than_keys(WINDOW),
    excludes(WINDOW, _RAGGED_UNPADDED, unsupported=True),
    at_least(RIGHT[0], 0, *RIGHT[1:]),
    excludes(SCORE_FUNCTION, ALIBI, RIGHT_BOUND, PADDING, WINDOW, unsupported=True),
    _NUMBERS,
)

# Paged keys and values.


def pages_hold_keys(view: NodeView) -> Refusal | None:
    """paged_attention_max_seq_len_kv is at most what a page table addresses"""
    limit = given(view, "paged_attention_max_seq_len_kv")
    for side in ("k", "v"):
        table, pool = view.dim(f"paged_attention_{side}_table"), view.dim(side)
        if limit is None or len(table) != 4:
            continue
        held = mul(table[2], pool[2])
        if not may_be_at_most(view, limit, held):
            return wrong(
                f"paged_attention_{side}_table",
                f"{table[2]} pages of {pool[2]} keys",
                f"at least the {limit} of paged_attention_max_seq_len_kv",
            )
    return None


def bias_spans_maximum(view: NodeView) -> Refusal | None:
    """bias and rng_dump span paged_attention_max_seq_len_kv keys"""
    limit = given(view, "paged_attention_max_seq_len_kv")
    for port in ("bias", "rng_dump"):
        dim = view.dim(port)
        if limit is not None and dim and dim[-1] != limit:
            return unsupported(port, f"{dim[-1]} keys", f"the {limit} of the declared maximum")
    return None


PAGES: tuple[Rule, ...] = (
    needs(PAGED, LENGTHS, unsupported=True),
    needs(on("paged_attention_max_seq_len_kv"), PAGED, unsupported=True),
    bias_spans_maximum,
    pages_hold_keys,
    types("paged_attention_k_table", "paged_attention_v_table", allowed=INTEGERS),
)

# Results with one scale for a block (quantized forwards).


def _is_fp4(view: NodeView) -> bool:
    tensor = view.tensor("O")
    return tensor is not None and tensor.data_type is data_type.FP4_E2M1


_FP4_O = Fact("an FP4_E2M1 O", _is_fp4, "port O")


def block_scales_of_o(view: NodeView) -> Refusal | None:
    """sf_o is FP8_E4M3 for an FP4_E2M1 O; else it is FP8_E8M0, O is FP8_E4M3 and D_v a multiple of 32"""  # noqa: E501
    o, scales = view.tensor("O"), view.tensor("sf_o")
    if o is None or scales is None or o.data_type is None or scales.data_type is None:
        return None
    want = data_type.FP8_E4M3 if _is_fp4(view) else data_type.FP8_E8M0
    if not _is_fp4(view) and o.data_type is not data_type.FP8_E4M3:
        return unsupported("O", f"{o.data_type.name} with sf_o", "FP8_E4M3 or FP4_E2M1")
    if scales.data_type is not want:
        return unsupported("sf_o", scales.data_type.name, f"{want.name} for a {o.data_type.name} O")
    head_dim = view.dim("v")[3]
    if not _is_fp4(view) and not may_divide(view, MX_BLOCK, head_dim):
        return unsupported("v", f"head dim {head_dim} with sf_o", f"a multiple of {MX_BLOCK}")
    return None


def block_scales(table: dict[str, tuple[str, int]]) -> Rule:
    """MXFP8 scales: E8M0 in 128x4 order, the operand's batch and heads, a scale for every block.

    `table`: for each port of scales the operand, and the axis along which its blocks of 32 lie.
    """

    def rule(view: NodeView) -> Refusal | None:
        for port, (operand, axis) in table.items():
            scale, dim = view.inputs[port], view.dim(operand)
            if scale.data_type is not data_type.FP8_E8M0:
                got = scale.data_type.name if scale.data_type else "none"
                return wrong(port, got, "FP8_E8M0")
            if scale.reordering_type is not tensor_reordering.F8_128x4:
                return wrong(port, f"reordering {scale.reordering_type.name}", "F8_128x4")
            if len(scale.dim) != 4 or scale.dim[:2] != dim[:2]:
                want = f"[{dim[0]}, {dim[1]}, ...], as {operand}"
                return wrong(port, f"dim {format_extents(scale.dim)}", want)
            other = 5 - axis  # of axes 2 and 3
            if not may_be_at_most(view, dim[other], scale.dim[other]):
                return wrong(
                    port,
                    f"{scale.dim[other]} on axis {other}",
                    f"at least {operand}'s {dim[other]}",
                )
            if not may_be_at_most(view, dim[axis], mul(scale.dim[axis], MX_BLOCK)):
                return wrong(
                    port,
                    f"{scale.dim[axis]} scales on axis {axis}",
                    f"at least one for each {MX_BLOCK} of {operand}'s {dim[axis]}",
                )
        return None

    return documented(
        f"{', '.join(table)}: FP8_E8M0 in F8_128x4 order, batch and heads of the operand, "
        f"a scale for every {MX_BLOCK} elements of each line",
        rule,
    )


_BLOCK_SCALED_O: tuple[Rule, ...] = (
    needs(_FP4_O, wired("sf_o"), unsupported=True),
    block_scales_of_o,
    rank_of_four("sf_o"),
    unit_head_stride("sf_o"),
)


def tensor_scales(*ports: str) -> tuple[Rule, ...]:
    """One scale for a whole tensor on each of these ports."""
    return one_element(*ports), types(*ports, allowed=WIDE_FLOATS)


# By op.

_FORWARD: tuple[Rule, ...] = (
    *common("q", "k", "v", "O"),
    *SPELLINGS,
    types("Stats", allowed=(data_type.FLOAT,), unsupported=True),
    needs(RAGGED, PADDING, SCORE_FUNCTION, unsupported=True),
)

SDPA: tuple[Rule, ...] = (*_FORWARD, head_dims(8), *PAGES)
SDPA_FP8: tuple[Rule, ...] = (
    *_FORWARD,
    excludes(BIAS, Fact("fp8 operands", lambda view: True), unsupported=True),
    head_dims(16),
    *tensor_scales(*(f"descale_{port}" for port in ("q", "k", "v", "s")), *("scale_s", "scale_o")),
    *PAGES[-2:],
    *_BLOCK_SCALED_O,
)
SDPA_MXFP8: tuple[Rule, ...] = (
    *_FORWARD,
    *PAGES[-2:],
    *_BLOCK_SCALED_O,
    needs(wired("scale_o"), wired("sf_o"), unsupported=True),
    needs(_FP4_O, wired("scale_o"), unsupported=True),
    types("scale_o", allowed=(data_type.FLOAT,), unsupported=True),
    block_scales({"descale_q": ("q", 3), "descale_k": ("k", 3), "descale_v": ("v", 2)}),
)
