"""``cudnn-aot build``: graph files and targets in, a store out."""

import contextlib
import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path

import click

from cudnn_aot.cli.completion import complete_allowed, complete_executors, complete_files
from cudnn_aot.cli.options import (
    choose_list,
    choose_store,
    choose_targets,
    engines_option,
    host_option,
    json_option,
    made_store_option,
    targets_option,
    tuning_option,
)
from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.cli.settings import DEFAULT, Choice, choose
from cudnn_aot.cli.table import format_bytes, format_engines, format_table, plural
from cudnn_aot.compiler.build.summary import BuildSummary, GraphResult, Status
from cudnn_aot.compiler.target.target import load_targets, need_builder
from cudnn_aot.errors import UsageError, did_you_mean


@click.command()
@click.argument("graphs", nargs=-1, metavar="GRAPH...", shell_complete=complete_files)
@targets_option("build for")
@host_option
@made_store_option
@click.option(
    "--jobs",
    "-j",
    metavar="N",
    help="Kernels compiled at once. Default: auto, what processors and memory allow.",
)
@click.option(
    "--executor",
    metavar="X",
    shell_complete=complete_executors,
    help="Where kernels are compiled: local (the default), ray (needs cudnn-aot[ray]).",
)
@click.option("--ray-address", metavar="A", help="The Ray cluster. Default: the one that runs.")
@click.option("--shard", metavar="I/N", help="Build the I-th of N parts, each for one machine.")
@click.option(
    "--lock-timeout",
    metavar="SECONDS",
    help="Fail what waits longer for another builder. Default: it waits as long as that takes.",
)
@tuning_option
@click.option(
    "--all-configs",
    is_flag=True,
    help="Beside each best plan every other that is worth measuring, for `tune`.",
)
@engines_option
@click.option(
    "--allow-declined",
    multiple=True,
    metavar="T[,T]",
    shell_complete=complete_allowed,
    help="Exit 0 although graphs were declined for these targets (`all` for every target).",
)
@json_option
def build(
    graphs: tuple[str, ...],
    targets: tuple[str, ...],
    host: str | None,
    store: str | None,
    jobs: str | None,
    executor: str | None,
    ray_address: str | None,
    shard: str | None,
    lock_timeout: str | None,
    engines: tuple[str, ...],
    tuning: str | None,
    all_configs: bool,
    allow_declined: tuple[str, ...],
    as_json: bool,
) -> int:
    """Compile graphs for targets into a store; needs no GPU and no driver.

    With --engines cudnn it asks the cuDNN of this machine, which needs both, and adds its plans to
    those that the store has.

    A GRAPH is a graph file of any form that `convert` reads, a Python file that defines graphs, or
    a folder: its *.json files.

    What the store holds already is neither planned nor compiled again. One graph that fails does
    not stop the others: exit code 1 if any failed, 3 if any was declined.
    CUDNN_AOT_FORBID_COMPILE=1 makes a needed compile a failure.

    \b
    cudnn-aot build graphs --target h200,h100 --store store
    """
    names = choose_targets(targets)
    host_name = choose("host", host).value or None
    # A target may be asked for by its descriptor file, and be filed under its host's name too.
    filed = {name: next(iter(load_targets([name], host_name))) for name in names}
    known = ("all", *filed, *filed.values())
    asked = choose_list("allow-declined", allow_declined).names
    unknown = [name for name in asked if name not in known]
    if unknown and allow_declined:  # a config file speaks of builds for other targets too
        raise UsageError(
            f"--allow-declined: {unknown[0]!r} is not a target of this build"
            + did_you_mean(unknown[0], names)
        )
    allowed = [filed.get(name, name) for name in asked]
    choice = choose_store(store)
    workers = _parse_jobs(choose("jobs", jobs))
    where = choose("executor", executor).value
    is_forbidden = choose("forbid-compile").is_on
    providers = choose_list("engines", engines).names
    if "native" in providers and not is_forbidden:
        need_builder(load_targets(names, host_name).values())  # before what takes long to import
    from cudnn_aot.cli.progress import show_progress
    from cudnn_aot.compiler.build.driver import build as build_store

    # Graphs and plans live until the process ends: looking for garbage among them finds little.
    gc.freeze()
    gc.set_threshold(50_000)
    with show_progress(quiet=as_json) as progress, _without_ray_on_stdout(where):
        summary = build_store(
            graphs,
            names,
            choice.path,
            jobs=workers,
            forbid_compile=is_forbidden,
            tuning=choose("tuning", tuning).value or None,
            progress=progress,
            engines=providers,
            host=host_name,
            executor=where,
            ray_address=_ray_address(choose("ray-address", ray_address), where),
            shard=shard,
            all_configs=all_configs,
            lock_timeout_s=None if lock_timeout is None else _parse_seconds(lock_timeout),
        )
    for line in _complaints(summary):
        complain(line)
    if as_json:
        print_json(summary.to_json())
    else:
        say(*_report(summary))
    return summary.exit_code(allowed)


@contextlib.contextmanager
def _without_ray_on_stdout(executor: str) -> Iterator[None]:
    """Ray prints there when a worker is lost, which the build says itself; stdout is the result's.

    A thread of Ray's does it, and no option stops it.
    """
    if executor != "ray":
        yield
        return
    with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null):
        yield


def _ray_address(choice: Choice, executor: str) -> str | None:
    """None for the cluster that runs, and where only a flag would speak of another executor."""
    is_asked = choice.chosen_by == "--ray-address" or executor == "ray"
    return choice.value if is_asked and choice.chosen_by != DEFAULT else None


def _parse_jobs(choice: Choice) -> int | None:
    text = choice.value.strip()
    if text == "auto":
        return None
    if not text.isdecimal() or len(text) > 4 or int(text) < 1:
        source = "-j" if choice.chosen_by == "--jobs" else f"{choice.chosen_by}: jobs"
        raise UsageError(f"{source}: got {text[:20]!r}, want a number of 1 to 9999, or auto")
    return int(text)


def _parse_seconds(text: str) -> float:
    if re.fullmatch(r"\d{1,7}(\.\d+)?", text, re.ASCII) is None:
        raise UsageError(f"--lock-timeout: got {text[:20]!r}, want seconds as 600 or 0.5")
    return float(text)


def _complaints(summary: BuildSummary) -> list[str]:
    """One line per reason that a graph failed or was declined, naming the targets it holds for."""
    targets: dict[tuple[str, str, str], list[str]] = {}
    for result in summary.graphs:
        if result.status in (Status.FAILED, Status.DECLINED):
            word = "error" if result.status is Status.FAILED else "declined"
            for reason in result.reasons:
                place = result.name if result.graph_key else result.file
                if result.provider != "native":
                    reason = f"{result.provider}: {reason}"
                targets.setdefault((word, place, reason), []).append(result.target)
    return [
        f"{word}: {place}{' for ' + ', '.join(owners) if owners != [''] else ''}: {reason}"
        for (word, place, reason), owners in targets.items()
    ]


def _report(summary: BuildSummary) -> list[str]:
    rows = [_row(result) for result in summary.graphs if result.target]
    counts = [(status, summary.count(status)) for status in Status]
    kernels = summary.kernels
    parts = [
        ", ".join(f"{count} {status.value}" for status, count in counts if count)
        or "nothing to do",
        f"kernels: {kernels.compiled} compiled, {kernels.hits} already there, "
        + (f"{len(kernels.failures)} failed, " if kernels.failures else "")
        + format_bytes(kernels.bytes),
        *([_written(summary)] if os.path.isdir(summary.store) else []),
        f"{summary.seconds:.1f} s" + (f" with -j {summary.jobs}" if summary.jobs else ""),
    ]
    if summary.shard is not None:
        parts.insert(0, "part {} of {}".format(*summary.shard))
    failed = format_table(
        ("failed kernel", "graphs", "error", "log"),
        [
            (f"{f.template} {f.key[:12]}", str(len(f.graphs)), f.error, f.log or "-")
            for f in kernels.failures
        ],
        right="graphs",
    )
    header = ["graph", "target", "status", "engine", "kernels", "bytes", "seconds"]
    if any(result.provider != "native" for result in summary.graphs):
        header.insert(2, "provider")
        rows = [
            (*row[:2], result.provider, *row[2:])
            for row, result in zip(rows, (r for r in summary.graphs if r.target), strict=True)
        ]
    table = format_table(
        tuple(header),
        rows,
        right="kernels bytes seconds",
    )
    return [*table, *([""] if table else []), *failed, *([""] if failed else []), *parts]


def _written(summary: BuildSummary) -> str:
    return f"{plural(summary.files_written, 'file')} written to {summary.store}"


def _row(result: GraphResult) -> tuple[str, ...]:
    return (
        result.name,
        result.target,
        result.status.value,
        format_engines(result.engines),
        str(len(result.kernels)),
        format_bytes(
            sum(kernel.blob_bytes for kernel in result.kernels)
            + sum(size for _, size in result.blobs)
        ),
        f"{result.seconds:.1f}",
    )
