"""``cudnn-aot merge``: join the stores of several builds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from cudnn_aot.cache.merge import Prefer
from cudnn_aot.cache.merge import merge as merge_stores
from cudnn_aot.cli.completion import complete_folders
from cudnn_aot.cli.options import json_option, offline_option, open_source
from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.cli.progress import show_progress
from cudnn_aot.cli.table import format_bytes, plural
from cudnn_aot.errors import UsageError


@click.command()
@click.argument(
    "sources", metavar="SRC...", nargs=-1, required=True, shell_complete=complete_folders
)
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="DST",
    shell_complete=complete_folders,
    help="The store to add to, or a new one.",
)
@click.option("--keep", is_flag=True, help="Of two that differ, what was there before: no failure.")
@click.option("--replace", is_flag=True, help="Of two that differ, what the later source has.")
@offline_option
@json_option
def merge(sources: tuple[str, ...], output: str, keep: bool, replace: bool, as_json: bool) -> int:
    """Add all that the stores SRC hold to the store DST, which is made if need be.

    Every byte is checked before it is taken, and what fails is listed. Names and plans that differ
    are listed too, and stay as they are: exit code 1, unless --keep or --replace decides.

    \b
    cudnn-aot merge part1 part2 -o store
    """
    if keep and replace:
        raise UsageError("--keep and --replace exclude each other: give one")
    path = Path(output)
    readers = [open_source(source) for source in sources]
    prefer: Prefer | None = "keep" if keep else "replace" if replace else None
    with show_progress(quiet=as_json) as progress:
        did = merge_stores(readers, path, prefer, progress)
    is_decided = keep or replace
    for line in did.failures:
        complain(f"error: {line}")
    for line in did.conflicts:
        complain(f"{'note' if is_decided else 'error'}: {line}")
    if as_json:
        print_json({"store": str(path), **asdict(did)})
    else:
        counts = (
            plural(did.plans, "plan"),
            plural(did.kernels, "kernel"),
            plural(did.names, "name"),
            *([plural(did.builds, "build record")] if did.builds else []),
        )
        files = f"{plural(did.files_written, 'file')}, {format_bytes(did.bytes_written)}"
        say(f"{path}: {', '.join(counts)} added or changed: {files}")
    return 1 if did.failures or did.conflicts and not is_decided else 0
