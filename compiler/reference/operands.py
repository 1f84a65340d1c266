"""Operands that make sense for every op: random numbers where any will do, and makers where not.

A maker is found by the op's name and the port, either of which may be a pattern. It sees its node
through a `Site`: the shapes, the attributes, and the operands that the node has already. Makers
that are functions of other operands (statistics of a forward op) run after those that are not.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cudnn_aot.compiler.graph.dtypes import DTYPES
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.compiler.reference.call import Array, Call, Declared, softplus
from cudnn_aot.compiler.reference.ops import compute
from cudnn_aot.compiler.reference.storage import round_to
from cudnn_aot.compiler.reference.tolerance import FP8


@dataclass(frozen=True, slots=True)
class Site:
    """A place where an operand is wanted.

    Attributes:
        node: the node that reads it.
        port: its port.
        shape: its extents.
        rng: random numbers of this operand.
        node_rng: random numbers that all operands of the node draw alike.
        call: the node with the operands that are there so far.
    """

    node: Node
    port: str
    shape: tuple[int, ...]
    rng: np.random.Generator
    node_rng: np.random.Generator
    call: Call

    def dim(self, port: str) -> tuple[int, ...]:
        """The extents of another port of the node; () for none."""
        declared = self.call.declared.get(port) or self.call.wanted.get(port)
        return declared.dim if declared is not None else ()

    def normal(self, scale: float = 1.0) -> Array:
        drawn = self.rng.standard_normal(self.shape, np.float32)  # a weight matrix may be large
        drawn *= np.float32(scale)
        return drawn

    def uniform(self, low: float, high: float) -> Array:
        return self.rng.uniform(low, high, self.shape)


Maker: TypeAlias = Callable[[Site], Array]


def _number(value: float) -> Maker:
    return lambda site: np.full(site.shape, value)


def _uniform(low: float, high: float) -> Maker:
    return lambda site: site.uniform(low, high)


def _normal(scale: float, middle: float = 0.0) -> Maker:
    return lambda site: middle + site.normal(scale)


def _bits(site: Site) -> Array:
    return site.rng.integers(0, 2, site.shape).astype(np.float64)


def _away_from_zero(site: Site) -> Array:
    drawn = site.normal()
    return drawn + np.copysign(0.5, drawn)


def _fan_in(site: Site) -> Array:
    """A weight ``[.., K, N]`` that keeps the scale of what it multiplies, if it is not of integers,
    most of which would be 0.
    """
    dtype = site.node.inputs[site.port].data_type
    if dtype is not None and not DTYPES[dtype].is_float:
        return random_values(site.shape, dtype, site.rng)
    return site.normal(max(1, site.shape[-2]) ** -0.5)


def _filter(site: Site) -> Array:
    return site.normal(max(1, math.prod(site.shape[1:])) ** -0.5)


def _keys(site: Site) -> Array:
    """Rows of length about 1, with which a delta rule stays stable."""
    return site.normal(max(1, site.shape[-1]) ** -0.5)


# Rows in groups.


def sorted_offsets(
    rng: np.random.Generator, count: int, end: int, is_end_given: bool, multiple: int = 1
) -> Array:
    """`count` ascending numbers from 0 up to `end`, the last being `end` itself if it is given."""
    inner = count - 1 - is_end_given
    cuts = np.sort(rng.integers(0, end // multiple + 1, max(0, inner))) * multiple
    offsets = np.concatenate([[0], cuts, [end] * is_end_given])[:count]
    return offsets.astype(np.float64)


def _first_token_offset(site: Site) -> Array:
    experts = (site.dim("weight") or site.dim("dweight"))[0]
    rows = site.dim("token")[-2]
    if site.call.choice("mode", "NONE") == "GATHER":
        rows = site.dim("token_index")[-2]
    count = math.prod(site.shape)
    has_end = count > 1 and (count % experts != 0 or experts == 1)
    return sorted_offsets(site.rng, count, rows, has_end).reshape(site.shape)


def _routing(site: Site) -> tuple[Array, int]:
    """A permutation of the routed rows, and how many of them a token has."""
    top_k = site.dim("top_k_scores")[-1] if "top_k_scores" in site.call.declared else 0
    top_k = top_k or int(site.call.attr("top_k", 0)) or 1
    return site.node_rng.permutation(site.dim("token_index")[-2]), top_k


def _token_index(site: Site) -> Array:
    if site.call.choice("mode", "NONE") == "GATHER":
        tokens = max(site.dim("token")[-2], 1)  # of none, rows are 0 whatever they name
        return site.rng.integers(0, tokens, site.shape).astype(np.float64)
    order, top_k = _routing(site)
    return (order // top_k).reshape(site.shape).astype(np.float64)


def _token_ks(site: Site) -> Array:
    order, top_k = _routing(site)
    return (order % top_k).reshape(site.shape).astype(np.float64)


def _group_offset(site: Site) -> Array:
    block = site.call.attr("block_size")
    multiple = int(block) if isinstance(block, int) else 1
    rows = site.dim("input")[-2] if len(site.dim("input")) > 1 else site.dim("input")[0]
    if site.node.op == "reduction":
        count, dim, out = math.prod(site.shape), site.dim("input"), site.dim("OUT_0")
        grouped = [a for a, b in zip(dim, out, strict=True) if a != b and b in (count, count - 1)]
        rows = grouped[0] if grouped else rows
    offsets = sorted_offsets(site.rng, math.prod(site.shape), rows, False, multiple)
    return offsets.reshape(site.shape)


# Attention.


def _lengths(site: Site) -> Array:
    """From 1 to the declared number of rows; the first batch has them all."""
    q = site.port.endswith("_q")
    rows = site.dim("q")[2] if q else _kv_rows(site)
    lengths = site.rng.integers(1, rows + 1, site.shape)
    lengths.reshape(-1)[:1] = rows
    return lengths.astype(np.float64)


def _kv_rows(site: Site) -> int:
    limit = site.call.attr("paged_attention_max_seq_len_kv")
    if limit is not None:
        return int(limit)
    table = site.dim("paged_attention_k_table")
    return table[2] * site.dim("k")[2] if table else site.dim("k")[2]


def _cumulative_lengths(site: Site) -> Array:
    rows = site.dim("q")[2] if site.port.endswith("_q") else _kv_rows(site)
    lengths = site.rng.integers(1, rows + 1, math.prod(site.shape) - 1)
    return np.concatenate([[0], np.cumsum(lengths)]).reshape(site.shape).astype(np.float64)


def _page_table(site: Site) -> Array:
    """Pages in random order, none shared as long as there are enough."""
    pages = site.dim("k" if "_k_" in site.port else "v")[0]
    count = math.prod(site.shape)
    order = np.concatenate([site.rng.permutation(pages) for _ in range(-(-count // max(pages, 1)))])
    return order[:count].reshape(site.shape).astype(np.float64)


def _tiles(site: Site) -> Array:
    """Random tiles, and the first of each row, so that no row is without keys."""
    return site.rng.integers(0, 256, site.shape) // 2 * 2 + 1.0


def _dropout_mask(site: Site) -> Array:
    return (site.rng.random(site.shape) < 0.9).astype(np.float64)


_SCALES = {"scale_s": 256.0, "scale_dP": 4.0}


def _inverse_of(port: str) -> Maker:
    return _number(1 / _SCALES[port])


def _block_scales(site: Site) -> Array:
    if site.call.declared[site.port].data_type is data_type.FP8_E8M0:
        return np.exp2(site.rng.integers(-3, 2, site.shape))
    return site.uniform(0.25, 1.0)


def _factor(site: Site) -> Array:
    """What scales a matrix of FP8, whose error it would multiply, is of order one."""
    types = {name: tensor.data_type for name, tensor in site.node.inputs.items()}
    own = types.pop(site.port)
    if own not in FP8 and any(other in FP8 for other in types.values()):
        return site.uniform(0.25, 1.0)
    return random_values(site.shape, own or data_type.FLOAT, site.rng)


def _forward_of(op: str, port: str, rename: Mapping[str, str] | None = None) -> Maker:
    """What the forward op gives on ``port`` for the operands of its backward op."""

    def make(site: Site) -> Array:
        names = rename or {}
        forward = Call(
            op,
            {names.get(name, name): array for name, array in site.call.inputs.items()},
            dict(site.call.attrs) | {"output_pre_gate": True, "epsilon": None},
            {port: Declared(site.shape)},
            {names.get(name, name): given for name, given in site.call.declared.items()},
        )
        return compute(forward)[port]

    return make


def _statistic(port: str) -> Maker:
    """A statistic of a norm's input, over the axes along which it is declared to be 1."""

    def make(site: Site) -> Array:
        x = site.call["input"]
        if not x.size:
            return np.zeros(site.shape)
        axes = tuple(i for i, n in enumerate(site.shape) if n == 1 and i < x.ndim)
        mean = x.mean(axis=axes, keepdims=True)
        if port == "mean":
            return np.asarray(mean)
        centred = x if site.node.op.startswith("rms") else x - mean
        return np.asarray(1 / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + 1e-5))

    return make


# Linear attention.


def _sequence_bounds(site: Site) -> Array:
    tokens = (site.dim("g") or site.dim("q"))[0]
    offsets = sorted_offsets(site.rng, math.prod(site.shape), tokens, True)
    return offsets.reshape(site.shape)


def _gate(site: Site) -> Array:
    if site.call.attr("safe_gate", False):
        return site.normal()
    decay = -softplus(site.normal() - 2)
    return decay if site.call.attr("gate_domain", "log") == "log" else np.exp(decay)


def _strength(site: Site) -> Array:
    return site.normal() if site.call.attr("use_beta_sigmoid", False) else site.uniform(0.0, 1.0)


def _pool_rows(site: Site) -> Array:
    rows = site.dim("initial_state")[0]
    return site.rng.permutation(rows)[: math.prod(site.shape)].astype(np.float64)


_POSITIVE, _UNIT = _uniform(0.25, 4.0), _uniform(0.0, 1.0)

# (pattern of op names, port) to a maker; the first that fits.
MAKERS: tuple[tuple[str, str, Maker], ...] = (
    ("matmul", "B", _fan_in),
    ("log", "input", _POSITIVE),
    ("sqrt", "input", _POSITIVE),
    ("rsqrt", "input", _POSITIVE),
    ("reciprocal", "input", _away_from_zero),
    ("div", "b", _away_from_zero),
    ("mod", "input1", _away_from_zero),
    ("pow", "input0", _POSITIVE),
    ("logical_*", "*", _bits),
    ("binary_select", "mask", _bits),
    ("*norm*", "epsilon", _number(1e-5)),
    ("*norm*", "momentum", _number(0.1)),
    ("*norm*", "scale", _normal(0.1, 1.0)),
    ("*norm*", "in_running_var", _POSITIVE),
    ("batchnorm_inference", "inv_variance", _POSITIVE),
    ("conv_*", "weight", _filter),
    ("conv_*", "filter", _filter),
    ("moe_grouped_matmul", "weight", _fan_in),
    ("moe_*", "first_token_offset", _first_token_offset),
    ("moe_*", "token_index", _token_index),
    ("moe_*", "token_ks", _token_ks),
    ("moe_*", "top_k_scores", _UNIT),
    ("*", "group_offset", _group_offset),
    ("block_scale_dequantize", "descale", _block_scales),
    ("mul", "*", _factor),
    ("scale", "*", _factor),
    ("rope*", "freqs", _uniform(-math.pi, math.pi)),
    ("sdpa*", "seq_len_*", _lengths),
    ("sdpa*", "cu_seq_len_*", _cumulative_lengths),
    ("sdpa*", "paged_attention_*", _page_table),
    ("sdpa*", "block_mask", _tiles),
    ("sdpa*", "kv_mask", _dropout_mask),
    ("sdpa*", "dropout_0", _dropout_mask),
    ("sdpa*", "dropout_1", _number(1 / 0.9)),
    ("sdpa*", "dropout_2", _number(0.9)),
    ("sdpa*", "attn_scale", lambda site: np.full(site.shape, max(1, site.dim("q")[-1]) ** -0.5)),
    ("sdpa*", "scale_s", _number(_SCALES["scale_s"])),
    ("sdpa*", "descale_s", _inverse_of("scale_s")),
    ("sdpa*", "scale_dP", _number(_SCALES["scale_dP"])),
    ("sdpa*", "descale_dP", _inverse_of("scale_dP")),
    ("sdpa_mxfp8*", "descale_*", _block_scales),
    ("sdpa*", "descale_*", _uniform(0.5, 1.5)),
    ("sdpa*", "scale_*", _uniform(0.5, 1.5)),
    ("*", "cu_seqlens", _sequence_bounds),
    ("mamba2*", "a", _uniform(-2.0, -0.5)),
    ("mamba2*", "g", _normal(1.0)),
    ("mamba2*", "dt_bias", _normal(0.5)),
    ("*", "a_log", _normal(0.5)),
    ("*", "state_indices", _pool_rows),
)
_LINEAR = ("gdn", "kda", "gdn2", "gdp")
MAKERS += tuple(
    (pattern, port, maker)
    for family in _LINEAR
    for pattern in (family, f"{family}_*")
    for port, maker in (("k", _keys), ("g", _gate), ("beta", _strength), ("w", _UNIT))
)


def _statistics_of_scores(site: Site) -> Array:
    """Stats of the forward op, without which a backward op's probabilities could be anything."""
    forward = site.node.op.removesuffix("_backward")
    return _forward_of(forward, "Stats")(site)


def _checkpoints(site: Site) -> Array:
    if not site.call.attr("checkpoint_every_n_tokens", 0):
        return np.zeros(site.shape)
    return _forward_of(site.node.op.removesuffix("_bwd"), "state_checkpoints")(site)


# The same for operands that follow from the node's others.
DERIVED: tuple[tuple[str, str, Maker], ...] = (
    ("sdpa_backward", "o", _forward_of("sdpa", "O")),
    ("sdpa*_backward", "stats", _statistics_of_scores),
    ("*norm*_backward", "mean", _statistic("mean")),
    ("*norm*_backward", "inv_variance", _statistic("inv_variance")),
    ("mamba2_bwd", "O_pre", _forward_of("mamba2", "O_pre")),
    ("*_bwd", "state_checkpoints", _checkpoints),
)


def _found(table: tuple[tuple[str, str, Maker], ...], op: str, port: str) -> Maker | None:
    for pattern, ports, maker in table:
        if fnmatch.fnmatchcase(op, pattern) and fnmatch.fnmatchcase(port, ports):
            return maker
    return None


def maker_of(op: str, port: str) -> Maker | None:
    """The maker of an independent operand, or None where random numbers will do."""
    return _found(MAKERS, op, port)


def derived_maker_of(op: str, port: str) -> Maker | None:
    """The maker of an operand that follows from the node's others."""
    return _found(DERIVED, op, port)


# What these make depends on the operand's own shape and type alone.
_OF_OWN_SHAPE = (None, _fan_in, _filter, _keys, _away_from_zero, _bits)


def follows_own_shape(op: str, port: str) -> bool:
    """Whether an operand is the same beside others of any shapes and values."""
    return maker_of(op, port) in _OF_OWN_SHAPE and derived_maker_of(op, port) is None


def random_values(shape: tuple[int, ...], dtype: data_type, rng: np.random.Generator) -> Array:
    """Normal numbers, small integers, bits, or for E8M0 powers of two, exact in `dtype`."""
    facts = DTYPES[dtype]
    if facts.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.float64)
    if dtype is data_type.FP8_E8M0:
        return np.exp2(rng.integers(-3, 2, shape)).astype(np.float32)
    if not facts.is_float:
        low, high = (0 if facts.kind == "uint" else -8), (7 if facts.bits == 4 else 8)
        return rng.integers(low, high + 1, shape).astype(np.float64)
    drawn = rng.standard_normal(shape, np.float64 if dtype is data_type.DOUBLE else np.float32)
    return round_to(np.abs(drawn) if dtype is data_type.FP8_E5M3 else drawn, dtype)


def ragged_offsets(tensor: Tensor, lengths: Array, stride: tuple[int, ...], count: int) -> Array:
    """Offsets of a packed ``[B, H, S, D]`` tensor whose batches have these lengths."""
    starts = np.concatenate([[0], np.cumsum(lengths)])[:count] * stride[2]
    return starts / tensor.ragged_offset_multiplier
