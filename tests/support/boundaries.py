"""Calls on both sides of every boundary of a launch table, derived from the table.

From a legal call, one thing at a time is moved through a sequence of neighbouring values: a symbol,
a stride, an address, the size of a blob, a type. Where the plain rules (`call_model`) accept one value
and refuse the next, that pair has the boundary of what refuses. `parts` says which boundaries a table
has; one that no pair shows is a gap of this module.
"""  # noqa: E501

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import call_model
import pack_model
from pack_cases import Case
from pack_model import (
    BFLOAT,
    COMPLEX,
    CUDA,
    DTYPES,
    FLOAT,
    INTEGERS,
    MANAGED,
    OPAQUE,
    PINNED,
    UINT,
    Held,
    Refused,
)
from table_model import Call
from tables import Json

Sweep = list[Case]  # neighbours
APART = 1 << 32  # bytes between the made-up places of operands
SIZES = (16, 2, 64, 128, 512, 4, 1, 4096, 26)


def judged(case: Case) -> tuple[str | None, Refused | None]:
    """The branch that takes a call, or what refuses it."""
    try:
        branch = call_model.judge(
            case.table, case.bound, case.given, case.overrides, case.workspace
        )
    except Refused as refused:
        return None, refused
    return branch, None


def place_of(refused: Refused) -> str:
    return refused.place or f"{refused.rule} {refused.uid}"


# ---- A legal call -------------------------------------------------------------------------------


def legal_calls(table: Json, start: int) -> Iterator[Case]:
    """One for each branch that some usual sizes reach, buffers as declared from `start` on."""
    found: set[str] = set()
    names = list(table["symbols"])
    optional = [entry["uid"] for entry in table["operands"] if entry.get("optional")]
    choices = []
    for row in table["symbols"].values():
        step = row.get("multiple_of", 1)
        sizes = {-(-size // step) * step for size in (*SIZES, row["min"])}
        fit = [size for size in sizes if row["min"] <= size <= row["max"]]
        choices.append(sorted(fit, key=lambda size: (size == 1, abs(size - 64))))
    for values in itertools.islice(itertools.product(*choices), 400):
        for absent in ([], optional):
            case = declared_call(table, dict(zip(names, values, strict=True)), start)
            case = replace(case, bound=case.bound | dict.fromkeys(absent))
            branch, refused = judged(case)
            if refused is None and branch is not None and branch not in found:
                found.add(branch)
                yield case


def declared_call(table: Json, symbols: dict[str, int], start: int) -> Case:
    call = Call(symbols, let=table.get("let", {}))
    bound: dict[int, Any] = {}
    aligned = math.lcm(*(check.get("bytes", 1) for check in table["checks"]))
    for number, entry in enumerate(table["operands"], 1):
        address = -(-(start + number * APART) // aligned) * aligned
        if entry["kind"] == "scalar":
            bound[entry["uid"]] = 1
            continue
        said = pack_model.declared(entry, call)
        shape, stride = said.dim, said.stride
        if entry.get("reordering_type"):
            shape, stride = (sum(said.reach(said.dim, said.stride)),), (1,)
        bound[entry["uid"]] = Held(address, shape, stride, DTYPES[entry["dtype"]])
    room = Held(start, (1 << 31,), (1,), (UINT, 8, 1))
    return Case(table, bound, symbols, {}, room)


# ---- Sweeps -------------------------------------------------------------------------------------


def near(value: int, *bounds: int) -> list[int]:
    """Whole numbers around a value and around bounds, ascending."""
    spots = {value, *bounds}
    return sorted({spot + step for spot in spots for step in range(-2, 3)})


def sweeps(base: Case) -> Iterator[Sweep]:
    """Every way to leave `base`, one thing at a time."""
    table = base.table
    for name, row in table["symbols"].items():
        limits = [number for number in constants(table) if row["min"] <= number <= row["max"]]
        values = near(base.given[name], row["min"], row["max"], *limits[:64])
        for step in {1, 2, row.get("multiple_of", 1)}:
            yield [with_symbols(base, {name: value}) for value in values if value % step == 0]
        yield [base, replace(as_addresses(base), given=without(base.given, name))]
    for entry in table["operands"]:
        kind = scalar_sweeps if entry["kind"] == "scalar" else tensor_sweeps
        yield from kind(base, entry)
    yield from workspace_sweeps(base)


def constants(table: Any) -> list[int]:
    """The numbers of a table, where guards and checks may turn."""
    if isinstance(table, dict):
        found = [constants(value) for value in table.values()]
    elif isinstance(table, list):
        found = [constants(value) for value in table]
    else:
        return [table] if isinstance(table, int) and not isinstance(table, bool) else []
    return sorted(set(itertools.chain(*found)))


def without(values: dict[str, int], name: str) -> dict[str, int]:
    return {key: value for key, value in values.items() if key != name}


def as_addresses(case: Case) -> Case:
    bound = {uid: held.address if isinstance(held, Held) else held
             for uid, held in case.bound.items()}  # fmt: skip
    return replace(case, bound=bound)


def with_symbols(base: Case, change: dict[str, int]) -> Case:
    """The same call for other values, laid out as declared; absent operands stay absent."""
    symbols = base.given | change
    if min(symbols.values()) < 0:
        return replace(as_addresses(base), given=symbols)
    assert isinstance(base.workspace, Held)
    case = declared_call(base.table, symbols, base.workspace.address)
    bound = {uid: None if base.bound[uid] is None else held for uid, held in case.bound.items()}
    return replace(case, bound=bound)


def with_bound(base: Case, uid: int, bound: Any) -> Case:
    return replace(base, bound=base.bound | {uid: bound})


def scalar_sweeps(base: Case, entry: Json) -> Iterator[Sweep]:
    uid = entry["uid"]
    yield [with_bound(base, uid, number) for number in (1, None)]
    low, high = INTEGERS.get(entry["dtype"], (0, 0))
    yield [with_bound(base, uid, number) for number in near(1, low, high)]
    yield [with_bound(base, uid, number) for number in (1, 0.5)]


def tensor_sweeps(base: Case, entry: Json) -> Iterator[Sweep]:
    uid, held = entry["uid"], base.bound[entry["uid"]]
    if held is None:
        return
    assert isinstance(held, Held)

    def moved(*changes: Any) -> Sweep:
        made = (replace(held, **change) if isinstance(change, dict) else change
                for change in changes)  # fmt: skip
        return [with_bound(base, uid, change) for change in (held, *made)]

    yield moved(None)
    yield moved({"address": 0})
    yield moved(0)
    yield moved({"readonly": True})
    for device in ((CUDA, 0), (PINNED, 0), (MANAGED, 3), (7, 0)):
        yield moved({"device": device})
    width = held.width
    named = [*DTYPES.values(), (COMPLEX, 64, 1), (BFLOAT, 32, 1), (FLOAT, 128, 1)]
    for dtype in (*named, (UINT, width, 1), (OPAQUE, 8, width // 8), (UINT, 2 * width, 1)):
        yield moved({"dtype": dtype})
    element = pack_model.slot_bytes(entry)
    yield moved({"address": held.address + 1})
    yield [with_bound(base, uid, held.address + step) for step in range(0, 65, element)]
    yield moved(*({"address": held.address + step} for step in range(0, 65, element)))
    yield from layout_sweeps(base, entry, held)
    yield from override_sweeps(base, entry, held)


def layout_sweeps(base: Case, entry: Json, held: Held) -> Iterator[Sweep]:
    uid = entry["uid"]
    slots = math.prod(held.shape)

    def laid_out(shape: Any, stride: Any) -> Case:
        return with_bound(base, uid, replace(held, shape=tuple(shape), stride=tuple(stride)))

    yield [laid_out((count,), (1,)) for count in near(slots) if count >= 0]
    by_bytes = [number for number in constants(base.table) if 0 < number < 1 << 40]
    for size in by_bytes[:64]:  # limits of capacity
        yield [laid_out((n,), (1,)) for n in near(size // (held.width // 8)) if n >= 0]
    for axis, extent in enumerate(held.shape):
        for other in (extent - 1, extent + 1):
            shape = [*held.shape[:axis], max(other, 0), *held.shape[axis + 1 :]]
            yield [base, laid_out(shape, pack_model.row_major(shape))]
            yield [base, laid_out(shape, held.stride)]
    for axis, step in enumerate(held.stride):
        for values in (near(step, 0), near(0, *by_bytes[:40]), [k * step for k in range(-2, 10)]):
            yield [laid_out(held.shape, [*held.stride[:axis], value, *held.stride[axis + 1 :]])
                   for value in sorted({*values, step})]  # fmt: skip
        for value in (0, -step):
            strides = [*held.stride[:axis], value, *held.stride[axis + 1 :]]
            yield [base, laid_out(held.shape, strides)]
    for turned in itertools.islice(itertools.permutations(range(len(held.shape))), 24):
        order = [0] * len(held.shape)
        step = 1
        for axis in reversed(turned):
            order[axis], step = step, step * max(held.shape[axis], 1)
        yield [base, laid_out(held.shape, order)]


def override_sweeps(base: Case, entry: Json, held: Held) -> Iterator[Sweep]:
    uid = entry["uid"]
    dim, stride = pack_model.declared(
        entry, Call(base.given, let=base.table.get("let", {}))
    ).elements

    def overridden(shape: Any, steps: Any) -> Case:
        return replace(base, overrides={uid: (tuple(shape), tuple(steps))})

    for axis in range(len(dim)):
        yield [overridden(dim, stride),
               overridden(dim, [*stride[:axis], -1, *stride[axis + 1 :]])]  # fmt: skip
        yield [overridden(dim, [*stride[:axis], value, *stride[axis + 1 :]])
               for value in near(stride[axis])]  # fmt: skip
        yield [overridden([*dim[:axis], value, *dim[axis + 1 :]], stride)
               for value in near(dim[axis]) if value >= 0]  # fmt: skip


def workspace_sweeps(base: Case) -> Iterator[Sweep]:
    held = base.workspace
    assert isinstance(held, Held)

    def moved(**change: Any) -> Case:
        return replace(base, workspace=replace(held, **change))

    yield [base, replace(base, workspace=None)]
    yield [base, replace(base, workspace=0)]
    yield [base, moved(address=0)]
    yield [base, moved(readonly=True)]
    for device in ((CUDA, 0), (PINNED, 0), (MANAGED, 3)):
        yield [base, moved(device=device)]
    yield [base, moved(shape=(1 << 20, 8), stride=(16, 1))]
    yield [replace(base, workspace=held.address + step) for step in range(0, 260)]
    low, high = 0, math.prod(held.shape)  # the least that is enough, by halving
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if judged(moved(shape=(middle,)))[1] is None else (middle + 1, high)
        )
    yield [moved(shape=(size,)) for size in near(low) if size >= 0]
    yield [moved(shape=(low,), address=held.address + step) for step in range(4)]


# ---- What there is to show ----------------------------------------------------------------------


def parts(table: Json) -> set[str]:
    """The boundaries that a table states outright, by place."""
    found: set[str] = set()
    for name, row in table["symbols"].items():
        found |= {f"symbols.{name}.min", f"symbols.{name}.max", "symbol_unbound None"}
        if row.get("multiple_of", 1) > 1:
            found.add(f"symbols.{name}.multiple_of")
    for entry in table["operands"]:
        found |= operand_parts(entry)
    for index, check in enumerate(table["checks"]):
        found |= {f"checks[{index}]{side}" for side in CHECKS[check["rule"]](check)}
    if table["dispatch"][-1]["when"] is not True:
        found.add("no_branch None")
    for name, branch in table["branches"].items():
        if branch["workspace"]:
            ways = ("bytes", "align", "readonly", "device", "gaps", "none")
            found |= {f"branches.{name}.workspace: {way}" for way in ways}
        for index, step in enumerate(branch["steps"]):
            found |= {f"branches.{name}.steps[{index}]{side}" for side in STEPS[step["step"]](step)}
    return found


def operand_parts(entry: Json) -> set[str]:
    uid = entry["uid"]
    if entry["kind"] == "scalar":
        found = set() if entry["value"] is not None else {f"presence {uid}"}
        return found | ({f"dtype {uid}"} if entry["dtype"] in INTEGERS else set())
    found = {f"device {uid}", f"dtype {uid}", f"operand {uid}: null"}
    if not entry.get("optional"):
        found.add(f"presence {uid}")
    if entry["kind"] == "output":
        found.add(f"readonly {uid}")
    if pack_model.slot_bytes(entry) > 1:
        found.add(f"alignment {uid}")
    if entry["dim"]:
        found.add(f"override {uid}")
        if not entry.get("ragged"):
            found.add(f"capacity {uid}")
        if entry["kind"] == "output" and not entry.get("reordering_type"):
            found.add(f"overlap {uid}")
        found.add(f"extents {uid}")
    return found


# One row for each rule of `checks` and each kind of step: the sides on which it refuses.
CHECKS: dict[str, Callable[[Json], tuple[str, ...]]] = {
    "alignment": lambda check: ("",) if check["bytes"] > 1 else (),
    "unit_stride": lambda check: ("",),
    "divisible": lambda check: ("",),
    "range": lambda check: (".min",) if check["max"] == 2**63 - 1 else (".min", ".max"),
    "equal": lambda check: (".less", ".more"),
}
STEPS: dict[str, Callable[[Json], tuple[str, ...]]] = {
    "kernel": lambda step: (),  # views of a right table fit wherever it is called
    "fill": lambda step: (),
    "backend": lambda step: (),
}


def shown(base: Case) -> Iterator[tuple[str, Case, Case]]:
    """Place, legal call, refused call, for each pair of neighbours that a boundary parts."""
    for sweep in sweeps(base):
        answers = [(case, *judged(case)) for case in sweep]
        for (a, _, not_a), (b, _, not_b) in itertools.pairwise(answers):
            if (not_a is None) == (not_b is None):
                continue
            legal, wrong, why = (a, b, not_b) if not_a is None else (b, a, not_a)
            assert why is not None
            yield place_of(why), legal, wrong
