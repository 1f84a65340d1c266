"""The documents a build publishes for a graph on a target: plan record and pointer.

Nothing here depends on time, paths, users or hosts, so equal inputs give equal bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from cudnn_aot.cache.compile import KernelEntry
from cudnn_aot.cache.layout import providers_of
from cudnn_aot.compiler.planning.plan_list import Planned, PlannedRange

FORMAT = 1
PROVIDERS = ("native", "cudnn")  # whose plans come first where nothing ranks them
_HOST_LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")


def plan_record(
    graph_key: str, target: str, planned: Planned, entries: Sequence[KernelEntry]
) -> dict[str, Any]:
    """What the runtime reads: launch table, kernels in order, merged requirements."""
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
        "requirements": merge_requirements([entry.requirements for entry in entries]),
    }


def _range(part: PlannedRange) -> dict[str, Any]:
    return {
        "bounds": {symbol: list(bounds) for symbol, bounds in part.bounds.items()},
        "engine": {"id": part.engine_id, "name": part.engine_name},
        "knobs": dict(part.knobs),
    }


def provider(
    plan_key: str, record_blobs: Sequence[str], reasons: Sequence[str] = ()
) -> dict[str, Any]:
    """What one provider has for a graph: its plan records, best first, or why it has none."""
    return {"plan_key": plan_key, "records": list(record_blobs), "reasons": list(reasons)}


def pointer(graph_blob: str, providers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Where a graph's plans are on a target, best first over all providers, or why there is none.

    The reasons are those of every provider without a plan; all but the native ones say whose.
    """
    order = [*PROVIDERS, *sorted(set(providers) - set(PROVIDERS))]
    held = {name: providers[name] for name in order if name in providers}
    found = [record for each in held.values() for record in each["records"]]
    return {
        "status": "built" if found else "declined",
        "records": found,
        "graph": graph_blob,
        "reasons": [
            reason if name == "native" else f"{name}: {reason}"
            for name, each in held.items()
            if not each["records"]
            for reason in each["reasons"]
        ],
        "providers": {name: dict(each) for name, each in held.items()},
    }


def with_provider(
    graph_blob: str, name: str, made: Mapping[str, Any], known: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The pointer that ``known`` becomes with what one provider made; the others' part stays."""
    others = providers_of(known) if known is not None else {}
    return pointer(graph_blob, {**others, name: made})


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
        return max(a, b, key=_HOST_LEVELS.index)
    raise ValueError(f"requirement {field!r} differs between kernels of one plan: {a!r} and {b!r}")
