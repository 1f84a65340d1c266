"""``cudnn-aot prune``: make a store smaller."""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cudnn_aot.cache.inventory import StoredGraph, StoredKernel
from cudnn_aot.cache.mirrors import prune_mirrors
from cudnn_aot.cache.place import cache_store
from cudnn_aot.cache.prune import Criteria, KernelTest, Pruned
from cudnn_aot.cache.prune import prune as prune_store
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cli.options import choose_store, json_option, store_option, stored_targets_option
from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.cli.table import format_bytes, plural
from cudnn_aot.errors import CompileError, UsageError, did_you_mean

_SHOWN = 20
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@click.command()
@store_option
@click.option("--max-size", metavar="SIZE", help="Until the store takes no more: 500M, 2G, bytes.")
@click.option("--older-than", metavar="AGE", help="Published here longer ago: 30d, 12h, 2w.")
@stored_targets_option("Of these targets.")
@click.option(
    "--toolchain",
    metavar="SPEC",
    help="Made by such versions of the DSL: 4.8.1, '<4.9', '>=4.8,!=4.8.1'; or `other`: by other "
    "tools than are installed.",
)
@click.option("--unreferenced", is_flag=True, help="Kernels and blobs that no graph names.")
@click.option(
    "--mirrors",
    is_flag=True,
    help="Instead of graphs, what was fetched of URLs into the user's cache, or into --store.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go; remove nothing.")
@click.option(
    "--wait", "wait_s", type=click.FloatRange(min=0), default=10.0, show_default=True,
    metavar="SECONDS", help="How long builders are waited for.",
)  # fmt: skip
@json_option
def prune(
    store: str | None,
    max_size: str | None,
    older_than: str | None,
    targets: tuple[str, ...],
    toolchain: str | None,
    unreferenced: bool,
    mirrors: bool,
    dry_run: bool,
    wait_s: float,
    as_json: bool,
) -> int:
    """Remove graphs from a store, and the kernels and blobs that nothing names any more.

    What goes is what every option selects; with --max-size only until the rest fits: whole
    generations first, the plans that one toolchain made, then graphs of the newest, oldest first.
    Graphs that a living process holds stay. With --mirrors copies of stores at URLs go instead,
    whole, those into which nothing was fetched for longest first.

    \b
    cudnn-aot prune --max-size 2G --dry-run
    cudnn-aot prune --toolchain other --older-than 30d
    """
    if mirrors:
        if targets or toolchain is not None or unreferenced:
            raise UsageError("--mirrors goes with --max-size and --older-than alone: give no other")
        cache = cache_store() if store is None else choose_store(store).path
        return _prune_mirrors(cache, max_size, older_than, dry_run, as_json)
    path = choose_store(store).path
    criteria = Criteria(
        max_disk_bytes=None if max_size is None else parse_size(max_size),
        older_than_s=None if older_than is None else parse_age(older_than),
        targets=targets,
        kernels=None if toolchain is None else toolchain_test(toolchain),
        unreferenced=unreferenced,
    )
    held = StoreReader(path).targets() if targets else []
    for name in targets:
        if name not in held:  # no failure: what is repeated finds nothing left
            complain(f"note: the store has nothing for target {name!r}{did_you_mean(name, held)}")
    went = prune_store(path, criteria, dry_run=dry_run, wait_s=wait_s)
    limit = criteria.max_disk_bytes
    is_over = limit is not None and went.left.disk_bytes > limit
    for failure in went.failures:
        complain(f"error: {failure}")
    if is_over:
        why = "nothing that may go is left"
        if went.held:
            why = f"{plural(len(went.held), 'graph')} of what may go held by living processes"
        complain(
            f"error: the store still takes {format_bytes(went.left.disk_bytes)}, want at most "
            f"{format_bytes(limit or 0)}: {why}"
        )
    if as_json:
        print_json(
            {
                "store": str(path),
                "dry_run": dry_run,
                "graphs": [_document(graph) for graph in went.graphs],
                "held": [_document(graph) for graph in went.held],
                "kernels": list(went.kernels),
                "blobs": list(went.blobs),
                "builds": list(went.builds),
                "failures": list(went.failures),
                "before": asdict(went.before),
                "left": asdict(went.left),
            }
        )
    else:
        _report(went, dry_run)
    return 1 if went.failures or is_over else 0


def _prune_mirrors(
    cache: Path, max_size: str | None, older_than: str | None, dry_run: bool, as_json: bool
) -> int:
    limit = None if max_size is None else parse_size(max_size)
    went = prune_mirrors(
        cache,
        time.time(),
        max_disk_bytes=limit,
        older_than_s=None if older_than is None else parse_age(older_than),
        dry_run=dry_run,
    )
    is_over = limit is not None and went.left.disk_bytes > limit
    for failure in went.failures:
        complain(f"error: {failure}")
    if is_over:
        complain(
            f"error: the mirrors still take {format_bytes(went.left.disk_bytes)}, want at most "
            f"{format_bytes(limit or 0)}: {len(went.held)} of what may go held by living processes"
        )
    if as_json:
        print_json(
            {
                "store": str(cache),
                "dry_run": dry_run,
                "mirrors": [mirror.root_digest for mirror in went.mirrors],
                "held": [mirror.root_digest for mirror in went.held],
                "failures": list(went.failures),
                "before": asdict(went.before),
                "left": asdict(went.left),
            }
        )
    else:
        for mirror in went.held:
            say(f"kept {mirror.root_digest}: a living process uses it")
        freed = went.before.disk_bytes - went.left.disk_bytes
        say(
            f"{'would remove' if dry_run else 'removed'} {plural(len(went.mirrors), 'mirror')}: "
            f"{format_bytes(freed)} on the disk, {format_bytes(went.left.disk_bytes)} left"
        )
    return 1 if went.failures or is_over else 0


def _document(graph: StoredGraph) -> dict[str, object]:
    return {
        "target": graph.target,
        "graph_key": graph.graph_key,
        "names": list(graph.names),
        "generation": graph.generation,
    }


def _report(went: Pruned, dry_run: bool) -> None:
    verb = "would remove" if dry_run else "removed"
    for graph in went.graphs[:_SHOWN]:
        say(f"{verb} {graph.label}, made by {graph.generation or 'no recorded tool'}")
    if len(went.graphs) > _SHOWN:
        say(f"{verb} {len(went.graphs) - _SHOWN} graphs more")
    for graph in went.held:
        say(f"kept {graph.label}: a living process holds it")
    counts = (
        plural(len(went.graphs), "graph"),
        plural(len(went.kernels), "kernel"),
        plural(len(went.blobs), "blob"),
        *([plural(len(went.builds), "build record")] if went.builds else []),
    )
    freed = went.before.disk_bytes - went.left.disk_bytes
    say(
        f"{verb} {', '.join(counts)}: {format_bytes(freed)} on the disk, "
        f"{format_bytes(went.left.disk_bytes)} left"
    )


def parse_size(text: str) -> int:
    """``"1.5G"`` as bytes; K, M, G and T are powers of 1024, with or without ``iB`` or ``B``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"bad --max-size: got {text!r}, want bytes, or a number with K, M, G or T")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def parse_age(text: str) -> float:
    """``"30d"`` as seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if match is None:
        raise UsageError(f"bad --older-than: got {text!r}, want a number with s, m, h, d or w")
    return float(match[1]) * _SECONDS[match[2]]


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def toolchain_test(spec: str) -> KernelTest:
    """Whether a kernel was made by such tools; one of which nothing is recorded was not."""
    if spec == "other":
        return _is_of_other_tools
    conditions: list[tuple[Callable[[Any, Any], bool], tuple[int, ...]]] = []
    for part in spec.split(","):
        match = re.fullmatch(r"\s*(==|!=|<=|>=|<|>)?\s*(\d+(?:\.\d+)*)\s*", part)
        if match is None:
            raise UsageError(
                f"bad --toolchain: got {spec!r}, want versions of the DSL as 4.8.1, '<4.9' or "
                "'>=4.8,!=4.8.1', or `other`"
            )
        conditions.append((_COMPARE[match[1] or "=="], _numbers(match[2])))

    def is_such(kernel: StoredKernel) -> bool:
        version = _numbers(kernel.dsl)
        return bool(version) and all(compare(version, want) for compare, want in conditions)

    return is_such


def _is_of_other_tools(kernel: StoredKernel) -> bool:
    from cudnn_aot.cache.toolchain import toolchain

    made_by = dict(kernel.tools)
    try:
        return bool(made_by) and made_by != toolchain(made_by.get("dsl_flavor", ""))
    except CompileError as error:
        raise UsageError(f"--toolchain other compares with the installed tools: {error}") from None


def _numbers(version: str) -> tuple[int, ...]:
    """Of the release, zeros at its end left out: ``4.8`` and ``4.8.0`` are one version."""
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
