"""Normalisation over the axes of a tensor's own rows: rms, layer, adaptive layer, instance norm.

Which axes are normalised follows from the declarations, as in the cuDNN frontend: in a forward node
those where ``scale`` is longer than 1 (adaptive layer norm leaves the batch axis 0 out, instance
norm always takes the spatial axes 2 and up); without ``scale`` those where a declared statistic is
1; else every axis but the batch axis 0. In a backward node those where the given statistic is 1.

``inv_var`` is ``1 / sqrt(variance + epsilon)`` with the biased variance (mean square for rms norm).
A gradient of ``scale`` or ``bias`` is summed over the axes along which it is 1.
"""

from __future__ import annotations

import numpy as np

from cudnn_aot.compiler.reference.call import Array, Call, Reference, Results, summed_to

_Axes = tuple[int, ...]


def _forward_axes(call: Call, x: Array, first: int) -> _Axes:
    if call.op == "instancenorm":
        return tuple(range(2, x.ndim))
    scale = call.get("scale")
    if scale is not None:
        if scale.ndim != x.ndim:
            raise call.refuse(f"scale: got rank {scale.ndim}, want the input's {x.ndim}")
        return tuple(axis for axis in range(first, x.ndim) if scale.shape[axis] != 1)
    for port in ("inv_var", "mean"):
        dim = call.wanted[port].dim if port in call.wanted else ()
        if len(dim) == x.ndim:
            return tuple(axis for axis in range(x.ndim) if dim[axis] == 1)
    return tuple(range(1, x.ndim))


def _affine(call: Call, normal: Array) -> Array:
    scale, bias = call.get("scale"), call.get("bias")
    y = normal if scale is None else normal * scale
    return y if bias is None else y + bias


def _mean(x: Array, axes: _Axes) -> Array:
    return x.mean(axis=axes, keepdims=True)


def _epsilon(call: Call) -> float:
    return call.scalar("epsilon", 0.0)


def _rmsnorm(call: Call) -> Results:
    """``x / sqrt(mean(x**2) + epsilon) * scale + bias``."""
    x = call["input"]
    inv_var = 1 / np.sqrt(_mean(x * x, _forward_axes(call, x, 0)) + _epsilon(call))
    return {"Y": _affine(call, x * inv_var), "inv_var": inv_var}


def _layernorm(call: Call) -> Results:
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias``."""
    x = call["input"]
    axes = _forward_axes(call, x, 1 if call.op == "adalayernorm" else 0)
    mean = _mean(x, axes)
    inv_var = 1 / np.sqrt(_mean((x - mean) ** 2, axes) + _epsilon(call))
    return {"Y": _affine(call, (x - mean) * inv_var), "mean": mean, "inv_var": inv_var}


def backward(call: Call, axes: _Axes, mean: Array | None, inv_var: Array) -> Results:
    """Gradients through ``Y = (x - mean) * inv_var * scale + bias``, statistics as functions of x.

    Without `mean` it is the rms form. `axes` are those that the statistics ran over.
    """
    x, grad, scale = call["input"], call["grad"], call.get("scale")
    normal = (x if mean is None else x - mean) * inv_var
    inner = grad if scale is None else grad * scale
    dx = inner - normal * _mean(inner * normal, axes)
    if mean is not None:
        dx = dx - _mean(inner, axes)
    results = {"DX": dx * inv_var}
    if scale is not None:
        results["DScale"] = summed_to(grad * normal, scale.shape)
        results["DBias"] = summed_to(grad, scale.shape)
    return results


def _backward(call: Call) -> Results:
    x, inv_var = call["input"], call["inv_variance"]
    if inv_var.ndim != x.ndim:
        raise call.refuse(f"inv_variance: got rank {inv_var.ndim}, want the input's {x.ndim}")
    axes = tuple(axis for axis in range(x.ndim) if inv_var.shape[axis] == 1)
    return backward(call, axes, call.get("mean"), inv_var)


def _instancenorm_backward(call: Call) -> Results:
    """With statistics that are not given computed again, for an epsilon of 0."""
    x = call["input"]
    axes = tuple(range(2, x.ndim))
    mean, inv_var = call.get("mean"), call.get("inv_variance")
    mean = _mean(x, axes) if mean is None else mean
    inv_var = _mean((x - mean) ** 2, axes) ** -0.5 if inv_var is None else inv_var
    return backward(call, axes, mean, inv_var)


REFERENCES: dict[str, Reference] = {
    "rmsnorm": _rmsnorm,
    "rmsnorm_backward": _backward,
    "layernorm": _layernorm,
    "layernorm_backward": _backward,
    "adalayernorm": _layernorm,
    "adalayernorm_backward": _backward,
    "instancenorm": _layernorm,
    "instancenorm_backward": _instancenorm_backward,
}
