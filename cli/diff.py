"""``cudnn-aot diff``: what one store has and another has not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from cudnn_aot.cache.diff import MovedName, StoreDiff
from cudnn_aot.cache.diff import diff as diff_stores
from cudnn_aot.cache.inventory import StoredGraph
from cudnn_aot.cache.layout import is_digest
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.transfer import redacted
from cudnn_aot.cli.completion import complete_folders
from cudnn_aot.cli.options import json_option, offline_option, open_source
from cudnn_aot.cli.output import print_json, say
from cudnn_aot.errors import Error

_SHOWN_FIELDS = 6


@click.command()
@click.argument("a", metavar="A", shell_complete=complete_folders)
@click.argument("b", metavar="B", shell_complete=complete_folders)
@offline_option
@json_option
def diff(a: str, b: str, as_json: bool) -> int:
    """Compare the stores A and B: exit code 0 if they hold the same, 1 if not.

    Says which graphs and names one of them lacks, of plans that differ in which field, and how many
    kernels and blobs are in one alone.

    \b
    cudnn-aot diff store.old store
    """
    readers = open_source(a), open_source(b)
    a, b = redacted(a), redacted(b)
    found = diff_stores(*readers)
    graphs = {move: list(_graph_differences(*readers, move)) for move in found.moved}
    if as_json:
        print_json(
            {
                "a": a,
                "b": b,
                "equal": found.is_empty,
                "only_a": [_document(graph) for graph in found.only_a],
                "only_b": [_document(graph) for graph in found.only_b],
                "changed": [asdict(each) for each in found.changed],
                "names": [{**asdict(m), "differences": graphs[m]} for m in found.moved],
                "kernels": {
                    "both": found.kernels,
                    "only_a": list(found.kernels_a),
                    "only_b": list(found.kernels_b),
                },
                "blobs": {
                    "both": found.blobs,
                    "only_a": list(found.blobs_a),
                    "only_b": list(found.blobs_b),
                },
                "builds": {
                    "both": found.builds,
                    "only_a": list(found.builds_a),
                    "only_b": list(found.builds_b),
                },
            }
        )
    else:
        say(*_lines(found, a, b, graphs))
    return 0 if found.is_empty else 1


def _document(graph: StoredGraph) -> dict[str, object]:
    return {"target": graph.target, "graph_key": graph.graph_key, "names": list(graph.names)}


def _lines(found: StoreDiff, a: str, b: str, graphs: dict[MovedName, list[str]]) -> Iterator[str]:
    for where, only in ((a, found.only_a), (b, found.only_b)):
        yield from (f"only in {where}: {graph.label}" for graph in only)
    for each in found.changed:
        name = each.names[0] if each.names else each.graph_key[:12]
        yield f"differs: {name} for {each.target}"
        for change in each.changes[:_SHOWN_FIELDS]:
            yield f"  {change.field}: {change.a}, and in {b} {change.b}"
        if len(each.changes) > _SHOWN_FIELDS:
            yield f"  and {len(each.changes) - _SHOWN_FIELDS} fields more"
    for move in found.moved:
        sides = [_shown(value) for value in (move.a, move.b)]
        yield f"name {move.name!r} for {move.target}: {sides[0]}, and in {b} {sides[1]}"
        yield from (f"  {line}" for line in graphs[move][:_SHOWN_FIELDS])
    for what, both, one, other in (
        ("kernels", found.kernels, found.kernels_a, found.kernels_b),
        ("blobs", found.blobs, found.blobs_a, found.blobs_b),
        ("builds", found.builds, found.builds_a, found.builds_b),
    ):
        yield f"{what}: {both} in both, {len(one)} only in {a}, {len(other)} only in {b}"


def _shown(value: str) -> str:
    return f"graph {value[:12]}" if is_digest(value) else value


def _graph_differences(a: StoreReader, b: StoreReader, move: MovedName) -> Iterator[str]:
    """How the two graphs of one name differ, in words; none where they cannot be read."""
    if not is_digest(move.a) or not is_digest(move.b):
        return
    from cudnn_aot.compiler.formats import graph_json
    from cudnn_aot.compiler.graph.bucket import graph_class
    from cudnn_aot.compiler.graph.difference import class_difference, differences

    try:
        one, other = (
            graph_json.loads(store.blob(store.pointer(move.target, key)["graph"]).decode())
            for store, key in ((a, move.a), (b, move.b))
        )
    except (Error, KeyError, TypeError, ValueError):
        return
    if graph_class(one).bucket == graph_class(other).bucket:
        said = differences(one, other)
    else:
        said = [class_difference(one, other)]
    yield from (each.in_words("in the first", "in the second") for each in said)
