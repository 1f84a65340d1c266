"""From GEMM facts to the parts of a launch table that every GEMM engine shares.

Kernels see rank-3 tensors: A ``(M, K, L)``, B ``(N, K, L)``, epilogue inputs and outputs ``(M, N,
L)``, where ``L`` is the product of the batch axes. Where those are several runs, there is an ``L``
for each, the innermost first. A broadcast batch has ``L = 1``; broadcast axes of an epilogue input,
and those that an output is reduced along, keep their extent and get stride 0.
Axes of matrices are -2, rows, and -1, columns, of what kernels see: `Operand.axis` is the tensor's.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cudnn_aot.cache.spec import Frozen, KernelSpec, place_of
from cudnn_aot.compiler.graph.extents import Extent, extent_expr, mul
from cudnn_aot.compiler.planning import expressions as ex
from cudnn_aot.recipes.gemm.facts import VALUE, BlockScale, Epilogue, EpilogueOutput, GemmFacts
from cudnn_aot.recipes.gemm.runs import Run
from cudnn_aot.recipes.operand import INT32_MAX, Operand, bounds

WORKSPACE_ALIGN_BYTES = 256

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """Extents of the matmul as launch-table expressions; ``batch`` is the product of the batch
    axes, ``runs`` those of each run of them, the innermost first, as kernels see them.
    """

    m: ex.Expr
    n: ex.Expr
    k: ex.Expr
    batch: ex.Expr
    runs: tuple[ex.Expr, ...]

    def dense(self, elements: ex.Expr) -> list[ex.Expr]:
        """Strides of the runs where matrices of so many elements lie one after the other."""
        return [ex.mul(elements, *self.runs[:i]) for i in range(len(self.runs))]


def problem(facts: GemmFacts) -> Problem:
    return Problem(
        m=extent_expr(facts.m),
        n=extent_expr(facts.n),
        k=extent_expr(facts.k),
        batch=_product(facts.batch),
        runs=tuple(_product(run.extents(facts.batch)) for run in reversed(facts.batch_runs)),
    )


def _product(extents: Iterable[Extent]) -> ex.Expr:
    return ex.mul(*(extent_expr(extent) for extent in extents))


# --- operands and checks -------------------------------------------------------------------------


def operand_entries(facts: GemmFacts) -> list[Json]:
    return _operand_entries(facts.operands(), facts.epilogue)


@functools.lru_cache(maxsize=64)  # every range of a plan has the same
def _operand_entries(operands: tuple[Operand, ...], epilogue: Epilogue) -> list[Json]:
    outputs = {output.operand.uid for output in epilogue.outputs}
    scalars = {operand.uid for operand, kind in epilogue.inputs if kind == VALUE}
    entries = []
    for operand in operands:
        entry: Json = {"uid": operand.uid, "name": operand.name, "dtype": operand.dtype}
        if operand.uid in scalars:
            entry |= {"kind": "scalar", "value": operand.value}
        else:
            entry |= {
                "kind": "output" if operand.uid in outputs else "input",
                "dim": [extent_expr(extent) for extent in operand.dim],
                "stride": [extent_expr(extent) for extent in operand.stride],
                "optional": operand.optional,
            }
        entries.append(entry)
    return entries


def symbol_entries(facts: GemmFacts) -> Json:
    return {
        name: {"min": symbol.min, "max": symbol.max, "multiple_of": symbol.multiple_of}
        for name, symbol in sorted(facts.symbols.items())
    }


def merge_checks(facts: GemmFacts) -> list[Json]:
    """The batch axes of a run become one: each must be laid out as the outer part of the next.

    An axis of one element moves nothing: where a call has one on either side, there is nothing to
    merge.
    """
    checks: list[Json] = []
    for operand, run in itertools.product(facts.tensors(), facts.batch_runs):
        axes = run.of(operand)
        for position, outer in enumerate(axes[:-1]):
            inner = axes[position + 1 :]
            count = _product(operand.dim[axis] for axis in inner)
            step = ex.mul(count, axes_step(operand, inner))
            stride = ex.stride(operand.uid, outer)
            both = ex.all_of(ex.lt(1, extent_expr(operand.dim[outer])), ex.lt(1, count))
            if both is not True:
                stride = ["select", both, stride, step]
            checks.append({"rule": "equal", "operand": operand.uid, "a": stride, "b": step})
    return checks


def axes_step(operand: Operand, axes: Sequence[int]) -> ex.Expr:
    """Stride of the innermost of ``axes`` that has more than one element in this call; 0 of none.

    That is the step of the one axis that they are.
    """
    if not axes:
        return 0
    step = ex.stride(operand.uid, axes[0])
    for axis in axes[1:]:
        own = ex.stride(operand.uid, axis)
        if isinstance(operand.dim[axis], int):
            step = own
        else:
            step = ["select", ["lt", 1, ex.dim(operand.uid, axis)], own, step]
    return step


def batch_product_checks(facts: GemmFacts) -> list[Json]:
    """The merged batch is a 32-bit extent in the kernels."""
    high = 1
    for extent in facts.batch:
        high *= bounds(extent, facts.symbols)[1]
    if high <= INT32_MAX:
        return []
    expr = problem(facts).batch
    return [{"rule": "range", "operand": facts.a.uid, "expr": expr, "min": 0, "max": INT32_MAX}]


def scale_checks(facts: GemmFacts) -> list[Json]:
    """Every block of a matrix has a scale, in the calls that the declaration leaves open."""
    checks: list[Json] = []
    sides = [(-2, facts.m), *((-1, facts.n) for _ in facts.every_b)]
    for scale, (axis, extent) in zip(facts.scales, sides, strict=True):
        if scale is None:
            continue
        operand = scale.operand
        for of, size, whole in ((axis, scale.rows, extent), (-3 - axis, scale.depth, facts.k)):
            count = operand.dim[operand.axis(of)]
            most = -(-bounds(whole, facts.symbols)[1] // size)
            is_one_for_all = size == 1 == count
            if is_one_for_all or mul(count, size) == whole:
                continue
            if most > bounds(count, facts.symbols)[0]:
                blocks = ex.ceil_div(extent_expr(whole), size)
                check = {"rule": "range", "operand": operand.uid, "expr": blocks}
                checks.append(check | {"min": 0, "max": extent_expr(count)})
    return checks


# --- views ---------------------------------------------------------------------------------------


def _batch_extents(operand: Operand, runs: Sequence[Run]) -> list[ex.Expr]:
    return [_product(operand.dim[axis] for axis in run.of(operand)) for run in reversed(runs)]


def _batch_strides(operand: Operand, runs: Sequence[Run]) -> list[ex.Expr]:
    return [axes_step(operand, run.of(operand)) for run in reversed(runs)]


def _axis_stride(operand: Operand, axis: int, extent: Extent) -> ex.Expr:
    """Stride along ``axis``; 0 where a unit axis spreads over an extent that is not 1."""
    position = operand.axis(axis)
    if position < 0 or (operand.dim[position] == 1 and extent != 1):
        return 0
    return ex.stride(operand.uid, position)


def a_view(a: Operand, p: Problem, runs: Sequence[Run]) -> Json:
    steps = (ex.stride(a.uid, a.axis(of)) for of in (-2, -1))
    return {
        "arg": "tensor",
        "operand": a.uid,
        "dim": [p.m, p.k, *_batch_extents(a, runs)],
        "stride": [*steps, *_batch_strides(a, runs)],
    }


def b_view(b: Operand, p: Problem, runs: Sequence[Run]) -> Json:
    steps = (ex.stride(b.uid, b.axis(of)) for of in (-1, -2))
    return {
        "arg": "tensor",
        "operand": b.uid,
        "dim": [p.n, p.k, *_batch_extents(b, runs)],
        "stride": [*steps, *_batch_strides(b, runs)],
    }


def scale_view(scale: BlockScale, axis: int, runs: Sequence[Run]) -> Json:
    """Scales ``(M or N, K, L)`` in blocks; ``axis`` is that of M or N, -2 or -1."""
    operand = scale.operand
    axes = [operand.axis(axis), operand.axis(-3 - axis)]
    return {
        "arg": "tensor",
        "operand": operand.uid,
        "dim": [*(extent_expr(operand.dim[i]) for i in axes), *_batch_extents(operand, runs)],
        "stride": [
            *(0 if operand.dim[i] == 1 else ex.stride(operand.uid, i) for i in axes),
            *_batch_strides(operand, runs),
        ],
    }


def result_view(facts: GemmFacts, p: Problem, operand: Operand) -> Json:
    """An epilogue input or an output over the full ``(M, N, L)``."""
    return {
        "arg": "tensor",
        "operand": operand.uid,
        "dim": [p.m, p.n, *p.runs],
        "stride": [
            _axis_stride(operand, -2, facts.m),
            _axis_stride(operand, -1, facts.n),
            *_batch_strides(operand, facts.batch_runs),
        ],
    }


def output_view(facts: GemmFacts, p: Problem, output: EpilogueOutput) -> Json:
    """An output over the full ``(M, N, L)``."""
    view = result_view(facts, p, output.operand)
    folded = output.reduction.axes if output.reduction else ""
    strides = zip("mn", view["stride"][:2], strict=True)
    kept = [0 if axis in folded else stride for axis, stride in strides]
    return view | {"stride": [*kept, *view["stride"][2:]]}


# --- epilogue variants ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Variant:
    """One choice of which optional outputs the caller bound: its guard, the uids of the absent
    ones, and the outputs that are left.
    """

    guard: ex.Predicate
    absent: tuple[int, ...]
    outputs: tuple[EpilogueOutput, ...]

    @property
    def stored(self) -> tuple[Operand, ...]:
        """The tensors of those that have a value at every place of the result."""
        return tuple(output.operand for output in self.outputs if output.reduction is None)

    @property
    def name(self) -> str:
        return "".join(f"_no{uid}" for uid in self.absent)


def variants(facts: GemmFacts) -> Iterator[Variant]:
    """Every presence of the optional outputs, all bound first."""
    written = (output.operand for output in facts.epilogue.outputs)
    optional = [operand for operand in written if operand.optional]
    for bound in itertools.product((True, False), repeat=len(optional)):
        guards = [
            ex.present(operand.uid) if here else ex.negate(ex.present(operand.uid))
            for operand, here in zip(optional, bound, strict=True)
        ]
        absent = [operand.uid for operand, here in zip(optional, bound, strict=True) if not here]
        outputs = bound_outputs(facts.epilogue, absent)
        yield Variant(ex.all_of(*guards), tuple(sorted(absent)), outputs)


def bound_outputs(epilogue: Epilogue, absent: Collection[int]) -> tuple[EpilogueOutput, ...]:
    """The outputs that are left without those of some uids."""
    return tuple(output for output in epilogue.outputs if output.operand.uid not in absent)


@dataclass(frozen=True, slots=True)
class _Pruned:
    """An epilogue without what the outputs left do not need: its products by number, its inputs,
    and all of it as a parameter of kernels.
    """

    products: tuple[int, ...]
    inputs: tuple[tuple[Operand, str], ...]
    params: Frozen


@functools.lru_cache(maxsize=64)  # every range of a plan asks for the same
def _pruned(epilogue: Epilogue, absent: tuple[int, ...]) -> _Pruned:
    inputs, nodes, outputs = epilogue.inputs, epilogue.nodes, bound_outputs(epilogue, absent)
    first_input = epilogue.products
    first_node = first_input + len(inputs)
    needed = {output.value for output in outputs}
    for index in range(len(nodes) - 1, -1, -1):
        if first_node + index in needed:
            needed.update(nodes[index].args)
    products = [i for i in range(epilogue.products) if i in needed] or [0]
    kept_inputs = [i for i in range(len(inputs)) if first_input + i in needed]
    kept_nodes = [i for i in range(len(nodes)) if first_node + i in needed]
    old_ids = products + [first_input + i for i in kept_inputs]
    old_ids += [first_node + i for i in kept_nodes]
    renumber = {old: new for new, old in enumerate(old_ids)}
    params = {
        "inputs": [{"dtype": inputs[i][0].dtype, "kind": inputs[i][1]} for i in kept_inputs],
        "nodes": [
            [nodes[i].op, [renumber[arg] for arg in nodes[i].args], dict(nodes[i].attrs)]
            for i in kept_nodes
        ],
        "outputs": [_output_param(output, renumber[output.value]) for output in outputs],
    }
    return _Pruned(tuple(products), tuple(inputs[i] for i in kept_inputs), Frozen(params))


def epilogue_params(epilogue: Epilogue, absent: tuple[int, ...]) -> Frozen:
    """An epilogue as a parameter of kernels, without what is for outputs of some uids alone."""
    return _pruned(epilogue, absent).params


def _output_param(output: EpilogueOutput, value: int) -> Json:
    param: Json = {"value": value, "dtype": output.operand.dtype}
    if (reduction := output.reduction) is not None:
        param["reduce"] = {"mode": reduction.mode, "axes": reduction.axes}
    return param


@dataclass(frozen=True, slots=True)
class KernelParts:
    """What all kernels of a variant have in common.

    Attributes:
        epilogue: the parameter of that name, without what the outputs left do not need.
        products: how many B there are.
        operands: the arguments A, and B of each product.
        scales: of A and of each of those B, where they have scales.
        inputs: the arguments for the scales, then for the epilogue's inputs.
        outputs: those for its outputs.
    """

    epilogue: Frozen
    products: int
    operands: list[Json]
    scales: tuple[BlockScale | None, ...]
    inputs: list[Json]
    outputs: list[Json]

    @property
    def tail(self) -> list[Json]:
        """The arguments behind A and B."""
        return self.inputs + self.outputs


def kernel_parts(facts: GemmFacts, variant: Variant) -> KernelParts:
    # The ranges of a plan differ in the domain of its symbols alone, which no argument depends on.
    return _kernel_parts(replace(facts, symbols={}), variant.absent, variant.outputs)


@functools.lru_cache(maxsize=64)
def _kernel_parts(
    facts: GemmFacts, absent: tuple[int, ...], outputs: tuple[EpilogueOutput, ...]
) -> KernelParts:
    pruned = _pruned(facts.epilogue, absent)
    p, runs = problem(facts), facts.batch_runs
    every_b = [b_view(facts.every_b[product], p, runs) for product in pruned.products]
    scales = [facts.scales[0], *(facts.scales[1 + product] for product in pruned.products)]
    axes = (-2, *(-1 for _ in every_b))
    pairs = zip(scales, axes, strict=True)
    views = [scale_view(scale, axis, runs) for scale, axis in pairs if scale]
    return KernelParts(
        epilogue=pruned.params,
        products=len(every_b),
        operands=[a_view(facts.a, p, runs), *every_b],
        scales=tuple(scales),
        inputs=views + [_input_arg(facts, p, operand, kind) for operand, kind in pruned.inputs],
        outputs=[output_view(facts, p, output) for output in outputs],
    )


def matmul_params(facts: GemmFacts, parts: KernelParts) -> Json:
    """The parameters that say what a kernel computes; ``scales`` is there where a matrix has some:
    the elements of K of a block, and its rows of A and of each B, None where one has none; and
    those of `runs_params`.
    """
    params = {
        "a_dtype": facts.a.dtype,
        "b_dtype": facts.b.dtype,
        "products": parts.products,
        "epilogue": parts.epilogue,
    }
    if any(parts.scales):
        depth = max(scale.depth for scale in parts.scales if scale)
        rows = [scale.rows if scale else None for scale in parts.scales]
        params["scales"] = {"depth": depth, "rows": rows}
    return params | runs_params(facts)


def runs_params(facts: GemmFacts) -> Json:
    """The parameter ``batch_runs``, how many there are, where that is not one."""
    count = len(facts.batch_runs)
    return {"batch_runs": count} if count > 1 else {}


def _input_arg(facts: GemmFacts, p: Problem, operand: Operand, kind: str) -> Json:
    if operand.constant:
        return {"arg": "float", "value": operand.value}
    if kind == VALUE:
        return {"arg": "scalar", "operand": operand.uid}
    return result_view(facts, p, operand)


# --- the table -----------------------------------------------------------------------------------


class TableBuilder:
    """Collects branches, guards and kernels of one launch table, in dispatch order."""

    def __init__(self, facts: GemmFacts, device: str) -> None:
        self.facts = facts
        self.device = device
        self.kernels: list[KernelSpec] = []
        self.dispatch: list[Json] = []
        self.branches: dict[str, Json] = {}
        self._add_empty_branch()

    def _add_empty_branch(self) -> None:
        """A result without elements needs no step, but for what is reduced: no element of it has
        the mode's value of none.
        """
        p, reductions = problem(self.facts), self.facts.epilogue.reductions
        folded = {axis for reduction in reductions for axis in reduction.axes}
        matrix = (("m", p.m, self.facts.m), ("n", p.n, self.facts.n))
        extents = [(expr, extent) for axis, expr, extent in matrix if axis not in folded]
        extents += [(extent_expr(extent), extent) for extent in self.facts.batch]
        empty = [
            ex.eq(expr, 0) for expr, extent in extents if bounds(extent, self.facts.symbols)[0] == 0
        ]
        if empty:
            self.add("empty", ex.any_of(*empty), [], [])

    def variants(self) -> Iterator[tuple[Variant, KernelParts]]:
        """Every presence of the optional outputs that leaves something to compute; one that does
        not gets its branch here.
        """
        for variant in variants(self.facts):
            if variant.outputs:
                yield variant, kernel_parts(self.facts, variant)
            else:
                self.add(f"nothing{variant.name}", variant.guard, [], [])

    def kernel(self, spec: KernelSpec) -> int:
        """Position of ``spec`` in the plan's kernels."""
        return place_of(spec, self.kernels)

    def add(self, name: str, guard: ex.Predicate, workspace: list[Json], steps: list[Json]) -> None:
        if guard is False:
            return
        self.branches[name] = {"workspace": workspace, "steps": steps}
        self.dispatch.append({"when": guard, "branch": name})

    def table(self) -> Json:
        return {
            "version": 1,
            "device": self.device,
            "symbols": symbol_entries(self.facts),
            "operands": operand_entries(self.facts),
            "checks": [
                *merge_checks(self.facts),
                *batch_product_checks(self.facts),
                *scale_checks(self.facts),
            ],
            "dispatch": self.dispatch,
            "branches": self.branches,
        }
