"""cuDNN's plan of a graph, made here and now: no compile worker has a part in it.

That this machine cannot ask cuDNN says nothing of the graph, so it changes nothing in the store: a
builder without a GPU neither removes the plans that another one added nor records a decline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_aot.cache.canonical import canonical_bytes
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build import records
from cudnn_aot.compiler.build.stored import stored_plan
from cudnn_aot.compiler.build.summary import Status
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import backend as planning
from cudnn_aot.compiler.planning.backend import Backend, BackendEntry, BackendPlan
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.compiler.target.target import Target


@dataclass(frozen=True, slots=True)
class BackendOutcome:
    """How cuDNN's part of a graph ended.

    Attributes:
        is_stored: whether the store has this outcome; one of a machine without cuDNN it has not.
        record: the plan record, made or found unchanged.
        provider: what the pointer says of cuDNN from now on; None to leave it as it is.
    """

    status: Status
    reasons: tuple[str, ...] = ()
    is_stored: bool = True
    record: dict[str, Any] | None = None
    provider: dict[str, Any] | None = None


def build_backend(
    writer: StoreWriter, found: Backend | Refusal, graph: Graph, target: Target
) -> BackendOutcome:
    """The first plan in cuDNN's order that builds, put into the store."""
    if isinstance(found, Refusal):
        return BackendOutcome(Status.DECLINED, (found.reason,), is_stored=False)
    key = planning.backend_key(found, graph, target)
    stored = stored_plan(writer.reader, target.name, graph.key(), key, "cudnn")
    if stored is not None:
        status = Status.CACHED if stored.record else Status.DECLINED
        return BackendOutcome(status, stored.reasons, record=stored.record)
    entries = planning.entries_of(found, graph)
    if isinstance(entries, Refusal):
        return _declined(key, [entries.reason])
    reasons: list[str] = []
    for entry in entries:
        plan = planning.plan_of(found, graph, entry.engine_id, dict(entry.knobs))
        if isinstance(plan, Refusal):
            reasons.append(plan.reason)
            continue
        table = planning.backend_table(graph, plan)
        if isinstance(table, Refusal):
            reasons.append(table.reason)
            continue
        record = _record(writer, found, graph, target, entry, plan, table)
        blob = writer.put_blob(canonical_bytes(record))
        provider = records.provider(key, [blob])
        return BackendOutcome(Status.BUILT, record=record, provider=provider)
    return _declined(key, reasons)


def _declined(key: str, reasons: list[str]) -> BackendOutcome:
    provider = records.provider(key, [], reasons)
    return BackendOutcome(Status.DECLINED, tuple(reasons), provider=provider)


def _record(
    writer: StoreWriter,
    found: Backend,
    graph: Graph,
    target: Target,
    entry: BackendEntry,
    plan: BackendPlan,
    table: dict[str, Any],
) -> dict[str, Any]:
    """The plan record; ``backend`` is for people, the runtime reads the rest."""
    return {
        "format": records.FORMAT,
        "graph_key": graph.key(),
        "target": target.name,
        "engine": {"id": plan.engine_id, "name": f"cudnn.eng{plan.engine_id}"},
        "knobs": dict(plan.knobs),
        "table": table,
        "kernels": [],
        "blobs": [{"blob": writer.put_blob(plan.blob), "bytes": len(plan.blob)}],
        "requirements": planning.backend_requirements(found, target),
        "backend": {
            "plan": plan.name,
            "mode": entry.mode,
            "index": entry.index,
            "notes": list(plan.notes),
            "frontend": found.frontend_version,
        },
    }
