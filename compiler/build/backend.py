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
from cudnn_aot.compiler.planning.cudnn import Cudnn
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import Target
from cudnn_aot.errors import cudnnGraphNotSupportedError


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
    writer: StoreWriter, cudnn: Cudnn, graph: Graph, target: Target
) -> BackendOutcome:
    """The first plan in cuDNN's order that builds, put into the store."""
    key = cudnn.key(graph, target)
    if isinstance(key, Refusal):
        return BackendOutcome(Status.DECLINED, (key.reason,), is_stored=False)
    stored = stored_plan(writer.reader, target.name, graph.key(), key, "cudnn")
    if stored is not None:
        status = Status.CACHED if stored.record else Status.DECLINED
        return BackendOutcome(status, stored.reasons, record=stored.record)
    plans = PlanList(graph, target, backend=cudnn, engines=())
    try:
        _, planned = plans.walk(lambda planned: planned)
    except cudnnGraphNotSupportedError as declined:
        reasons = tuple(reason.removeprefix("cudnn: ") for reason in declined.reasons)
        provider = records.provider(key, [], reasons)
        return BackendOutcome(Status.DECLINED, reasons, provider=provider)
    for blob in planned.blobs:
        writer.put_blob(blob)
    record = records.plan_record(graph.key(), target.name, planned, [])
    provider = records.provider(key, [writer.put_blob(canonical_bytes(record))])
    return BackendOutcome(Status.BUILT, record=record, provider=provider)
