"""What differs between the cuDNN frontend and this package, one line of text per difference.

A line is ``<area>: <where>: <what>``, which the rows of `parity_differences` match.
"""

from collections.abc import Iterator, Mapping
from enum import EnumType
from typing import Any

from surface import REQUIRED, parameters

import cudnn_aot
from cudnn_aot.compiler.graph.extents import packed
from cudnn_aot.compiler.graph.op import Op
from cudnn_aot.compiler.graph.ops.table import OPS


def names(theirs: Mapping[str, Any]) -> Iterator[str]:
    """Public names of the module, of a graph and of a tensor that are not here."""
    for area, wanted, ours in (
        ("module", theirs["names"], cudnn_aot),
        ("kernel", theirs["kernels"], cudnn_aot),
        ("graph", theirs["graph"], cudnn_aot.pygraph),
        ("tensor", theirs["tensor"], cudnn_aot.Tensor),
    ):
        yield from (f"{area}: {name}: absent" for name in wanted if not hasattr(ours, name))


def enums(theirs: Mapping[str, Any]) -> Iterator[str]:
    """Members and values of enums."""
    for name, members in theirs["enums"].items():
        ours = getattr(cudnn_aot, name, None)
        if isinstance(ours, EnumType):
            found = {member.name: member.value for member in ours}
            for member in sorted(members.keys() | found.keys()):
                if members.get(member) != found.get(member):
                    yield f"enum: {name}.{member}: {members.get(member)}, here {found.get(member)}"


def methods(theirs: Mapping[str, Any]) -> Iterator[str]:
    """Signatures of what is not an op."""
    for owner, functions in ((cudnn_aot.pygraph, "methods"), (cudnn_aot, "functions")):
        for name, rows in theirs[functions].items():
            yield from _signature("call", name, rows, parameters(getattr(owner, name)))


def builders(theirs: Mapping[str, Any]) -> Iterator[str]:
    """Signatures of the ops' builders: names, order, defaults."""
    yield from (f"op: {name}: absent" for name in theirs["ops"] if name not in OPS)
    yield from (f"op: {name}: only here" for name in OPS if name not in theirs["ops"])
    for name, row in theirs["ops"].items():
        spec = OPS[name]
        ours = parameters(getattr(cudnn_aot.pygraph, name))
        defaults = {each: default for each, default, _ in ours}
        positional = [each for each, _, kind in ours if kind == "positional"]
        if positional != row["positional"]:
            yield f"op: {name}: takes {row['positional']} in this order, here {positional}"
        keyword = defaults.keys() - positional
        for each in sorted(keyword ^ set(row["keyword"])):
            whose = "absent" if each in row["keyword"] else "only here"
            yield f"op: {name}.{each}: {whose}"
        if row["outputs"] is not None:
            outputs = [output.name for output in spec.outputs]
            if outputs != row["outputs"]:
                yield f"op: {name}: gives {row['outputs']}, here {outputs}"
        for each, default in row["defaults"].items():
            if each in defaults:
                ours_is = REQUIRED if _is_required(spec, each) else defaults[each]
                if default != ours_is:
                    yield f"op: {name}.{each}: {_default(default)}, here {_default(ours_is)}"


def _is_required(spec: Op, name: str) -> bool:
    """Whether a node is refused without the parameter, whatever its signature shows."""
    port = next((port for port in spec.ports if port.name == name), None)
    if port is not None:
        return not (port.optional or port.is_result)
    return spec.has_attr(name) and spec.attr(name).required


def _default(value: Any) -> str:
    return "required" if value == REQUIRED else f"default {value!r}"


def _signature(area: str, name: str, theirs: list[Any], ours: list[Any]) -> Iterator[str]:
    known = {row[0]: row for row in ours}
    for each, default, kind in theirs:
        if each not in known:
            yield f"{area}: {name}.{each}: absent"
        elif known[each][2] != kind:
            yield f"{area}: {name}.{each}: {kind}, here {known[each][2]}"
        elif known[each][1] != default:
            yield (f"{area}: {name}.{each}: {_default(default)}, here {_default(known[each][1])}")
    order = [row[0] for row in theirs if row[0] in known]
    if order != [row[0] for row in ours if row[0] in order]:
        yield f"{area}: {name}: other order"
    declared = {row[0] for row in theirs}
    yield from (f"{area}: {name}.{row[0]}: only here" for row in ours if row[0] not in declared)


def answers(call: Mapping[str, Any], theirs: Any, ours: Any) -> Iterator[str]:
    """What one call does: what is refused, returned, and inferred."""
    op = call["op"]
    if "error" in theirs or "error" in ours:
        if theirs.get("error") != ours.get("error"):
            case = "".join(name for name in call["kwargs"] if name == "no_such_keyword")
            answers = f"raises {theirs.get('error')}, here {ours.get('error')}"
            yield f"answer: {op}: {case or 'its own keywords'}: {answers}"
        return
    if theirs["is_list"] != ours["is_list"]:
        yield f"answer: {op}: a list is {theirs['is_list']}, here {ours['is_list']}"
    for when in ("built", "validated"):
        for left, right in zip(theirs[when], ours[when], strict=True):
            yield from _tensors(op, when, left, right)
    for field, value in theirs["node"].items():
        if field == "inputs" and OPS[op].is_pointwise:
            value = dict(zip(OPS[op].inputs, value.values(), strict=True))  # IN_0, IN_1, IN_2
        if value != ours["node"][field]:
            yield f"answer: {op}: node has {field} {value}, here {ours['node'][field]}"


def behaviours(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    """What lines of a program see, beside the ops."""
    for what, value in theirs.items():
        if value != ours[what]:
            yield f"line: {what}: {value}, here {ours[what]}"


def _order(dim: list[int], stride: list[int]) -> str:
    """Which way dense strides run, in words."""
    rank = len(dim)
    inward = [0, *range(2, rank), 1] if rank > 1 else [0]
    for word, order in (("row-major", list(range(rank))), ("channels last", inward)):
        if list(packed(dim, order)) == stride:
            return word
    return "of another order"


def _tensors(op: str, when: str, theirs: Any, ours: Any) -> Iterator[str]:
    if theirs is None or ours is None:
        if theirs is not ours:
            yield f"answer: {op}: {when}: a result exists only {'here' if ours else 'there'}"
        return
    for field, value in theirs.items():
        if value == ours[field]:
            continue
        if field in ("dim", "stride") and not theirs["dim"]:
            if field == "dim":
                yield f"answer: {op}: {when}: extents are known only here"
        elif field == "stride":
            kinds = [_order(each["dim"], each["stride"]) for each in (theirs, ours)]
            yield f"answer: {op}: {when}: strides {kinds[0]}, here {kinds[1]}"
        elif field == "data_type" and value is None:
            yield f"answer: {op}: {when}: data_type is {ours[field]} only here"
        else:
            yield f"answer: {op}: {when}: {field} differs"
