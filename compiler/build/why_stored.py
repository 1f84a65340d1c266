"""What a store holds of a graph on a target, and why a build would make it again.

A plan key is one digest, so it cannot be asked which of its parts differs. What can be compared is:
the kernels' specs hold architecture, host, tools and source digests, and a key without the tuning
file, or with the hints that were planned for, is as quickly made. What is left is the planner, the
recipe, or a number of the target. Of cuDNN's plans its version can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from cudnn_aot.cache.layers import AnyReader
from cudnn_aot.cache.layout import providers_of
from cudnn_aot.cache.plan_record import bound_words, parse_record
from cudnn_aot.cache.spec import why_not_current
from cudnn_aot.compiler.build.nearest import Nearest, nearest_entry
from cudnn_aot.compiler.build.sources import Source
from cudnn_aot.compiler.build.stored import stored_plan
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.planning.cudnn import Cudnn
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.compiler.planning.knobs import plan_name
from cudnn_aot.compiler.planning.manifest import PROVIDERS
from cudnn_aot.compiler.planning.plan import hints, plan_key
from cudnn_aot.compiler.planning.tuning import Tuning
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import NotInStoreError, StoreError


class Held(str, Enum):
    """How a store stands to a provider's plan of a graph on a target."""

    CURRENT = "current"  # a build would take it as it is
    STALE = "stale"  # whole, and made from something that has changed since
    WHOLE = "whole"  # whether a build would take it cannot be told here
    DAMAGED = "damaged"  # a byte of it is missing, changed or cannot be read
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class HeldPlan:
    """What a store holds of one provider.

    Attributes:
        plan: name of the stored plan; empty for a decline and for what is absent.
        is_declined: what is stored is a decline.
        reasons: what has changed, what is damaged, why it was declined, or why it cannot be told
            whether it is current.
    """

    provider: str
    held: Held
    plan: str = ""
    is_declined: bool = False
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """What a store holds of a graph.

    Attributes:
        plans: what it holds of each provider, in the order of `manifest.PROVIDERS`.
        other_targets: further targets that a plan of the graph is stored for.
        declined_targets: further targets for which the graph is stored as declined.
        nearest: of a graph of which nothing is stored, the stored one that is most like it.
        graphs: number of graphs that are stored for the target, where nothing is of this one.
    """

    store: str
    plans: tuple[HeldPlan, ...]
    other_targets: tuple[str, ...] = ()
    declined_targets: tuple[str, ...] = ()
    nearest: Nearest | None = None
    graphs: int = 0

    def of(self, provider: str) -> HeldPlan:
        return next(plan for plan in self.plans if plan.provider == provider)


def explain_stored(
    reader: AnyReader,
    source: Source,
    target: Target,
    tuning: Tuning | None = None,
    cudnn: Cudnn | None = None,
) -> StoreAnswer:
    """What the store holds of a graph on a target, compared with what a build would make now.

    ``cudnn`` tells whether a plan of cuDNN's is current; None leaves that open.
    """
    pointers = reader.pointers()
    others = [name for name, key in pointers if key == source.key and name != target.name]
    built, declined = _other_targets(reader, source.key, others)
    answer = partial(StoreAnswer, str(reader.path), other_targets=built, declined_targets=declined)
    try:
        pointer = reader.pointer(target.name, source.key)
    except NotInStoreError:
        return answer(
            tuple(HeldPlan(provider, Held.ABSENT) for provider in PROVIDERS),
            nearest=nearest_entry(reader, target.name, source.name, source.graph),
            graphs=sum(owner == target.name for owner, _ in pointers),
        )
    except StoreError as error:
        return answer(tuple(HeldPlan(p, Held.DAMAGED, reasons=(str(error),)) for p in PROVIDERS))
    return answer(
        (
            _held(
                reader, pointer, source, target, _native(reader, pointer, source, target, tuning)
            ),
            _held(reader, pointer, source, target, _cudnn(source, target, cudnn)),
        )
    )


@dataclass(frozen=True, slots=True)
class _Today:
    """What a provider would make now.

    Attributes:
        key: under which a build takes what is stored; a refusal where that cannot be told.
        changes: of the provider's part of a pointer and its best record (empty for a decline), what
            has changed since they were made, in sentences.
    """

    provider: str
    key: str | Refusal
    changes: Callable[[Mapping[str, Any], Mapping[str, Any]], Iterable[str]]


def _held(
    reader: AnyReader, pointer: Mapping[str, Any], source: Source, target: Target, today: _Today
) -> HeldPlan:
    provider, key = today.provider, today.key
    part = providers_of(pointer).get(provider)
    if part is None:
        return HeldPlan(provider, Held.ABSENT)
    if not isinstance(key, Refusal):
        found = stored_plan(reader, target.name, source.key, key, provider)
        if found is not None:
            plan = _name(found.record) if found.record else ""
            return HeldPlan(provider, Held.CURRENT, plan, found.record is None, found.reasons)
    try:
        record = _whole_record(reader, pointer["graph"], part["records"])
        plan = _name(record) if record else ""
        if isinstance(key, Refusal):
            return HeldPlan(provider, Held.WHOLE, plan, not record, (key.reason,))
        changed = tuple(dict.fromkeys(today.changes(part, record)))
    except (StoreError, KeyError, IndexError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, StoreError) else "its plan record cannot be read"
        return HeldPlan(provider, Held.DAMAGED, reasons=(reason,))
    return HeldPlan(provider, Held.STALE, plan, not record, changed)


def _other_targets(
    reader: AnyReader, graph_key: str, targets: Sequence[str]
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


def _whole_record(reader: AnyReader, graph: str, digests: Sequence[str]) -> dict[str, Any]:
    """The best plan record, once every byte that it needs was read; ``{}`` of a decline."""
    reader.blob(graph)
    records = [parse_record(reader.blob(digest), digest) for digest in digests]
    for record in records:
        for blob in record.get("blobs", ()):
            reader.blob(blob["blob"])
        for kernel in record["kernels"]:
            reader.kernel(kernel["key"])
            reader.blob(kernel["blob"])
    return dict(records[0]) if records else {}


def _native(
    reader: AnyReader,
    pointer: Mapping[str, Any],
    source: Source,
    target: Target,
    tuning: Tuning | None,
) -> _Today:
    today = plan_key(source.graph, target, tuning=tuning)

    def changes(part: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[str]:
        if tuning is not None and part["plan_key"] == plan_key(source.graph, target):
            yield "the tuning file says something of this graph, and it was built without"
            return
        specs = [reader.kernel(kernel["key"])["spec"] for kernel in record.get("kernels", [])]
        stored = graph_json.loads(reader.blob(pointer["graph"]))
        known = [change for spec in specs for change in _target_changes(spec, target)]
        if part["plan_key"] == plan_key(stored, target, tuning=tuning):
            known += _hint_changes(hints(source.graph), hints(stored))
        yield from known
        if part["plan_key"] != today and not known:
            yield (
                "the planner, the recipe or the measured plans shipped with it have changed since, "
                f"or a number in the description of target {target.name}, or it was built with a "
                "tuning file or other engines"
            )
        for spec in specs:
            yield from why_not_current(spec)

    return _Today("native", today, changes)


def _hint_changes(now: Mapping[str, int | None], then: Mapping[str, int | None]) -> Iterator[str]:
    for name in now:
        if now[name] != then[name]:
            here, there = ("no hint" if h[name] is None else f"hint {h[name]}" for h in (now, then))
            yield f"symbol {name} has {here} now, it was planned for {there}"


def _target_changes(spec: Mapping[str, Any], target: Target) -> Iterator[str]:
    """What a kernel was made for and the target is no more."""
    flavor = spec["toolchain"]["dsl_flavor"]
    for field, stored in (*((name, spec[name]) for name in _OF_TARGET), ("dsl_flavor", flavor)):
        if stored != getattr(target, field):
            yield (
                f"target {target.name} has {field} {getattr(target, field)!r} now, "
                f"its kernels were made for {stored!r}"
            )


_OF_TARGET = ("gpu_arch", "host_triple", "host_level")


def _cudnn(source: Source, target: Target, cudnn: Cudnn | None) -> _Today:
    if cudnn is None:
        unasked = Refusal("cuDNN was not asked whether it is current: name it among the engines")
        return _Today("cudnn", unasked, lambda part, record: ())
    found = cudnn.found(target)
    if isinstance(found, Refusal):
        return _Today("cudnn", found, lambda part, record: ())
    version = found.version

    def changes(part: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[str]:
        made_by = record["requirements"]["cudnn"] if record else version
        if made_by != version:
            yield f"cuDNN is {version} now, and {made_by} made it"
        else:
            yield (
                "what makes cuDNN's plans, the frontend's version or the device has changed since, "
                f"or a number in the description of target {target.name}"
            )

    return _Today("cudnn", cudnn.key(source.graph, target), changes)
