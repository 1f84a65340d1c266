"""What a store holds, as values: what each graph needs, and what each file takes on the disk.

Nothing is locked, and nobody need hold still: what is gone by the time that it is looked at is left
out. A damaged document names nothing; what the system does not let us read is an error, since what
it names cannot be told.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cudnn_aot.cache import layout
from cudnn_aot.cache.pack import aligned
from cudnn_aot.cache.plan_record import parse_record
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.errors import DamagedError, NotInStoreError, StoreError

DSL = "nvidia-cutlass-dsl"
_TOOLS = (DSL, "apache-tvm-ffi")  # whose versions tell one generation from another


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes as files say, and as `du` counts: in blocks of the file system."""

    bytes: int = 0
    disk_bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.bytes + other.bytes, self.disk_bytes + other.disk_bytes)


@dataclass(frozen=True, slots=True)
class StoredKernel:
    """A kernel's record: its blob, and the tools that made it."""

    key: str
    blob: str
    tools: tuple[tuple[str, str], ...]
    gpu_arch: str = ""
    host_triple: str = ""

    @property
    def dsl(self) -> str:
        """Version of the DSL; empty where it is not recorded."""
        return dict(self.tools).get(DSL, "")

    @property
    def toolchain(self) -> str:
        """``"nvidia-cutlass-dsl 4.8.1, apache-tvm-ffi 0.1.9"``, of what is recorded."""
        tools = dict(self.tools)
        return ", ".join(f"{tool} {tools[tool]}" for tool in _TOOLS if tool in tools)


@dataclass(frozen=True, slots=True)
class StoredGraph:
    """What a store holds of a graph on a target: its pointer, and all that leads to or from it.

    Attributes:
        names: of the graph, sorted.
        buckets: the classes that list it.
        builds: digests of the build records that ask for it.
        plans: number of its plan records; none of a decline.
        kernels: keys that its plan records name, sorted.
        blobs: digests that its pointer and its plan records name, sorted.
        generation: the tools that made its plans; empty where none are recorded.
        changed_s: when the pointer was published here, or copied to here, in seconds since 1970:
            its ctime, since a file's mtime is a constant and its atime is kept by few systems.
    """

    target: str
    graph_key: str
    names: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()
    plans: int = 0
    kernels: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    generation: str = ""
    changed_s: float = 0.0

    @property
    def label(self) -> str:
        return f"{self.names[0] if self.names else self.graph_key[:12]} for {self.target}"

    @property
    def pointer(self) -> str:
        return layout.pointer_path(self.target, self.graph_key)


@dataclass(frozen=True, slots=True)
class Inventory:
    """A store at one moment.

    Attributes:
        classes: graph keys by target and class bucket.
        builds: digests of the build records that are whole.
        sizes: of every file and folder by its path, as `sizes_of` has them.
    """

    graphs: tuple[StoredGraph, ...]
    kernels: Mapping[str, StoredKernel]
    classes: Mapping[tuple[str, str], tuple[str, ...]]
    builds: frozenset[str]
    sizes: Mapping[str, Size]

    @property
    def size(self) -> Size:
        return total(self.sizes.values())

    @property
    def blobs(self) -> frozenset[str]:
        known = map(layout.classify, self.sizes)
        return frozenset(found[1][0] for found in known if found is not None and found[0] == "blob")

    def empty_folders(self) -> list[str]:
        """Of the store's own, as a prune leaves them that was killed."""
        outer = {path.rpartition("/")[0] for path in self.sizes}
        return [
            path
            for path in self.sizes
            if path not in outer and (layout.is_folder(path) or layout.is_target_folder(path))
        ]


def total(sizes: Iterable[Size]) -> Size:
    return sum(sizes, Size())


def take_inventory(reader: StoreReader) -> Inventory:
    """Read all documents of a store, and no kernel.

    Raises:
        StoreError: the system does not let us read one.
    """
    kernels: dict[str, StoredKernel] = {}
    for key in reader.kernels():
        record = _there(reader.kernel, key)
        if record is not None:
            spec = record["spec"]
            kernels[key] = StoredKernel(
                key,
                record["blob"]["sha256"],
                tuple(sorted(spec.get("toolchain", {}).items())),
                spec.get("gpu_arch", ""),
                spec.get("host_triple", ""),
            )
    names: dict[tuple[str, str], list[str]] = {}
    for target, name in reader.names():
        document = _there(reader.name, target, name)
        if document is not None:
            names.setdefault((target, document["graph_key"]), []).append(name)
    buckets: dict[tuple[str, str], list[str]] = {}
    classes: dict[tuple[str, str], tuple[str, ...]] = {}
    for target, bucket in reader.classes():
        members = _there(reader.class_members, target, bucket)
        classes[target, bucket] = tuple(members or ())
        for key in members or ():
            buckets.setdefault((target, key), []).append(bucket)
    asked_by: dict[tuple[str, str], list[str]] = {}
    builds = set()
    for digest in reader.builds():
        record = _there(reader.build, digest)
        if record is not None:
            builds.add(digest)
            for place in _asked_for(record):
                asked_by.setdefault(place, []).append(digest)
    graphs = []
    for place in reader.pointers():
        graph = _graph(reader, kernels, place)
        if graph is not None:
            graphs.append(
                replace(
                    graph,
                    names=tuple(sorted(names.get(place, ()))),
                    buckets=tuple(buckets.get(place, ())),
                    builds=tuple(asked_by.get(place, ())),
                )
            )
    return Inventory(tuple(graphs), kernels, classes, frozenset(builds), sizes_of(reader))


def sizes_of(reader: StoreReader) -> dict[str, Size]:
    """Of every file and folder of a store by its path, ``""`` being the store's own folder.

    In a pack a file takes its bytes up to the next; ``""`` is what the pack takes besides. So of
    both forms the sum is what the store takes.
    """
    if os.path.isdir(reader.path):
        return measure(reader.path)
    bytes_of = {path: reader.size(path) or 0 for path in (*reader.files(), *reader.foreign())}
    sizes = {path: Size(size, aligned(size)) for path, size in bytes_of.items()}
    entries, (pack,) = total(sizes.values()), measure(reader.path).values()
    rest = Size(pack.bytes - entries.bytes, pack.disk_bytes - entries.disk_bytes)
    return {"": rest, **sizes}


def measure(path: Path) -> dict[str, Size]:
    """Of every file and folder at and below ``path``, by relative path; no link is followed.

    A file with several names counts once, as it does for `du`.
    """
    sizes: dict[str, Size] = {}
    seen: set[tuple[int, int]] = set()

    def add(relative: str, status: os.stat_result) -> None:
        is_again = not stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) in seen
        seen.add((status.st_dev, status.st_ino))
        sizes[relative] = Size() if is_again else Size(status.st_size, 512 * status.st_blocks)

    try:
        status = path.stat()  # the store itself may be reached through a link
        add("", status)
        pending = [""] if stat.S_ISDIR(status.st_mode) else []
        while pending:
            folder = pending.pop()
            for name in _listed(path / folder):
                relative = f"{folder}/{name}" if folder else name
                with contextlib.suppress(FileNotFoundError):
                    status = os.lstat(f"{path}/{relative}")  # noqa: PTH116 (ten thousands of them)
                    add(relative, status)
                    if stat.S_ISDIR(status.st_mode):
                        pending.append(relative)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StoreError(f"cannot read {str(error.filename or path)!r}: {reason}") from None
    return sizes


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 (names alone)
    except FileNotFoundError:
        return []


def _there(read: Any, *what: str) -> Any:
    """What is there and whole, else None."""
    try:
        return read(*what)
    except (NotInStoreError, DamagedError):
        return None


def _asked_for(build: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Target and key of each graph that a build was asked for."""
    keys = [graph["graph_key"] for graph in build["graphs"]]
    return {(target["name"], key) for target in build["targets"] for key in keys}


def _graph(
    reader: StoreReader,
    kernels: Mapping[str, StoredKernel],
    place: tuple[str, str],
) -> StoredGraph | None:
    """Without what leads to it."""
    pointer = _there(reader.pointer, *place)
    if pointer is None:
        return None
    digests = [digest for digest in (pointer.get("graph"),) if digest is not None]
    keys: set[str] = set()
    made_by: set[str] = set()
    for digest in pointer["records"]:
        digests.append(digest)
        try:
            record = parse_record(reader.blob(digest), digest)
        except (NotInStoreError, DamagedError):
            continue  # `verify` tells
        digests += [part["blob"] for part in (*record["kernels"], *record.get("blobs", ()))]
        keys |= {kernel["key"] for kernel in record["kernels"]}
        if version := record["requirements"].get("cudnn"):
            made_by.add(f"cudnn {version}")
    made_by |= {kernels[key].toolchain for key in keys if key in kernels} - {""}
    try:
        changed_s = (reader.path / layout.pointer_path(*place)).lstat().st_ctime
    except OSError:
        changed_s = 0.0  # of no use for an order, and nothing else is
    return StoredGraph(
        *place,
        plans=len(pointer["records"]),
        kernels=tuple(sorted(keys)),
        blobs=tuple(sorted(set(digests))),
        generation="; ".join(sorted(made_by)),
        changed_s=changed_s,
    )


__all__ = [
    "Inventory",
    "Size",
    "StoredGraph",
    "StoredKernel",
    "measure",
    "sizes_of",
    "take_inventory",
    "total",
]
