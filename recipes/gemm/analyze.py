"""The family's one parse of a graph: its `GemmFacts`, or why it is no "matmul, then pointwise, then
reductions" graph at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.recipes.gemm.facts import (
    CAST,
    COL,
    FULL,
    ROW,
    SCALAR,
    VALUE,
    Arithmetic,
    Epilogue,
    EpilogueNode,
    EpilogueOutput,
    GemmFacts,
    Reduction,
)
from cudnn_aot.recipes.gemm.matrices import DEQUANTIZE, Matrix, Producer, matrix_of
from cudnn_aot.recipes.gemm.runs import batch_runs
from cudnn_aot.recipes.operand import Operand, dtype_name, in_words, why_not_strided
from cudnn_aot.recipes.pointwise import TRUTH

# id(matmul) and its port -> what that multiplies: one tensor may be A and B.
Matrices: TypeAlias = Mapping[tuple[int, str], Matrix]


def analyze(graph: Graph) -> GemmFacts | Refusal:
    """Facts of ``graph``, or the reason why it is not matmuls of one A, pointwise ops after them,
    and reductions of what those give.
    """
    producer = {id(out): node for node in graph.nodes for out in node.outputs.values()}
    for node in graph.nodes:
        known = ("matmul", "reduction", DEQUANTIZE)
        if node.op not in known and not node.spec.is_pointwise:
            return Refusal(
                f"node {node.name!r} is {node.op}, want matmul, pointwise ops or reductions, or "
                f"{DEQUANTIZE} of what a matmul multiplies"
            )
    outputs = [tensor for tensor in graph.outputs() if id(tensor) in producer]
    order = _post_order(outputs, producer)
    products = [node for node in order if node.op == "matmul"]
    matrices: dict[tuple[int, str], Matrix] = {}
    for product, (port, axis) in itertools.product(products, (("A", -2), ("B", -1))):
        matrix = matrix_of(product, port, axis, producer)
        if isinstance(matrix, Refusal):
            return matrix
        matrices[id(product), port] = matrix
    if reason := why_not_strided(graph.tensors.values()) or _unlike(products):
        return Refusal(reason)
    epilogue = _epilogue(order, outputs, products, matrices, producer)
    if isinstance(epilogue, Refusal):
        return epilogue
    result = products[0].outputs["C"]
    ports = [(products[0], "A"), *((product, "B") for product in products)]
    multiplied = [matrices[id(product), port] for product, port in ports]
    a, b, *other_b = (Operand.of(matrix.stored) for matrix in multiplied)
    sums = {id(product): _sum_dtype(product, matrices) for product in products}
    facts = GemmFacts(
        a=a,
        b=b,
        other_b=tuple(other_b),
        scales=tuple(matrix.scale for matrix in multiplied),
        batch=tuple(result.dim[:-2]),
        m=result.dim[-2],
        n=result.dim[-1],
        k=a.dim[-1],
        epilogue=epilogue,
        accumulators=tuple(sums.values()),
        arithmetic=tuple(
            Arithmetic(node.name, sums.get(id(node)) or _compute_dtype(node), id(node) in sums)
            for node in graph.nodes
        ),
        symbols=dict(graph.symbols),
        batch_runs=(),
    )
    runs = batch_runs(facts.tensors(), facts.batch, facts.symbols)
    facts = replace(facts, batch_runs=runs)
    return facts.transposed() if _has_columns(facts) else facts


def _has_columns(facts: GemmFacts) -> bool:
    """Whether kernels that store rows can store the transpose alone: one product without scales,
    which kernels have for blocks of columns of B.
    """
    stored = [output.operand for output in facts.epilogue.outputs if output.reduction is None]
    are_columns = all(each.stride[-1] != 1 and each.stride[-2] == 1 for each in stored)
    return len(stored) > 0 and are_columns and not facts.other_b and not facts.is_scaled


def _unlike(products: list[Node]) -> str | None:
    """The reason why these matmuls are not products of one A by matrices of the same extents."""
    first = products[0]
    for matmul in products:
        a, b = matmul.inputs["A"], matmul.inputs["B"]
        if padding := matmul.attrs.get("padding", 0.0):
            return f"{matmul.name!r} has padding {padding}, want 0"
        if a is not first.inputs["A"]:
            return (
                f"matmuls {first.name!r} and {matmul.name!r} read different A, "
                f"{first.inputs['A'].name!r} and {a.name!r}: those of one A are fused"
            )
        if tuple(b.dim) != tuple(first.inputs["B"].dim):
            return (
                f"B of {matmul.name!r} has extents {in_words(b.dim)} and B of {first.name!r} has "
                f"{in_words(first.inputs['B'].dim)}, want the same"
            )
    return None


def _sum_dtype(matmul: Node, matrices: Matrices) -> str:
    """Type that a kernel sums products in: the matmul's, or of INT8, where a side is dequantized
    ahead of it, INT32, whose sums are those of the numbers before they were scaled, exact.
    """
    both = [matrices[id(matmul), port] for port in matmul.inputs]
    is_integer = all(dtype_name(each.stored.data_type) == "INT8" for each in both)
    is_exact = is_integer and any(each.nodes for each in both)
    return "INT32" if is_exact else _compute_dtype(matmul)


def _compute_dtype(node: Node) -> str:
    """Type of the node's arithmetic; truth values are the same in BOOLEAN and in FLOAT."""
    dtype = dtype_name(node.compute_data_type)
    return "FLOAT" if dtype == "BOOLEAN" and node.op in TRUTH else dtype


def _epilogue(
    order: list[Node],
    outputs: list[Tensor],
    products: list[Node],
    matrices: Matrices,
    producer: Producer,
) -> Epilogue | Refusal:
    result = products[0].outputs["C"]
    ahead = {id(node) for matrix in matrices.values() for node in matrix.nodes}
    for node in order:
        if node.op == DEQUANTIZE and id(node) not in ahead:
            return Refusal(
                f"node {node.name!r} is {DEQUANTIZE}, want it of what a matmul multiplies"
            )
    pointwise = [node for node in order if node.spec.is_pointwise and id(node) not in ahead]
    factors = [factor for matrix in matrices.values() for factor in matrix.factors]
    read_after = [tensor for node in pointwise for tensor in node.inputs.values()]
    inputs = _inputs([*factors, *read_after], result, producer)
    if isinstance(inputs, Refusal):
        return inputs
    nodes: list[EpilogueNode] = []
    first_node = len(products) + len(inputs)
    # id(tensor) -> value id, ahead of the rounding to the tensor's own dtype, which a store does
    values = {id(tensor): len(products) + i for i, (tensor, _) in enumerate(inputs)}
    # The same behind it, of the tensors that are read or need none
    rounded = dict(values)

    def append(
        op: str, args: tuple[int, ...], attrs: tuple[tuple[str, Any], ...], name: str
    ) -> int:
        nodes.append(EpilogueNode(op, args, attrs, name))
        return first_node + len(nodes) - 1

    def define(tensor: Tensor, value: int, node: Node) -> None:
        values[id(tensor)] = value
        dtype = dtype_name(tensor.data_type)
        if dtype == _compute_dtype(node) or (dtype == "BOOLEAN" and node.op in TRUTH):
            rounded[id(tensor)] = value

    def read(tensor: Tensor) -> int:
        """A value read through a tensor is rounded to the tensor's dtype."""
        if id(tensor) not in rounded:
            attrs = (("dtype", dtype_name(tensor.data_type)),)
            rounded[id(tensor)] = append(CAST, (values[id(tensor)],), attrs, tensor.name)
        return rounded[id(tensor)]

    for index, matmul in enumerate(products):
        value = index
        for port in matmul.inputs:
            for factor in matrices[id(matmul), port].factors:
                value = append("mul", (value, values[id(factor)]), (), factor.name)
        define(matmul.outputs["C"], value, matmul)
    for node in pointwise:
        for tensor in node.inputs.values():
            if id(tensor) not in values and id(producer[id(tensor)]) in ahead:
                return Refusal(f"node {node.name!r} reads {tensor.name!r}, an operand of a matmul")
            if id(tensor) not in values:
                return Refusal(
                    f"node {node.name!r} reads {tensor.name!r}, which a reduction gives: it is "
                    "known only when the whole result of the matmul is"
                )
        args = tuple(read(tensor) for tensor in node.inputs.values())
        attrs = tuple(sorted((k, v) for k, v in node.attrs.items() if v is not None))
        (out,) = node.outputs.values()
        define(out, append(node.op, args, attrs, node.name), node)

    written: list[EpilogueOutput] = []
    for tensor in outputs:
        source, reduction = _read(tensor, result, producer)
        if id(producer.get(id(source))) in ahead:
            node = producer[id(tensor)]
            return Refusal(f"reduction {node.name!r} reads {source.name!r}, an operand of a matmul")
        if isinstance(reduction, Refusal):
            return reduction
        value = values[id(source)] if reduction is None else read(source)
        written.append(EpilogueOutput(Operand.of(tensor), value, reduction))
    kept = tuple((Operand.of(tensor), kind) for tensor, kind in inputs)
    return Epilogue(len(products), kept, tuple(nodes), tuple(written))


def _inputs(
    tensors: list[Tensor], result: Tensor, producer: Producer
) -> list[tuple[Tensor, str]] | Refusal:
    """The graph inputs among these, each once, with how they spread over the result."""
    inputs: list[tuple[Tensor, str]] = []
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        if id(tensor) in producer:
            continue
        kind = _broadcast_kind(tensor, result)
        if isinstance(kind, Refusal):
            return kind
        inputs.append((tensor, kind))
    return inputs


def _read(
    tensor: Tensor, result: Tensor, producer: Producer
) -> tuple[Tensor, Reduction | Refusal | None]:
    """The tensor whose value an output has at every place, and the reduction of it, if any."""
    node = producer[id(tensor)]
    if node.op == "reduction":
        return node.inputs["input"], _reduction(node, result, producer)
    if tuple(tensor.dim) != tuple(result.dim):
        return tensor, Refusal(
            f"output {tensor.name!r} has extents {in_words(tensor.dim)}, "
            f"want those of the matmul's result {in_words(result.dim)}"
        )
    return tensor, None


def _reduction(node: Node, result: Tensor, producer: Producer) -> Reduction | Refusal:
    """What a reduction folds. An axis of one element is folded where the output may have it, which
    changes no mode's value.
    """
    tensor, out = node.inputs["input"], node.outputs["OUT_0"]
    want = tuple(result.dim)
    if "group_offset" in node.inputs:
        return Refusal(f"reduction {node.name!r} has groups, want one value of whole rows, columns")
    if id(tensor) not in producer:
        return Refusal(f"reduction {node.name!r} reads {tensor.name!r}, want what a node computes")
    if producer[id(tensor)].op == "reduction":
        return Refusal(
            f"reduction {node.name!r} reads {tensor.name!r}, the result of a reduction: "
            "reduce along both axes at once"
        )
    if tuple(tensor.dim) != want:
        return Refusal(
            f"reduction {node.name!r} reads {tensor.name!r} of extents {in_words(tensor.dim)}, "
            f"want those of the matmul's result {in_words(want)}"
        )
    if tuple(out.dim[:-2]) != want[:-2]:
        return Refusal(
            f"reduction {node.name!r} gives extents {in_words(out.dim)}, want the batch of the "
            f"matmul's result {in_words(want)}: each matrix is reduced alone"
        )
    pairs = list(zip(out.dim[-2:], want[-2:], strict=True))
    axes = "".join(axis for axis, (have, _) in zip("mn", pairs, strict=True) if have == 1)
    if not axes or any(have not in (1, extent) for have, extent in pairs):
        return Refusal(
            f"reduction {node.name!r} gives extents {in_words(out.dim)} of a result "
            f"{in_words(want)}, want 1 row, 1 column or both"
        )
    return Reduction(node.attrs["mode"].name, axes)


def _post_order(outputs: list[Tensor], producer: Producer) -> list[Node]:
    """The nodes that reach an output: depth first from the outputs by uid, ports in order."""
    order: list[Node] = []
    done: set[int] = set()
    stack = [(producer[id(tensor)], False) for tensor in reversed(outputs)]
    while stack:
        node, expanded = stack.pop()
        if id(node) in done:
            continue
        if expanded:
            done.add(id(node))
            order.append(node)
            continue
        stack.append((node, True))
        for tensor in reversed(list(node.inputs.values())):
            if id(tensor) in producer:
                stack.append((producer[id(tensor)], False))
    return order


def _broadcast_kind(tensor: Tensor, result: Tensor) -> str | Refusal:
    """How a graph input of the epilogue spreads over the result: each axis is 1 or the result's."""
    if tensor.is_pass_by_value:
        return VALUE
    rank = len(result.dim)
    padded = (1,) * (rank - len(tensor.dim)) + tuple(tensor.dim)
    if len(padded) != rank or any(
        have not in (1, want) for have, want in zip(padded, result.dim, strict=True)
    ):
        return Refusal(
            f"input {tensor.name!r} has extents {in_words(tensor.dim)}, which do not spread over "
            f"the matmul's result {in_words(result.dim)}"
        )
    over_m, over_n = (have == want for have, want in zip(padded[-2:], result.dim[-2:], strict=True))
    if over_m and over_n and padded[-2] != 1:
        return FULL
    if over_n and padded[-1] != 1:
        return ROW
    if over_m and padded[-2] != 1:
        return COL
    return SCALAR
