"""A whole call of a launch table in plain Python: what refuses it, or the branch that takes it.

After the pack (`pack_model`) come the checks, dispatch, workspace and the steps of the branch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pack_model
from pack_model import CPU, MANAGED, PINNED, Bound, Held, Override, Refused, Slots
from table_model import Bound as Seen
from table_model import Call

DIVISIONS = ("floor_div", "ceil_div", "mod", "round_up")


@dataclass(frozen=True)
class CheckedCall(Call):
    """Refuses what does not fit int64, and divisors that are not positive."""

    known: dict[int, int] = field(default_factory=dict)  # by identity: names are used many times

    def value(self, e: Any) -> int:
        if isinstance(e, int):
            return e
        if id(e) in self.known:
            return self.known[id(e)]
        if isinstance(e, list) and e[0] in DIVISIONS and self.value(e[2]) <= 0:
            raise Refused("arithmetic", None)
        found = super().value(e)
        if not -(2**63) <= found < 2**63:
            raise Refused("arithmetic", None)
        self.known[id(e)] = found
        return found

    def holds(self, p: Any) -> bool:
        if isinstance(p, list) and p[0] == "divides" and self.value(p[1]) <= 0:
            raise Refused("arithmetic", None)
        return super().holds(p)


def judge(
    table: Mapping[str, Any],
    bound: Mapping[int, Bound],
    given: Mapping[str, int],
    overrides: Mapping[int, Override],
    workspace: Bound,
) -> str:
    """The branch that takes the call; `Refused` by the first rule that it breaks."""
    known, operands = pack_model.pack(table, bound, given, overrides)
    seen = {
        uid: Seen(row.dim, row.stride, row.address, row.nbytes) for uid, row in operands.items()
    }
    # Extents can be asked of an operand that is not there.
    for entry in table["operands"]:
        if entry["kind"] != "scalar" and entry["uid"] not in operands:
            said = pack_model.declared(entry, Call(known, let=table.get("let", {})))
            seen[entry["uid"]] = Seen(said.dim, said.stride, 0, 0)
    call = PresentCall(known, seen, let=table.get("let", {}), present=frozenset(operands))
    for index, check in enumerate(table["checks"]):
        need(check, f"checks[{index}]", call)
    name = call.branch(table)  # type: ignore[arg-type]
    if name is None:
        raise Refused("no_branch", None)
    branch = table["branches"][name]
    slices = carve(branch, f"branches.{name}.workspace", workspace, call)
    for index, step in enumerate(branch["steps"]):
        run(table, step, f"branches.{name}.steps[{index}]", operands, slices, call)
    return name


@dataclass(frozen=True)
class PresentCall(CheckedCall):
    """Knows the extents of absent operands too."""

    present: frozenset[int] = frozenset()

    def holds(self, p: Any) -> bool:
        if isinstance(p, list) and p[0] == "present":
            return p[1] in self.present
        return super().holds(p)


def need(check: Mapping[str, Any], place: str, call: PresentCall) -> None:
    rule, uid = check["rule"], check.get("operand")

    def refuse_if(wrong: bool, side: str = "") -> None:
        if wrong:
            raise Refused(rule, uid, f"{place}{side}")

    match rule:
        case "alignment":
            refuse_if(call.operands[uid].address % check["bytes"] != 0)
        case "unit_stride":
            row = call.operands[uid]
            refuse_if(row.dim[check["axis"]] > 1 and row.stride[check["axis"]] != 1)
        case "divisible":
            value, by = call.value(check["expr"]), call.value(check["by"])
            if by <= 0:
                raise Refused("arithmetic", None, place)
            refuse_if(value % by != 0)
        case "range":
            value = call.value(check["expr"])
            low, high = call.value(check["min"]), call.value(check["max"])
            refuse_if(value < low, ".min")
            refuse_if(value > high, ".max")
        case "equal":
            a, b = call.value(check["a"]), call.value(check["b"])
            refuse_if(a < b, ".less")
            refuse_if(a > b, ".more")
        case _:
            raise ValueError(f"no such check: {rule!r}")


def carve(branch: Mapping[str, Any], place: str, given: Bound, call: Call) -> dict[str, int]:
    """Bytes of each slice; the workspace must hold them all."""
    sizes: dict[str, int] = {}
    end = 0
    for piece in branch["workspace"]:
        sizes[piece["name"]] = call.value(piece["bytes"])
        if sizes[piece["name"]] < 0:
            raise Refused("workspace", None, f"{place}.{piece['name']}")
        end = -(-end // piece["align"]) * piece["align"] + sizes[piece["name"]]
    if end == 0:
        return sizes
    align = max(piece["align"] for piece in branch["workspace"])

    def refuse_if(wrong: bool, why: str) -> None:
        if wrong:
            raise Refused("workspace", None, f"{place}: {why}")

    if given is None or given == 0:
        raise Refused("workspace", None, f"{place}: none")
    if isinstance(given, int):
        refuse_if(given % align != 0, "align")
        return sizes
    assert isinstance(given, Held)
    refuse_if(given.address == 0, "none")
    refuse_if(given.readonly, "readonly")
    refuse_if(given.device[0] not in (CPU, PINNED, MANAGED), "device")
    refuse_if(not pack_model.is_dense(given.shape, given.stride), "gaps")
    room = math.prod(given.shape) * given.width // 8
    refuse_if(room - -given.address % align < end, "bytes")
    return sizes


def run(
    table: Mapping[str, Any],
    step: Mapping[str, Any],
    place: str,
    operands: Mapping[int, Slots],
    slices: Mapping[str, int],
    call: Call,
) -> None:
    """What binding a step refuses."""
    entries = {entry["uid"]: entry for entry in table["operands"]}
    match step["step"]:
        case "backend":
            for uid in step["uids"]:
                if entries[uid]["kind"] != "scalar" and uid not in operands:
                    raise Refused("presence", uid, place)
        case "fill":
            uid = step.get("operand")
            if uid is not None and uid not in operands:
                return
            room = operands[uid].nbytes - operands[uid].below if uid else slices[step["slice"]]
            count = call.value(step["bytes"])
            if count < 0:
                raise Refused("capacity", uid, f"{place}.min")
            if count > room:
                raise Refused("capacity", uid, f"{place}.max")
            if count % step["width"]:
                raise Refused("capacity", uid, f"{place}.width")
            if uid is not None and operands[uid].has_gaps and count > 0:
                raise Refused("capacity", uid, f"{place}.gaps")
        case "kernel":
            for index, argument in enumerate(step["args"]):
                spot = f"{place}.args[{index}]"
                if argument["arg"] == "int":
                    call.value(argument["value"])
                elif argument["arg"] == "tensor":
                    view(entries, argument, spot, operands, slices, call)
        case other:
            raise ValueError(f"no such step: {other!r}")


def view(
    entries: Mapping[int, Mapping[str, Any]],
    argument: Mapping[str, Any],
    place: str,
    operands: Mapping[int, Slots],
    slices: Mapping[str, int],
    call: Call,
) -> None:
    """A view lies between the first and the last byte of what it is of."""
    uid = argument.get("operand")
    dim = [call.value(e) for e in argument["dim"]]
    stride = [call.value(e) for e in argument["stride"]]
    offset = call.value(argument.get("offset", 0))
    if uid is None:
        below, above = 0, slices[argument["slice"]]
    elif uid not in operands:
        raise Refused("presence", uid, place)
    else:
        below = operands[uid].below
        above = operands[uid].nbytes - below
    if any(extent < 0 for extent in dim):
        raise Refused("extents", uid, place)
    if 0 in dim:
        return
    _, bits, lanes = pack_model.DTYPES[argument.get("dtype") or entries[uid or 0]["dtype"]]
    low, high = pack_model.ends(tuple(dim), tuple(stride))
    width = bits * lanes // 8
    if (low + offset) * width < -below:
        raise Refused("capacity", uid, f"{place}.first")
    if (high + 1 + offset) * width > above:
        raise Refused("capacity", uid, f"{place}.last")
