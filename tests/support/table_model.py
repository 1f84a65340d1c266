"""Expressions, predicates and dispatch of a launch table in plain Python: slow, obviously right."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bound:
    """One bound buffer after normalisation."""

    dim: tuple[int, ...]
    stride: tuple[int, ...]
    address: int = 1 << 20
    nbytes: int = 0


@dataclass(frozen=True)
class Call:
    """What the expressions of a table can read in one call."""

    symbols: dict[str, int] = field(default_factory=dict)
    operands: dict[int, Bound] = field(default_factory=dict)
    attributes: dict[str, int] = field(default_factory=lambda: {"sm_count": 132})
    let: dict[str, Any] = field(default_factory=dict)

    def value(self, e: Any) -> int:
        if isinstance(e, int):
            return e
        if isinstance(e, str):
            return self.symbols[e] if e in self.symbols else self.value(self.let[e])
        head, *rest = e
        match head:
            case "dim":
                return self.operands[rest[0]].dim[rest[1]]
            case "stride":
                return self.operands[rest[0]].stride[rest[1]]
            case "nbytes":
                return self.operands[rest[0]].nbytes
            case "attr":
                return self.attributes[rest[0]]
            case "select":
                return self.value(rest[1] if self.holds(rest[0]) else rest[2])
        values = [self.value(x) for x in rest]
        match head:
            case "add":
                return sum(values)
            case "mul":
                return math.prod(values)
            case "min":
                return min(values)
            case "max":
                return max(values)
            case "sub":
                return values[0] - values[1]
            case "floor_div":
                return values[0] // values[1]
            case "ceil_div":
                return -(-values[0] // values[1])
            case "mod":
                return values[0] % values[1]
            case "round_up":
                return -(-values[0] // values[1]) * values[1]
        raise ValueError(f"no such expression: {e!r}")

    def holds(self, p: Any) -> bool:
        if isinstance(p, bool):
            return p
        head, *rest = p
        match head:
            case "present":
                return rest[0] in self.operands
            case "aligned":
                return rest[0] not in self.operands or not self.operands[rest[0]].address % rest[1]
            case "and":
                return all(self.holds(x) for x in rest)
            case "or":
                return any(self.holds(x) for x in rest)
            case "not":
                return not self.holds(rest[0])
        a, b = (self.value(x) for x in rest)
        match head:
            case "eq":
                return a == b
            case "lt":
                return a < b
            case "le":
                return a <= b
            case "divides":
                return b % a == 0
        raise ValueError(f"no such predicate: {p!r}")

    def branch(self, table: dict[str, Any]) -> str | None:
        """The branch that the table's dispatch takes, or None."""
        for entry in table["dispatch"]:
            if self.holds(entry["when"]):
                return str(entry["branch"])
        return None

    def workspace_bytes(self, branch: dict[str, Any]) -> int:
        end = 0
        for piece in branch["workspace"]:
            start = -(-end // piece["align"]) * piece["align"]
            end = start + self.value(piece["bytes"])
        return end


def declared(table: dict[str, Any], symbols: dict[str, int], **changes: Any) -> Call:
    """A call whose buffers are laid out as declared; ``changes`` edits bounds by ``u<uid>``.

    A change of None leaves the operand out.
    """
    call = Call(symbols, let=table.get("let", {}))
    operands: dict[int, Bound] = {}
    for entry in table["operands"]:
        if entry["kind"] == "scalar":
            continue
        change = changes.get(f"u{entry['uid']}", {})
        if change is None:
            continue
        dim = tuple(call.value(e) for e in entry["dim"])
        stride = tuple(call.value(e) for e in entry["stride"])
        bound = Bound(dim, stride, nbytes=2 * math.prod(dim))
        operands[entry["uid"]] = Bound(**(_fields(bound) | change))
    return Call(symbols, operands, let=call.let)


def _fields(bound: Bound) -> dict[str, Any]:
    return {name: getattr(bound, name) for name in ("dim", "stride", "address", "nbytes")}
