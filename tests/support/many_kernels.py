"""A store with as many GPU kernels as wanted: whole records, and random bytes for libraries."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import toy_store

from cudnn_aot.cache import layout
from cudnn_aot.cache.canonical import canonical_bytes, canonical_digest
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter

TARGET = "h200"
LIBRARY_BYTES = (15_000, 60_000)  # what linked GEMM kernels take


def fill(path: Path, count: int) -> None:
    """A plan, a name and a kernel of its own for each of ``count`` graphs."""
    random_bytes = random.Random(count)
    sync, os.fsync = os.fsync, lambda descriptor: None  # nobody needs these after a crash
    try:
        with StoreWriter(path) as writer:
            for number in range(count):
                library = random_bytes.randbytes(random_bytes.randint(*LIBRARY_BYTES))
                _put(writer, number, library)
    finally:
        os.fsync = sync


def files_of_kernels(path: Path) -> set[str]:
    """The files that a store has for its kernels alone: records, and what they name."""
    reader = StoreReader(path)
    files: set[str] = set()
    for key in reader.kernels():
        digest = reader.kernel(key)["blob"]["sha256"]
        files |= {layout.kernel_path(key), layout.blob_path(digest)}
    return files


def _put(writer: StoreWriter, number: int, library: bytes) -> None:
    blob = writer.put_blob(library)
    made = {"sha256": hashlib.sha256(library[::2]).hexdigest(), "bytes": len(library) // 2}
    spec = {
        "version": 1,
        "template": "gemm.kernels.sm90:matmul",
        "source_digest": "5" * 64,
        "params": {"tile": [128, 256, 64], "number": number, "epilogue": ["bias", "gelu"] * 6},
        "gpu_arch": "sm_90a",
        "host_triple": "x86_64-linux-gnu",
        "host_level": "x86-64-v3",
        "toolchain": {"dsl_flavor": "cu12", "nvidia-cutlass-dsl": "4.8.1"},
        "options": [],
    }
    key = canonical_digest(spec)
    requirements = {"gpu_arch": "sm_90a", "smem_optin_bytes": 230_000, "driver_min": 12090}
    part = {"sha256": blob, "bytes": len(library)}
    record = {"key": key, "spec": spec, "symbol": "kernel", "object": made, "blob": part}
    writer.put_kernel({**record, "requirements": requirements})
    graph_key = hashlib.sha256(f"graph {number}".encode()).hexdigest()
    branches = [f"branch_{index}" for index in range(25)]  # as long as a real one
    step = {"step": "kernel", "kernel": 0, "args": []}
    table = {
        **toy_store.NOTHING,
        "dispatch": [{"branch": name, "when": True} for name in branches],
        "branches": {name: {"steps": [step], "workspace": []} for name in branches},
    }
    plan = {
        "format": 1,
        "graph_key": graph_key,
        "target": TARGET,
        "engine": {"id": 1, "name": "gemm.sm90.persistent"},
        "knobs": {"TILE_M": 128, "TILE_N": 256},
        "requirements": requirements,
        "table": table,
        "kernels": [
            {
                "key": key,
                "symbol": "kernel",
                "object": made["sha256"],
                "blob": blob,
                "bytes": len(library),
            }
        ],
    }
    pointer = {
        "status": "built",
        "records": [writer.put_blob(canonical_bytes(plan))],
        "graph": writer.put_blob(canonical_bytes({"graph": number, "nodes": ["matmul"] * 40})),
        "reasons": [],
    }
    writer.put_pointer(TARGET, graph_key, pointer)
    writer.put_name(TARGET, f"layer_{number:04}", graph_key, {"A": 1, "B": 2, "Y": 3})
