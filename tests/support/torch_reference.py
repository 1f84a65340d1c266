"""A graph's results from torch in fp32 on the GPU: an oracle that shares nothing with the
kernels. Graphs with an op that has no row here are judged by the product's float64 reference.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from cudnn_aot.compiler.graph.extents import evaluate
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.reference import execute as float64_reference

TORCH_DTYPE = {
    "BFLOAT16": torch.bfloat16,
    "HALF": torch.float16,
    "FLOAT": torch.float32,
    "FP8_E4M3": torch.float8_e4m3fn,
    "FP8_E5M2": torch.float8_e5m2,
}

# Half a unit in the last place of the output, doubled for results whose fp32 values straddle a
# rounding boundary; the absolute part is fp32 accumulation over K on unit-variance results.
TOLERANCE = {
    "BFLOAT16": (2**-7, 1e-4),
    "HALF": (2**-10, 1e-4),
    "FLOAT": (1e-5, 2e-5),
    "FP8_E4M3": (2**-3, 2**-9),
    "FP8_E5M2": (2**-2, 2**-16),
}
FP8 = ("FP8_E4M3", "FP8_E5M2")
# Tensor cores keep 14 bits of sums of FP8 products, which scales multiply.
FP8_SUM = (2**-8, 2**-7)
EIGHT_BITS = tuple(TORCH_DTYPE[name] for name in FP8)


def _relu(x: torch.Tensor, attrs: dict[str, Any]) -> torch.Tensor:
    lower, upper = attrs.get("lower_clip", 0.0), attrs.get("upper_clip", math.inf)
    slope = attrs.get("negative_slope", 0.0)
    return torch.where(x > lower, x, lower + slope * (x - lower)).clamp(max=upper)


POINTWISE = {
    "add": lambda a, b, attrs: a + b,
    "bias": lambda a, b, attrs: a + b,
    "mul": lambda a, b, attrs: a * b,
    "scale": lambda a, b, attrs: a * b,
    "identity": lambda a, attrs: a,
    "relu": _relu,
    "gelu": lambda a, attrs: torch.nn.functional.gelu(a),
    "gelu_approx_tanh": lambda a, attrs: torch.nn.functional.gelu(a, approximate="tanh"),
    "swish": lambda a, attrs: a * torch.sigmoid(attrs.get("swish_beta", 1.0) * a),
    "sigmoid": lambda a, attrs: torch.sigmoid(a),
    "tanh": lambda a, attrs: torch.tanh(a),
}


def empty(tensor: Any, symbols: dict[str, int]) -> torch.Tensor:
    """A buffer laid out as declared, filled with NaN."""
    dim = [evaluate(extent, symbols) for extent in tensor.dim]
    stride = [evaluate(extent, symbols) for extent in tensor.stride]
    span = 1 + sum((d - 1) * s for d, s in zip(dim, stride, strict=True)) if all(dim) else 0
    flat = torch.full((span,), math.nan, device="cuda").to(TORCH_DTYPE[tensor.data_type.name])
    return flat.as_strided(dim, stride)


def operands(graph: Graph, symbols: dict[str, int], seed: int = 0) -> dict[int, Any]:
    """Random inputs, and outputs poisoned with NaN, by uid. Results have about unit variance."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    every_b = [node.inputs["B"] for node in graph.nodes if node.op == "matmul"]
    bound: dict[int, Any] = {}
    for tensor in graph.inputs():
        if tensor.is_pass_by_value:
            bound[tensor.uid] = 0.75
            continue
        buffer = empty(tensor, symbols)
        values = torch.randn(buffer.shape, generator=generator, device="cuda")
        if any(tensor is b for b in every_b):
            values *= max(1, evaluate(tensor.dim[-2], symbols)) ** -0.5
        buffer.copy_(values)
        bound[tensor.uid] = buffer
    for tensor in graph.outputs():
        bound[tensor.uid] = empty(tensor, symbols)
    return bound


def addresses(bound: dict[int, Any]) -> dict[int, Any]:
    """The buffers, those of 8-bit floats by address: not every torch has a DLPack type for them,
    and they lie as declared.
    """
    return {
        uid: buffer.data_ptr() if getattr(buffer, "dtype", None) in EIGHT_BITS else buffer
        for uid, buffer in bound.items()
    }


def execute(plan: Any, bound: dict[int, Any], symbols: dict[str, int]) -> None:
    """Execute on the current stream with a workspace full of garbage, and wait."""
    room = plan.workspace_bytes(symbols)
    workspace = torch.full((room,), 0xFF, dtype=torch.uint8, device="cuda") if room else None
    stream = torch.cuda.current_stream().cuda_stream
    plan.execute(addresses(bound), workspace, stream=stream, symbols=symbols)
    torch.cuda.synchronize()


def reference(graph: Graph, bound: dict[int, Any]) -> dict[int, torch.Tensor]:
    """fp32 results of every output, each tensor rounded to its own dtype where it is read."""
    if any(node.op not in POINTWISE and node.op != "matmul" for node in graph.nodes):
        return _from_float64(graph, bound)
    values: dict[int, torch.Tensor] = {}
    for tensor in graph.inputs():
        value = bound[tensor.uid]
        values[tensor.uid] = (
            value.float()
            if isinstance(value, torch.Tensor)
            else torch.tensor(float(value), device="cuda")
        )
    exact: dict[int, torch.Tensor] = {}
    for node in graph.nodes:
        arguments = [values[tensor.uid] for tensor in node.inputs.values()]
        if node.op == "matmul":
            result = torch.matmul(*arguments)
        else:
            result = POINTWISE[node.op](*arguments, dict(node.attrs))
        (out,) = node.outputs.values()
        exact[out.uid] = result
        values[out.uid] = result.to(TORCH_DTYPE[out.data_type.name]).float()
    return {tensor.uid: exact[tensor.uid] for tensor in graph.outputs()}


def _from_float64(graph: Graph, bound: dict[int, Any]) -> dict[int, torch.Tensor]:
    values = {}
    for tensor in graph.inputs():
        value = bound[tensor.uid]
        is_tensor = isinstance(value, torch.Tensor)
        values[tensor.uid] = value.float().cpu().numpy() if is_tensor else np.asarray(value)
    with np.errstate(all="ignore"):
        results = float64_reference.execute(graph, values)
    return {uid: torch.from_numpy(array).float().cuda() for uid, array in results.items()}


def assert_close(graph: Graph, bound: dict[int, Any]) -> None:
    """Every bound output equals the reference within the tolerance of its dtype; NaN passes only
    where that has NaN.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    expected = reference(graph, bound)
    is_fp8 = any(
        node.op == "matmul" and node.inputs["A"].data_type.name in FP8 for node in graph.nodes
    )
    for tensor in graph.outputs():
        if bound.get(tensor.uid) is None:
            continue
        rtol, atol = TOLERANCE[tensor.data_type.name]
        if is_fp8:
            rtol, atol = rtol + FP8_SUM[0], atol + FP8_SUM[1]
        got = bound[tensor.uid].float()
        want = expected[tensor.uid].expand(got.shape)
        worst = ((got - want).abs() - (atol + rtol * want.abs())).nan_to_num(math.inf)
        worst = worst.masked_fill(got.isnan() & want.isnan(), 0.0)
        assert worst.numel() == 0 or worst.max().item() <= 0, (
            f"{graph.name}: output {tensor.name!r} is off by more than the tolerance at "
            f"{(worst > 0).sum().item()} of {worst.numel()} elements, "
            f"worst excess {worst.max().item():.3g}"
        )
