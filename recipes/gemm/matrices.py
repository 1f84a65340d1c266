"""What a matmul of a GEMM graph multiplies: a matrix that is given, and what dequantizes it ahead.

Kernels multiply what is stored, and scale the sums of blocks of K, or the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.recipes.gemm.facts import BlockScale
from cudnn_aot.recipes.operand import Operand, dtype_name, in_words

# id(tensor) -> the node that computes it.
Producer: TypeAlias = Mapping[int, Node]

# The op that gives an operand of a matmul from numbers and a scale for each block of them, and the
# ops that give it from numbers and one scale for all, or for each row of A or column of B.
DEQUANTIZE = "block_scale_dequantize"
FACTORS = ("mul", "scale")


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand of a matmul: what holds it, its scales of blocks, and the tensors that it is times
    beside, outermost last: one number, or one for each row of A or column of B, so that the product
    is times them just as well. ``nodes`` do that in the graph.
    """

    stored: Tensor
    scale: BlockScale | None
    factors: tuple[Tensor, ...]
    nodes: tuple[Node, ...]


def matrix_of(matmul: Node, port: str, axis: int, producer: Producer) -> Matrix | Refusal:
    """What a matmul multiplies; ``axis`` is that of M or of N, -2 or -1."""
    tensor = matmul.inputs[port]
    scales: list[BlockScale] = []
    factors: list[Tensor] = []
    nodes: list[Node] = []
    while (node := producer.get(id(tensor))) is not None:
        if node.op == DEQUANTIZE and not scales:
            source, scale = node.inputs["input"], _block_scale(node, axis, producer)
            if isinstance(scale, Refusal):
                return scale
            scales.append(scale)
        elif node.op in FACTORS:
            source, factor = _factored(node, producer)
            if reason := _why_no_factor(node, source, factor, axis, producer):
                return Refusal(reason)
            factors.insert(0, factor)
        else:
            return Refusal(
                f"{_as_operand(tensor, matmul, port)} is what {node.name!r} computes, want a graph "
                f"input, or what {DEQUANTIZE}, {' or '.join(FACTORS)} makes of one"
            )
        if reason := _why_not_between(tensor, node):
            return Refusal(reason)
        nodes.append(node)
        tensor = source
    if tensor.is_pass_by_value:
        return Refusal(f"{_as_operand(tensor, matmul, port)} is passed by value")
    return Matrix(tensor, scales[0] if scales else None, tuple(factors), tuple(nodes))


def _as_operand(tensor: Tensor, matmul: Node, port: str) -> str:
    """What a message calls a tensor that is an operand, or that nodes ahead make it of."""
    if tensor is matmul.inputs[port]:
        return f"{port} of {matmul.name!r}, {tensor.name!r},"
    return f"{tensor.name!r}, of which {port} of {matmul.name!r} is made,"


def _factored(node: Node, producer: Producer) -> tuple[Tensor, Tensor]:
    """The matrix that a node multiplies, and by what. Where both have the extents of the result, as
    they may where K is 1, the matrix is not passed by value, is what is computed, is not FLOAT.
    """
    extents = node.outputs["OUT_0"].dim

    def is_factor(tensor: Tensor) -> tuple[bool, ...]:
        is_given, is_wide = id(tensor) not in producer, dtype_name(tensor.data_type) == "FLOAT"
        return tensor.dim != extents, tensor.is_pass_by_value, is_given, is_wide

    matrix, factor = sorted(node.inputs.values(), key=is_factor)
    return matrix, factor


def _why_no_factor(
    node: Node, matrix: Tensor, factor: Tensor, axis: int, producer: Producer
) -> str | None:
    """The reason why a product is not times what its matrix is times, or None."""
    made, along_k = node.outputs["OUT_0"], -3 - axis
    times = f"{factor.name!r}, by which {node.name!r} multiplies ahead of a matmul,"
    if (computing := producer.get(id(factor))) is not None:
        return f"{times} is what {computing.name!r} computes, want a graph input"
    if len(factor.dim) >= -along_k and factor.dim[along_k] != 1:
        extents = in_words(factor.dim)
        return (
            f"{times} has extents {extents}, want 1 along K: a kernel multiplies before it scales"
        )
    if matrix.dim != made.dim:
        return f"{times} gives {made.name!r} axes that {matrix.name!r} does not have"
    return None


def _why_not_between(tensor: Tensor, node: Node) -> str | None:
    """The reason why a kernel need not have what a node gives ahead of a matmul, or None."""
    made = f"{tensor.name!r}, which {node.name!r} gives ahead of a matmul, is"
    if not tensor.is_virtual:
        return f"{made} an output, want it virtual: a kernel multiplies before it scales"
    if (dtype := dtype_name(tensor.data_type)) != "FLOAT":
        return f"{made} {dtype}, want FLOAT: a kernel multiplies before it scales"
    return None


def _block_scale(node: Node, axis: int, producer: Producer) -> BlockScale | Refusal:
    """The scales of an operand of a matmul; ``axis`` is that of M or of N, -2 or -1."""
    scale, sizes = node.inputs["descale"], tuple(node.attrs["block_size"])
    if scale.is_virtual or id(scale) in producer or scale.is_pass_by_value:
        return Refusal(f"scales {scale.name!r} of {node.name!r} are no tensor that is given")
    blocks = (1,) * (len(node.inputs["input"].dim) - len(sizes)) + sizes
    if set(blocks[:-2]) - {1}:
        return Refusal(f"{node.name!r} has blocks of {in_words(blocks)}, want 1 along the batch")
    return BlockScale(Operand.of(scale), blocks[axis], blocks[-3 - axis])
