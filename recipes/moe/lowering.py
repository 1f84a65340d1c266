"""From facts of a grouped matmul to the launch table that its engines share: one branch, whose last
step is the kernel.

Kernels see token ``(T, K)``, weight ``(N, K, E)``, the vectors of offsets and of what routes rows,
and out ``(R, N)``.
"""

from __future__ import annotations

from typing import Any

from cudnn_aot.cache.spec import kernel_spec
from cudnn_aot.compiler.graph.extents import Extent, extent_expr
from cudnn_aot.compiler.planning import expressions as ex
from cudnn_aot.compiler.planning.engine import Lowering
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.recipes.moe.facts import MoeFacts
from cudnn_aot.recipes.operand import Operand, bounds

Json = dict[str, Any]


def lower(
    facts: MoeFacts, template: str, branch: str, target: Target, zero: str | None = None
) -> Lowering:
    """The plan whose branch ``branch`` runs the kernel that ``template`` makes, after that of
    ``zero`` where there is one.
    """
    launch: list[Json] = [{"arg": "launch"}] if target.kind == "cuda" else []
    runs = [(template, _params(facts), _arguments(facts))]
    if zero is not None:
        runs.insert(0, (zero, {"out_dtype": facts.out.dtype}, [_view(facts.out, 1, 2)]))
    kernels = tuple(kernel_spec(name, params, target) for name, params, _ in runs)
    steps: list[Json] = [
        {"step": "kernel", "kernel": number, "args": launch + args}
        for number, (_, _, args) in enumerate(runs)
    ]
    branches = {"empty": (_is_empty(facts), []), branch: (True, steps)}
    kept = {name: row for name, row in branches.items() if row[0] is not False}
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
        "dispatch": [{"when": guard, "branch": name} for name, (guard, _) in kept.items()],
        "branches": {name: {"workspace": [], "steps": steps} for name, (_, steps) in kept.items()},
    }
    return Lowering(kernels, table)


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
        _view(facts.weight, 2, 1, 0),
        _view(facts.offsets, 0),
        *(_view(operand, 1) for operand in facts.route),
    ]
    if facts.mode == "SCATTER":
        arguments.append({"arg": "int", "value": facts.top_k})
    return [*arguments, _view(facts.out, 1, 2)]


def _view(operand: Operand, *axes: int) -> Json:
    """The operand as its axes in this order; those left out have one element."""
    return {
        "arg": "tensor",
        "operand": operand.uid,
        "dim": [extent_expr(operand.dim[axis]) for axis in axes],
        "stride": [ex.stride(operand.uid, axis) for axis in axes],
    }
