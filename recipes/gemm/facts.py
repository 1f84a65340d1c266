"""Facts of a GEMM graph: matmuls of one A, the pointwise DAG that follows them, and reductions of
what that gives. `analyze` makes them; whether an engine takes them is the business of that engine's
capability rows.

Extents are in the kernels' terms: ``m, n, k`` of one matmul and the batch axes before them. An
extent is an int or a ``SymExpr``. Kernels store rows: where the columns of a result are what lies
together, they compute its transpose, the transpose of B times that of A.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cudnn_aot.compiler.graph.extents import Extent, Symbol, SymExpr, evaluate, mul
from cudnn_aot.recipes.gemm.runs import Run
from cudnn_aot.recipes.operand import (
    ALIGN_BYTES,
    DTYPE_BYTES,
    INT32_MAX,
    Operand,
    bounds,
    in_words,
    is_multiple,
    pinned,
    solve,
)

# Broadcast kinds of an epilogue input against the (m, n) result.
FULL, ROW, COL, SCALAR, VALUE = "full", "row", "col", "scalar", "value"

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
    ``batch_runs`` are the batch axes by what merges, over the declared domain of the symbols.
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
    batch_runs: tuple[Run, ...]
    is_transposed: bool = False

    def operands(self) -> tuple[Operand, ...]:
        """Everything that a call binds, once, by ascending uid."""
        inputs = [operand for operand, _ in self.epilogue.inputs]
        outputs = [output.operand for output in self.epilogue.outputs]
        scales = [scale.operand for scale in self.scales if scale is not None]
        every = (self.a, *self.every_b, *scales, *inputs, *outputs)
        by_uid = {operand.uid: operand for operand in every if not operand.constant}
        return tuple(by_uid[uid] for uid in sorted(by_uid))

    def tensors(self) -> tuple[Operand, ...]:
        """Those of `operands` that are no numbers passed by value."""
        scalars = {operand.uid for operand, kind in self.epilogue.inputs if kind == VALUE}
        return tuple(operand for operand in self.operands() if operand.uid not in scalars)

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

    def stacked(self) -> GemmFacts | None:
        """The same with the extents of one matrix that has the rows of all of a run of batch axes,
        where the declared matrices are that: what has rows has those of a matrix behind those of
        the one before, and all else is that of every matrix.
        """
        run = self.stacked_run()
        return None if run is None else _stacked(self, run)

    def stacked_run(self) -> Run | None:
        """The run that `stacked` makes rows of: of several the innermost."""
        if all(extent == 1 for extent in self.batch):
            return None
        runs = reversed(self.batch_runs)
        return next((run for run in runs if _stacked(self, run) is not None), None)

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
        """The values of all symbols for which `extents_at` gives these extents, in their domains or
        not; None where there are none, or extents do not tell one.
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
        """What kernels are shared by, in words: types, majors, the shape of the epilogue, and
        whether the steps of A or B keep TMA from loading it.
        """
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
        runs = f" in {len(self.batch_runs)} runs" if len(self.batch_runs) > 1 else ""
        is_aligned = all(_is_aligned(operand, self.symbols) for operand in (self.a, *self.every_b))
        alignment = "" if is_aligned else " unaligned"
        return f"{types} {majors} [{inputs}] {chain} -> {outputs}{runs}{alignment}"

    def describe(self) -> dict[str, Any]:
        """The facts in words, for a person: as the graph has them."""
        described = self.as_declared()._in_words()
        if self.is_transposed:
            how = "the transpose, of B by A, as the columns of what is stored lie together"
            described["computed as"] = how
        if (run := self.stacked_run()) is not None and (stacked := self.stacked()) is not None:
            rows, factor = ("columns", "A") if self.is_transposed else ("rows", "B")
            of = f"{in_words(run.extents(self.batch))} of " if len(self.batch_runs) > 1 else ""
            described["branches _rows"] = (
                f"{of}the batch as one matrix of {stacked.m} {rows}, as all of it is multiplied by "
                f"one {factor}"
            )
        return described

    def _runs_in_words(self) -> str:
        every = (in_words(run.extents(self.batch)) for run in self.batch_runs)
        reasons = dict.fromkeys(run.why for run in self.batch_runs[1:])
        return f"{' x '.join(every)}, as {'; '.join(reasons)}"

    def _in_words(self) -> dict[str, Any]:
        described: dict[str, Any] = {
            name: str(extent) for name, extent in zip("MNK", (self.m, self.n, self.k), strict=True)
        }
        described["batch"] = " x ".join(map(str, self.batch)) or "1"
        if len(self.batch_runs) > 1:
            described["batch runs"] = self._runs_in_words()
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


def _turned(operand: Operand) -> Operand:
    return replace(operand, is_transposed=not operand.is_transposed)


_B_AXES = {-2: "k", -1: "n"}
# Axes that a reduction folds, in the transpose.
_OTHER_AXES = {"m": "n", "n": "m", "mn": "mn"}


def _unit_axis(operand: Operand, names: Mapping[int, str]) -> str | None:
    unit = [name for axis, name in names.items() if operand.stride[operand.axis(axis)] == 1]
    return unit[0] if unit else None


def _is_aligned(operand: Operand, symbols: Mapping[str, Symbol]) -> bool:
    axes = [operand.axis(-2), operand.axis(-1), *operand.batch_axes]
    strides = [operand.stride[axis] for axis in axes]
    if 1 in strides:
        strides.remove(1)
    step = ALIGN_BYTES // DTYPE_BYTES[operand.dtype]
    return all(stride != 0 and is_multiple(stride, step, symbols) for stride in strides)


def _output_class(output: EpilogueOutput) -> str:
    reduction = output.reduction
    folded = f":{reduction.mode}/{reduction.axes}" if reduction else ""
    return output.operand.dtype + folded


# Of one row each: what spreads along the columns differs from matrix to matrix, so from row to row.
_KINDS_OF_ONE_ROW = {ROW: FULL, SCALAR: COL}


@functools.lru_cache(maxsize=64)  # ranking and lowering of a plan ask for the same
def _stacked(facts: GemmFacts, run: Run) -> GemmFacts | None:
    m = mul(facts.m, *run.extents(facts.batch))
    has_batch = any(extent != 1 for extent in run.extents(facts.batch))
    if not has_batch or bounds(m, facts.symbols)[1] > INT32_MAX:
        return None
    epilogue = _of_one_row(facts.epilogue, run) if facts.m == 1 else facts.epilogue
    inputs, outputs = epilogue.inputs, epilogue.outputs
    with_rows = [facts.a, *(output.operand for output in outputs)]
    with_rows += [operand for operand, kind in inputs if kind in (FULL, COL)]
    of_all = [*facts.every_b, *(operand for operand, kind in inputs if kind in (ROW, SCALAR))]
    a_scale, *b_scales = facts.scales
    of_all += [scale.operand for scale in b_scales if scale]
    if a_scale:
        with_rows.append(a_scale.operand)
    if (
        any(run.of(operand) for operand in of_all)
        or any(output.reduction and output.reduction.axes != "n" for output in outputs)
        or (a_scale and a_scale.rows != 1)
        or not all(_follows(operand, facts, run) for operand in with_rows)
    ):
        return None
    rank = len(facts.batch)
    axes = {rank + 2 + axis for axis in run.axes}
    batch = tuple(1 if axis in axes else facts.batch[axis] for axis in range(rank))
    return replace(facts, m=m, batch=batch, epilogue=epilogue)


@functools.lru_cache(maxsize=64)  # kernels' parts are remembered by the epilogue
def _of_one_row(epilogue: Epilogue, run: Run) -> Epilogue:
    """An epilogue of matrices of one row each, as one of the rows of all: what differs by matrix
    differs by row, and what a matrix leaves is what a row does.
    """
    inputs = [
        (operand, _KINDS_OF_ONE_ROW.get(kind, kind) if run.of(operand) else kind)
        for operand, kind in epilogue.inputs
    ]
    return replace(
        epilogue, inputs=tuple(inputs), outputs=tuple(map(_output_of_row, epilogue.outputs))
    )


def _output_of_row(output: EpilogueOutput) -> EpilogueOutput:
    if output.reduction and output.reduction.axes == "mn":
        return replace(output, reduction=replace(output.reduction, axes="n"))
    return output


def _follows(operand: Operand, facts: GemmFacts, run: Run) -> bool:
    """Whether the rows of each matrix, as declared, are behind those of the one before."""
    axes = run.of(operand)
    if not axes or facts.m == 1:
        return bool(axes)
    step = mul(facts.m, operand.stride[operand.axis(-2)])
    return pinned(operand.stride[axes[-1]], facts.symbols) == pinned(step, facts.symbols)
