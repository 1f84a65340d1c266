"""A store written by hand around kernels compiled with ``cc``: what serving reads, no compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tables import Json, kernel, library, operand, scalar, symbol, table, whole

from cudnn_aot.cache.canonical import canonical_bytes, canonical_digest
from cudnn_aot.cache.writer import StoreWriter

X = operand(1, ["M", 6], [6, 1], name="X")
ALPHA = scalar(3, value=2.0) | {"name": "alpha"}
Y = operand(9, ["M", 6], [6, 1], kind="output", name="Y")
UIDS = {"X": 1, "alpha": 3, "Y": 9}
SCALE = table(
    [X, ALPHA, Y],
    kernel(whole(Y), whole(X), {"arg": "scalar", "operand": 3}),
    symbols={"M": symbol()},
)


def graph_key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def put_plan(
    writer: StoreWriter,
    name: str,
    target: str = "cpu",
    launch_table: Json = SCALE,
    requirements: Mapping[str, Any] | None = None,
    symbol_name: str = "scale",
    key: str = "",
    graph: bytes = b"{}",
    version: int = 1,
    **record: Any,
) -> str:
    """Publish one plan under a name; returns the digest of its kernel's blob.

    ``key`` and ``graph`` are those of a real graph, whose text is stored; ``version`` is that of
    the kernel library, whose results tell it.
    """
    key = key or graph_key(name)
    data = library(version)
    blob = writer.put_blob(data)
    spec = {"template": "by hand", "symbol": symbol_name}
    part = {"sha256": blob, "bytes": len(data)}
    entry = {"key": canonical_digest(spec), "symbol": symbol_name}
    writer.put_kernel({**entry, "spec": spec, "object": part, "blob": part, "requirements": {}})
    document = {
        "format": 1,
        "graph_key": key,
        "target": target,
        "engine": {"id": 7, "name": "by.hand"},
        "knobs": {"TILE_M": 128},
        "table": launch_table,
        "kernels": [{**entry, "blob": blob, "bytes": len(data), "object": blob}],
        "requirements": requirements or {},
    } | record
    pointer = {
        "status": "built",
        "records": [writer.put_blob(canonical_bytes(document))],
        "graph": writer.put_blob(graph),
        "reasons": [],
    }
    writer.put_pointer(target, key, pointer)
    writer.put_name(target, name, key, UIDS)
    return blob


def put_decline(writer: StoreWriter, name: str, target: str, *reasons: str, key: str = "") -> None:
    key = key or graph_key(name)
    pointer = {"status": "declined", "records": [], "graph": writer.put_blob(b"{}")}
    writer.put_pointer(target, key, pointer | {"reasons": list(reasons)})
    writer.put_name(target, name, key, UIDS)


def small_store(path: Path) -> Path:
    """Plans for cpu and h200, a decline, and one name that two targets hold."""
    with StoreWriter(path) as writer:
        put_plan(writer, "scale")
        put_plan(writer, "both")
        put_plan(writer, "both", "h200", SCALE | {"device": "cuda"}, {"gpu_arch": "sm_90a"})
        put_decline(writer, "odd", "h200", "no engine takes INT4", "rank 9 is too high")
    return path
