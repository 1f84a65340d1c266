"""From facts of a grouped matmul to the launch table that its engines share: branches, of which the
first that a call fits runs a kernel, after one that zeroes the output where that is needed.

Kernels see token ``(T, K)``, weight ``(N, K, E)``, the vectors of offsets and of what routes rows,
and out ``(R, N)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cudnn_aot.cache.spec import KernelSpec, kernel_spec, place_of
from cudnn_aot.compiler.graph.extents import Extent, extent_expr
from cudnn_aot.compiler.planning import expressions as ex
from cudnn_aot.compiler.planning.engine import Lowering
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.gemm.lowering import axes_step
from cudnn_aot.recipes.moe.facts import MoeFacts
from cudnn_aot.recipes.operand import Operand, bounds

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of the plan.

    Attributes:
        template: of the kernel.
        guard: which calls it takes of those that no branch before it does.
        params: of the template, beside those that every template has.
        head: the kernel's arguments behind ``launch``, ahead of those that all kernels have.
        zero: the template of a kernel that goes before it, which zeroes the output.
    """

    name: str
    template: str
    guard: ex.Predicate = True
    params: Mapping[str, Any] = field(default_factory=dict)
    head: tuple[Json, ...] = ()
    zero: str | None = None


def lower(facts: MoeFacts, target: Target, *branches: Branch) -> Lowering:
    """The plan of these branches; the last one takes every call."""
    launch: list[Json] = [{"arg": "launch"}] if target.kind == "cuda" else []
    kernels: list[KernelSpec] = []

    def step(template: str, params: Json, arguments: list[Json]) -> Json:
        spec = kernel_spec(template, params, target)
        return {"step": "kernel", "kernel": place_of(spec, kernels), "args": launch + arguments}

    rows: list[tuple[str, ex.Predicate, list[Json]]] = [("empty", _is_empty(facts), [])]
    for branch in branches:
        steps = []
        if branch.zero is not None:
            steps.append(
                step(branch.zero, {"out_dtype": facts.out.dtype}, [_view(facts.out, 1, 2)])
            )
        params = {**_params(facts), **branch.params}
        steps.append(step(branch.template, params, [*branch.head, *_arguments(facts)]))
        rows.append((branch.name, branch.guard, steps))
    kept = [row for row in rows if row[1] is not False]
    symbols = {
        name: {"min": symbol.min, "max": symbol.max, "multiple_of": symbol.multiple_of}
        for name, symbol in sorted(facts.symbols.items())
    }
    table = {
        "version": 1,
        "device": target.kind,
        "symbols": symbols,
        "operands": [_entry(each, each.uid == facts.out.uid) for each in facts.operands()],
        "checks": _agreements(facts),
        "dispatch": [{"when": guard, "branch": name} for name, guard, _ in kept],
        "branches": {name: {"workspace": [], "steps": steps} for name, _, steps in kept},
    }
    return Lowering(tuple(kernels), table)


def _params(facts: MoeFacts) -> Json:
    return {
        "mode": facts.mode,
        "token_dtype": facts.token.dtype,
        "weight_dtype": facts.weight.dtype,
        "out_dtype": facts.out.dtype,
        "offset_dtype": facts.offsets.dtype,
        "route_dtypes": [operand.dtype for operand in facts.route],
    }


def _is_empty(facts: MoeFacts) -> ex.Predicate:
    """A result without elements needs no step."""
    extents = (facts.rows, facts.named_extents["n"])
    may_be = [extent for extent in extents if bounds(extent, facts.symbols)[0] == 0]
    return ex.any_of(*(ex.eq(extent_expr(extent), 0) for extent in may_be))


def _entry(operand: Operand, is_output: bool) -> Json:
    return {
        "uid": operand.uid,
        "name": operand.name,
        "dtype": operand.dtype,
        "kind": "output" if is_output else "input",
        "dim": [extent_expr(extent) for extent in operand.dim],
        "stride": [extent_expr(extent) for extent in operand.stride],
    }


def _agreements(facts: MoeFacts) -> list[Json]:
    """Extents that a graph may declare by two symbols, and that have to be equal at a call."""
    pairs: list[tuple[Operand, int, Extent]] = [
        (facts.weight, -2, facts.token.dim[-1]),
        (facts.out, -2, facts.rows),
        (facts.out, -1, facts.named_extents["n"]),
        *((operand, -2, facts.rows) for operand in facts.route),
    ]
    return [
        {
            "rule": "equal",
            "operand": operand.uid,
            "a": extent_expr(operand.dim[axis]),
            "b": extent_expr(extent),
        }
        for operand, axis, extent in pairs
        if operand.dim[axis] != extent
    ]


def _arguments(facts: MoeFacts) -> list[Json]:
    arguments: list[Json] = [
        {"arg": "int", "value": facts.groups},
        _view(facts.token, 1, 2),
        _weight(facts.weight),
        _view(facts.offsets, 0),
        *(_view(operand, 1) for operand in facts.route),
    ]
    if facts.mode == "SCATTER":
        arguments.append({"arg": "int", "value": facts.top_k})
    return [*arguments, _view(facts.out, 1, 2)]


def _weight(weight: Operand) -> Json:
    """With one expert there is no step to the next."""
    view = _view(weight, 2, 1, 0)
    return view | {"stride": [*view["stride"][:2], axes_step(weight, weight.batch_axes)]}


def _view(operand: Operand, *axes: int) -> Json:
    """The operand as its axes in this order; those left out have one element."""
    return {
        "arg": "tensor",
        "operand": operand.uid,
        "dim": [extent_expr(operand.dim[axis]) for axis in axes],
        "stride": [ex.stride(operand.uid, axis) for axis in axes],
    }
