"""The documents a build publishes for a graph on a target: plan record and pointer.

Nothing here depends on time, paths, users or hosts, so equal inputs give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudnn_aot.cache.canonical import sha256_hex
from cudnn_aot.cache.layout import pointer_of, providers_of
from cudnn_aot.cache.plan_record import FORMAT
from cudnn_aot.compiler.planning.manifest import PROVIDERS
from cudnn_aot.compiler.planning.planned import Planned, PlannedRange
from cudnn_aot.compiler.target.host import LEVELS

if TYPE_CHECKING:
    from cudnn_aot.cache.compile import KernelEntry


def plan_record(
    graph_key: str, target: str, planned: Planned, entries: Sequence[KernelEntry]
) -> dict[str, Any]:
    """What the runtime reads: launch table, kernels and blobs in order, merged requirements."""
    blobs = [{"blob": sha256_hex(blob), "bytes": len(blob)} for blob in planned.blobs]
    requirements = [entry.requirements for entry in entries]
    notes = None if planned.notes is None else sorted(note.name for note in planned.notes)
    return {
        "format": FORMAT,
        "graph_key": graph_key,
        "target": target,
        "engine": {"id": planned.engine_id, "name": planned.engine_name},
        "knobs": dict(planned.knobs),
        **({"ranges": [_range(part) for part in planned.ranges]} if planned.ranges else {}),
        "table": planned.table,
        "kernels": [
            {
                "key": entry.key,
                "symbol": entry.symbol,
                "blob": entry.blob_digest,
                "bytes": entry.blob_bytes,
                "object": entry.object_digest,
            }
            for entry in entries
        ],
        **({"blobs": blobs} if blobs else {}),
        **({} if notes is None else {"notes": notes}),
        "requirements": merge_requirements([*requirements, planned.requirements]),
    }


def _range(part: PlannedRange) -> dict[str, Any]:
    return {
        "bounds": {symbol: list(bounds) for symbol, bounds in part.bounds.items()},
        "engine": {"id": part.engine_id, "name": part.engine_name},
        "knobs": dict(part.knobs),
    }


def provider(
    plan_key: str,
    record_blobs: Sequence[str],
    reasons: Sequence[str] = (),
    *,
    all_configs: bool = False,
) -> dict[str, Any]:
    """What one provider has for a graph: its plan records, best first, or why it has none.

    ``all_configs`` says that the records are those of every plan that is worth measuring.
    """
    made = {"plan_key": plan_key, "records": list(record_blobs), "reasons": list(reasons)}
    return {**made, "all_configs": True} if all_configs else made


def pointer(
    graph_blob: str,
    providers: Mapping[str, Mapping[str, Any]],
    order: Sequence[str] = PROVIDERS,
) -> dict[str, Any]:
    """Where a graph's plans are on a target, best first over all providers, or why there is none.

    ``order`` is that of `planning.providers.provider_order`.
    """
    return pointer_of(graph_blob, providers, order)


def with_provider(
    graph_blob: str,
    order: Sequence[str],
    name: str,
    made: Mapping[str, Any],
    known: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The pointer that ``known`` becomes with what one provider made; the others' part stays."""
    others = providers_of(known) if known is not None else {}
    return pointer(graph_blob, {**others, name: made}, order)


def merge_requirements(requirements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The least machine on which every one of several kernels runs.

    Raises:
        ValueError: two kernels of one plan want different architectures or hosts, or a
            requirement is of a kind that this function cannot merge.
    """
    merged: dict[str, Any] = {}
    for requirement in requirements:
        for field, value in requirement.items():
            merged[field] = _stricter(field, merged[field], value) if field in merged else value
    return merged


def _stricter(field: str, a: Any, b: Any) -> Any:
    if a == b or not b:
        return a
    if not a:
        return b
    if field in ("smem_optin_bytes", "driver_min"):
        return max(a, b)
    if field == "glibc_min":
        return max(a, b, key=lambda version: tuple(int(part) for part in str(version).split(".")))
    if field == "host_level":
        return max(a, b, key=LEVELS["x86_64-linux-gnu"].index)
    raise ValueError(f"requirement {field!r} differs between kernels of one plan: {a!r} and {b!r}")
