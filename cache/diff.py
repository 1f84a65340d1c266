"""How two stores differ, by what their documents say: graphs, names, kernels, and field by field.

Recorded digests are compared, not bytes: `verify` reads those. A damaged document counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from cudnn_aot.cache import layout
from cudnn_aot.cache.inventory import Inventory, StoredGraph, take_inventory
from cudnn_aot.cache.plan_record import parse_record
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.errors import DamagedError, NotInStoreError

_ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Change:
    """One field of two stores' plans of a graph, ``native.knobs.TILE_M``, with both values."""

    field: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class ChangedGraph:
    """A graph of both stores whose plans or names differ."""

    target: str
    graph_key: str
    names: tuple[str, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class MovedName:
    """A name that stands for two graphs, by their keys, or for other uids of one."""

    target: str
    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class StoreDiff:
    """What one store has and the other has not, and what both have and differs.

    Attributes:
        only_a, only_b: graphs; of kernels, blobs and build records keys and digests.
        kernels, blobs, builds: number that both have.
    """

    only_a: tuple[StoredGraph, ...]
    only_b: tuple[StoredGraph, ...]
    changed: tuple[ChangedGraph, ...]
    moved: tuple[MovedName, ...]
    kernels: int
    kernels_a: tuple[str, ...]
    kernels_b: tuple[str, ...]
    blobs: int
    blobs_a: tuple[str, ...]
    blobs_b: tuple[str, ...]
    builds: int
    builds_a: tuple[str, ...]
    builds_b: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not any(
            (
                *(self.only_a, self.only_b, self.changed, self.moved),
                *(self.kernels_a, self.kernels_b, self.blobs_a, self.blobs_b),
                *(self.builds_a, self.builds_b),
            )
        )


def diff(a: StoreReader, b: StoreReader) -> StoreDiff:
    """Compare two stores.

    Raises:
        StoreError: the system does not let us read a document of one.
    """
    one, other = take_inventory(a), take_inventory(b)
    graphs, others = _by_place(one), _by_place(other)
    both = sorted(graphs.keys() & others.keys())
    changed = []
    for target, key in both:
        buckets = [set(found[target, key].buckets) for found in (graphs, others)]
        changes = (*_changes(a, b, target, key), *_class_changes(*buckets))
        if changes:
            names = sorted({*graphs[target, key].names, *others[target, key].names})
            changed.append(ChangedGraph(target, key, tuple(names), changes))
    return StoreDiff(
        only_a=tuple(graphs[place] for place in sorted(graphs.keys() - others.keys())),
        only_b=tuple(others[place] for place in sorted(others.keys() - graphs.keys())),
        changed=tuple(changed),
        moved=tuple(_moved(a, b, graphs.keys() ^ others.keys())),
        kernels=len(one.kernels.keys() & other.kernels.keys()),
        kernels_a=tuple(sorted(one.kernels.keys() - other.kernels.keys())),
        kernels_b=tuple(sorted(other.kernels.keys() - one.kernels.keys())),
        blobs=len(one.blobs & other.blobs),
        blobs_a=tuple(sorted(one.blobs - other.blobs)),
        blobs_b=tuple(sorted(other.blobs - one.blobs)),
        builds=len(one.builds & other.builds),
        builds_a=tuple(sorted(one.builds - other.builds)),
        builds_b=tuple(sorted(other.builds - one.builds)),
    )


def _by_place(inventory: Inventory) -> dict[tuple[str, str], StoredGraph]:
    return {(graph.target, graph.graph_key): graph for graph in inventory.graphs}


def _moved(a: StoreReader, b: StoreReader, alone: Set[tuple[str, str]]) -> Iterator[MovedName]:
    """Names that are not in both stores, but for those that one lacks with their graph, or that
    mean something else there.
    """
    for target, name in sorted({*a.names(), *b.names()}):
        found = []
        for store in (a, b):
            try:
                document = store.name(target, name)
                found.append((document["graph_key"], document["uids"]))
            except (NotInStoreError, DamagedError):
                found.append((_ABSENT, None))
        (key, uids), (other_key, other_uids) = found
        is_told = _ABSENT in (key, other_key) and {(target, key), (target, other_key)} & alone
        if key != other_key and not is_told:
            yield MovedName(target, name, key, other_key)
        elif key == other_key and uids != other_uids:
            yield MovedName(target, name, f"uids {_text(uids)}", f"uids {_text(other_uids)}")


def _changes(a: StoreReader, b: StoreReader, target: str, key: str) -> Iterator[Change]:
    pointers = [store.pointer(target, key) for store in (a, b)]
    parts = [layout.providers_of(pointer) for pointer in pointers]
    for provider in sorted({*parts[0], *parts[1]}):
        yield from _part_changes(provider, (a, b), [part.get(provider) for part in parts])


def _class_changes(one: set[str], other: set[str]) -> Iterator[Change]:
    for bucket in sorted(one ^ other):
        sides = ("member" if bucket in each else _ABSENT for each in (one, other))
        yield Change(f"class {bucket[:12]}", *sides)


def _part_changes(
    provider: str, stores: tuple[StoreReader, StoreReader], parts: list[dict[str, Any] | None]
) -> Iterator[Change]:
    words = [_plans(part) for part in parts]
    if words[0] != words[1]:
        yield Change(f"{provider}.plans", *words)
    if parts[0] is None or parts[1] is None:
        return
    found = list(_fields(f"{provider}.reasons", parts[0]["reasons"], parts[1]["reasons"]))
    if parts[0]["records"] and parts[1]["records"]:
        records = [_record(store, part) for store, part in zip(stores, parts, strict=True) if part]
        if records[0] != records[1]:
            found += _record_changes(provider, stores, records)
    keys = [str(part["plan_key"]) for part in (parts[0], parts[1])]
    if keys[0] != keys[1] and not found:
        # A plan key is one digest: it cannot be asked which of its parts differs.
        found.append(Change(f"{provider}.plan_key", *(key[:12] for key in keys)))
    yield from found


def _plans(part: Mapping[str, Any] | None) -> str:
    if part is None:
        return _ABSENT
    return f"{len(part['records'])} built" if part["records"] else "declined"


def _record(store: StoreReader, part: Mapping[str, Any]) -> dict[str, Any]:
    """The best plan record; empty for one that cannot be read."""
    try:
        digest = part["records"][0]
        return parse_record(store.blob(digest), digest)
    except (NotInStoreError, DamagedError):
        return {}


def _record_changes(
    provider: str, stores: Iterable[StoreReader], records: list[dict[str, Any]]
) -> Iterator[Change]:
    apart = ("kernels", "table")
    bare = [{name: record[name] for name in record if name not in apart} for record in records]
    yield from _fields(provider, bare[0], bare[1])
    tables = [record.get("table") or {} for record in records]
    for name in sorted({*tables[0], *tables[1]}):  # too long to be shown
        if tables[0].get(name) != tables[1].get(name):
            yield Change(f"{provider}.table.{name}", "one", "another")
    kernels = [record.get("kernels", []) for record in records]
    if len(kernels[0]) != len(kernels[1]):
        yield Change(f"{provider}.kernels", *(str(len(each)) for each in kernels))
        return
    for number, pair in enumerate(zip(*kernels, strict=True)):
        place = f"{provider}.kernels[{number}]"
        if pair[0]["key"] != pair[1]["key"]:
            specs = [_spec(store, kernel) for store, kernel in zip(stores, pair, strict=True)]
            yield from _fields(place, specs[0], specs[1])
        elif pair[0].get("object") != pair[1].get("object"):
            yield from _fields(f"{place}.object", pair[0].get("object"), pair[1].get("object"))
        else:  # of one object: they were linked by two linkers
            yield from _fields(f"{place}.linked", pair[0]["blob"], pair[1]["blob"])


def _spec(store: StoreReader, kernel: Mapping[str, Any]) -> Any:
    try:
        return store.kernel(kernel["key"])["spec"]
    except (NotInStoreError, DamagedError):
        return {"key": kernel["key"]}


def _fields(place: str, a: Any, b: Any) -> Iterator[Change]:
    """Where two plain values differ, down to the field."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in sorted({*a, *b}):
            yield from _fields(f"{place}.{name}", a.get(name), b.get(name))
    elif a != b:
        yield Change(place, _text(a), _text(b))


def _text(value: Any) -> str:
    if value is None:
        return _ABSENT
    if layout.is_digest(value):
        return str(value)[:12]
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


__all__ = ["Change", "ChangedGraph", "MovedName", "StoreDiff", "diff"]
