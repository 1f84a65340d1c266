"""What the parts of a store take, counted from its inventory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cudnn_aot.cache import layout
from cudnn_aot.cache.inventory import Inventory, Size, StoredGraph, total


@dataclass(frozen=True, slots=True)
class TargetStats:
    """Of one target, or of all.

    Attributes:
        target: empty for all.
        plans, declined: graphs that have a plan, and that have none.
        kernels: distinct ones that plans name, and ``shared_kernels`` those of more than one graph.
        blobs: distinct ones, of kernels, plan records, graphs and cuDNN's plans.
        builds: records of builds that were asked for one of the graphs; of all, every one.
        size: all files that the graphs need, each once; of all targets, the whole store.
        shared: of it, what graphs of other targets need as well.
        toolchains: that made the plans, sorted.
    """

    target: str
    graphs: int
    names: int
    plans: int
    declined: int
    kernels: int
    shared_kernels: int
    blobs: int
    builds: int
    size: Size
    shared: Size
    toolchains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A store by target.

    Attributes:
        unused_kernels, unused_blobs: that no graph names; unused_builds: of which there is no
            graph; ``unused``: what all these take.
        foreign: what files take that are not the store's own.
    """

    targets: tuple[TargetStats, ...]
    all: TargetStats
    unused_kernels: int
    unused_blobs: int
    unused_builds: int
    unused: Size
    foreign: Size


def stats_of(inventory: Inventory) -> StoreStats:
    """Count a store."""
    names = sorted({graph.target for graph in inventory.graphs})
    graphs = {name: [g for g in inventory.graphs if g.target == name] for name in names}
    files = {name: _files(inventory, graphs[name]) for name in names}
    uses = Counter(path for each in files.values() for path in each)
    rows = [_row(inventory, name, graphs[name], files[name], uses) for name in names]
    every = _row(inventory, "", inventory.graphs, set(inventory.sizes), Counter())
    unused_kernels = inventory.kernels.keys() - {k for g in inventory.graphs for k in g.kernels}
    unused = {layout.kernel_path(key) for key in unused_kernels}
    unused_blobs = inventory.blobs - {digest for g in inventory.graphs for digest in g.blobs}
    unused_blobs -= {
        kernel.blob for key, kernel in inventory.kernels.items() if key not in unused_kernels
    }
    unused_builds = inventory.builds - {digest for g in inventory.graphs for digest in g.builds}
    unused |= set(map(layout.blob_path, unused_blobs))
    unused |= set(map(layout.build_path, unused_builds))
    outer = {path.rpartition("/")[0] for path in inventory.sizes}
    foreign = {
        path
        for path in inventory.sizes
        if path not in outer and layout.classify(path) is None and not layout.is_folder(path)
    }
    return StoreStats(
        targets=tuple(rows),
        all=replace(every, builds=len(inventory.builds)),
        unused_kernels=len(unused_kernels),
        unused_blobs=len(unused_blobs),
        unused_builds=len(unused_builds),
        unused=_size(inventory, unused),
        foreign=_size(inventory, foreign),
    )


def _files(inventory: Inventory, graphs: Iterable[StoredGraph]) -> set[str]:
    """Paths of all that some graphs need."""
    found: set[str] = set()
    for graph in graphs:
        known = [inventory.kernels[key] for key in graph.kernels if key in inventory.kernels]
        found |= {graph.pointer, *map(layout.blob_path, graph.blobs)}
        found |= {layout.name_path(graph.target, name) for name in graph.names}
        found |= {layout.class_path(graph.target, bucket) for bucket in graph.buckets}
        for kernel in known:
            found |= {layout.kernel_path(kernel.key), layout.blob_path(kernel.blob)}
    return found


def _row(
    inventory: Inventory,
    target: str,
    graphs: Iterable[StoredGraph],
    files: set[str],
    uses: Counter[str],
) -> TargetStats:
    graphs = list(graphs)
    kernels = Counter(key for graph in graphs for key in graph.kernels)
    return TargetStats(
        target=target,
        graphs=len(graphs),
        names=sum(len(graph.names) for graph in graphs),
        plans=sum(graph.plans > 0 for graph in graphs),
        declined=sum(graph.plans == 0 for graph in graphs),
        kernels=len(kernels),
        shared_kernels=sum(count > 1 for count in kernels.values()),
        blobs=len({digest for graph in graphs for digest in graph.blobs}),
        builds=len({digest for graph in graphs for digest in graph.builds}),
        size=_size(inventory, files),
        shared=_size(inventory, {path for path in files if uses[path] > 1}),
        toolchains=tuple(sorted({graph.generation for graph in graphs} - {""})),
    )


def _size(inventory: Inventory, files: Iterable[str]) -> Size:
    return total(inventory.sizes[path] for path in files if path in inventory.sizes)
