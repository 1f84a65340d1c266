"""Making a store smaller: what goes is chosen from an inventory, as values, and then removed.

Graphs go whole, with their names, places in classes and pointers; then the kernels that no graph
names any more and the records of builds of which no graph is left, then the blobs. Each step is on
the disk before the next begins, so that neither a reader nor a crash at any moment meets a
reference to what is gone. Nothing is written but the class of a graph whose other members stay, and
that after space was made, if there is none.

What a living process holds stays (`cache.held`). No link is followed, and files that are not the
store's own are left alone.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cudnn_aot.cache import held, layout, session
from cudnn_aot.cache.inventory import (
    Inventory,
    Size,
    StoredGraph,
    StoredKernel,
    measure,
    take_inventory,
    total,
)
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.errors import StoreError, UsageError

_BATCH = 256  # graphs that are taken away at a time

# Whether a kernel is one of those that are to go, by the tools that made it.
KernelTest = Callable[[StoredKernel], bool]


@dataclass(frozen=True, slots=True)
class Criteria:
    """What may go: graphs that every filter selects, all of them or until the rest fits.

    Attributes:
        max_disk_bytes: that the store may have in the end, as `du` counts; None to remove all that
            is selected. Until it fits unreferenced files go, then whole generations, the one that
            was longest without an addition first, then graphs of the newest, oldest first.
        older_than_s: only graphs whose pointers were published, or copied here, longer ago.
        targets: only graphs of these targets; empty for any.
        kernels: only graphs with such a kernel; None for any.
        unreferenced: also kernels and blobs that no graph names, whoever left them, and records of
            builds of which there is no graph.
    """

    max_disk_bytes: int | None = None
    older_than_s: float | None = None
    targets: tuple[str, ...] = ()
    kernels: KernelTest | None = None
    unreferenced: bool = False

    @property
    def selects_graphs(self) -> bool:
        filters = (self.max_disk_bytes, self.older_than_s, self.kernels)
        return bool(self.targets) or any(each is not None for each in filters)


@dataclass(frozen=True, slots=True)
class Choice:
    """What goes, in the order in which it goes.

    Attributes:
        held: graphs that would go, but that a living process holds.
        left: what the store has afterwards.
    """

    graphs: tuple[StoredGraph, ...]
    held: tuple[StoredGraph, ...]
    kernels: tuple[str, ...]
    blobs: tuple[str, ...]
    builds: tuple[str, ...]
    left: Size


@dataclass(frozen=True, slots=True)
class Pruned:
    """What went.

    Attributes:
        held: graphs that would have gone, but that a living process holds.
        failures: what could not be removed, a line each.
        before, left: sizes of the store.
    """

    graphs: tuple[StoredGraph, ...]
    held: tuple[StoredGraph, ...]
    kernels: tuple[str, ...]
    blobs: tuple[str, ...]
    builds: tuple[str, ...]
    failures: tuple[str, ...]
    before: Size
    left: Size


def prune(path: Path, criteria: Criteria, *, dry_run: bool = False, wait_s: float = 10.0) -> Pruned:
    """Remove from the store at ``path`` what the criteria select.

    Args:
        dry_run: remove nothing, and say what would go.
        wait_s: how long builders are waited for.

    Raises:
        UsageError: the criteria select nothing at all, or the store is a pack.
        StoreError: builders are at work, the file system has no locks, or the store cannot be read.
    """
    if not criteria.selects_graphs and not criteria.unreferenced:
        raise UsageError(
            "nothing to prune by: give --max-size, --older-than, --target, --toolchain or "
            "--unreferenced"
        )
    reader = StoreReader(path)
    if os.path.isfile(path):
        raise UsageError(
            f"cannot prune {str(path)!r}: it is a pack, which never changes; prune the folder, "
            "then make a pack of that with `cudnn-aot pack`"
        )
    if dry_run:
        marks = held.Marks(path)
        try:
            inventory = take_inventory(reader)
            chosen = choose(inventory, criteria, time.time(), _holders(inventory, marks))
        finally:
            marks.close()
        went = chosen.graphs, chosen.held, chosen.kernels, chosen.blobs, chosen.builds
        return Pruned(*went, failures=(), before=inventory.size, left=chosen.left)
    joined = held.join_as_pruner(path, wait_s)
    if joined is None:
        raise StoreError(f"cannot prune {str(path)!r} yet: {session.who_builds(path)}: try later")
    if not joined.works:
        joined.close()
        raise StoreError(
            f"cannot prune {str(path)!r}: its file system has no locks, which tell who uses it: "
            "copy the store to one that has, prune it there and put it in the place of this one"
        )
    with StoreWriter(path, create=False, marks=joined) as writer:
        inventory = take_inventory(reader)
        chosen = choose(inventory, criteria, time.time(), _holders(inventory, joined))
        removal = _Removal(writer, joined, inventory, criteria)
        removal.run(chosen.graphs)
    return Pruned(
        tuple(removal.graphs),
        (*chosen.held, *removal.held),
        tuple(removal.kernels),
        tuple(removal.blobs),
        tuple(removal.builds),
        tuple(removal.failures),
        inventory.size,
        total(measure(path).values()),
    )


def choose(
    inventory: Inventory,
    criteria: Criteria,
    now_s: float,
    held_graphs: Collection[tuple[str, str]] = (),
) -> Choice:
    """What the criteria select of a store at a time, but for the graphs that are held."""
    selected = [graph for graph in inventory.graphs if _selects(criteria, inventory, graph, now_s)]
    free = [graph for graph in selected if (graph.target, graph.graph_key) not in held_graphs]
    limit = criteria.max_disk_bytes
    going = free if limit is None else []
    rest = _rest(inventory, criteria, going)
    if limit is not None:
        for group in _in_turn(free):
            if rest.size.disk_bytes <= limit:
                break
            going += group
            for graph in group:
                rest.drop(graph)
    is_short = limit is None or rest.size.disk_bytes > limit
    kept = [graph for graph in selected if graph not in free] if is_short else []
    return Choice(tuple(going), tuple(kept), *rest.gone(), rest.size)


def _rest(inventory: Inventory, criteria: Criteria, going: Iterable[StoredGraph]) -> _Rest:
    """What is left without some graphs and all that goes with them."""
    rest = _Rest(inventory)
    for graph in going:
        rest.drop(graph)
    if criteria.max_disk_bytes is not None or criteria.unreferenced:
        rest.drop_unused_kernels()
        rest.drop_unused_blobs()
        rest.drop_unused_builds()
    elif criteria.kernels is not None and not criteria.targets and criteria.older_than_s is None:
        rest.drop_unused_kernels(criteria.kernels)
    return rest


def _selects(criteria: Criteria, inventory: Inventory, graph: StoredGraph, now_s: float) -> bool:
    if not criteria.selects_graphs or criteria.targets and graph.target not in criteria.targets:
        return False
    if criteria.older_than_s is not None and now_s - graph.changed_s <= criteria.older_than_s:
        return False
    known = [inventory.kernels[key] for key in graph.kernels if key in inventory.kernels]
    return criteria.kernels is None or any(map(criteria.kernels, known))


def _in_turn(graphs: Iterable[StoredGraph]) -> Iterator[list[StoredGraph]]:
    """Generations as wholes, then the graphs of the newest one by one, oldest first.

    What no tool made, such as a decline, is of the newest generation: alone it frees next to
    nothing.
    """
    generations: dict[str, list[StoredGraph]] = {}
    single: list[StoredGraph] = []
    for graph in sorted(graphs, key=lambda g: (g.changed_s, g.target, g.graph_key)):
        known = generations.setdefault(graph.generation, []) if graph.generation else single
        known.append(graph)
    by_age = sorted(generations.values(), key=lambda members: members[-1].changed_s)
    yield from by_age[:-1]
    for graph in sorted([*single, *(by_age[-1] if by_age else ())], key=lambda g: g.changed_s):
        yield [graph]


class _Rest:
    """What is left of a store while one thing after the other goes."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._kernels = dict(inventory.kernels)
        self._blobs = set(inventory.blobs)
        self._members = {place: set(keys) for place, keys in inventory.classes.items()}
        self._kernel_uses = Counter(key for graph in inventory.graphs for key in graph.kernels)
        self._blob_uses = Counter(digest for graph in inventory.graphs for digest in graph.blobs)
        self._builds = set(inventory.builds)
        self._build_uses = Counter(digest for graph in inventory.graphs for digest in graph.builds)
        self._blob_uses.update(kernel.blob for kernel in inventory.kernels.values())
        self._in_folder = Counter(_folder(path) for path in inventory.sizes if path)
        self.size = inventory.size

    def drop(self, graph: StoredGraph) -> None:
        """A graph, and of what it alone needs everything."""
        for name in graph.names:
            self._drop_file(layout.name_path(graph.target, name))
        for bucket in graph.buckets:
            members = self._members[graph.target, bucket]
            members.discard(graph.graph_key)
            if not members:
                self._drop_file(layout.class_path(graph.target, bucket))
        self._drop_file(graph.pointer)
        for digest in graph.blobs:
            self._release(digest)
        for key in graph.kernels:
            self._kernel_uses[key] -= 1
            if not self._kernel_uses[key]:
                self._drop_kernel(key)
        for digest in graph.builds:
            self._build_uses[digest] -= 1
            if not self._build_uses[digest]:
                self._drop_build(digest)

    def drop_unused_kernels(self, test: KernelTest = lambda kernel: True) -> None:
        """Those that no graph names, whoever left them."""
        for key, kernel in list(self._kernels.items()):
            if not self._kernel_uses[key] and test(kernel):
                self._drop_kernel(key)

    def drop_unused_blobs(self) -> None:
        for digest in [digest for digest in self._blobs if not self._blob_uses[digest]]:
            self._drop_blob(digest)

    def drop_unused_builds(self) -> None:
        """Those of which there is no graph, as where a build was killed before its first."""
        for digest in [digest for digest in self._builds if not self._build_uses[digest]]:
            self._drop_build(digest)

    def gone(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Keys of the kernels, digests of the blobs and of the build records that went."""
        kernels = sorted(self._inventory.kernels.keys() - self._kernels.keys())
        blobs = sorted(self._inventory.blobs - self._blobs)
        return tuple(kernels), tuple(blobs), tuple(sorted(self._inventory.builds - self._builds))

    def _drop_build(self, digest: str) -> None:
        self._builds.discard(digest)
        self._drop_file(layout.build_path(digest))

    def _drop_kernel(self, key: str) -> None:
        kernel = self._kernels.pop(key, None)
        if kernel is not None:
            self._drop_file(layout.kernel_path(key))
            self._release(kernel.blob)

    def _release(self, digest: str) -> None:
        self._blob_uses[digest] -= 1
        if not self._blob_uses[digest]:
            self._drop_blob(digest)

    def _drop_blob(self, digest: str) -> None:
        if digest in self._blobs:
            self._blobs.remove(digest)
            self._drop_file(layout.blob_path(digest))

    def _drop_file(self, path: str) -> None:
        """A file, and the folders that are empty without it."""
        while path in self._inventory.sizes and path:
            gone = self._inventory.sizes[path]
            self.size = Size(self.size.bytes - gone.bytes, self.size.disk_bytes - gone.disk_bytes)
            path = _folder(path)
            self._in_folder[path] -= 1
            if self._in_folder[path]:
                break


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _holders(inventory: Inventory, marks: held.Marks) -> frozenset[tuple[str, str]]:
    """Target and key of the graphs that living processes hold."""
    places = ((graph.target, graph.graph_key) for graph in inventory.graphs)
    return frozenset(
        place for place in places if marks.others(held.GRAPH + held.graph_byte(*place))
    )


class _Removal:
    """Takes graphs out of a store, and then what nothing names any more.

    Attributes:
        graphs, kernels, blobs, builds: that are gone.
        held: graphs that a process took hold of meanwhile.
        failures: what could not be removed, a line each.
    """

    def __init__(
        self, writer: StoreWriter, marks: held.Marks, inventory: Inventory, criteria: Criteria
    ) -> None:
        self._writer = writer
        self._marks = marks
        self._inventory = inventory
        self._criteria = criteria
        self.graphs: list[StoredGraph] = []
        self.held: list[StoredGraph] = []
        self.kernels: list[str] = []
        self.blobs: list[str] = []
        self.builds: list[str] = []
        self.failures: list[str] = []

    def run(self, graphs: Sequence[StoredGraph]) -> None:
        waiting = self._take_away(graphs, is_last=False)
        self._sweep()
        if waiting:  # there was no space for what their classes become, and now there is
            self._take_away(waiting, is_last=True)
            self._sweep()
        self._writer.sync_removals(self._inventory.empty_folders())

    def _take_away(self, graphs: Sequence[StoredGraph], is_last: bool) -> list[StoredGraph]:
        """Returns those whose classes could not be written; the last time that is a failure."""
        waiting: list[StoredGraph] = []
        for start in range(0, len(graphs), _BATCH):
            batch = graphs[start : start + _BATCH]
            marked = [graph for graph in batch if self._mark(graph)]
            try:
                if is_last:  # every file that goes may be the space that is lacking
                    marked = [graph for graph in marked if self._remove_names(graph)]
                unwritten = self._leave_classes(marked, is_last)
                waiting += unwritten
                for graph in marked:
                    if graph not in unwritten and self._remove_names(graph):
                        if self._try(graph.pointer):
                            self.graphs.append(graph)
                self._writer.sync_removals()
            finally:
                for graph in batch:
                    byte = held.graph_byte(graph.target, graph.graph_key)
                    self._marks.withdraw(held.PRUNED + byte)
        return waiting

    def _mark(self, graph: StoredGraph) -> bool:
        """Whether nobody holds a graph; nobody is given it until the mark is withdrawn."""
        byte = held.graph_byte(graph.target, graph.graph_key)
        self._marks.announce(held.PRUNED + byte)
        if not self._marks.others(held.GRAPH + byte):
            return True
        self._marks.withdraw(held.PRUNED + byte)
        self.held.append(graph)
        return False

    def _leave_classes(self, graphs: Sequence[StoredGraph], is_last: bool) -> list[StoredGraph]:
        """Takes graphs out of their classes; returns those of classes that cannot be written."""
        places: dict[tuple[str, str], list[StoredGraph]] = {}
        for graph in graphs:
            for bucket in graph.buckets:
                places.setdefault((graph.target, bucket), []).append(graph)
        unwritten: list[StoredGraph] = []
        for (target, bucket), members in places.items():
            try:
                keys = [graph.graph_key for graph in members]
                self._writer.remove_from_class(target, bucket, keys)
            except (StoreError, OSError) as error:
                unwritten += members
                if is_last:
                    self.failures.append(str(error))
        return unwritten

    def _remove_names(self, graph: StoredGraph) -> bool:
        return all([self._try(layout.name_path(graph.target, name)) for name in graph.names])

    def _sweep(self) -> None:
        """Remove what nothing names, the graphs being gone that are."""
        kernels, blobs, builds = _rest(self._inventory, self._criteria, self.graphs).gone()
        kept: set[str] = set()
        for key in kernels:
            if self._try(layout.kernel_path(key), self.kernels, key):
                continue
            kept.add(self._inventory.kernels[key].blob)
        for digest in builds:
            self._try(layout.build_path(digest), self.builds, digest)
        self._writer.sync_removals()
        for digest in blobs:
            if digest not in kept:
                self._try(layout.blob_path(digest), self.blobs, digest)
        self._writer.sync_removals()

    def _try(self, relative: str, gone: list[str] | None = None, what: str = "") -> bool:
        """Whether a file is not there any more; ``gone`` gets what this call removed."""
        try:
            if self._writer.remove(relative) and gone is not None:
                gone.append(what)
        except StoreError as error:
            self.failures.append(str(error))
            return False
        return True
