"""What a store consists of: its documents, the blobs that they name, and the plans' shares of both.

Blobs that nothing names are no part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cudnn_aot.cache import layout
from cudnn_aot.cache.canonical import sha256_hex
from cudnn_aot.cache.index import Index, Part
from cudnn_aot.cache.plan_record import parse_record
from cudnn_aot.cache.progress import ProgressCallback, silent
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.errors import DamagedError, NotInStoreError


@dataclass(frozen=True, slots=True)
class Contents:
    """The files of a store, by their paths.

    Attributes:
        index: documents, blobs and signatures.
        targets: for each target, sorted, the paths of all that its plans need.
        host_triples: of the kernels, sorted.
    """

    index: Index
    targets: dict[str, frozenset[str]]
    host_triples: tuple[str, ...]

    @property
    def files(self) -> list[str]:
        """All paths, in an order in which nothing comes before what it names."""
        return publish_order([layout.STORE_FILE, *self.index.paths])


_ORDER = ("store", "blob", "kernel", "pointer", "class", "name", "build", "signature", "index")


def publish_order(paths: Iterable[str]) -> list[str]:
    """Paths of files of a store such that nothing comes before what it names."""

    def place(path: str) -> tuple[int, str]:
        known = layout.classify(path)
        return (_ORDER.index(known[0]) if known else len(_ORDER), path)

    return sorted(paths, key=place)


def contents_of(reader: StoreReader) -> Contents:
    """What a store consists of; the blobs' bytes are not read but for plan records.

    Raises:
        DamagedError: a document or a plan record is damaged, or names something that is not there.
        StoreError: something cannot be read.
    """
    documents: dict[str, Part] = {}
    blobs: dict[str, Part] = {}
    targets: dict[str, set[str]] = {}
    triples: set[str] = set()

    def need(path: str, owner: str) -> str:
        size = reader.size(path)
        if size is None:
            raise DamagedError(f"{reader.path / owner} is damaged: {path} is missing")
        if path.startswith("blobs/"):
            blobs[path] = Part(path[-64:], size)
        return path

    for path in reader.documents():
        data = reader.read(path)
        fault = layout.file_fault(path, data)
        if fault:
            raise DamagedError(f"{reader.path / path} is damaged: {fault}")
        documents[path] = Part(sha256_hex(data), len(data))
        kind, ids = layout.classify(path) or ("", ())
        if kind == "kernel":
            record = reader.kernel(ids[0])
            need(layout.blob_path(record["blob"]["sha256"]), path)
            triples.add(str(record["requirements"].get("host_triple", "")))
            continue
        if kind == "build":
            continue
        share = targets.setdefault(ids[0], set())
        share.add(path)
        if kind == "pointer":
            share.update(need(needed, path) for needed in plan_paths(reader, *ids))
    signatures = {}
    for path in reader.files():
        if path.startswith("signatures/"):
            data = reader.read(path)
            signatures[path] = Part(sha256_hex(data), len(data))
    return Contents(
        Index(documents, blobs, signatures),
        {target: frozenset(share) for target, share in sorted(targets.items())},
        tuple(sorted(triples - {""})),
    )


def need_whole(
    reader: StoreReader,
    refused: str,
    but: Collection[str] = (),
    progress: ProgressCallback = silent,
) -> None:
    """That `verify` finds nothing wrong with a store, but for these paths.

    Raises:
        DamagedError: it is ``refused``; the message has the first fault and the number of them.
    """
    problems = [problem for problem in reader.verify(progress) if problem.path not in but]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise DamagedError(
            f"the store {reader.where!r} is damaged and is not {refused}: {problems[0]}{more}; "
            "`cudnn-aot verify` lists all, and a build replaces them"
        )


def plan_paths(reader: StoreReader, target: str, graph_key: str) -> Iterator[str]:
    """All files that the plans of a graph need, but for the pointer to them."""
    pointer = reader.pointer(target, graph_key)
    yield from pointer_paths(pointer)
    for digest in pointer["records"]:
        yield from record_paths(plan_record(reader, digest))


def pointer_paths(pointer: dict[str, Any]) -> Iterator[str]:
    """The blobs that a pointer names: plan records and graph."""
    for digest in [*pointer["records"], pointer.get("graph")]:
        if digest is not None:
            yield layout.blob_path(digest)


def plan_record(reader: StoreReader, digest: str) -> dict[str, Any]:
    """Raises DamagedError where the blob is no plan record."""
    try:
        return parse_record(reader.blob(digest), digest)
    except NotInStoreError as error:
        raise DamagedError(f"plan record {digest} is damaged: {error}") from None


def record_paths(record: dict[str, Any]) -> Iterator[str]:
    """The files that a plan record names: kernels, their records, plans of cuDNN's."""
    for kernel in record["kernels"]:
        yield layout.blob_path(kernel["blob"])
        yield layout.kernel_path(kernel["key"])
    for blob in record.get("blobs", ()):
        yield layout.blob_path(blob["blob"])


__all__ = [
    "Contents",
    "contents_of",
    "need_whole",
    "plan_paths",
    "plan_record",
    "pointer_paths",
    "publish_order",
    "record_paths",
]
