"""``cudnn-aot merge``: join the stores of several builds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from cudnn_aot.cache.merge import Prefer
from cudnn_aot.cache.merge import merge as merge_stores
from cudnn_aot.cli.completion import complete_folders
from cudnn_aot.cli.options import json_option, offline_option, open_source
from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.cli.progress import show_progress
from cudnn_aot.cli.table import format_bytes, plural
from cudnn_aot.errors import UsageError

_F = TypeVar("_F", bound=Callable[..., Any])


def prefer_options(whose: str) -> Callable[[_F], _F]:
    """Both flags, of which `preference` says what they mean; ``--replace`` takes what ``whose``."""
    keep = click.option(
        "--keep", is_flag=True, help="Of two that differ, what was there before: no failure."
    )
    replace = click.option("--replace", is_flag=True, help=f"Of two that differ, what {whose}.")
    return lambda command: keep(replace(command))


def preference(keep: bool, replace: bool) -> Prefer | None:
    """How two that differ are settled.

    Raises:
        UsageError: both flags were given.
    """
    if keep and replace:
        raise UsageError("--keep and --replace exclude each other: give one")
    return "keep" if keep else "replace" if replace else None


def complain_of(failures: Iterable[str], conflicts: Iterable[str], prefer: Prefer | None) -> int:
    """Say what was not added, and what differed; the exit code."""
    failed, differed = list(failures), list(conflicts)
    for line in failed:
        complain(f"error: {line}")
    for line in differed:
        complain(f"{'error' if prefer is None else 'note'}: {line}")
    return 1 if failed or differed and prefer is None else 0


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
@prefer_options("the later source has")
@offline_option
@json_option
def merge(sources: tuple[str, ...], output: str, keep: bool, replace: bool, as_json: bool) -> int:
    """Add all that the stores SRC hold to the store DST, which is made if need be.

    Every byte is checked before it is taken, and what fails is listed. Names and plans that differ
    are listed too, and stay as they are: exit code 1, unless --keep or --replace decides.

    \b
    cudnn-aot merge part1 part2 -o store
    """
    prefer = preference(keep, replace)
    path = Path(output)
    readers = [open_source(source) for source in sources]
    with show_progress(quiet=as_json) as progress:
        did = merge_stores(readers, path, prefer, progress)
    code = complain_of(did.failures, did.conflicts, prefer)
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
    return code
