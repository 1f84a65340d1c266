"""A store with as many CPU plans as wanted, each with a kernel library of its own.

The kernels are compiled once. Each plan gets a copy with its number behind the last section, where
the loader does not look: other bytes, so another digest, another file and another load.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from cudnn_aot.cache.canonical import canonical_bytes, canonical_digest
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter


def name_of(number: int) -> str:
    return f"plan_{number:04}"


def copy_plan(source: Path, name: str, target: str, path: Path, count: int) -> Path:
    """A store at ``path`` with ``count`` copies of the plan ``name`` of the store ``source``."""
    reader = StoreReader(source)
    entry = reader.name(target, name)
    pointer = reader.pointer(target, entry["graph_key"])
    record = json.loads(reader.blob(pointer["records"][0]))
    libraries = [reader.blob(kernel["blob"]) for kernel in record["kernels"]]
    sync, os.fsync = os.fsync, lambda descriptor: None  # nobody needs these after a crash
    try:
        with StoreWriter(path) as writer:
            graph = writer.put_blob(reader.blob(pointer["graph"]))
            for number in range(count):
                kernels = [
                    put_kernel(writer, kernel, library + number.to_bytes(8, "little"))
                    for kernel, library in zip(record["kernels"], libraries, strict=True)
                ]
                key = hashlib.sha256(f"{entry['graph_key']} {number}".encode()).hexdigest()
                copy = record | {"graph_key": key, "kernels": kernels}
                made = writer.put_blob(canonical_bytes(copy))
                fields = {"status": "built", "records": [made], "graph": graph, "reasons": []}
                writer.put_pointer(target, key, fields)
                writer.put_name(target, name_of(number), key, entry["uids"])
    finally:
        os.fsync = sync
    return path


def put_kernel(writer: StoreWriter, kernel: dict[str, Any], library: bytes) -> dict[str, Any]:
    digest = writer.put_blob(library)
    spec = {"template": "a copy", "of": kernel["key"], "digest": digest}
    part = {"sha256": digest, "bytes": len(library)}
    key = canonical_digest(spec)
    entry = {"key": key, "symbol": kernel["symbol"]}
    writer.put_kernel({**entry, "spec": spec, "object": part, "blob": part, "requirements": {}})
    return {**kernel, **entry, "blob": digest, "bytes": len(library), "object": digest}
