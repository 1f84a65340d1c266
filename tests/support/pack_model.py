"""The pack rules of ``docs/launch-table.md`` in plain Python: slow, element by element.

Shares nothing with the executor. Shapes of buffers and results are in storage slots, declarations
and overrides in elements.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from table_model import Call

# DLPack (code, bits, lanes) of a slot of each type.
DTYPES = {
    "FLOAT": (2, 32, 1), "DOUBLE": (2, 64, 1), "HALF": (2, 16, 1), "BFLOAT16": (4, 16, 1),
    "INT8": (0, 8, 1), "INT32": (0, 32, 1), "INT64": (0, 64, 1), "UINT8": (1, 8, 1),
    "BOOLEAN": (6, 8, 1), "FP8_E4M3": (10, 8, 1), "FP8_E5M2": (12, 8, 1), "FP8_E8M0": (14, 8, 1),
    "FP4_E2M1": (17, 4, 2), "INT4": (0, 4, 2),
}  # fmt: skip
UINT, OPAQUE, FLOAT, BFLOAT, COMPLEX = 1, 3, 2, 4, 5
CPU, CUDA, PINNED, MANAGED = 1, 2, 3, 13
MANY = 48  # elements that are worth enumerating


@dataclass(frozen=True, slots=True)
class Held:
    """A buffer of the caller."""

    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: tuple[int, int, int]
    device: tuple[int, int] = (CPU, 0)
    readonly: bool = False

    @property
    def width(self) -> int:
        return self.dtype[1] * self.dtype[2]


Bound = Held | int | float | None  # a buffer, an address or a number, nothing


@dataclass(frozen=True, slots=True)
class Slots:
    """One operand of a call, as its kernels see it."""

    dim: tuple[int, ...]
    stride: tuple[int, ...]
    nbytes: int
    below: int = 0  # bytes of it that lie before the address
    address: int = 0
    graph_described: bool = False
    has_gaps: bool = False  # between its elements, which are those of the caller's buffer


Override = tuple[tuple[int, ...], tuple[int, ...]]


class Refused(Exception):
    """`place` says which part of the table refuses, where rule and operand leave it open."""

    def __init__(self, rule: str, uid: int | None, place: str = "") -> None:
        super().__init__(rule, uid, place)
        self.rule, self.uid, self.place = rule, uid, place


# ---- Layouts ------------------------------------------------------------------------------------


def offsets(shape: Sequence[int], stride: Sequence[int]) -> Iterator[int]:
    for index in itertools.product(*map(range, shape)):
        yield sum(i * s for i, s in zip(index, stride, strict=True))


@functools.lru_cache(1 << 16)  # neighbouring calls share most operands
def ends(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, int]:
    """The lowest and the highest offset of a tensor that has elements."""
    if math.prod(shape) <= MANY:
        places = list(offsets(shape, stride))
        return min(places), max(places)
    steps = [(n - 1) * s for n, s in zip(shape, stride, strict=True)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)


def reach(shape: Sequence[int], stride: Sequence[int], width: int) -> tuple[int, int]:
    """Bytes before the first element's address, and from it on."""
    if 0 in shape:
        return 0, 0
    low, high = ends(tuple(shape), tuple(stride))
    return -low * width, (high + 1) * width


@functools.lru_cache(1 << 16)
def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether the elements fill their range, each place once."""
    count = math.prod(shape)
    if count <= MANY:
        return sorted(offsets(shape, stride)) == list(range(count))
    moving = sorted((s, n) for n, s in zip(shape, stride, strict=True) if n != 1)
    return all(s == math.prod(n for _, n in moving[:i]) for i, (s, _) in enumerate(moving))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(max(n, 1) for n in shape[axis + 1 :]) for axis in range(len(shape)))


def is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    plain = zip(shape, stride, row_major(shape), strict=True)
    return 0 in shape or all(n == 1 or s == r for n, s, r in plain)


def may_overlap(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Unless, by ascending stride, each axis steps over all that the axes before it span."""
    if 0 in shape:
        return False
    moving = sorted((abs(s), n) for n, s in zip(shape, stride, strict=True) if n != 1)
    span = 0
    for step, extent in moving:
        if step <= span:
            return True
        span += (extent - 1) * step
    return False


def without_units(shape: Sequence[int]) -> list[int]:
    return [n for n in shape if n != 1]


def tiles_bytes(dim: Sequence[int], stride: Sequence[int]) -> int:
    """128 rows by 4 scales to a tile; the scales of a row lie along the axis of stride 1."""
    *batch, a, b = dim
    rows, scales = (b, a) if stride[-1] != 1 and stride[-2] == 1 else (a, b)
    return math.prod(batch) * -(-rows // 128) * -(-scales // 4) * 512


# ---- Declarations -------------------------------------------------------------------------------


def per_slot(entry: Mapping[str, Any]) -> int:
    return DTYPES[entry["dtype"]][2]


def packed_axis(entry: Mapping[str, Any]) -> int:
    """The axis along which elements of a 4-bit type share slots; -1 for none.

    The first of stride 1 and more than one element whose extent is a multiple for all values of
    the symbols, else the first.
    """
    if per_slot(entry) == 1:
        return -1
    candidates = [
        axis
        for axis, (extent, step) in enumerate(zip(entry["dim"], entry["stride"], strict=True))
        if step == 1 and extent != 1
    ]

    def even(extent: Any) -> bool:
        if isinstance(extent, int):
            return extent % per_slot(entry) == 0
        factors = factors_of(extent)
        return factors is not None and factors[0] % per_slot(entry) == 0

    known = [axis for axis in candidates if even(entry["dim"][axis])]
    return (known or candidates or [-1])[0]


def has_slots(entry: Mapping[str, Any]) -> bool:
    """Whether a table may declare this: what is constant must fit slots."""
    count, packed = per_slot(entry), packed_axis(entry)
    if count == 1:
        return True
    if packed < 0:
        return False
    for axis, (extent, step) in enumerate(zip(entry["dim"], entry["stride"], strict=True)):
        number = extent if axis == packed else step
        moves = axis == packed or (extent != 1 and step != 1)
        if isinstance(number, int) and moves and number % count:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Declared:
    """An operand's declaration for the symbols of a call."""

    entry: Mapping[str, Any]
    elements: Override
    dim: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """Whether the elements fill slots."""
        count, packed = per_slot(self.entry), packed_axis(self.entry)
        return count == 1 or all(
            (n if axis == packed else s if n > 1 else 0) % count == 0
            for axis, (n, s) in enumerate(zip(*self.elements, strict=True))
        )

    def reach(self, dim: Sequence[int], stride: Sequence[int]) -> tuple[int, int]:
        if self.entry.get("reordering_type") == "F8_128x4":
            return 0, tiles_bytes(dim, stride)
        return reach(dim, stride, slot_bytes(self.entry))


def slot_bytes(entry: Mapping[str, Any]) -> int:
    _, bits, lanes = DTYPES[entry["dtype"]]
    return bits * lanes // 8


def declared(entry: Mapping[str, Any], call: Call) -> Declared:
    dim = tuple(call.value(e) for e in entry["dim"])
    stride = tuple(call.value(e) for e in entry["stride"])
    count, packed = per_slot(entry), packed_axis(entry)
    slots = tuple(n // count if axis == packed else n for axis, n in enumerate(dim))
    steps = tuple(
        s // count
        if count > 1 and axis != packed and e != 1 and not (n == 1 and isinstance(e, int) and s % 2)
        else s
        for axis, (n, s, e) in enumerate(zip(dim, stride, entry["stride"], strict=True))
    )
    return Declared(entry, (dim, stride), slots, steps)


# ---- Symbols ------------------------------------------------------------------------------------


def expanded(extent: Any, let: Mapping[str, Any]) -> Any:
    """An extent of numbers and symbols alone."""
    if isinstance(extent, list):
        return [extent[0], *(expanded(part, let) for part in extent[1:])]
    return expanded(let[extent], let) if isinstance(extent, str) and extent in let else extent


def symbols_of(extent: Any) -> list[str]:
    if isinstance(extent, list):
        return [name for part in extent[1:] for name in symbols_of(part)]
    return [extent] if isinstance(extent, str) else []


def factors_of(extent: Any) -> tuple[int, list[str]] | None:
    """An extent as a number times symbols; None for another form."""
    if isinstance(extent, list):
        parts = [factors_of(part) for part in extent[1:]]
        if extent[0] != "mul" or None in parts:
            return None
        known = [part for part in parts if part is not None]
        return math.prod(n for n, _ in known), [name for _, names in known for name in names]
    return (extent, []) if isinstance(extent, int) else (1, [extent])


def solve(extent: Any, value: int, known: Mapping[str, int]) -> dict[str, int] | None:
    """`known` and the one symbol that makes `extent` this value; other forms are compared."""
    factors = factors_of(extent)
    if factors is None:
        names = symbols_of(extent)
        equal = all(name in known for name in names) and Call(dict(known)).value(extent) == value
        return dict(known) if equal else None
    factor, symbols = factors
    factor *= math.prod(known[name] for name in symbols if name in known)
    unknown = [name for name in symbols if name not in known]
    if not unknown:
        return dict(known) if factor == value else None
    if len(unknown) > 1 or factor <= 0 or value % factor:
        return None
    return {**known, unknown[0]: value // factor}


def solve_all(
    extents: Sequence[Any], shape: Sequence[int], known: Mapping[str, int]
) -> dict[str, int] | None:
    """Axis by axis, from the first on."""
    if len(extents) != len(shape):
        return None
    found: dict[str, int] | None = dict(known)
    for extent, value in zip(extents, shape, strict=True):
        found = None if found is None else solve(extent, value, found)
    return found


def alignments(
    extents: Sequence[Any], shape: Sequence[int], units: Sequence[int], known: Mapping[str, int]
) -> list[dict[str, int]]:
    """Every way to fit when either side may have unit axes that the other lacks."""
    if not extents and not shape:
        return [dict(known)]
    found = []
    if extents and shape and (now := solve(extents[0], shape[0] * units[0], known)) is not None:
        found += alignments(extents[1:], shape[1:], units[1:], now)
    if shape and shape[0] == 1:
        found += alignments(extents, shape[1:], units, known)
    if extents and (now := solve(extents[0], units[0], known)) is not None:
        found += alignments(extents[1:], shape, units[1:], now)
    return found


def fit(
    entry: Mapping[str, Any], shape: Sequence[int], known: Mapping[str, int]
) -> dict[str, int] | None:
    """The symbols for which the declaration equals a buffer of these slots, up to unit axes."""
    packed, count = packed_axis(entry), per_slot(entry)
    units = [count if axis == packed else 1 for axis in range(len(entry["dim"]))]
    if len(shape) == len(units):
        elements = [n * unit for n, unit in zip(shape, units, strict=True)]
        if (found := solve_all(entry["dim"], elements, known)) is not None:
            return found
    lasting = [axis for axis, extent in enumerate(entry["dim"]) if extent != units[axis]]
    if len(lasting) == len(shape):
        elements = [n * units[axis] for n, axis in zip(shape, lasting, strict=True)]
        extents = [entry["dim"][axis] for axis in lasting]
        if (found := solve_all(extents, elements, known)) is not None:
            return found
    ways = alignments(entry["dim"], shape, units, known)
    return ways[0] if ways and all(way == ways[0] for way in ways) else None


def need_range(symbols: Mapping[str, Any], values: Mapping[str, int], binder: int | None) -> None:
    for name, row in symbols.items():
        value = values.get(name)
        if value is None:
            continue
        sides = {
            "min": value < row["min"],
            "max": value > row["max"],
            "multiple_of": value % row.get("multiple_of", 1) != 0,
        }
        for side, wrong in sides.items():
            if wrong:
                raise Refused("symbol_range", binder, f"symbols.{name}.{side}")


def bind_symbols(
    table: Mapping[str, Any],
    bound: Mapping[int, Bound],
    given: Mapping[str, int],
    overrides: Mapping[int, Override],
) -> dict[str, int]:
    """Of the call, else of its overrides, else of the lowest uid that fits."""
    symbols = table["symbols"]
    entries = {entry["uid"]: entry for entry in table["operands"]}
    known = dict(given)
    need_range(symbols, known, None)
    for uid, (shape, _) in overrides.items():
        if (found := solve_all(entries[uid]["dim"], shape, known)) is not None:
            known = found
            need_range(symbols, known, uid)
    other_width: int | None = None
    for uid, entry in entries.items():
        held = bound.get(uid)
        if not isinstance(held, Held) or entry.get("ragged") or is_reordered(entry):
            continue
        if all(name in known for extent in entry["dim"] for name in symbols_of(extent)):
            continue
        if (found := fit(entry, held.shape, known)) is None:
            continue
        if held.width != 8 * slot_bytes(entry):
            other_width = uid if other_width is None else other_width
            continue
        known = found
        need_range(symbols, known, uid)
    if any(name not in known for name in symbols):
        raise Refused(
            *(("symbol_unbound", None) if other_width is None else ("dtype", other_width))
        )
    return known


def is_reordered(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("reordering_type") == "F8_128x4")


# ---- One operand --------------------------------------------------------------------------------


def reads_as(given: tuple[int, int, int], wanted: tuple[int, int, int]) -> bool:
    same_width = given[1] * given[2] == wanted[1] * wanted[2]
    return given == wanted or (given[0] in (UINT, OPAQUE) and same_width)


def need_dtype(entry: Mapping[str, Any], held: Held, spelled: bool) -> None:
    """A buffer of another width is a blob, unless it spells the declared extents."""
    if not reads_as(held.dtype, DTYPES[entry["dtype"]]):
        if spelled or held.width == 8 * slot_bytes(entry):
            raise Refused("dtype", entry["uid"])


def own_layout(said: Declared, held: Held) -> Slots:
    """The caller's strides on axes that move, which are those of both sides in order."""
    dim, stride = said.dim, list(said.stride)
    if 0 not in dim:
        if held.shape == dim:
            theirs = list(held.stride)
        else:
            moving = (s for n, s in zip(held.shape, held.stride, strict=True) if n != 1)
            theirs = [1 if n == 1 else next(moving) for n in dim]
        stride = [s if n == 1 else t for n, s, t in zip(dim, stride, theirs, strict=True)]
    below, above = reach(dim, stride, slot_bytes(said.entry))
    gaps = math.prod(dim) * slot_bytes(said.entry) < below + above
    return Slots(dim, tuple(stride), below + above, below, held.address, has_gaps=gaps)


def as_declared(said: Declared, held: Held) -> Slots:
    have = math.prod(held.shape) * held.width // 8
    if have < sum(said.reach(said.dim, said.stride)) and not said.entry.get("ragged"):
        spelled = len(held.shape) == len(said.dim) and not is_reordered(said.entry)
        raise Refused("extents" if spelled else "capacity", said.entry["uid"])
    return Slots(said.dim, said.stride, have, 0, held.address, True)


def need_meant(said: Declared, held: Held, given: set[str], overridden: bool) -> None:
    """A buffer of the declared rank that differs where symbols are spells another value of them."""
    entry = said.entry
    if len(held.shape) != len(said.dim) or entry.get("ragged"):
        return
    if held.width != 8 * slot_bytes(entry) or sum(n > 1 for n in held.shape) < 2:
        return
    differ = [axis for axis, n in enumerate(held.shape) if n != said.dim[axis]]
    names = [symbols_of(entry["dim"][axis]) for axis in differ]
    if not all(names):
        return
    said_so = overridden or all(name in given for row in names for name in row)
    axes = zip(held.shape, held.stride, said.dim, said.stride, strict=True)
    lies_in = all(n >= d and (d <= 1 or s == t) for n, s, d, t in axes)
    if not (said_so and lies_in):
        raise Refused("extents", entry["uid"])


def normalise(
    said: Declared, held: Held | int, given: set[str], overridden: bool, symbolic: bool
) -> Slots:
    """An operand that the call does not override."""
    entry = said.entry
    if not said.whole:
        raise Refused("extents", entry["uid"])
    if isinstance(held, int):
        below, above = said.reach(said.dim, said.stride)
        return Slots(said.dim, said.stride, below + above, below, held, True)
    spelled = without_units(held.shape) == without_units(said.dim)
    if is_reordered(entry):
        need_dtype(entry, held, spelled)
        if not is_dense(held.shape, held.stride):
            raise Refused("extents", entry["uid"])
        return as_declared(said, held)
    need_dtype(entry, held, spelled)
    if held.shape == said.dim:
        return own_layout(said, held)
    if symbolic and not spelled:
        need_meant(said, held, given, overridden)
    if spelled and not is_contiguous(held.shape, held.stride):
        return own_layout(said, held)
    if not spelled and not is_dense(held.shape, held.stride):
        raise Refused("extents", entry["uid"])
    if per_slot(entry) > 1 and not spelled and held.width == 8:
        if without_units(held.shape) == without_units(said.elements[0]):
            raise Refused("extents", entry["uid"])  # one element to a byte
    return as_declared(said, held)


def override_slots(said: Declared, override: Override) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The extents and strides of an override, in slots."""
    shape, stride = override
    count = per_slot(said.entry)
    if 0 in shape:
        if not said.whole:
            raise Refused("extents", said.entry["uid"])
        return said.dim, said.stride
    packed = -1
    if count > 1:
        steps = [a for a, (n, s) in enumerate(zip(shape, stride, strict=True)) if s == 1 != n]
        packed = steps[0] if steps else -1
        others = [s for a, (n, s) in enumerate(zip(shape, stride, strict=True))
                  if n != 1 and a != packed]  # fmt: skip
        if packed < 0 or any(number % count for number in [shape[packed], *others]):
            raise Refused("override", said.entry["uid"])
    dim = tuple(n // count if axis == packed else n for axis, n in enumerate(shape))
    strides = tuple(
        kept if n == 1 else s if count == 1 or axis == packed else s // count
        for axis, (n, s, kept) in enumerate(zip(dim, stride, said.stride, strict=True))
    )
    return dim, strides


def keeps_to_elements(dim: Sequence[int], stride: Sequence[int], held: Held) -> bool:
    """Whether each axis that moves is one of the buffer's axes, or the start of one."""
    moving = [(n, s) for n, s in zip(dim, stride, strict=True) if n > 1]
    axes = [(n, s) for n, s in zip(held.shape, held.stride, strict=True) if n > 1]
    return any(
        all(n <= m and s == t for (n, s), (m, t) in zip(moving, chosen, strict=True))
        for chosen in itertools.permutations(axes, len(moving))
    )


def normalise_override(said: Declared, held: Held | int, override: Override) -> Slots:
    entry = said.entry
    if any(step < 0 for step in override[1]):
        raise Refused("override", entry["uid"])
    dim, stride = override_slots(said, override)
    below, above = said.reach(dim, stride)
    if isinstance(held, int):
        return Slots(dim, stride, below + above, below, held)
    need_dtype(entry, held, without_units(held.shape) == without_units(dim))
    if held.width % 8 == 0:
        before, after = reach(held.shape, held.stride, held.width // 8)
    else:
        dense = is_dense(held.shape, held.stride)
        before, after = 0, math.prod(held.shape) * held.width // 8 if dense else 0
    if below > before or above > after:
        raise Refused("capacity", entry["uid"])
    gaps = not is_dense(held.shape, held.stride)
    if gaps:
        written = entry["kind"] == "output"
        same = held.width == 8 * slot_bytes(entry)
        if is_reordered(entry) or (written and not (same and keeps_to_elements(dim, stride, held))):
            raise Refused("capacity", entry["uid"])
    return Slots(dim, stride, before + after, before, held.address, has_gaps=gaps)


# ---- A call -------------------------------------------------------------------------------------


def need_device(table: Mapping[str, Any], bound: Mapping[int, Bound]) -> None:
    first: int | None = None
    for entry in table["operands"]:
        uid, held = entry["uid"], bound.get(entry["uid"])
        if entry["kind"] == "scalar":
            continue
        if held is None:
            if entry.get("optional"):
                continue
            raise Refused("presence", uid)
        if isinstance(held, int):
            continue
        assert isinstance(held, Held)
        if held.readonly and entry["kind"] == "output":
            raise Refused("readonly", uid)
        kind, ordinal = held.device
        if kind == MANAGED:
            continue
        if table["device"] == "cpu":
            if kind not in (CPU, PINNED):
                raise Refused("device", uid)
        elif kind != CUDA or first not in (None, ordinal):
            raise Refused("device", uid)
        else:
            first = ordinal


INTEGERS = {
    "INT8": (-(2**7), 2**7 - 1), "INT32": (-(2**31), 2**31 - 1), "INT64": (-(2**63), 2**63 - 1),
    "UINT8": (0, 255), "BOOLEAN": (0, 1),
}  # fmt: skip


def need_number(entry: Mapping[str, Any], number: Bound) -> None:
    if number is None:
        if entry["value"] is None:
            raise Refused("presence", entry["uid"])
    elif entry["dtype"] in INTEGERS:
        low, high = INTEGERS[entry["dtype"]]
        if not isinstance(number, int) or not low <= number <= high:
            raise Refused("dtype", entry["uid"])


def pack(
    table: Mapping[str, Any],
    bound: Mapping[int, Bound],
    given: Mapping[str, int] | None = None,
    overrides: Mapping[int, Override] | None = None,
) -> tuple[dict[str, int], dict[int, Slots]]:
    """The symbols of a call and its operands by uid, absent ones left out; or `Refused`."""
    given, overrides = given or {}, overrides or {}
    need_device(table, bound)
    if let := table.get("let"):
        fields = ("dim", "stride")
        rows = [
            row | {name: [expanded(e, let) for e in row[name]] for name in fields if name in row}
            for row in table["operands"]
        ]
        table = {**table, "operands": rows}
    known = bind_symbols(table, bound, given, overrides) if table["symbols"] else {}
    call = Call(known, let=table.get("let", {}))
    out: dict[int, Slots] = {}
    for entry in table["operands"]:
        uid, held = entry["uid"], bound.get(entry["uid"])
        if entry["kind"] == "scalar":
            need_number(entry, held)
            continue
        said = declared(entry, call)
        override = overrides.get(uid)
        if override is not None and override[0] != said.elements[0]:
            raise Refused("extents", uid)
        if held is None:
            continue
        assert isinstance(held, Held | int)
        if override is None:
            slots = normalise(said, held, set(given), bool(overrides), bool(table["symbols"]))
        else:
            slots = normalise_override(said, held, override)
        if entry["kind"] == "output" and not is_reordered(entry):
            if may_overlap(slots.dim, slots.stride):
                raise Refused("overlap", uid)
        if slots.address == 0 and slots.nbytes > 0:
            raise Refused("presence", uid, f"operand {uid}: null")
        if slots.address % slot_bytes(entry):
            raise Refused("alignment", uid)
        out[uid] = slots
    return known, out
