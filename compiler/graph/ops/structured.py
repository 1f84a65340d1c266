"""The rows of normalisations, reductions, block scaling, grouped products, convolutions and moves.

Ports, names and shapes are those of the cuDNN frontend's builders; what an output has when its
strides are not set is what the cuDNN backend gives it.
"""

from __future__ import annotations

from cudnn_aot.compiler.graph.attr import BOOL, FLOAT, INT, INTS, SLICES, Attr, one_of
from cudnn_aot.compiler.graph.enums import (
    convolution_mode,
    moe_grouped_matmul_mode,
    norm_forward_phase,
    reduction_mode,
    reshape_mode,
)
from cudnn_aot.compiler.graph.extents import Extent, format_extents, mul
from cudnn_aot.compiler.graph.op import (
    Dim,
    NodeView,
    Op,
    Output,
    Port,
    Shape,
    ShapeError,
    Style,
    When,
    ports,
)
from cudnn_aot.compiler.graph.shapes import (
    CHANNELS_LAST,
    ceil_div,
    follows,
    keeps,
    like,
    whole,
    wired,
)


def _row(
    name: str,
    node_type: str,
    inputs: tuple[Port, ...],
    outputs: tuple[Output, ...],
    *attrs: Attr,
    has_compute_data_type: bool = True,
) -> Op:
    return Op(
        name,
        inputs,
        outputs,
        attrs,
        node_type,
        Style.STRUCTURED,
        has_compute_data_type=has_compute_data_type,
    )


# Normalisations.


def _statistics(first_axis: int) -> Shape:
    """The input's extents, 1 wherever scale has more than one value from `first_axis` on."""

    def rule(view: NodeView) -> Dim | None:
        dim, scale = view.dim("input"), view.dim("scale")
        if not scale:  # every axis but the batch is normalised
            return tuple(extent if axis == 0 else 1 for axis, extent in enumerate(dim))
        if len(scale) != len(dim):
            return None
        return tuple(
            1 if axis >= first_axis and scale[axis] != 1 else extent
            for axis, extent in enumerate(dim)
        )

    return Shape("input with 1 on the axes that scale spans", rule, is_exact=False)


def _declared_or_statistics(other: str) -> Shape:
    """As the other statistic where its caller declared it, as layernorm's two go together."""
    statistics = _statistics(0)

    def rule(view: NodeView) -> Dim | None:
        sibling = view.outputs.get(other)
        if sibling is not None and sibling.dim_assigned:
            return sibling.dim
        return statistics.rule(view)

    return Shape(f"as {other} if declared, else {statistics.text}", rule, is_exact=False)


_PHASE = Attr("norm_forward_phase", one_of(norm_forward_phase), required=True)
_TRAINING = When(
    "norm_forward_phase is TRAINING",
    lambda view: view.attr("norm_forward_phase") is not norm_forward_phase.INFERENCE,
)
_Y = Output("Y", like("input"), layout=follows("input"))
_HAS_SCALE = wired("scale")
_HAS_DBIAS = When(
    "scale is given and has_dbias", lambda view: view.has("scale") and view.attr("has_dbias")
)


def _statistic(name: str, shape: Shape, when: When | None = None) -> Output:
    suffix = {"mean": "MEAN", "inv_var": "INV_VARIANCE"}[name]
    return Output(name, shape, when, suffix=suffix)


def _gradients(when: When | None = None) -> tuple[Output, ...]:
    return (
        Output("DX", like("input"), layout=follows("input")),
        Output("DScale", like("scale"), when, suffix="DSCALE"),
        Output("DBias", like("scale"), when, suffix="DBIAS"),
    )


_BACKWARD = ports("grad", "input", "scale", "mean", "inv_variance")
_PER_CHANNEL = keeps("input", 1)
_PER_INSTANCE = keeps("input", 0, 1)

_NORMS = (
    _row(
        "rmsnorm",
        "RMSNORM",
        ports("input", "scale?", "bias?", "epsilon"),
        (_Y, _statistic("inv_var", _statistics(0), _TRAINING)),
        _PHASE,
    ),
    _row(
        "rmsnorm_backward",
        "RMSNORM_BWD",
        ports("grad", "input", "scale?", "inv_variance"),
        (
            Output("DX", like("input"), layout=follows("input")),
            Output("DScale", like("scale"), _HAS_SCALE, suffix="Dscale"),
            Output("DBias", like("scale"), _HAS_DBIAS, suffix="Dbias"),
        ),
        Attr("has_dbias", BOOL, True),
    ),
    _row(
        "layernorm",
        "LAYERNORM",
        ports("input", "scale?", "bias?", "epsilon"),
        (
            _Y,
            _statistic("mean", _declared_or_statistics("inv_var"), _TRAINING),
            _statistic("inv_var", _declared_or_statistics("mean"), _TRAINING),
        ),
        _PHASE,
    ),
    _row(
        "layernorm_backward",
        "LAYERNORM_BWD",
        ports("grad", "input", "scale?", "mean", "inv_variance"),
        _gradients(_HAS_SCALE),
    ),
    _row(
        "adalayernorm",
        "ADALAYERNORM",
        ports("input", "scale", "bias?", "epsilon"),
        (
            _Y,
            _statistic("mean", _statistics(1), _TRAINING),
            _statistic("inv_var", _statistics(1), _TRAINING),
        ),
        _PHASE,
    ),
    _row("adalayernorm_backward", "ADALAYERNORM_BWD", _BACKWARD, _gradients()),
    _row(
        "instancenorm",
        "INSTANCENORM",
        ports("input", "scale", "bias", "epsilon"),
        (
            _Y,
            _statistic("mean", _PER_INSTANCE, _TRAINING),
            _statistic("inv_var", _PER_INSTANCE, _TRAINING),
        ),
        _PHASE,
    ),
    _row(
        "instancenorm_backward",
        "INSTANCENORM_BWD",
        ports("grad", "input", "scale", "mean?", "inv_variance?"),
        _gradients(),
    ),
    _row(
        "batchnorm",
        "BATCHNORM",
        (
            *ports("input", "scale", "bias", "in_running_mean?", "in_running_var?"),
            *ports("epsilon", "momentum?"),
            Port("peer_stats", optional=True, is_list=True),
        ),
        (
            _Y,
            _statistic("mean", _PER_CHANNEL),
            _statistic("inv_var", _PER_CHANNEL),
            Output(
                "next_running_mean",
                _PER_CHANNEL,
                wired("in_running_mean"),
                suffix="NEXT_RUNNING_MEAN",
            ),
            Output(
                "next_running_var",
                _PER_CHANNEL,
                wired("in_running_var"),
                suffix="NEXT_RUNNING_VAR",
            ),
        ),
    ),
    _row(
        "batchnorm_inference",
        "BATCHNORM_INFERENCE",
        ports("input", "mean", "inv_variance", "scale", "bias"),
        (_Y,),
    ),
    _row(
        "batchnorm_backward",
        "BATCHNORM_BWD",
        (*_BACKWARD, Port("peer_stats", optional=True, is_list=True)),
        _gradients(),
    ),
    _row(
        "genstats",
        "GENSTATS",
        ports("input"),
        (Output("SUM", _PER_CHANNEL), Output("SQ_SUM", _PER_CHANNEL)),
    ),
)

# Reduction, block scaling, grouped products.


def _scales(view: NodeView) -> Dim | None:
    """One scale per block of `block_size` on `axis`, the last one unless given."""
    dim: list[Extent | None] = [*view.dim("input")]
    axis = view.attr("axis")
    axis = len(dim) - 1 if axis in (None, -1) else axis
    if not 0 <= axis < len(dim):
        raise ShapeError("input", f"rank {len(dim)}", f"an axis {axis}")
    size = view.attr("block_size")
    if size < 1:
        raise ShapeError("scale", f"block_size {size}", "at least 1")
    extent = dim[axis]
    assert extent is not None
    dim[axis] = ceil_div(extent, size)
    return whole(dim)


def _grouped(view: NodeView) -> Dim:
    """``[1, rows, N]``: the rows of what the mode takes its results by."""
    mode = view.attr("mode")
    rows = {
        moe_grouped_matmul_mode.COMBINE: "top_k_scores",
        moe_grouped_matmul_mode.GATHER: "token_index",
    }.get(mode, "token")
    for port in (rows, "weight"):
        if len(view.dim(port)) < 2:
            raise ShapeError(port, f"dim {format_extents(view.dim(port))}", "at least rank 2")
    return (1, view.dim(rows)[-2], view.dim("weight")[-1])


_QUANTISATION = (
    _row(
        "reduction",
        "REDUCTION",
        ports("input", "group_offset?"),
        (Output("OUT_0"),),
        Attr("mode", one_of(reduction_mode), required=True),
    ),
    _row(
        "block_scale_dequantize",
        "BLOCK_SCALE_DEQUANTIZE",
        ports("input", "descale"),
        (Output("OUT_0", like("input"), layout=follows("input")),),
        Attr("block_size", INTS, required=True),
        Attr("is_negative_scale", BOOL, False),
    ),
    _row(
        "block_scale_quantize",
        "BLOCK_SCALE_QUANTIZE",
        ports("input", "group_offset?"),
        (
            Output("Y", like("input"), layout=follows("input")),
            Output("scale", Shape("input with ceil(extent / block_size) on axis", _scales)),
        ),
        Attr("block_size", INT, required=True),
        Attr("axis", INT),
        Attr("transpose", BOOL, False),
    ),
    _row(
        "moe_grouped_matmul",
        "MOE_GROUPED_MATMUL",
        (
            *ports("token", "weight", "first_token_offset", "token_index?", "token_ks?"),
            Port("top_k_scores", optional=True, is_keyword_only=True),
        ),
        (
            Output(
                "OUT_0",
                Shape("[1, rows of token (GATHER token_index, COMBINE top_k_scores), N]", _grouped),
            ),
        ),
        Attr("mode", one_of(moe_grouped_matmul_mode), moe_grouped_matmul_mode.NONE),
        Attr("top_k", INT, 0),
    ),
    _row(
        "moe_grouped_matmul_bwd",
        "MOE_GROUPED_MATMUL_BWD",
        ports("doutput", "token", "first_token_offset"),
        (
            Output(
                "dweight",
                Shape(
                    "[experts, K of token, N of doutput]",
                    lambda view: (
                        view.dim("first_token_offset")[0],
                        view.dim("token")[-1],
                        view.dim("doutput")[-1],
                    ),
                    is_exact=False,  # with G + 1 boundaries, the caller declares G experts
                ),
            ),
        ),
    ),
)

# Convolutions.


def _window(view: NodeView, spatial: int) -> list[tuple[int, int, int]]:
    """Total padding, stride and dilation of every spatial axis."""

    def values(name: str, default: int) -> tuple[int, ...]:
        given = view.attr(name) or ()
        if given and len(given) != spatial:
            raise ShapeError(name, f"{len(given)} values", f"one for each of {spatial} axes")
        return tuple(given) or (default,) * spatial

    both = values("padding", 0)
    pre = values("pre_padding", 0) if view.attr("pre_padding") else both
    post = values("post_padding", 0) if view.attr("post_padding") else both
    padding = [before + after for before, after in zip(pre, post, strict=True)]
    return list(zip(padding, values("stride", 1), values("dilation", 1), strict=True))


def _effective(weight: Extent, dilation: int) -> int | None:
    """How many places of an axis a dilated filter spans."""
    return (weight - 1) * dilation + 1 if isinstance(weight, int) else None


def _ranks(view: NodeView, data: str, weight: str) -> tuple[Dim, Dim]:
    x, w = view.dim(data), view.dim(weight)
    if len(x) < 3:
        raise ShapeError(data, f"rank {len(x)}", "at least 3: batch, channels, space")
    if len(w) != len(x):
        raise ShapeError(weight, f"rank {len(w)}", f"{len(x)}, as {data}")
    return x, w


def _forward(view: NodeView) -> Dim | None:
    x, w = _ranks(view, "image", "weight")
    dim: list[Extent | None] = [x[0], w[0]]
    window = _window(view, len(x) - 2)
    for axis, (padding, stride, dilation) in enumerate(window, 2):
        extent, span = x[axis], _effective(w[axis], dilation)
        if stride < 1 or dilation < 1:
            raise ShapeError("image", f"stride {stride}, dilation {dilation}", "at least 1")
        if isinstance(extent, int) and span is not None:
            if extent + padding < span:
                raise ShapeError(
                    "image", f"{extent + padding} places on axis {axis}", f"at least {span}"
                )
            dim.append((extent + padding - span) // stride + 1)
        else:
            dim.append(extent if stride == 1 and padding + 1 == span else None)
    return whole(dim)


def _data_gradient(view: NodeView) -> Dim | None:
    dy, w = _ranks(view, "loss", "filter")
    dim: list[Extent | None] = [dy[0], w[1]]
    window = _window(view, len(dy) - 2)
    for axis, (padding, stride, dilation) in enumerate(window, 2):
        extent, span = dy[axis], _effective(w[axis], dilation)
        if isinstance(extent, int) and span is not None:
            dim.append(max(0, (extent - 1) * stride + span - padding))
        else:
            dim.append(extent if stride == 1 and padding + 1 == span else None)
    return whole(dim)


_CONV = (
    Attr("padding", INTS),
    Attr("pre_padding", INTS),
    Attr("post_padding", INTS),
    Attr("stride", INTS),
    Attr("dilation", INTS),
    Attr("convolution_mode", one_of(convolution_mode), convolution_mode.CROSS_CORRELATION),
)

_CONVOLUTIONS = (
    _row(
        "conv_fprop",
        "CONV_FPROP",
        ports("image", "weight"),
        (
            Output(
                "Y",
                Shape("[N, K, floor((x + padding - span) / stride) + 1, ...]", _forward),
                layout=CHANNELS_LAST,
            ),
        ),
        *_CONV,
    ),
    _row(
        "conv_dgrad",
        "CONV_DGRAD",
        ports("loss", "filter"),
        (
            Output(
                "DX",
                Shape(
                    "[N, C, (y - 1) * stride + span - padding, ...] by default",
                    _data_gradient,
                    is_exact=False,
                ),
                layout=CHANNELS_LAST,
            ),
        ),
        *_CONV,
    ),
    _row(
        "conv_wgrad",
        "CONV_WGRAD",
        ports("image", "loss"),
        (Output("DW", layout=CHANNELS_LAST),),
        *_CONV,
    ),
)

# Moves.


def _sliced(view: NodeView) -> Dim | None:
    dim, slices = view.dim("input"), view.attr("slices") or ()
    if len(slices) != len(dim):
        raise ShapeError("input", f"rank {len(dim)}", f"{len(slices)}: one slice for each axis")
    extents: list[Extent | None] = []
    for extent, (start, stop, step) in zip(dim, slices, strict=True):
        if isinstance(extent, int):
            extents.append(len(range(*slice(start, stop, step).indices(extent))))
        else:
            extents.append(extent if (start, stop, step) == (0, None, 1) else None)
    return whole(extents)


def _transposed(view: NodeView) -> Dim:
    dim, order = view.dim("input"), view.attr("permutation")
    if sorted(order) != list(range(len(dim))):
        raise ShapeError("input", f"permutation {list(order)}", f"the axes 0 to {len(dim) - 1}")
    return tuple(dim[axis] for axis in order)


def _joined(view: NodeView) -> Dim | None:
    """The extents of the operands, their sum on `axis`."""
    names = view.many_names("inputs")
    first, axis = view.dim(names[0]), view.attr("axis")
    if not -len(first) <= axis < len(first):
        raise ShapeError(names[0], f"rank {len(first)}", f"an axis {axis}")
    axis %= len(first)
    for name in names:
        other = view.dim(name)
        if len(other) != len(first) or any(
            other[i] != first[i] for i in range(len(first)) if i != axis
        ):
            raise ShapeError(
                name, f"dim {format_extents(other)}", f"{format_extents(first)} but for axis {axis}"
            )
    parts = [view.dim(name)[axis] for name in names]
    total: Extent | None = None
    if all(isinstance(part, int) for part in parts):
        total = sum(part for part in parts if isinstance(part, int))
    elif all(part == parts[0] for part in parts):
        total = mul(parts[0], len(parts))
    return whole([*first[:axis], total, *first[axis + 1 :]])


_MOVES = (
    _row(
        "reshape",
        "RESHAPE",
        ports("input"),
        (Output("OUT_0"),),
        Attr("reshape_mode", one_of(reshape_mode), reshape_mode.VIEW_ONLY),
        has_compute_data_type=False,
    ),
    _row(
        "slice",
        "SLICE",
        ports("input"),
        (Output("OUT_0", Shape("the length of every slice", _sliced), data_type="input"),),
        Attr("slices", SLICES, required=True),
    ),
    _row(
        "transpose",
        "TRANSPOSE",
        ports("input"),
        (Output("OUT_0", Shape("input's extents in the order of permutation", _transposed)),),
        Attr("permutation", INTS, required=True),
    ),
    _row(
        "concatenate",
        "CONCATENATE",
        (Port("inputs", is_list=True),),
        (Output("OUT_0", Shape("the inputs' extents, their sum on axis", _joined)),),
        Attr("axis", INT, required=True),
        Attr("in_place_index", INT),
        has_compute_data_type=False,
    ),
    _row(
        "rope",
        "ROPE",
        ports("input", "freqs"),
        (Output("OUT_0", like("input"), layout=follows("input")),),
        Attr("output_scale", FLOAT, 1.0),
        Attr("rope_dim", INT, 0),
    ),
    _row(
        "rope_backward",
        "ROPE_BWD",
        ports("dY", "freqs"),
        (Output("OUT_0", like("dY"), layout=follows("dY")),),
        Attr("output_scale", FLOAT, 1.0),
        Attr("rope_dim", INT, 0),
    ),
)

ROWS = (*_NORMS, *_QUANTISATION, *_CONVOLUTIONS, *_MOVES)
