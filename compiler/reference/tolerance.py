"""How far a right result may lie from the reference, and why.

For operands such as `random_operands` makes, where results are of order one:

- the last rounding: reference and kernel may round a value near the middle of two neighbours apart,
  one step of the data type, which `relative` allows, and of its subnormal numbers `absolute`;
- fp32 accumulation of K terms in another order, with a tensor core that truncates: an error that
  grows as sqrt(K) steps of fp32, which `absolute` allows with a factor for the epilogue's slope
  (`terms` has the K of every op that sums; what an 8-bit attention rounds inside is not allowed for
  here);
- tensor cores keep 14 bits of a sum of FP8 products; a kernel that adds what they give for some
  hundred terms at a time in fp32 is as near as that, whatever K;
- a port inside the graph that is narrower than fp32: one step of that type at magnitude 4, which
  cancellation may leave standing, so it adds to `absolute`.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from cudnn_aot.compiler.graph.dtypes import DTYPES
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.extents import evaluate
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import Tensor

_ACCUMULATION = 2.0**-20  # 16 steps of fp32 per sqrt(K)
FP8 = (data_type.FP8_E4M3, data_type.FP8_E5M2)
_FP8_SUM = 2.0**-9  # of a sum: some steps of 14 bits
# Whose products tensor cores sum, of FP8 if an operand is, or is made of it: op, and its port.
_SUMMED = {"matmul": "A", "moe_grouped_matmul": "token"}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """``|got - want| <= absolute + relative * |want|``."""

    relative: float
    absolute: float

    def error(self, got: Any, want: Any) -> float:
        """The worst error in units of the tolerance: right up to 1, infinite for a stray NaN."""
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        if got.shape != want.shape:
            return float("inf")
        if not got.size:
            return 0.0
        with np.errstate(invalid="ignore"):
            error = np.abs(got - want) / (self.absolute + self.relative * np.abs(want))
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
        return float(error.max())


def step(dtype: data_type) -> float:
    """Distance of two neighbours at 1 (0 for integers)."""
    facts = DTYPES[dtype]
    return 2.0 ** (1 - facts.significand_bits) if facts.is_float else 0.0


def tolerance(dtype: data_type, k: int) -> Tolerance:
    """Tolerance of an output of `dtype` behind sums of `k` terms."""
    relative = max(step(dtype), 4 * step(data_type.FLOAT))
    subnormal = step(dtype) * 2.0 ** DTYPES[dtype].least_exponent
    return Tolerance(relative, _ACCUMULATION * max(k, 1) ** 0.5 + subnormal)


_Dims: TypeAlias = Mapping[str, tuple[int, ...]]


def _whole(dims: _Dims, port: str, kept: str) -> int:
    """How many elements of `port` there are to one of `kept`."""
    return math.prod(dims[port]) // max(math.prod(dims[kept]), 1)


# Op names, as patterns, to the length of the longest sum behind one value of a result.
_TERMS: tuple[tuple[str, Callable[[_Dims], int]], ...] = (
    ("matmul", lambda dims: dims["A"][-1]),
    ("reduction", lambda dims: _whole(dims, "input", "OUT_0")),
    ("genstats", lambda dims: _whole(dims, "input", "SUM")),
    ("batchnorm_inference", lambda dims: 1),
    ("batchnorm*", lambda dims: math.prod(dims["input"]) // max(dims["input"][1], 1)),
    ("*norm*", lambda dims: math.prod(dims["input"][1:])),
    ("moe_grouped_matmul", lambda dims: dims["token"][-1]),
    ("moe_grouped_matmul_bwd", lambda dims: dims["token"][-2]),
    ("conv_fprop", lambda dims: math.prod(dims["weight"][1:])),
    ("conv_dgrad", lambda dims: dims["filter"][0] * math.prod(dims["filter"][2:])),
    ("conv_wgrad", lambda dims: dims["loss"][0] * math.prod(dims["loss"][2:])),
    ("sdpa*", lambda dims: dims["q"][-1] + max(dims["q"][-2], dims["k"][-2])),
    ("gdn*", lambda dims: dims["k"][0] + dims["k"][-1]),
    ("kda*", lambda dims: dims["k"][0] + dims["k"][-1]),
    ("gdp*", lambda dims: math.prod(dims["k"][:-2]) + dims["k"][-1]),
    ("mamba2*", lambda dims: dims["k"][0] + dims["k"][-1]),
)


def terms(node: Node, symbols: Mapping[str, int]) -> int:
    """How many terms the longest sum of a node has; 0 for an op that does not sum."""
    for pattern, count in _TERMS:
        if fnmatch.fnmatchcase(node.op, pattern):
            ports = {**node.inputs, **node.outputs}
            return count(
                {
                    port: tuple(evaluate(extent, symbols) for extent in tensor.dim)
                    for port, tensor in ports.items()
                }
            )
    return 0


def tolerances(graph: Graph, symbols: Mapping[str, int] | None = None) -> dict[int, Tolerance]:
    """Tolerance of every output of `graph` by uid."""
    graph.validate()
    result = {}
    for output in graph.outputs():
        assert output.data_type is not None
        nodes = _upstream(graph, output)
        k = sum(terms(node, symbols or {}) for node in nodes)
        base = tolerance(output.data_type, k)
        inner = [
            step(tensor.data_type)
            for node in nodes
            for tensor in node.outputs.values()
            if tensor is not output and tensor.data_type is not None
        ]
        narrow = sum(width for width in inner if width > step(data_type.FLOAT))
        if any(_sums_fp8(graph, node) for node in nodes):
            narrow += _FP8_SUM
        result[output.uid] = Tolerance(base.relative + 2 * narrow, base.absolute + 4 * narrow)
    return result


def _sums_fp8(graph: Graph, node: Node) -> bool:
    """Whether a node multiplies what is FP8, or was: dequantized, it may be scaled afterwards."""
    if node.op not in _SUMMED:
        return False
    operand = node.inputs[_SUMMED[node.op]]
    behind = [tensor for above in _upstream(graph, operand) for tensor in above.inputs.values()]
    return any(tensor.data_type in FP8 for tensor in (operand, *behind))


def _upstream(graph: Graph, tensor: Tensor) -> list[Node]:
    """Every node that `tensor` is computed by."""
    wanted, nodes = {id(tensor)}, []
    for node in reversed(graph.nodes):
        if any(id(result) in wanted for result in node.outputs.values()):
            nodes.append(node)
            wanted.update(id(operand) for operand in node.inputs.values())
    return nodes
