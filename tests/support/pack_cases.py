"""Random declarations and buffers, what the executor makes of them and what the plain rules say."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pack_model
from exchange import ReadOnly, Writable
from pack_model import CPU, CUDA, DTYPES, MANAGED, OPAQUE, PINNED, UINT, Bound, Held, Override
from table_model import Call
from tables import Json, operand, symbol, table

from cudnn_aot import _native
from cudnn_aot.errors import RefusedError

BASE = 1 << 20  # a made-up address: nothing is read
EXTENTS = (1, 1, 2, 2, 3, 4, 5, 6, 8, "M", "M", "N", ["mul", 2, "M"], ["mul", "M", "N"],
           ["mul", 3, ["mul", "N", 1]])  # fmt: skip
SYMBOLS = {"M": symbol(0, 12), "N": symbol(1, 16, 1)}


@dataclass(frozen=True)
class Case:
    """A table and a call of it."""

    table: Json
    bound: dict[int, Bound]
    given: dict[str, int] = field(default_factory=dict)
    overrides: dict[int, Override] = field(default_factory=dict)
    workspace: Bound = None


def as_argument(bound: Bound) -> Any:
    if not isinstance(bound, Held):
        return bound
    producer = ReadOnly if bound.readonly else Writable
    return producer(bound.address, bound.shape, bound.stride, bound.dtype, bound.device)


def executed(case: Case, plan: Any = None) -> Any:
    """What the executor answers: symbols and operands, or the rule and operand of a refusal."""
    plan = _native.Plan(case.table) if plan is None else plan
    call: Json = {"symbols": case.given} if case.given else {}
    if case.overrides:
        call["override_uids"] = list(case.overrides)
        call["override_shapes"] = [list(shape) for shape, _ in case.overrides.values()]
        call["override_strides"] = [list(stride) for _, stride in case.overrides.values()]
    bindings = {uid: as_argument(bound) for uid, bound in case.bound.items()}
    try:
        seen = plan.resolve(bindings, **call)
    except RefusedError as refused:
        return refused.rule, refused.operand
    operands = {
        uid: (row["dim"], row["stride"], row["nbytes"], uid in seen["graph_described"])
        for uid, row in seen["operands"].items()
        if row.get("present")
    }
    return seen["symbols"], operands


def stated(case: Case) -> Any:
    """The same by the plain rules."""
    try:
        known, slots = pack_model.pack(case.table, case.bound, case.given, case.overrides)
    except pack_model.Refused as refused:
        return refused.rule, refused.uid
    operands = {
        uid: (list(row.dim), list(row.stride), row.nbytes, row.graph_described)
        for uid, row in slots.items()
    }
    return known, operands


# ---- Declarations -------------------------------------------------------------------------------


def product(extents: Sequence[Any]) -> Any:
    number, symbols = 1, []
    for extent in extents:
        factor, names = pack_model.factors_of(extent) or (1, [])
        number, symbols = number * factor, [*symbols, *names]
    return ["mul", number, *symbols] if symbols else number


def declaration(r: random.Random, uid: int) -> Json:
    dim = [r.choice(EXTENTS) for _ in range(r.choice((0, 1, 2, 2, 3, 3, 3, 4)))]
    if r.random() < 0.04 and dim:
        dim[r.randrange(len(dim))] = 0
    dtype = r.choice((*DTYPES, "BFLOAT16", "FLOAT", "FP4_E2M1"))
    order = list(range(len(dim)))
    if r.random() < 0.3:
        r.shuffle(order)
    if DTYPES[dtype][2] > 1 and dim and r.random() < 0.9:
        dim[order[-1]] = r.choice((2, 4, 6, ["mul", 2, "M"], ["mul", 2, "N"], "N"))
    stride: list[Any] = [1] * len(dim)
    for place, axis in enumerate(order):
        inner = product([dim[a] for a in order[place + 1 :]])
        stride[axis] = inner
        if isinstance(inner, int) and r.random() < 0.08:
            stride[axis] = max(inner + r.choice((-1, 1, 2, 4)), 0)
    fields: Json = {"kind": r.choice(("input", "input", "output")), "dtype": dtype}
    if r.random() < 0.1:
        fields["optional"] = True
    if r.random() < 0.1:
        fields["ragged"] = True
    elif dtype in ("FP8_E4M3", "FP8_E8M0") and len(dim) > 1 and r.random() < 0.6:
        fields["reordering_type"] = "F8_128x4"
    return operand(uid, dim, stride, **fields)


# ---- Buffers ------------------------------------------------------------------------------------


def strides_of(r: random.Random, shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major, and now and then permuted, padded, turned around, repeated."""
    order = list(range(len(shape)))
    if r.random() < 0.25:
        r.shuffle(order)
    stride, step = [0] * len(shape), 1
    for axis in reversed(order):
        if r.random() < 0.08:
            step += r.choice((1, 2, 8))
        stride[axis] = step
        if shape[axis] == 1 and r.random() < 0.2:
            stride[axis] = r.choice((0, 1, 7, -3))
        elif r.random() < 0.03:
            stride[axis] = r.choice((0, -step, 1))
        step *= max(shape[axis], 1)
    return tuple(stride)


def shape_near(r: random.Random, dim: Sequence[int]) -> tuple[int, ...]:
    """The declared extents, up to unit axes, flat, merged, or of another problem."""
    shape = list(dim)
    kind = r.random()
    if kind < 0.35:
        return tuple(shape)
    if kind < 0.6:
        shape = [n for n in shape if n != 1 or r.random() < 0.5]
        while r.random() < 0.3:
            shape.insert(r.randint(0, len(shape)), 1)
        return tuple(shape)
    if kind < 0.72:
        return (max(math.prod(shape) + r.choice((-1, 0, 0, 0, 1, 5)), 0),)
    if kind < 0.8 and len(shape) > 1:
        at = r.randrange(len(shape) - 1)
        return (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
    if shape:
        at = r.randrange(len(shape))
        shape[at] = max(shape[at] + r.choice((-1, 1, 1, 3)), 0)
    if r.random() < 0.2:
        r.shuffle(shape)
    return tuple(shape)


def type_near(r: random.Random, dtype: str) -> tuple[int, int, int]:
    own = DTYPES[dtype]
    width = own[1] * own[2]
    kind = r.random()
    if kind < 0.6:
        return own
    if kind < 0.8:
        return (UINT, width, 1)
    if kind < 0.86:
        return (OPAQUE, 8, width // 8)
    if kind < 0.9:
        return (own[0], 4, 1)
    return r.choice([*DTYPES.values(), (UINT, 8, 1), (UINT, 32, 1), (OPAQUE, 8, 16)])


def tile_shape(r: random.Random, entry: Json, said: Any) -> tuple[int, ...]:
    """A blob of whole tiles, or nearly."""
    have = pack_model.tiles_bytes(said.dim, said.stride)
    return r.choice([(have,), (have,), (max(have - 1, 0),), (have // 4, 4), (1, have // 512, 512)])


def buffer(r: random.Random, entry: Json, call: Call) -> Bound:
    if r.random() < 0.03:
        return None
    address = BASE + (r.choice((1, 2, 4, 8)) if r.random() < 0.04 else 0)
    if r.random() < 0.03:
        address = 0
    if r.random() < 0.12:
        return address
    said = pack_model.declared(entry, call)
    dim = said.dim
    if pack_model.per_slot(entry) > 1 and r.random() < 0.15:
        dim = said.elements[0]
    shape = shape_near(r, dim)
    if entry.get("reordering_type") and r.random() < 0.8:
        shape = tile_shape(r, entry, said)
    stride = said.stride if shape == said.dim and r.random() < 0.5 else strides_of(r, shape)
    device = (CPU, 0) if r.random() < 0.94 else r.choice([(CUDA, 0), (PINNED, 0), (MANAGED, 1)])
    dtype = type_near(r, entry["dtype"])
    return Held(address, shape, stride, dtype, device, r.random() < 0.05)


def override(r: random.Random, entry: Json, call: Call) -> Override:
    elements, stride = pack_model.declared(entry, call).elements
    if r.random() < 0.1 and elements:
        at = r.randrange(len(elements))
        elements = (*elements[:at], elements[at] + 1, *elements[at + 1 :])
    return elements, stride if r.random() < 0.4 else strides_of(r, elements)


def case(r: random.Random) -> Case:
    """One that a table can hold; whether it can is compared too."""
    while True:
        entries = [declaration(r, uid) for uid in range(1, r.choice((2, 2, 3, 3, 4)))]
        used = {
            name
            for entry in entries
            for extent in entry["dim"]
            for name in pack_model.symbols_of(extent)
        }
        symbols = {name: row for name, row in SYMBOLS.items() if name in used}
        made = table(entries, symbols=symbols)
        if parses(made):
            break
    values = {"M": r.randint(0, 5), "N": r.randint(1, 6)}
    if r.random() < 0.5:
        values["N"] = 2 * r.randint(1, 3)
    call = Call({name: values[name] for name in symbols})
    bound = {entry["uid"]: buffer(r, entry, call) for entry in entries}
    given = {}
    if symbols and r.random() < 0.6:
        given = {name: values[name] + (r.random() < 0.1) for name in symbols if r.random() < 0.9}
    overrides = {}
    for entry in entries:
        if r.random() < 0.12:
            overrides[entry["uid"]] = override(r, entry, call)
    return Case(made, bound, given, overrides)


def parses(made: Mapping[str, Any]) -> bool:
    """Whether the executor takes the table, which the plain rules must say alike."""
    want = all(pack_model.has_slots(entry) for entry in made["operands"])
    try:
        _native.Plan(made)
    except ValueError as fault:
        assert not want, (made["operands"], str(fault))
        return False
    assert want, made["operands"]
    return True


def features(case: Case, answer: Any) -> set[str]:
    """What a case is one of: the rule that refuses it, or what its operands are."""
    if isinstance(answer[0], str):
        return {answer[0]}
    found = {"accepted", *(["symbol of a buffer"] if set(answer[0]) - set(case.given) else [])}
    for entry in case.table["operands"]:
        uid = entry["uid"]
        if uid not in answer[1]:
            found.add("not requested")
            continue
        held = case.bound[uid]
        kind = "override" if uid in case.overrides else "graph_described"
        if kind == "graph_described" and not answer[1][uid][3]:
            kind = "own strides"
        found.add(kind)
        if isinstance(held, int):
            found.add("address")
        elif isinstance(held, Held) and held.width != 8 * pack_model.slot_bytes(entry):
            found.add("blob of another width")
        elif isinstance(held, Held) and held.dtype != DTYPES[entry["dtype"]]:
            found.add("storage of the same width")
        traits = [("4-bit", pack_model.per_slot(entry) > 1), ("ragged", entry.get("ragged"))]
        traits.append(("F8_128x4", entry.get("reordering_type")))
        found |= {f"{name}, {kind}" for name, has in traits if has}
    return found
