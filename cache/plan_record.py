"""Plan records as readers of a store take them: of their shape, and as serving would have them.

Nothing is read here: callers have the bytes, and know that they are those of the digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cudnn_aot.cache import shapes
from cudnn_aot.errors import DamagedError, StoreError

FORMAT = 1


def parse_record(data: bytes, digest: str) -> dict[str, Any]:
    """The record in a blob, of the shape of one; its launch table is not looked into.

    Raises:
        DamagedError: it is none.
    """
    try:
        record = json.loads(data.decode())
        fault = shapes.fault_of("plan record", record)
    except (ValueError, RecursionError):
        fault = "not JSON"
    if fault is not None:
        raise DamagedError(f"plan record {digest} is damaged: {fault}")
    return record  # type: ignore[no-any-return]


def engines_of(record: Mapping[str, Any]) -> list[str]:
    """The names of the engines that serve a plan, each once, in the order of its ranges."""
    parts = record.get("ranges") or [record]
    return list(dict.fromkeys(str(part["engine"]["name"]) for part in parts))


def bound_words(name: str, low: int, high: int) -> str:
    """``M=1..64``, or ``M=1`` for one value; `compiler.planning.replay.parse_bounds` reads both."""
    return f"{name}={low}" if low == high else f"{name}={low}..{high}"


def need_servable(record: dict[str, Any], digest: str, target: str, graph_key: str) -> None:
    """Raise unless this version serves the record for this graph: it is parsed as serving does.

    Raises:
        DamagedError: it is of another graph or target.
        StoreError: it, its launch table or its requirements are not such as this version reads.
    """
    from cudnn_aot import _native  # most readers of a store load no plan

    if (record["target"], record["graph_key"]) != (target, graph_key):
        raise DamagedError(f"plan record {digest} is damaged: it belongs to another graph")
    if record["format"] != FORMAT:
        raise StoreError(
            f"plan record {digest} has format {record['format']}, this version of cudnn-aot reads "
            f"format {FORMAT}"
        )
    _native.PlanRecord(digest[:12], {}, record)


__all__ = ["FORMAT", "engines_of", "need_servable", "parse_record"]
