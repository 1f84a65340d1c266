"""Facts of a GEMM graph: matmuls of one A, the pointwise DAG that follows them, and reductions of
what that gives.

``analyze`` is the family's one parse of a graph. It records what the graph *is*; whether an engine
takes it is the business of that engine's capability rows. It refuses only what is no "matmul, then
pointwise, then reductions" graph at all.

Extents are in the kernels' terms: ``m, n, k`` of one matmul and the batch axes before them. An
extent is an int or a ``SymExpr``. Kernels store rows: where the columns of a result are what lies
together, they compute its transpose, the transpose of B times that of A.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from cudnn_aot.compiler.graph.extents import Extent, Symbol, SymExpr, evaluate
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.recipes.operand import Operand, dtype_name, in_words, solve, why_not_strided
from cudnn_aot.recipes.pointwise import TRUTH

# Broadcast kinds of an epilogue input against the (m, n) result.
FULL, ROW, COL, SCALAR, VALUE = "full", "row", "col", "scalar", "value"

# id(tensor) -> the node that computes it.
_Producer: TypeAlias = Mapping[int, Node]
# id(matmul) and its port -> what that multiplies: one tensor may be A and B.
_Matrices: TypeAlias = Mapping[tuple[int, str], "_Matrix"]

# The op that gives an operand of a matmul from numbers and a scale for each block of them, and the
# ops that give it from numbers and one scale for all, or for each row of A or column of B.
DEQUANTIZE = "block_scale_dequantize"
FACTORS = ("mul", "scale")
# The op that rounds a value to the type of the tensor that it is read through.
CAST = "cast"


@dataclass(frozen=True, slots=True)
class EpilogueNode:
    """One pointwise op: ``args`` are value ids (the accumulators, then the inputs, then the
    nodes). ``name`` is the node's, or the tensor's that a cast is for: messages say it.
    """

    op: str
    args: tuple[int, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Reduction:
    """What an output folds: ``mode`` along ``axes``, which is ``"m"`` (a value per column),
    ``"n"`` (a value per row) or ``"mn"`` (a value per matrix).
    """

    mode: str
    axes: str


@dataclass(frozen=True, slots=True)
class EpilogueOutput:
    """A tensor that is written: a value at every place of the result, which the store rounds, or
    what a reduction of it leaves.
    """

    operand: Operand
    value: int
    reduction: Reduction | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Epilogue:
    """The pointwise DAG after the matmuls, in single-assignment form and in an order of its own.

    Values ``0..products - 1`` are the accumulators. The order, that of the products included,
    follows from the outputs by uid, depth first and ports in order, so graphs that differ in names
    or in the order of nodes share kernels. An epilogue equals itself alone: what is made of one is
    remembered by it, and attributes 1 and 1.0, which are equal, give different kernels.
    """

    products: int
    inputs: tuple[tuple[Operand, str], ...]
    nodes: tuple[EpilogueNode, ...]
    outputs: tuple[EpilogueOutput, ...]

    @property
    def reductions(self) -> tuple[Reduction, ...]:
        """Those of the outputs."""
        return tuple(output.reduction for output in self.outputs if output.reduction is not None)


@dataclass(frozen=True, slots=True)
class BlockScale:
    """Scales of a matrix, of A or of a B: the number at ``(r, k)``, ``r`` along M or N, is times
    the scale at ``(r // rows, k // depth)``.
    """

    operand: Operand
    rows: int
    depth: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The type that a node of the graph computes in; ``is_product`` says that it is a matmul."""

    node: str
    dtype: str
    is_product: bool


@dataclass(frozen=True, slots=True)
class GemmFacts:
    """What the graph computes, as numbers. No policy here.

    ``b`` is that of the first product; each of ``other_b``, of the same extents, gives one more
    with the same A. ``scales`` are those of A and of every B, in order. ``accumulators`` are the
    types of the products' arithmetic, one for each; ``arithmetic`` has those of every node.
    ``is_transposed`` says that all of this is of the transpose of the graph's result.
    """

    a: Operand
    b: Operand
    other_b: tuple[Operand, ...]
    scales: tuple[BlockScale | None, ...]
    batch: tuple[Extent, ...]
    m: Extent
    n: Extent
    k: Extent
    epilogue: Epilogue
    accumulators: tuple[str, ...]
    arithmetic: tuple[Arithmetic, ...]
    symbols: Mapping[str, Symbol] = field(hash=False)
    is_transposed: bool = False

    def operands(self) -> tuple[Operand, ...]:
        """Everything that a call binds, once, by ascending uid."""
        inputs = [operand for operand, _ in self.epilogue.inputs]
        outputs = [output.operand for output in self.epilogue.outputs]
        scales = [scale.operand for scale in self.scales if scale is not None]
        every = (self.a, *self.every_b, *scales, *inputs, *outputs)
        by_uid = {operand.uid: operand for operand in every if not operand.constant}
        return tuple(by_uid[uid] for uid in sorted(by_uid))

    @property
    def every_b(self) -> tuple[Operand, ...]:
        """The B of each product, in order."""
        return (self.b, *self.other_b)

    @property
    def is_scaled(self) -> bool:
        """Whether a matrix has scales."""
        return any(scale is not None for scale in self.scales)

    def transposed(self) -> GemmFacts:
        """The same, of the transpose of the result; of one product without scales."""
        (b,), rows_and_columns = self.every_b, {ROW: COL, COL: ROW}
        assert not self.is_scaled
        inputs = [
            (_turned(operand), rows_and_columns.get(kind, kind))
            for operand, kind in self.epilogue.inputs
        ]
        outputs = [
            EpilogueOutput(
                _turned(each.operand),
                each.value,
                each.reduction and Reduction(each.reduction.mode, _OTHER_AXES[each.reduction.axes]),
            )
            for each in self.epilogue.outputs
        ]
        return replace(
            self,
            a=_turned(b),
            b=_turned(self.a),
            m=self.n,
            n=self.m,
            epilogue=replace(self.epilogue, inputs=tuple(inputs), outputs=tuple(outputs)),
            is_transposed=not self.is_transposed,
        )

    def as_declared(self) -> GemmFacts:
        """The same, of the result that the graph has."""
        return self.transposed() if self.is_transposed else self

    def majors(self) -> tuple[str, str] | None:
        """Contiguous axis of A (``k`` or ``m``) and of the first B (``k`` or ``n``) as declared;
        None if one has none.
        """
        a_major = _unit_axis(self.a, {-1: "k", -2: "m"})
        b_major = _unit_axis(self.b, _B_AXES)
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
        types = f"{self.a.dtype}x{self.b.dtype}"
        for b in self.other_b:
            types += f"+{b.dtype}"
            majors += f"+{_unit_axis(b, _B_AXES) or '?'}"
        inputs = ",".join(f"{operand.dtype}:{kind}" for operand, kind in self.epilogue.inputs)
        chain = " ".join(node.op for node in self.epilogue.nodes if node.op != CAST)
        outputs = ",".join(map(_output_class, self.epilogue.outputs))
        if self.is_scaled:
            blocks = (f"{scale.rows}x{scale.depth}" if scale else "1" for scale in self.scales)
            types += f" by {'+'.join(blocks)}"
        return f"{types} {majors} [{inputs}] {chain} -> {outputs}"

    def describe(self) -> dict[str, Any]:
        """The facts in words, for a person: as the graph has them."""
        if self.is_transposed:
            how = "the transpose, of B by A, as the columns of what is stored lie together"
            return self.as_declared().describe() | {"computed as": how}
        described: dict[str, Any] = {
            name: str(extent) for name, extent in zip("MNK", (self.m, self.n, self.k), strict=True)
        }
        described["batch"] = " x ".join(map(str, self.batch)) or "1"
        described["A"] = str(self.a)
        described["B"] = str(self.b)
        described["majors"] = "A {}-major, B {}-major".format(*(self.majors() or ("no", "no")))
        for b in self.other_b:
            major = _unit_axis(b, _B_AXES) or "no"
            described[f"B of another product {b.name!r}"] = f"{b}, {major}-major"
        for scale in self.scales:
            if scale is not None:
                operand = scale.operand
                described[f"scales {operand.name!r}"] = (
                    f"{operand}, one for each {scale.rows} rows and {scale.depth} of K"
                )
        described["epilogue"] = " ".join(node.op for node in self.epilogue.nodes) or "none"
        for operand, kind in self.epilogue.inputs:
            described[f"epilogue input {operand.name!r}"] = f"{kind}, {operand}"
        for output in self.epilogue.outputs:
            operand, reduction = output.operand, output.reduction
            optional = "optional, " if operand.optional else ""
            folded = f"{reduction.mode} along {reduction.axes}, " if reduction else ""
            described[f"output {operand.name!r}"] = f"{optional}{folded}{operand}"
        described["accumulates in"] = "/".join(dict.fromkeys(self.accumulators))
        return described


_B_AXES = {-2: "k", -1: "n"}
# Axes that a reduction folds, in the transpose.
_OTHER_AXES = {"m": "n", "n": "m", "mn": "mn"}


def _unit_axis(operand: Operand, names: Mapping[int, str]) -> str | None:
    unit = [name for axis, name in names.items() if operand.stride[operand.axis(axis)] == 1]
    return unit[0] if unit else None


def _output_class(output: EpilogueOutput) -> str:
    reduction = output.reduction
    folded = f":{reduction.mode}/{reduction.axes}" if reduction else ""
    return output.operand.dtype + folded


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
    matrices: dict[tuple[int, str], _Matrix] = {}
    for product, (port, axis) in itertools.product(products, (("A", -2), ("B", -1))):
        matrix = _matrix(product, port, axis, producer)
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
    )
    return facts.transposed() if _has_columns(facts) else facts


def _turned(operand: Operand) -> Operand:
    return replace(operand, is_transposed=not operand.is_transposed)


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


@dataclass(frozen=True, slots=True)
class _Matrix:
    """An operand of a matmul: what holds it, its scales of blocks, and the tensors that it is times
    beside, outermost last: one number, or one for each row of A or column of B, so that the product
    is times them just as well. ``nodes`` do that in the graph.
    """

    stored: Tensor
    scale: BlockScale | None
    factors: tuple[Tensor, ...]
    nodes: tuple[Node, ...]


def _matrix(matmul: Node, port: str, axis: int, producer: _Producer) -> _Matrix | Refusal:
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
    return _Matrix(tensor, scales[0] if scales else None, tuple(factors), tuple(nodes))


def _as_operand(tensor: Tensor, matmul: Node, port: str) -> str:
    """What a message calls a tensor that is an operand, or that nodes ahead make it of."""
    if tensor is matmul.inputs[port]:
        return f"{port} of {matmul.name!r}, {tensor.name!r},"
    return f"{tensor.name!r}, of which {port} of {matmul.name!r} is made,"


def _factored(node: Node, producer: _Producer) -> tuple[Tensor, Tensor]:
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
    node: Node, matrix: Tensor, factor: Tensor, axis: int, producer: _Producer
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


def _block_scale(node: Node, axis: int, producer: _Producer) -> BlockScale | Refusal:
    """The scales of an operand of a matmul; ``axis`` is that of M or of N, -2 or -1."""
    scale, sizes = node.inputs["descale"], tuple(node.attrs["block_size"])
    if scale.is_virtual or id(scale) in producer or scale.is_pass_by_value:
        return Refusal(f"scales {scale.name!r} of {node.name!r} are no tensor that is given")
    blocks = (1,) * (len(node.inputs["input"].dim) - len(sizes)) + sizes
    if set(blocks[:-2]) - {1}:
        return Refusal(f"{node.name!r} has blocks of {in_words(blocks)}, want 1 along the batch")
    return BlockScale(Operand.of(scale), blocks[axis], blocks[-3 - axis])


def _sum_dtype(matmul: Node, matrices: _Matrices) -> str:
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
    matrices: _Matrices,
    producer: _Producer,
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
    tensors: list[Tensor], result: Tensor, producer: _Producer
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
    tensor: Tensor, result: Tensor, producer: _Producer
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


def _reduction(node: Node, result: Tensor, producer: _Producer) -> Reduction | Refusal:
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


def _post_order(outputs: list[Tensor], producer: _Producer) -> list[Node]:
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
