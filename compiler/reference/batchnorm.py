"""Normalisation over every axis but the channels' (axis 1): batch norm, and its statistics alone.

``peer_stats`` are buffers through which several GPUs add their sums up. A reference is one process,
which stands for a group of one: it does not read them.
"""

from __future__ import annotations

import math

import numpy as np

from cudnn_aot.compiler.reference import norms
from cudnn_aot.compiler.reference.call import Array, Call, Reference, Results


def _axes(x: Array) -> tuple[int, ...]:
    return tuple(axis for axis in range(x.ndim) if axis != 1)


def _batchnorm(call: Call) -> Results:
    """Training: normalise by the batch's own statistics, and move the running ones.

    ``next = (1 - momentum) * running + momentum * batch``; as in cuDNN the running variance takes
    the batch's unbiased variance (divided by count - 1), the normalisation the biased one.
    """
    x = call["input"]
    axes = _axes(x)
    mean = x.mean(axis=axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
    inv_var = 1 / np.sqrt(variance + call.scalar("epsilon", 0.0))
    results = {
        "Y": (x - mean) * inv_var * call["scale"] + call["bias"],
        "mean": mean,
        "inv_var": inv_var,
    }
    momentum = call.scalar("momentum", 0.0)
    count = math.prod(x.shape[axis] for axis in axes)
    unbiased = variance * (count / max(count - 1, 1))
    for kind, batch in (("mean", mean), ("var", unbiased)):
        running = call.get(f"in_running_{kind}")
        if running is not None:
            results[f"next_running_{kind}"] = (1 - momentum) * running + momentum * batch
    return results


def _inference(call: Call) -> Results:
    """``(x - mean) * inv_variance * scale + bias`` with given statistics."""
    normal = (call["input"] - call["mean"]) * call["inv_variance"]
    return {"Y": normal * call["scale"] + call["bias"]}


def _backward(call: Call) -> Results:
    return norms.backward(call, _axes(call["input"]), call["mean"], call["inv_variance"])


def _genstats(call: Call) -> Results:
    """Sum and sum of squares of each channel."""
    x = call["input"]
    return {
        "SUM": x.sum(axis=_axes(x), keepdims=True),
        "SQ_SUM": (x * x).sum(axis=_axes(x), keepdims=True),
    }


REFERENCES: dict[str, Reference] = {
    "batchnorm": _batchnorm,
    "batchnorm_inference": _inference,
    "batchnorm_backward": _backward,
    "genstats": _genstats,
}
