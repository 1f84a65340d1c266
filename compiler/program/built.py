"""A plan that can be executed in this process, and what it was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cudnn_aot.cache.spec import KernelSpec
from cudnn_aot.compiler.graph.enums import behavior_note, numerical_note
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning.engine import Note
from cudnn_aot.compiler.planning.planned import Planned, PlannedRange
from cudnn_aot.runtime.plan import Plan


@dataclass(frozen=True, slots=True)
class Bound:
    """With which values the plan of a symbolic graph is that of a case of it."""

    symbols: Mapping[str, int] = field(hash=False)
    scalars: Mapping[int, int | float] = field(hash=False)  # by uid


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan record with everything it needs at hand, not loaded yet.

    Attributes:
        record: as a store holds it.
        planned: the same, as the planner gives it.
        read_blob: the bytes of a kernel by their digest, checked.
        bound: if the record is that of a symbolic graph of which this graph is a case.
    """

    record: Mapping[str, Any] = field(hash=False)
    planned: Planned
    read_blob: Callable[[str], bytes]
    bound: Bound | None = None


@dataclass(frozen=True, slots=True)
class BuiltPlan:
    """A loaded plan. ``execute`` of ``plan`` is what runs it."""

    stored: StoredPlan
    plan: Plan


def load(stored: StoredPlan, graph: Graph) -> BuiltPlan:
    """Check the host and load the kernels.

    Raises:
        RequirementError: this host cannot run it; nothing of it was loaded.
        StoreError: a kernel is missing or damaged, or the record cannot be read.
    """
    name = graph.name or graph.key()
    plan = Plan(name, graph.uids(), stored.record, stored.read_blob)
    if stored.bound is not None:
        plan = plan.bind(stored.bound.symbols, stored.bound.scalars)
    return BuiltPlan(stored, plan)


def planned_of(
    record: Mapping[str, Any], specs: Sequence[Mapping[str, Any]], bound: Bound | None = None
) -> Planned:
    """A record's plan as the planner gave it; ``specs`` are those of its kernels, in order.

    Of a bound plan: with the engine and knobs that serve its values, and no ranges, so that it has
    the place of a plan of the concrete graph.

    Raises:
        LookupError, TypeError, ValueError: it is no record, a spec is not of its kernel, or no
            range has the values that it is bound to.
    """
    kernels = []
    for kernel, spec in zip(record["kernels"], specs, strict=True):
        fields = {name: value for name, value in spec.items() if name != "version"}
        made = KernelSpec(**{**fields, "options": tuple(fields["options"])})
        if made.key != kernel["key"]:
            raise ValueError(f"kernel {kernel['key']} has the spec of another")
        kernels.append(made)
    ranges = tuple(
        PlannedRange(
            {symbol: (low, high) for symbol, (low, high) in part["bounds"].items()},
            part["engine"]["id"],
            part["engine"]["name"],
            dict(part["knobs"]),
        )
        for part in record.get("ranges", ())
    )
    serving = record
    if bound is not None and ranges:
        fitting = [
            place
            for place, part in enumerate(ranges)
            if all(lo <= bound.symbols[name] <= hi for name, (lo, hi) in part.bounds.items())
        ]
        serving = record["ranges"][fitting[0]]
    return Planned(
        serving["engine"]["id"],
        serving["engine"]["name"],
        dict(serving["knobs"]),
        tuple(kernels),
        record["table"],
        ranges if bound is None else (),
        notes=frozenset(map(_note, record["notes"])) if "notes" in record else None,
    )


def _note(name: str) -> Note:
    return behavior_note[name] if name in behavior_note.__members__ else numerical_note[name]
