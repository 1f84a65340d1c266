"""Facts of a GEMM graph: one matmul, and the pointwise DAG that follows it.

``analyze`` is the family's one parse of a graph. It records what the graph *is*; whether an engine
takes it is the business of that engine's capability rows. It refuses only what is no "matmul, then
pointwise" graph at all.

Extents are in the kernels' terms: ``m, n, k`` of one matmul and the batch axes before them. An
extent is an int or a ``SymExpr``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cudnn_aot.compiler.graph.extents import Extent, Symbol, SymExpr, evaluate
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.recipes.operand import Operand, dtype_name, in_words, solve
from cudnn_aot.recipes.pointwise import TRUTH

# Broadcast kinds of an epilogue input against the (m, n) result.
FULL, ROW, COL, SCALAR, VALUE = "full", "row", "col", "scalar", "value"

# The op that rounds a value to the type of the tensor that it is read through.
CAST = "cast"


@dataclass(frozen=True, slots=True)
class EpilogueNode:
    """One pointwise op: ``args`` are value ids (0 is the accumulator, then the inputs, then the
    nodes).
    """

    op: str
    args: tuple[int, ...]
    attrs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Epilogue:
    """The pointwise DAG after the matmul, in single-assignment form and in an order of its own.

    The order follows from the outputs by uid, so graphs that differ in names or in the order of
    nodes share kernels. An epilogue equals itself alone: what is made of one is remembered by it,
    and attributes 1 and 1.0, which are equal, give different kernels.
    """

    inputs: tuple[tuple[Operand, str], ...]
    nodes: tuple[EpilogueNode, ...]
    outputs: tuple[tuple[Operand, int], ...]


@dataclass(frozen=True, slots=True)
class GemmFacts:
    """What the graph computes, as numbers. No policy here."""

    a: Operand
    b: Operand
    batch: tuple[Extent, ...]
    m: Extent
    n: Extent
    k: Extent
    epilogue: Epilogue
    compute_dtypes: tuple[str, ...]
    symbols: Mapping[str, Symbol] = field(hash=False)

    def operands(self) -> tuple[Operand, ...]:
        """Everything that a call binds, once, by ascending uid."""
        inputs = [operand for operand, _ in self.epilogue.inputs]
        outputs = [operand for operand, _ in self.epilogue.outputs]
        every = (self.a, self.b, *inputs, *outputs)
        by_uid = {operand.uid: operand for operand in every if not operand.constant}
        return tuple(by_uid[uid] for uid in sorted(by_uid))

    def majors(self) -> tuple[str, str] | None:
        """Contiguous axis of A (``k`` or ``m``) and of B (``k`` or ``n``) as declared; None if one
        has none.
        """
        a_major = _unit_axis(self.a, {-1: "k", -2: "m"})
        b_major = _unit_axis(self.b, {-2: "k", -1: "n"})
        return None if a_major is None or b_major is None else (a_major, b_major)

    @property
    def extents(self) -> dict[str, int]:
        """The extents to rank for: symbols take their hint, or their largest value."""
        return self.extents_at({})

    def extents_at(self, given: Mapping[str, int]) -> dict[str, int]:
        """The extents to rank for where some symbols have given values."""
        values = {name: symbol.planned for name, symbol in self.symbols.items()}
        values.update(given)
        return {
            "batch": math.prod([evaluate(extent, values) for extent in self.batch]),
            "m": evaluate(self.m, values),
            "n": evaluate(self.n, values),
            "k": evaluate(self.k, values),
        }

    def symbols_at(self, extents: Mapping[str, int]) -> dict[str, int] | None:
        """The values of all symbols for which `extents_at` gives these extents; None where there
        are none, or extents do not tell one.
        """
        fixed = math.prod([extent for extent in self.batch if isinstance(extent, int)])
        open_batch = [extent for extent in self.batch if isinstance(extent, SymExpr)]
        told: list[tuple[Extent, int | None]] = [
            (getattr(self, name), extents.get(name)) for name in ("m", "n", "k")
        ]
        if len(open_batch) == 1 and fixed:
            told.append((open_batch[0], extents.get("batch", 0) // fixed))
        values = solve(told, self.symbols)
        return values if values is not None and self.extents_at(values) == extents else None

    @property
    def layout_class(self) -> str:
        """What kernels are shared by, in words: types, majors, and the shape of the epilogue."""
        majors = "".join(self.majors() or ("?", "?"))
        inputs = ",".join(f"{operand.dtype}:{kind}" for operand, kind in self.epilogue.inputs)
        chain = " ".join(node.op for node in self.epilogue.nodes if node.op != CAST)
        outputs = ",".join(operand.dtype for operand, _ in self.epilogue.outputs)
        return f"{self.a.dtype}x{self.b.dtype} {majors} [{inputs}] {chain} -> {outputs}"

    def describe(self) -> dict[str, Any]:
        """The facts in words, for a person."""
        described: dict[str, Any] = {
            name: str(extent) for name, extent in zip("MNK", (self.m, self.n, self.k), strict=True)
        }
        described["batch"] = " x ".join(map(str, self.batch)) or "1"
        described["A"] = str(self.a)
        described["B"] = str(self.b)
        described["majors"] = "A {}-major, B {}-major".format(*(self.majors() or ("no", "no")))
        described["epilogue"] = " ".join(node.op for node in self.epilogue.nodes) or "none"
        for operand, kind in self.epilogue.inputs:
            described[f"epilogue input {operand.name!r}"] = f"{kind}, {operand}"
        for operand, _ in self.epilogue.outputs:
            optional = "optional, " if operand.optional else ""
            described[f"output {operand.name!r}"] = f"{optional}{operand}"
        described["accumulates in"] = "/".join(self.compute_dtypes)
        return described


def _unit_axis(operand: Operand, names: Mapping[int, str]) -> str | None:
    unit = [name for axis, name in names.items() if operand.stride[axis] == 1]
    return unit[0] if unit else None


def analyze(graph: Graph) -> GemmFacts | Refusal:
    """Facts of ``graph``, or the reason why it is not one matmul followed by pointwise ops."""
    matmuls = [node for node in graph.nodes if node.op == "matmul"]
    if len(matmuls) != 1:
        return Refusal(f"has {len(matmuls)} matmuls, want one matmul followed by pointwise ops")
    (matmul,) = matmuls
    for node in graph.nodes:
        if node is not matmul and not node.spec.is_pointwise:
            return Refusal(f"node {node.name!r} is {node.op}, want matmul or pointwise ops")
    a, b = matmul.inputs["A"], matmul.inputs["B"]
    for port, tensor in (("A", a), ("B", b)):
        if tensor.is_virtual or any(
            tensor is out for node in graph.nodes for out in node.outputs.values()
        ):
            return Refusal(f"{port} of {matmul.name!r} is computed by a node, want a graph input")
        if tensor.is_pass_by_value:
            return Refusal(f"{port} of {matmul.name!r} is passed by value, want a tensor")
    if padding := matmul.attrs.get("padding", 0.0):
        return Refusal(f"{matmul.name!r} has padding {padding}, want 0")
    result = matmul.outputs["C"]
    epilogue = _epilogue(graph, matmul, result)
    if isinstance(epilogue, Refusal):
        return epilogue
    return GemmFacts(
        a=Operand.of(a),
        b=Operand.of(b),
        batch=tuple(result.dim[:-2]),
        m=result.dim[-2],
        n=result.dim[-1],
        k=a.dim[-1],
        epilogue=epilogue,
        compute_dtypes=tuple(sorted({_compute_dtype(node) for node in graph.nodes})),
        symbols=dict(graph.symbols),
    )


def _compute_dtype(node: Node) -> str:
    """Type of the node's arithmetic; truth values are the same in BOOLEAN and in FLOAT."""
    dtype = dtype_name(node.compute_data_type)
    return "FLOAT" if dtype == "BOOLEAN" and node.op in TRUTH else dtype


def _epilogue(graph: Graph, matmul: Node, result: Tensor) -> Epilogue | Refusal:
    producer = {id(out): node for node in graph.nodes for out in node.outputs.values()}
    outputs = [t for t in graph.outputs() if id(t) in producer]
    order = _post_order(outputs, producer, matmul)

    inputs: list[tuple[Operand, str]] = []
    input_index: dict[int, int] = {}
    for node in order:
        for tensor in node.inputs.values():
            if id(tensor) in producer or tensor.uid in input_index:
                continue
            kind = _broadcast_kind(tensor, result)
            if isinstance(kind, Refusal):
                return kind
            input_index[tensor.uid] = len(inputs) + 1
            inputs.append((Operand.of(tensor), kind))

    nodes: list[EpilogueNode] = []
    values: dict[
        int, int
    ] = {}  # id(tensor) -> value id, after the rounding of the tensor's own dtype

    def define(tensor: Tensor, value: int, op: str) -> None:
        """A value read through a tensor is rounded to the tensor's dtype."""
        dtype = dtype_name(tensor.data_type)
        if dtype != "FLOAT" and not (dtype == "BOOLEAN" and op in TRUTH):
            nodes.append(EpilogueNode(CAST, (value,), (("dtype", dtype),)))
            value = len(inputs) + len(nodes)
        values[id(tensor)] = value

    define(result, 0, matmul.op)
    for node in order:
        args = tuple(
            values[id(tensor)] if id(tensor) in producer else input_index[tensor.uid]
            for tensor in node.inputs.values()
        )
        attrs = tuple(sorted((k, v) for k, v in node.attrs.items() if v is not None))
        nodes.append(EpilogueNode(node.op, args, attrs))
        (out,) = node.outputs.values()
        define(out, len(inputs) + len(nodes), node.op)

    for tensor in outputs:
        if tuple(tensor.dim) != tuple(result.dim):
            return Refusal(
                f"output {tensor.name!r} has extents {in_words(tensor.dim)}, "
                f"want those of the matmul's result {in_words(result.dim)}"
            )
    return Epilogue(
        tuple(inputs), tuple(nodes), tuple((Operand.of(t), values[id(t)]) for t in outputs)
    )


def _post_order(outputs: list[Tensor], producer: dict[int, Node], matmul: Node) -> list[Node]:
    """Pointwise nodes that reach an output: depth first from the outputs by uid, ports in order."""
    order: list[Node] = []
    done: set[int] = {id(matmul)}
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
