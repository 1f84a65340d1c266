"""``cudnn-aot ls --stats``: what a store takes, by target."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cudnn_aot.cache.inventory import Size, take_inventory
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.stats import TargetStats, stats_of
from cudnn_aot.cli.output import print_json, say
from cudnn_aot.cli.table import format_bytes, format_table, plural


def show_stats(reader: StoreReader, target: str | None, as_json: bool) -> int:
    """Print the statistics of a store, or of one target that it holds."""
    stats = stats_of(take_inventory(reader))
    rows = [row for row in stats.targets if target in (None, row.target)]
    if as_json:
        print_json(
            {
                "store": str(reader.path),
                "targets": [_document(row) for row in rows],
                "all": _document(stats.all),
                "unreferenced": {
                    "kernels": stats.unused_kernels,
                    "blobs": stats.unused_blobs,
                    "builds": stats.unused_builds,
                    **asdict(stats.unused),
                },
                "foreign": asdict(stats.foreign),
            }
        )
        return 0
    numbers = ("graphs", "plans", "declined", "kernels", "blobs", "builds")
    header = ("target", *numbers, "bytes", "on disk")
    right = " ".join((*numbers, "bytes", "disk"))
    say(*(format_table(header, [_cells(row) for row in [*rows, stats.all]], right=right)), "")
    for row in rows:
        say(f"{row.target}: made by {'; '.join(row.toolchains) or 'tools that are not recorded'}")
        if row.shared_kernels:
            say(f"  {plural(row.shared_kernels, 'kernel')} of more than one graph")
        if row.shared.bytes:
            say(f"  {_both(row.shared)} that other targets need too")
    unused = (
        *((stats.unused_kernels, "kernel"), (stats.unused_blobs, "blob")),
        (stats.unused_builds, "build record"),
    )
    if any(count for count, _ in unused):
        counts = ", ".join(plural(count, what) for count, what in unused if count)
        say(f"of no graph: {counts}, {_both(stats.unused)} (`prune --unreferenced`)")
    if stats.foreign.bytes:
        say(f"not the store's own: {_both(stats.foreign)}")
    return 0


def _document(row: TargetStats) -> dict[str, Any]:
    counts = {"target": row.target} if row.target else {}
    return {
        **counts,
        "graphs": row.graphs,
        "names": row.names,
        "plans": row.plans,
        "declined": row.declined,
        "kernels": row.kernels,
        "shared_kernels": row.shared_kernels,
        "blobs": row.blobs,
        "builds": row.builds,
        **asdict(row.size),
        "shared": asdict(row.shared),
        "toolchains": list(row.toolchains),
    }


def _cells(row: TargetStats) -> tuple[str, ...]:
    counts = (row.graphs, row.plans, row.declined, row.kernels, row.blobs, row.builds)
    sizes = (format_bytes(row.size.bytes), format_bytes(row.size.disk_bytes))
    return (row.target or "all", *map(str, counts), *sizes)


def _both(size: Size) -> str:
    return f"{format_bytes(size.bytes)} ({format_bytes(size.disk_bytes)} on the disk)"
