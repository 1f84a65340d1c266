"""Rules of normalisations and batch statistics."""

from __future__ import annotations

from cudnn_aot.compiler.graph.extents import Extent, format_extents
from cudnn_aot.compiler.graph.op import NodeView, Refusal, Rule, wrong
from cudnn_aot.compiler.graph.rules.domain import may_equal
from cudnn_aot.compiler.graph.rules.tables import (
    documented,
    floats,
    needs,
    on,
    one_element,
    wired,
)


def _mismatch(
    view: NodeView, port: str, want: tuple[Extent, ...], or_one: bool, text: str
) -> Refusal | None:
    """A refusal if the port's extents are not `want`, or with `or_one` 1 instead."""
    dim = view.dim(port)
    if not dim or dim == want:
        return None
    fits = len(dim) == len(want) and all(
        or_one and have == 1 or may_equal(view, have, extent)
        for have, extent in zip(dim, want, strict=True)
    )
    if fits:
        return None
    return wrong(port, f"dim {format_extents(dim)}", f"{format_extents(want)}{text}")


def within_input(*ports: str) -> Rule:
    """Each axis of these ports has the input's extent or 1."""

    def rule(view: NodeView) -> Refusal | None:
        want = view.dim("input")
        for port in ports:
            refusal = _mismatch(view, port, want, True, ", or 1 on any axis")
            if refusal is not None:
                return refusal
        return None

    return documented(f"{', '.join(ports)}: the input's rank; each axis its extent or 1", rule)


def per_axis(axes: tuple[int, ...], least_rank: int, *ports: str) -> Rule:
    """These ports have the input's extents on `axes`, 1 elsewhere."""
    named = " and ".join(map(str, axes))

    def rule(view: NodeView) -> Refusal | None:
        dim = view.dim("input")
        if len(dim) < least_rank:
            return wrong("input", f"rank {len(dim)}", f"at least {least_rank}")
        want = tuple(extent if axis in axes else 1 for axis, extent in enumerate(dim))
        for port in ports:
            refusal = _mismatch(view, port, want, False, f": the input's on axis {named}, else 1")
            if refusal is not None:
                return refusal
        return None

    return documented(
        f"{', '.join(ports)}: the input's extent on axis {named}, 1 elsewhere; "
        f"the input has at least {least_rank} axes",
        rule,
    )


def like(first: str, *others: str) -> Rule:
    """Ports have the extents of the first one."""

    def rule(view: NodeView) -> Refusal | None:
        want = view.dim(first)
        for port in others:
            refusal = _mismatch(view, port, want, False, f", as {first}") if want else None
            if refusal is not None:
                return refusal
        return None

    return documented(f"extents of {', '.join(others)}: as {first}", rule)


def known_axes(*statistics: str) -> Rule:
    """Without a scale it is clear which axes are normalised."""

    def rule(view: NodeView) -> Refusal | None:
        if view.has("scale"):
            return None
        declared = (view.outputs.get(port) for port in statistics)
        if any(tensor is not None and tensor.dim_assigned for tensor in declared):
            return None
        dim = view.dim("input")
        if sum(extent != 1 for extent in dim[1:]) > 1:
            return wrong(
                "input",
                f"dim {format_extents(dim)} without scale",
                "one axis after the first that is not 1, a scale, or (training) "
                f"declared extents of {' or '.join(statistics)}",
            )
        return None

    return documented(
        "without scale one axis of the input after the first is longer than 1, or the extents of "
        f"{' or '.join(statistics)} are declared",
        rule,
    )


_EPSILON = one_element("epsilon")
_SCALE, _BIAS = wired("scale"), wired("bias")
_SCALED = (within_input("scale", "bias"), like("scale", "bias"))
_MEANS = ("mean", "inv_var")

# What is normalised, and what with, by every name that the ops have for it.
_NUMBERS = floats(
    *("input", "grad", "scale", "bias", "mean", "inv_variance"),
    *("in_running_mean", "in_running_var", "Y", "DX", "epsilon", "momentum"),
)

RMSNORM: tuple[Rule, ...] = (
    _NUMBERS,
    known_axes("inv_var"),
    *_SCALED,
    within_input("inv_var"),
    _EPSILON,
)
LAYERNORM: tuple[Rule, ...] = (
    _NUMBERS,
    needs(_BIAS, _SCALE),
    known_axes(*_MEANS),
    like(*_MEANS),
    *_SCALED,
    within_input(*_MEANS),
    _EPSILON,
)
ADALAYERNORM: tuple[Rule, ...] = (
    *_SCALED,
    like(*_MEANS),
    within_input(*_MEANS),
    _EPSILON,
    _NUMBERS,
)
INSTANCENORM: tuple[Rule, ...] = (per_axis((1,), 3, "scale", "bias"), _EPSILON, _NUMBERS)

_GRAD = like("input", "grad")
_GIVEN = ("mean", "inv_variance")
_HAS_DBIAS = on("has_dbias")

RMSNORM_BACKWARD: tuple[Rule, ...] = (
    _NUMBERS,
    needs(_HAS_DBIAS, _SCALE),
    _GRAD,
    within_input("scale", "inv_variance"),
)
LAYERNORM_BACKWARD: tuple[Rule, ...] = (
    _GRAD,
    like(*_GIVEN),
    within_input("scale", *_GIVEN),
    _NUMBERS,
)
ADALAYERNORM_BACKWARD = LAYERNORM_BACKWARD
INSTANCENORM_BACKWARD: tuple[Rule, ...] = (
    _NUMBERS,
    _GRAD,
    per_axis((1,), 3, "scale"),
    per_axis((0, 1), 3, *_GIVEN),
    needs(wired("mean"), wired("inv_variance")),
    needs(wired("inv_variance"), wired("mean")),
)

_RUNNING = ("in_running_mean", "in_running_var")

BATCHNORM: tuple[Rule, ...] = (
    _NUMBERS,
    per_axis((1,), 2, "scale", "bias", *_RUNNING),
    needs(wired(_RUNNING[0]), wired(_RUNNING[1], "momentum")),
    needs(wired(_RUNNING[1]), wired(_RUNNING[0], "momentum")),
    one_element("epsilon", "momentum"),
)
BATCHNORM_INFERENCE: tuple[Rule, ...] = (per_axis((1,), 2, "scale", "bias", *_GIVEN), _NUMBERS)
BATCHNORM_BACKWARD: tuple[Rule, ...] = (_GRAD, per_axis((1,), 2, "scale", *_GIVEN), _NUMBERS)
GENSTATS: tuple[Rule, ...] = (per_axis((1,), 2, "SUM", "SQ_SUM"), _NUMBERS)
