"""The rows of normalisations, forward and backward, and of the statistics that feed them.

Ports, names and shapes are those of the cuDNN frontend's builders; what an output has when its
strides are not set is what the cuDNN backend gives it.
"""

from __future__ import annotations

from cudnn_aot.compiler.graph.attr import BOOL, Attr, one_of
from cudnn_aot.compiler.graph.enums import norm_forward_phase
from cudnn_aot.compiler.graph.op import (
    ROW_MAJOR,
    Dim,
    Layout,
    NodeView,
    Output,
    Port,
    Shape,
    When,
    ports,
    structured,
)
from cudnn_aot.compiler.graph.rules import norms as rules
from cudnn_aot.compiler.graph.shapes import (
    CHANNELS_LAST,
    follows,
    in_order_of,
    keeps,
    like,
    wired,
)


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
_AS_INPUT_LIES = in_order_of("input")
_AS_SCALE = follows("scale")
_HAS_SCALE = wired("scale")
_HAS_DBIAS = When(
    "scale is given and has_dbias", lambda view: view.has("scale") and view.attr("has_dbias")
)


def _statistic(
    name: str, shape: Shape, when: When | None = None, layout: Layout = _AS_INPUT_LIES
) -> Output:
    suffix = {"mean": "MEAN", "inv_var": "INV_VARIANCE"}[name]
    return Output(name, shape, when, layout=layout, suffix=suffix)


def _gradients(dx: Layout, others: Layout, when: When | None = None) -> tuple[Output, ...]:
    return (
        Output("DX", like("input"), layout=dx),
        Output("DScale", like("scale"), when, layout=others, suffix="DSCALE"),
        Output("DBias", like("scale"), when, layout=others, suffix="DBIAS"),
    )


_BACKWARD = ports("grad", "input", "scale", "mean", "inv_variance")
_PER_CHANNEL = keeps("input", 1)
_PER_INSTANCE = keeps("input", 0, 1)

ROWS = (
    structured(
        "rmsnorm",
        "RMSNORM",
        ports("input", "scale?", "bias?", "epsilon"),
        (_Y, _statistic("inv_var", _statistics(0), _TRAINING)),
        _PHASE,
        rules=rules.RMSNORM,
    ),
    structured(
        "rmsnorm_backward",
        "RMSNORM_BWD",
        ports("grad", "input", "scale?", "inv_variance"),
        (
            Output("DX", like("input"), layout=follows("input")),
            Output("DScale", like("scale"), _HAS_SCALE, layout=_AS_SCALE, suffix="Dscale"),
            Output("DBias", like("scale"), _HAS_DBIAS, layout=_AS_SCALE, suffix="Dbias"),
        ),
        Attr("has_dbias", BOOL, True),
        rules=rules.RMSNORM_BACKWARD,
    ),
    structured(
        "layernorm",
        "LAYERNORM",
        ports("input", "scale?", "bias?", "epsilon"),
        (
            _Y,
            _statistic("mean", _declared_or_statistics("inv_var"), _TRAINING),
            _statistic("inv_var", _declared_or_statistics("mean"), _TRAINING),
        ),
        _PHASE,
        rules=rules.LAYERNORM,
    ),
    structured(
        "layernorm_backward",
        "LAYERNORM_BWD",
        ports("grad", "input", "scale?", "mean", "inv_variance"),
        _gradients(follows("input"), _AS_SCALE, _HAS_SCALE),
        rules=rules.LAYERNORM_BACKWARD,
    ),
    structured(
        "adalayernorm",
        "ADALAYERNORM",
        ports("input", "scale", "bias?", "epsilon"),
        (
            _Y,
            _statistic("mean", _statistics(1), _TRAINING),
            _statistic("inv_var", _statistics(1), _TRAINING),
        ),
        _PHASE,
        rules=rules.ADALAYERNORM,
    ),
    structured(
        "adalayernorm_backward",
        "ADALAYERNORM_BWD",
        _BACKWARD,
        _gradients(ROW_MAJOR, ROW_MAJOR),
        rules=rules.ADALAYERNORM_BACKWARD,
    ),
    structured(
        "instancenorm",
        "INSTANCENORM",
        ports("input", "scale", "bias", "epsilon"),
        (
            _Y,
            _statistic("mean", _PER_INSTANCE, _TRAINING, CHANNELS_LAST),
            _statistic("inv_var", _PER_INSTANCE, _TRAINING, CHANNELS_LAST),
        ),
        _PHASE,
        rules=rules.INSTANCENORM,
    ),
    structured(
        "instancenorm_backward",
        "INSTANCENORM_BWD",
        ports("grad", "input", "scale", "mean?", "inv_variance?"),
        _gradients(CHANNELS_LAST, CHANNELS_LAST),
        rules=rules.INSTANCENORM_BACKWARD,
    ),
    structured(
        "batchnorm",
        "BATCHNORM",
        (
            *ports("input", "scale", "bias", "in_running_mean?", "in_running_var?"),
            *ports("epsilon", "momentum?"),
            Port("peer_stats", optional=True, is_list=True),
        ),
        (
            _Y,
            _statistic("mean", _PER_CHANNEL, layout=CHANNELS_LAST),
            _statistic("inv_var", _PER_CHANNEL, layout=CHANNELS_LAST),
            Output(
                "next_running_mean",
                _PER_CHANNEL,
                wired("in_running_mean"),
                layout=CHANNELS_LAST,
                suffix="NEXT_RUNNING_MEAN",
            ),
            Output(
                "next_running_var",
                _PER_CHANNEL,
                wired("in_running_var"),
                layout=CHANNELS_LAST,
                suffix="NEXT_RUNNING_VAR",
            ),
        ),
        rules=rules.BATCHNORM,
    ),
    structured(
        "batchnorm_inference",
        "BATCHNORM_INFERENCE",
        ports("input", "mean", "inv_variance", "scale", "bias"),
        (_Y,),
        rules=rules.BATCHNORM_INFERENCE,
    ),
    structured(
        "batchnorm_backward",
        "BATCHNORM_BWD",
        (*_BACKWARD, Port("peer_stats", optional=True, is_list=True)),
        _gradients(CHANNELS_LAST, CHANNELS_LAST),
        rules=rules.BATCHNORM_BACKWARD,
    ),
    structured(
        "genstats",
        "GENSTATS",
        ports("input"),
        tuple(Output(name, _PER_CHANNEL, layout=CHANNELS_LAST) for name in ("SUM", "SQ_SUM")),
        rules=rules.GENSTATS,
    ),
)
