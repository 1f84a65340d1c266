"""A graph's results from torch in float64 on the device of its buffers: an oracle that shares
nothing with the kernels. Graphs with a node that has no row here are judged by the product's own
float64 reference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from cudnn_aot.compiler.graph.extents import evaluate
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.reference import execute as float64_reference

TORCH_DTYPE = {
    "BFLOAT16": torch.bfloat16,
    "HALF": torch.float16,
    "FLOAT": torch.float32,
    "FP8_E4M3": torch.float8_e4m3fn,
    "FP8_E5M2": torch.float8_e5m2,
    "INT8": torch.int8,
    "INT32": torch.int32,
    "INT64": torch.int64,
}

# Half a unit in the last place of the output, doubled for results whose fp32 values straddle a
# rounding boundary; the absolute part is fp32 accumulation over K on unit-variance results. An
# integer is the nearest one, of INT8 to a number that is as near as fp32 is; sums are exact.
TOLERANCE = {
    "BFLOAT16": (2**-7, 1e-4),
    "HALF": (2**-10, 1e-4),
    "FLOAT": (1e-5, 2e-5),
    "FP8_E4M3": (2**-3, 2**-9),
    "FP8_E5M2": (2**-2, 2**-16),
    "INT8": (0.0, 0.5 + 2**-10),
    "INT32": (0.0, 0.5),
    "INT64": (0.0, 0.5),
}
FP8 = ("FP8_E4M3", "FP8_E5M2")
# Tensor cores keep 14 bits of sums of FP8 products, which scales multiply.
FP8_SUM = (2**-8, 2**-7)
# Steps of fp32 that accumulation may be off by, grow as the root of K.
ACCUMULATION = 2**-20
# What is rounded on the way to an output may be a step of its type at magnitude 4 away, where fp32
# values straddle a boundary.
INNER_STEPS = 4
EIGHT_BITS = tuple(TORCH_DTYPE[name] for name in FP8)

# Of every byte of a buffer before a call: NaN in every floating type, and in integers a number that
# no result is likely to be.
FLOAT_POISON, INTEGER_POISON = 0xFF, 0xA5


def _relu(x: torch.Tensor, attrs: Mapping[str, Any]) -> torch.Tensor:
    lower, upper = attrs.get("lower_clip", 0.0), attrs.get("upper_clip", math.inf)
    slope = attrs.get("negative_slope", 0.0)
    return torch.where(x > lower, x, lower + slope * (x - lower)).clamp(max=upper)


def _amax(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """0 of no element, which torch refuses."""
    return (x.abs().amax if x.numel() else x.sum)(axes, keepdim=True)


def _gelu_slope(x: torch.Tensor) -> torch.Tensor:
    below = 0.5 * (
        1.0 + torch.erf(x * 0.5**0.5)
    )  # of a normal variate, the probability and density
    return below + x * torch.exp(-0.5 * x * x) / (2.0 * torch.pi) ** 0.5


POINTWISE: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda a, b, attrs: a + b,
    "bias": lambda a, b, attrs: a + b,
    "sub": lambda a, b, attrs: a - b,
    "mul": lambda a, b, attrs: a * b,
    "scale": lambda a, b, attrs: a * b,
    "identity": lambda a, attrs: a,
    "abs": lambda a, attrs: a.abs(),
    "neg": lambda a, attrs: -a,
    "exp": lambda a, attrs: a.exp(),
    "relu": _relu,
    "gelu": lambda a, attrs: torch.nn.functional.gelu(a),
    "gelu_backward": lambda dy, x, attrs: dy * _gelu_slope(x),
    "gelu_approx_tanh": lambda a, attrs: torch.nn.functional.gelu(a, approximate="tanh"),
    "swish": lambda a, attrs: a * torch.sigmoid(attrs.get("swish_beta", 1.0) * a),
    "sigmoid": lambda a, attrs: torch.sigmoid(a),
    "tanh": lambda a, attrs: torch.tanh(a),
}

# Of a tensor over some axes, which stay as extents of 1.
FOLDS: dict[str, Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]] = {
    "ADD": lambda x, axes: x.sum(axes, keepdim=True),
    "AVG": lambda x, axes: x.mean(axes, keepdim=True),
    "MIN": lambda x, axes: x.amin(axes, keepdim=True),
    "MAX": lambda x, axes: x.amax(axes, keepdim=True),
    "AMAX": lambda x, axes: _amax(x, axes),
    "NORM1": lambda x, axes: x.abs().sum(axes, keepdim=True),
    "NORM2": lambda x, axes: x.square().sum(axes, keepdim=True).sqrt(),
}
MOE_MODES = ("NONE", "GATHER", "SCATTER")


# ---- Operands -----------------------------------------------------------------------------------


def empty(tensor: Any, symbols: Mapping[str, int], device: Any = "cuda") -> torch.Tensor:
    """A buffer laid out as declared, poisoned."""
    dim = [evaluate(extent, symbols) for extent in tensor.dim]
    stride = [evaluate(extent, symbols) for extent in tensor.stride]
    span = 1 + sum((d - 1) * s for d, s in zip(dim, stride, strict=True)) if all(dim) else 0
    dtype = TORCH_DTYPE[tensor.data_type.name]
    poison = FLOAT_POISON if dtype.is_floating_point else INTEGER_POISON
    flat = torch.full((span * dtype.itemsize,), poison, dtype=torch.uint8, device=device)
    return flat.view(dtype).as_strided(dim, stride)


def operands(
    graph: Graph, symbols: Mapping[str, int], seed: int = 0, device: Any = "cuda"
) -> dict[int, Any]:
    """Random inputs, and poisoned outputs, by uid. Results have about unit variance, those of
    integers any; rows lie in random groups, one of them empty if there are enough.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    bound: dict[int, Any] = {}
    for tensor in graph.inputs():
        if tensor.is_pass_by_value:
            given = tensor.pass_by_value
            bound[tensor.uid] = 0.75 if given is None else given
            continue
        buffer = empty(tensor, symbols, device)
        bound[tensor.uid] = buffer
        read = float64_reference.uses(graph, tensor)
        if buffer.dtype.is_floating_point:
            values = torch.randn(buffer.shape, generator=generator, device=device)
            if any((node.op, port) in FAN_IN for node, port in read):
                values *= max(1, buffer.shape[-2]) ** -0.5
            if any(_is_scale(graph, node, port) for node, port in read):
                values.uniform_(0.25, 1.0, generator=generator)
            buffer.copy_(values)
        elif not any(node.op == "moe_grouped_matmul" for node, _ in read):
            low, high = (-128, 128) if buffer.dtype is torch.int8 else (-1000, 1001)
            values = torch.randint(low, high, buffer.shape, generator=generator, device=device)
            buffer.copy_(values)
    for node in graph.nodes:
        if node.op == "moe_grouped_matmul":
            for port, values in _routes(node, bound, generator).items():
                place = bound[node.inputs[port].uid]
                place.copy_(values.reshape(place.shape))
    for tensor in graph.outputs():
        bound[tensor.uid] = empty(tensor, symbols, device)
    return bound


FAN_IN = (("matmul", "B"), ("moe_grouped_matmul", "weight"))  # [.., K, N]
DEQUANTIZE, FACTORS = "block_scale_dequantize", ("mul", "scale")


def _is_scale(graph: Graph, node: Node, port: str) -> bool:
    """Whether an input scales FP8, or a sum of its products, whose error it would multiply."""
    others = [tensor for name, tensor in node.inputs.items() if name != port]
    return (node.op, port) == (DEQUANTIZE, "descale") or (
        node.op in FACTORS and any(_is_fp8(graph, other) for other in others)
    )


def _routes(
    node: Node, bound: Mapping[int, Any], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Where the groups of a grouped matmul start, and where its rows come from or go to."""
    device = generator.device
    shapes = {port: bound[tensor.uid].shape for port, tensor in node.inputs.items()}
    tokens, experts = shapes["token"][-2], shapes["weight"][0]
    mode = node.attr("mode").name
    rows = shapes["token_index"][-2] if mode == "GATHER" else tokens
    count = math.prod(shapes["first_token_offset"])
    is_end_given = count > 1 and (experts == 1 or count % experts != 0)
    cuts = torch.randint(
        0, rows + 1, (count - 1 - is_end_given,), generator=generator, device=device
    )
    cuts = cuts.sort().values
    cuts[1:2] = cuts[:1]  # nothing between the first two
    ends = torch.tensor([0, rows], device=device)
    made = {"first_token_offset": torch.cat([ends[:1], cuts, ends[1 : 1 + is_end_given]])}
    if mode == "GATHER":
        # Of no tokens, rows are 0 whatever they name.
        most = max(1, tokens)
        made["token_index"] = torch.randint(0, most, (rows,), generator=generator, device=device)
    elif mode == "SCATTER":
        top_k = int(node.attr("top_k") or 1)
        order = torch.randperm(rows, generator=generator, device=device)
        made["token_index"], made["token_ks"] = order // top_k, order % top_k
    return made


# ---- A call -------------------------------------------------------------------------------------


def addresses(bound: Mapping[int, Any]) -> dict[int, Any]:
    """The buffers, those of 8-bit floats by address: not every torch has a DLPack type for them,
    and they lie as declared.
    """
    return {
        uid: buffer.data_ptr() if getattr(buffer, "dtype", None) in EIGHT_BITS else buffer
        for uid, buffer in bound.items()
    }


def execute(
    plan: Any, bound: Mapping[int, Any], symbols: Mapping[str, int], /, **call: Any
) -> None:
    """Execute on the current stream with a workspace full of garbage, and wait. ``call`` has other
    parameters of `Plan.execute`; with ``symbols=None`` the buffers alone say what the symbols are.
    """
    room = plan.workspace_bytes(symbols)
    workspace = torch.full((room,), 0xFF, dtype=torch.uint8, device="cuda") if room else None
    stream = torch.cuda.current_stream().cuda_stream
    plan.execute(addresses(bound), workspace, stream=stream, **{"symbols": symbols} | call)
    torch.cuda.synchronize()


# ---- The reference ------------------------------------------------------------------------------


def reference(graph: Graph, bound: Mapping[int, Any]) -> dict[int, torch.Tensor]:
    """float64 results of every output, each tensor rounded to its own dtype where it is read."""
    if not all(_has_row(node) for node in graph.nodes):
        return _from_float64(graph, bound)
    values: dict[int, torch.Tensor] = {}
    for tensor in graph.inputs():
        value = bound[tensor.uid]
        is_tensor = isinstance(value, torch.Tensor)
        values[tensor.uid] = value if is_tensor else torch.tensor(float(value))
    exact: dict[int, torch.Tensor] = {}
    for node in graph.nodes:
        arguments = {port: values[tensor.uid] for port, tensor in node.inputs.items()}
        (out,) = node.outputs.values()
        exact[out.uid] = _result(node, arguments, out)
        values[out.uid] = _rounded(exact[out.uid], TORCH_DTYPE[out.data_type.name])
    return {
        tensor.uid: _saturated(exact[tensor.uid], TORCH_DTYPE[tensor.data_type.name])
        for tensor in graph.outputs()
    }


def _has_row(node: Node) -> bool:
    if any(tensor.data_type.name not in TORCH_DTYPE for tensor in node.outputs.values()):
        return False
    if node.op == "reduction":
        return node.attr("mode").name in FOLDS and list(node.inputs) == ["input"]
    if node.op == "moe_grouped_matmul":
        return node.attr("mode").name in MOE_MODES
    return node.op in ("matmul", DEQUANTIZE) or node.op in POINTWISE


def _result(node: Node, arguments: Mapping[str, torch.Tensor], out: Any) -> torch.Tensor:
    if node.op == "matmul":
        return _matmul(arguments["A"], arguments["B"])
    if node.op == "moe_grouped_matmul":
        return _grouped_matmul(node, arguments)
    if node.op == DEQUANTIZE:
        return _dequantized(node, arguments["input"], arguments["descale"])
    if node.op == "reduction":
        axes = tuple(axis for axis, extent in enumerate(out.dim) if extent == 1)
        return FOLDS[node.attr("mode").name](arguments["input"].double(), axes)
    return POINTWISE[node.op](*(each.double() for each in arguments.values()), node.attrs)


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One matrix after the other: a device need not have room for float64 copies of all."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    made = a.new_empty((*batch, a.shape[-2], b.shape[-1]), dtype=torch.float64)
    for at in itertools.product(*map(range, batch)):
        made[at] = a[at].double() @ b[at].double()
    return made


def _dequantized(node: Node, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    sizes = node.attr("block_size")
    for axis, size in enumerate(sizes, x.ndim - len(sizes)):
        if (scale.shape[axis], size) != (1, 1):
            scale = scale.repeat_interleave(size, axis).narrow(axis, 0, x.shape[axis])
    return x.double() * scale.double()


def _grouped_matmul(node: Node, arguments: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Rows of ``token[0]`` between two offsets times the matrix of one expert, group after group,
    the experts in turn.
    """
    token, weight = arguments["token"][0].double(), arguments["weight"]
    mode = node.attr("mode").name
    index = arguments["token_index"].reshape(-1).long() if "token_index" in arguments else None
    if mode == "GATHER":
        assert index is not None
        token = token[index] if len(token) else token.new_zeros((len(index), token.shape[1]))
    edges = arguments["first_token_offset"].reshape(-1).tolist()
    experts = len(weight)
    if len(edges) % experts == 0 and (experts > 1 or len(edges) == 1):  # starts alone
        edges.append(len(token))
    product = token.new_zeros((len(token), weight.shape[-1]))
    for group, (start, end) in enumerate(itertools.pairwise(edges)):
        product[start:end] = token[start:end] @ weight[group % experts].double()
    if mode == "SCATTER":
        assert index is not None
        places = index * int(node.attr("top_k") or 1)
        places = places + arguments["token_ks"].reshape(-1).long()
        product = torch.zeros_like(product).index_copy(0, places, product)
    return product[None]


def _saturated(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Types of 8 bits and integers have a largest number, which what is larger becomes."""
    if dtype in EIGHT_BITS:
        return value.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    if not dtype.is_floating_point:
        return value.clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return value


def _rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    value = _saturated(value, dtype)
    return value.float().to(dtype) if dtype.is_floating_point else value.round().to(dtype)


def _from_float64(graph: Graph, bound: Mapping[int, Any]) -> dict[int, torch.Tensor]:
    values, device = {}, torch.device("cpu")
    for tensor in graph.inputs():
        value = bound[tensor.uid]
        if isinstance(value, torch.Tensor):
            device = value.device
            wide = torch.float32 if value.dtype.is_floating_point else torch.int64
            values[tensor.uid] = value.to(wide).cpu().numpy()
        else:
            values[tensor.uid] = np.asarray(value)
    with np.errstate(all="ignore"):
        results = float64_reference.execute(graph, values)
    return {
        uid: torch.from_numpy(np.asarray(array, np.float64)).to(device)
        for uid, array in results.items()
    }


# ---- The judgement ------------------------------------------------------------------------------


def tolerance(graph: Graph, tensor: Any, bound: Mapping[int, Any]) -> tuple[float, float]:
    """Of an output, relative and absolute."""
    rtol, atol = TOLERANCE[tensor.data_type.name]
    ports = {"matmul": "A", "moe_grouped_matmul": "token"}
    summed = [node.inputs[ports[node.op]] for node in graph.nodes if node.op in ports]
    for operand in summed:
        if operand.uid in bound:
            atol = max(atol, ACCUMULATION * bound[operand.uid].shape[-1] ** 0.5)
    if any(_is_fp8(graph, operand) for operand in summed):
        rtol, atol = rtol + FP8_SUM[0], atol + FP8_SUM[1]
    for each in _above(graph, tensor):
        dtype = TORCH_DTYPE.get(each.data_type.name, torch.bool)  # truth values are not rounded
        if dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize:
            atol += INNER_STEPS * torch.finfo(dtype).eps
    return rtol, atol


def _above(graph: Graph, tensor: Any) -> list[Any]:
    """Every tensor that is computed on the way to this one."""
    found: dict[int, Any] = {}
    node = graph.producer(tensor)
    for each in () if node is None else node.inputs.values():
        if graph.producer(each) is not None:
            found |= {id(above): above for above in (each, *_above(graph, each))}
    return list(found.values())


def _is_fp8(graph: Graph, tensor: Any) -> bool:
    """Whether a tensor is FP8, or computed from what is."""
    node = graph.producer(tensor)
    above = [] if node is None else node.inputs.values()
    return tensor.data_type.name in FP8 or any(_is_fp8(graph, each) for each in above)


def assert_close(graph: Graph, bound: Mapping[int, Any]) -> None:
    """Every bound output equals the reference within the tolerance of its dtype; NaN passes only
    where that has NaN.
    """
    expected = reference(graph, bound)
    for tensor in graph.outputs():
        if bound.get(tensor.uid) is None:
            continue
        assert_within(graph, tensor, bound, expected[tensor.uid])


def assert_within(graph: Graph, tensor: Any, bound: Mapping[int, Any], want: torch.Tensor) -> None:
    """An output equals ``want``, or what that is in the output's type, within the tolerance."""
    rtol, atol = tolerance(graph, tensor, bound)
    got = bound[tensor.uid].double()
    want = _saturated(want, TORCH_DTYPE[tensor.data_type.name]).expand(got.shape)
    worst = ((got - want).abs() - (atol + rtol * want.abs())).nan_to_num(math.inf)
    worst = worst.masked_fill((got == want) | (got.isnan() & want.isnan()), 0.0)
    assert worst.numel() == 0 or worst.max().item() <= 0, (
        f"{graph.name}: output {tensor.name!r} is off by more than the tolerance at "
        f"{(worst > 0).sum().item()} of {worst.numel()} elements, "
        f"worst excess {worst.max().item():.3g}"
    )
