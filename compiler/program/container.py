"""A built plan as one value of bytes: the graph, the plan record, and the kernels.

    magic, 16 bytes | SHA-256 of the header, 32 bytes | length of the header, 8 bytes, little end
    first | header, canonical JSON | the blobs, one after the other

Header: ``format``, ``graph`` (its JSON text), ``target`` (the descriptor), ``record``, ``specs``
(of the record's kernels, in order) and ``blobs`` (``[sha256, bytes]`` in order): the kernels,
unless they were left out, and the plans of another library. ``bound`` has the symbols and scalars
of a record that is that of a symbolic graph of which ``graph`` is a case. Every byte is covered by
a digest. Digests find damage; they do not say who made it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cudnn_aot.cache.canonical import canonical_bytes, sha256_hex
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning.planned import Planned
from cudnn_aot.compiler.program.built import Bound, StoredPlan, planned_of
from cudnn_aot.compiler.target.target import Target, target_from
from cudnn_aot.errors import DamagedError, NotInStoreError, StoreError, UsageError

MAGIC = b"cudnn-aot plan\r\n"  # a transfer as text would change the line end
FORMAT = 1
_HEAD = len(MAGIC) + 32 + 8


@dataclass(frozen=True, slots=True)
class Container:
    """What one value of bytes holds, checked but for the graph's text.

    Attributes:
        blobs: kernels and plans of another library by digest; without the kernels if they were
            left out.
    """

    graph: str
    target: Target
    record: Mapping[str, Any] = field(hash=False)
    planned: Planned
    blobs: Mapping[str, bytes] = field(hash=False)
    bound: Bound | None = None

    @property
    def has_kernels(self) -> bool:
        """Whether it needs nothing of a store or the compiler."""
        return all(kernel["blob"] in self.blobs for kernel in self.record["kernels"])

    def blob(self, digest: str) -> bytes:
        try:
            return self.blobs[digest]
        except KeyError:
            raise NotInStoreError(f"blob {digest} was left out of the serialized plan") from None


def pack(graph: Graph, target: Target, stored: StoredPlan, include_kernels: bool = True) -> bytes:
    """A plan as bytes; equal plans give equal bytes."""
    kernels = stored.record["kernels"] if include_kernels else []
    parts = [*kernels, *stored.record.get("blobs", ())]
    blobs = {digest: stored.read_blob(digest) for digest in (part["blob"] for part in parts)}
    document = {
        "format": FORMAT,
        "graph": graph_json.dumps(graph),
        "target": target.descriptor(),
        "record": stored.record,
        "specs": [spec.canonical() for spec in stored.planned.kernels],
        "blobs": [[digest, len(data)] for digest, data in blobs.items()],
    }
    if stored.bound is not None:
        scalars = [[uid, value] for uid, value in sorted(stored.bound.scalars.items())]
        document["bound"] = {"symbols": dict(stored.bound.symbols), "scalars": scalars}
    header = canonical_bytes(document)
    head = MAGIC + bytes.fromhex(sha256_hex(header)) + len(header).to_bytes(8, "little")
    return b"".join([head, header, *blobs.values()])


def is_container(data: Any) -> bool:
    """Whether these are bytes that begin like a plan's."""
    return isinstance(data, bytes) and data.startswith(MAGIC)


def unpack(data: bytes) -> Container:
    """Read and check a plan's bytes; nothing of it is loaded.

    Raises:
        UsageError: they are something else.
        DamagedError: they were changed or cut.
        StoreError: they are of a newer format.
    """
    if not is_container(data):
        raise UsageError(
            f"deserialize: got {len(data)} bytes that are no plan of cudnn-aot, want what "
            "serialize gave"
        )
    length = int.from_bytes(data[_HEAD - 8 : _HEAD], "little")
    header = data[_HEAD : _HEAD + length]
    digest = data[len(MAGIC) : _HEAD - 8]
    if len(header) != length or bytes.fromhex(sha256_hex(header)) != digest:
        raise DamagedError("serialized plan: its header was changed or cut")
    try:
        document = json.loads(header)
        if document["format"] != FORMAT:
            raise StoreError(
                f"serialized plan: got format {document['format']!r}, this version of cudnn-aot "
                f"reads format {FORMAT}"
            )
        blobs = _blobs(memoryview(data)[_HEAD + length :], document["blobs"])
        record = document["record"]
        bound = None
        if "bound" in document:
            values = document["bound"]
            bound = Bound(dict(values["symbols"]), {uid: v for uid, v in values["scalars"]})
        return Container(
            str(document["graph"]),
            target_from(document["target"], "of the serialized plan"),
            record,
            planned_of(record, document["specs"], bound),
            blobs,
            bound,
        )
    except _WRONG as error:
        raise DamagedError(f"serialized plan: its header cannot be read: {error!r}") from None


_WRONG: tuple[type[Exception], ...] = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
)


def _blobs(data: memoryview, rows: Any) -> dict[str, bytes]:
    blobs: dict[str, bytes] = {}
    place = 0
    for digest, length in rows:
        blob = bytes(data[place : place + length])
        if sha256_hex(blob) != digest:
            raise DamagedError(f"serialized plan: kernel {digest} was changed or cut")
        blobs[digest] = blob
        place += length
    if place != len(data):
        raise DamagedError(f"serialized plan: got {len(data) - place} bytes behind its end")
    return blobs
