"""The rows of reductions, block scaling, grouped products, convolutions and moves of data.

Ports, names and shapes are those of the cuDNN frontend's builders; what an output has when its
strides are not set is what the cuDNN backend gives it.
"""

from __future__ import annotations

from cudnn_aot.compiler.graph.attr import BOOL, FLOAT, INT, INTS, SLICES, Attr, one_of
from cudnn_aot.compiler.graph.enums import (
    convolution_mode,
    moe_grouped_matmul_mode,
    reduction_mode,
    reshape_mode,
)
from cudnn_aot.compiler.graph.extents import Extent, format_extents, mul, packed
from cudnn_aot.compiler.graph.op import (
    Dim,
    Layout,
    NodeView,
    Output,
    Port,
    Shape,
    ShapeError,
    ports,
    structured,
)
from cudnn_aot.compiler.graph.rules import convolution, moe, moves, quantize, reductions, rope
from cudnn_aot.compiler.graph.shapes import (
    CHANNELS_LAST,
    axes_inward,
    ceil_div,
    follows,
    in_order_of,
    like,
    viewed,
    whole,
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


def _packed_on_axis(plain: Layout) -> Layout:
    """`plain`, or with `transpose` the axes rotated until `axis` is the innermost."""

    def rule(view: NodeView, dim: Dim) -> Dim:
        axis = view.attr("axis")
        if not view.attr("transpose"):
            return plain.rule(view, dim)
        order = axes_inward(view, "input")
        if axis is not None:
            turn = order.index(axis % len(order)) + 1
            order = [*order[turn:], *order[:turn]]
        return packed(dim, order)

    return Layout(f"{plain.text}, or with transpose packed on axis", rule)


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


# What the frontend's native library takes where the caller does not say what is reduced.
_UNREDUCED = Shape(
    "as input unless the caller gives out_dims",
    lambda view: view.dim("input") or None,
    is_exact=False,
)

_QUANTISATION = (
    structured(
        "reduction",
        "REDUCTION",
        ports("input", "group_offset?"),
        (Output("OUT_0", _UNREDUCED, layout=CHANNELS_LAST),),
        Attr("mode", one_of(reduction_mode), required=True),
        rules=reductions.REDUCTION,
    ),
    structured(
        "block_scale_dequantize",
        "BLOCK_SCALE_DEQUANTIZE",
        ports("input", "descale"),
        (Output("OUT_0", like("input"), layout=follows("input")),),
        Attr("block_size", INTS, required=True),
        Attr("is_negative_scale", BOOL, False),
        rules=quantize.BLOCK_SCALE_DEQUANTIZE,
        spellings=(quantize.SIZES,),
    ),
    structured(
        "block_scale_quantize",
        "BLOCK_SCALE_QUANTIZE",
        ports("input", "group_offset?"),
        (
            Output("Y", like("input"), layout=_packed_on_axis(follows("input"))),
            Output(
                "scale",
                Shape("input with ceil(extent / block_size) on axis", _scales),
                layout=_packed_on_axis(in_order_of("input")),
            ),
        ),
        Attr("block_size", INT, required=True),
        Attr("axis", INT),
        Attr("transpose", BOOL, False),
        rules=quantize.BLOCK_SCALE_QUANTIZE,
        spellings=(quantize.LAST_AXIS,),
    ),
    structured(
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
        rules=moe.MOE_GROUPED_MATMUL,
    ),
    structured(
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
                layout=Layout("K innermost", lambda view, dim: packed(dim, [0, 2, 1])),
            ),
        ),
        rules=moe.MOE_GROUPED_MATMUL_BWD,
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
    structured(
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
        rules=convolution.CONV_FPROP,
        spellings=(convolution.WINDOW,),
    ),
    structured(
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
        rules=convolution.CONV_DGRAD,
        spellings=(convolution.WINDOW,),
    ),
    structured(
        "conv_wgrad",
        "CONV_WGRAD",
        ports("image", "loss"),
        (Output("DW", layout=CHANNELS_LAST),),
        *_CONV,
        rules=convolution.CONV_WGRAD,
        spellings=(convolution.WINDOW,),
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


def _sliced_steps(view: NodeView, step: Dim) -> Dim:
    return tuple(mul(each, by) for each, (_, _, by) in zip(step, view.attr("slices"), strict=True))


def _transposed_steps(view: NodeView, step: Dim) -> Dim:
    return tuple(step[axis] for axis in view.attr("permutation"))


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
    structured(
        "reshape",
        "RESHAPE",
        ports("input"),
        (Output("OUT_0", layout=CHANNELS_LAST),),
        Attr("reshape_mode", one_of(reshape_mode), reshape_mode.VIEW_ONLY),
        has_compute_data_type=False,
        rules=moves.RESHAPE,
    ),
    structured(
        "slice",
        "SLICE",
        ports("input"),
        (
            Output(
                "OUT_0",
                Shape("the length of every slice", _sliced),
                data_type="input",
                layout=viewed("of a view of input", _sliced_steps),
            ),
        ),
        Attr("slices", SLICES, required=True),
        rules=moves.SLICE,
    ),
    structured(
        "transpose",
        "TRANSPOSE",
        ports("input"),
        (
            Output(
                "OUT_0",
                Shape("input's extents in the order of permutation", _transposed),
                layout=viewed("of a view of input", _transposed_steps),
            ),
        ),
        Attr("permutation", INTS, required=True),
        rules=moves.TRANSPOSE,
    ),
    structured(
        "concatenate",
        "CONCATENATE",
        (Port("inputs", is_list=True),),
        (
            Output(
                "OUT_0",
                Shape("the inputs' extents, their sum on axis", _joined),
                layout=in_order_of("inputs_0"),
            ),
        ),
        Attr("axis", INT, required=True),
        Attr("in_place_index", INT),
        has_compute_data_type=False,
        rules=moves.CONCATENATE,
        spellings=(moves.AXIS,),
    ),
    structured(
        "rope",
        "ROPE",
        ports("input", "freqs"),
        (Output("OUT_0", like("input"), layout=follows("input")),),
        Attr("output_scale", FLOAT, 1.0),
        Attr("rope_dim", INT, 0),
        rules=rope.ROPE,
    ),
    structured(
        "rope_backward",
        "ROPE_BWD",
        ports("dY", "freqs"),
        (Output("OUT_0", like("dY"), layout=follows("dY")),),
        Attr("output_scale", FLOAT, 1.0),
        Attr("rope_dim", INT, 0),
        rules=rope.ROPE_BACKWARD,
    ),
)

ROWS = (*_QUANTISATION, *_CONVOLUTIONS, *_MOVES)
