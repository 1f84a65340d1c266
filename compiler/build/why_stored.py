"""What a store holds of a graph on a target, and why a build would make it again.

A plan key is one digest, so it cannot be asked which of its parts differs. What can be compared is:
the kernels' specs hold architecture, host, tools and source digests, and a key without the tuning
file is as quickly made. What is left is the planner, the recipe, or a number of the target.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from cudnn_aot.cache.layout import providers_of
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.spec import why_not_current
from cudnn_aot.compiler.build.nearest import Nearest, nearest_entry
from cudnn_aot.compiler.build.sources import Source
from cudnn_aot.compiler.build.stored import stored_plan
from cudnn_aot.compiler.planning.knobs import plan_name
from cudnn_aot.compiler.planning.plan import plan_key
from cudnn_aot.compiler.planning.ranges import bound_words
from cudnn_aot.compiler.planning.tuning import Tuning
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import NotInStoreError, StoreError


class Held(str, Enum):
    """How a store stands to a graph on a target."""

    CURRENT = "current"  # a build would take it as it is
    STALE = "stale"  # whole, and made from something that has changed since
    DAMAGED = "damaged"  # a byte of it is missing, changed or cannot be read
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """What a store holds of a graph.

    Attributes:
        plan: name of the stored plan; empty for a decline and for what is absent.
        is_declined: what is stored is a decline.
        reasons: what has changed, what is damaged, or why it was declined.
        other_targets: further targets that a plan of the graph is stored for.
        declined_targets: further targets for which the graph is stored as declined.
        nearest: of an absent graph, the stored one that is most like it.
        graphs: number of graphs that are stored for the target.
    """

    store: str
    held: Held
    plan: str = ""
    is_declined: bool = False
    reasons: tuple[str, ...] = ()
    other_targets: tuple[str, ...] = ()
    declined_targets: tuple[str, ...] = ()
    nearest: Nearest | None = None
    graphs: int = 0


def explain_stored(
    reader: StoreReader, source: Source, target: Target, tuning: Tuning | None = None
) -> StoreAnswer:
    """What the store holds of a graph on a target, compared with what a build would make now."""
    pointers = reader.pointers()
    others = [name for name, key in pointers if key == source.key and name != target.name]
    built, declined = _other_targets(reader, source.key, others)
    answer = partial(StoreAnswer, str(reader.path), other_targets=built, declined_targets=declined)
    try:
        pointer = reader.pointer(target.name, source.key)
        native = providers_of(pointer).get("native")
        if native is None:
            raise NotInStoreError("only plans of other providers are stored")
    except NotInStoreError:
        return answer(
            Held.ABSENT,
            nearest=nearest_entry(reader, target.name, source.name, source.graph),
            graphs=sum(owner == target.name for owner, _ in pointers),
        )
    except StoreError as error:
        return answer(Held.DAMAGED, reasons=(str(error),))
    today = plan_key(source.graph, target, tuning=tuning)
    found = stored_plan(reader, target.name, source.key, today)
    if found is not None:
        return answer(
            Held.CURRENT,
            plan=_name(found.record) if found.record else "",
            is_declined=found.record is None,
            reasons=found.reasons,
        )
    try:
        record = _whole_record(reader, pointer["graph"], native["records"])
        changed = tuple(dict.fromkeys(_changes(reader, native, record, today, target)))
        if tuning is not None and native["plan_key"] == plan_key(source.graph, target):
            changed = ("the tuning file says something of this graph, and it was built without",)
    except (StoreError, KeyError, IndexError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, StoreError) else "its plan record cannot be read"
        return answer(Held.DAMAGED, reasons=(reason,))
    return answer(
        Held.STALE,
        plan=_name(record) if record else "",
        is_declined=not record,
        reasons=changed,
    )


def _other_targets(
    reader: StoreReader, graph_key: str, targets: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those with a plan of a graph, and those that have it as declined."""
    built: list[str] = []
    declined: list[str] = []
    for target in targets:
        try:
            pointer = reader.pointer(target, graph_key)
        except StoreError:
            continue  # `verify` tells
        (built if pointer.get("records") else declined).append(target)
    return tuple(built), tuple(declined)


def _name(record: Mapping[str, Any]) -> str:
    """The name of a stored plan, one of each range where they differ."""
    ranges = record.get("ranges", [])
    if not ranges:
        return plan_name(record["engine"]["name"], tuple(record["knobs"].items()))
    return "; ".join(f"{_bounds(part['bounds'])}: {_name(part)}" for part in ranges)


def _bounds(bounds: Mapping[str, list[int]]) -> str:
    return ", ".join(bound_words(name, low, high) for name, (low, high) in bounds.items())


def _whole_record(reader: StoreReader, graph: str, digests: Sequence[str]) -> dict[str, Any]:
    """The best plan record, once every byte that it needs was read; ``{}`` of a decline."""
    reader.blob(graph)
    records = [json.loads(reader.blob(digest)) for digest in digests]
    for record in records:
        for kernel in record["kernels"]:
            reader.kernel(kernel["key"])
            reader.blob(kernel["blob"])
    return dict(records[0]) if records else {}


def _changes(
    reader: StoreReader,
    native: Mapping[str, Any],
    record: Mapping[str, Any],
    today: str,
    target: Target,
) -> Iterator[str]:
    """What has changed since a plan was stored, in sentences."""
    is_replanned = native["plan_key"] != today
    specs = [reader.kernel(kernel["key"])["spec"] for kernel in record.get("kernels", [])]
    has_other_target = False
    for spec in specs:
        flavor = spec["toolchain"]["dsl_flavor"]
        for field, stored in (*((name, spec[name]) for name in _OF_TARGET), ("dsl_flavor", flavor)):
            if stored != getattr(target, field):
                has_other_target = True
                yield (
                    f"target {target.name} has {field} {getattr(target, field)!r} now, "
                    f"its kernels were made for {stored!r}"
                )
    if is_replanned and not has_other_target:
        yield (
            "the planner or the recipe has changed since, or a number in the description of "
            f"target {target.name}, or it was built with a tuning file or other engines"
        )
    for spec in specs:
        yield from why_not_current(spec)


_OF_TARGET = ("gpu_arch", "host_triple", "host_level")
