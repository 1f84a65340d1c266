"""The rows of the pointwise ops: one value out of the values at the same place."""

from __future__ import annotations

from cudnn_aot.compiler.graph.attr import FLOAT, INT, Attr
from cudnn_aot.compiler.graph.extents import broadcast, format_extents
from cudnn_aot.compiler.graph.op import Dim, NodeView, Op, Output, Shape, ShapeError, ports
from cudnn_aot.compiler.graph.rules import pointwise as rules
from cudnn_aot.compiler.graph.shapes import follows


def _broadcast(view: NodeView) -> Dim:
    """Right-aligned broadcast over all inputs."""
    shape: Dim = ()
    for port, tensor in view.inputs.items():
        merged = broadcast(shape, tensor.dim) if shape else tensor.dim
        if merged is None:
            raise ShapeError(
                port,
                f"dim {format_extents(tensor.dim)}",
                f"one that broadcasts with {format_extents(shape)}",
            )
        shape = merged
    return shape


_OUTPUTS = (
    Output(
        "OUT_0",
        Shape("right-aligned broadcast of the inputs", _broadcast),
        layout=follows(),
    ),
)

# What each takes, and the ops that take it, with the cuDNN frontend's keyword names.
_UNIFORM: dict[tuple[str, ...], str] = {
    ("input",): """
        abs ceil cos elu erf exp floor gelu gelu_approx_tanh identity log logical_not neg reciprocal
        rsqrt sigmoid sin softplus sqrt tan tanh""",
    ("a", "b"): "add add_square div logical_and logical_or mul sub",
    ("input0", "input1"): "max min mod pow",
    ("input", "comparison"): "cmp_eq cmp_ge cmp_gt cmp_le cmp_lt cmp_neq",
    ("input", "bias"): "bias",
    ("input", "scale"): "scale",
    ("loss", "input"): """
        elu_backward gelu_approx_tanh_backward gelu_backward sigmoid_backward softplus_backward
        tanh_backward""",
    ("input0", "input1", "mask"): "binary_select",
}

_RELU = (
    Attr("negative_slope", FLOAT, 0.0),
    Attr("lower_clip", FLOAT, 0.0),
    Attr("upper_clip", FLOAT),
)
_LEAKY = (Attr("negative_slope", FLOAT, required=True),)
_SWISH = (Attr("swish_beta", FLOAT, 1.0),)

ROWS = (
    *(Op(name, ports(*names), _OUTPUTS) for names, ops in _UNIFORM.items() for name in ops.split()),
    Op("relu", ports("input"), _OUTPUTS, _RELU, rules=rules.CLIPPED),
    Op("relu_backward", ports("loss", "input"), _OUTPUTS, _RELU, rules=rules.CLIPPED),
    Op("leaky_relu", ports("input"), _OUTPUTS, _LEAKY),
    Op("leaky_relu_backward", ports("loss", "input"), _OUTPUTS, _LEAKY),
    Op("swish", ports("input"), _OUTPUTS, _SWISH),
    Op("swish_backward", ports("loss", "input"), _OUTPUTS, _SWISH),
    Op(
        "gen_index",
        ports("input"),
        _OUTPUTS,
        (Attr("axis", INT, required=True),),
        rules=rules.GEN_INDEX,
    ),
)
