"""``cudnn-aot report``: what a store holds, as one HTML page or as the document behind it."""

import json
import math
import os
import reprlib
from pathlib import Path
from typing import Any

import click

from cudnn_aot.cli.completion import complete_files
from cudnn_aot.cli.files import publish
from cudnn_aot.cli.options import choose_keys, choose_store, json_option, store_option
from cudnn_aot.cli.output import print_json
from cudnn_aot.cli.table import format_bytes, plural
from cudnn_aot.errors import UsageError


@click.command()
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    shell_complete=complete_files,
    help="The page; replaced if there.",
)
@click.option(
    "--bench",
    "benches",
    multiple=True,
    metavar="FILE",
    shell_complete=complete_files,
    help="A document of `run --bench --json` or a tuning file, to be drawn as charts.",
)
@click.option(
    "--build",
    "builds",
    multiple=True,
    metavar="FILE",
    shell_complete=complete_files,
    help="A document of `build --json`, for compile times.",
)
@store_option
@json_option
def report(
    output: str | None,
    benches: tuple[str, ...],
    builds: tuple[str, ...],
    store: str | None,
    as_json: bool,
) -> int:
    """Write what a store holds as one HTML page, which needs no other file and no network.

    Shows plans, ranges, kernels, sizes, declines with their reasons, and on which known target each
    graph runs or is missed. With --json the document that the page is made of is printed; without
    -o no page is written then. Exit code 1 if the store is damaged, which the page shows.

    \b
    cudnn-aot run --all --bench --json > today.json
    cudnn-aot report -o report.html --bench yesterday.json --bench today.json
    """
    if output is None and not as_json:
        raise UsageError("no file given: pass -o FILE, or --json")
    from cudnn_aot.cli.report.contents import report_document
    from cudnn_aot.cli.report.page import page

    reader = choose_store(store).only_reader(choose_keys())
    timed = [row for file in benches for row in _bench_rows(Path(file))]
    built = [_build_row(Path(file)) for file in builds]
    seconds = {key: time for _, times in built for key, time in times.items()}
    document = report_document(reader, timed, [row for row, _ in built], seconds)
    if output is not None:
        text = page(document)
        tell = publish(Path(output), text, "the page")
    if as_json:
        print_json(document)
    elif output is not None:
        totals = document["totals"]
        counts = f"{plural(totals['plans'], 'plan')}, {plural(totals['kernels'], 'kernel')}"
        faults = f", {plural(len(document['problems']), 'fault')}" if document["problems"] else ""
        tell(f"{output}: {counts}{faults}, {format_bytes(len(text.encode()))}")
    return 1 if document["problems"] else 0


def _bench_rows(path: Path) -> list[dict[str, Any]]:
    """The timed runs of a document of `run --bench --json`, or the entries of a tuning file."""
    document = _document(path)
    try:
        if "entries" in document:
            return _tuning_rows(path)
        return [
            {
                "file": path.name,
                "name": str(run["name"]),
                "target": str(run["target"]),
                "symbols": {str(name): int(value) for name, value in run["symbols"].items()},
                "correct": bool(run["correct"]),
                "microseconds": _number(run["microseconds"]),
                "tflops": _number(run["tflops"]) or None,
            }
            for run in document["runs"]
            if "microseconds" in run
        ]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        raise UsageError(
            f"{path}: not a document of `run --bench --json`, and no tuning file"
        ) from None


def _tuning_rows(path: Path) -> list[dict[str, Any]]:
    """The fastest plan of each entry. Of the extents the one with the most values is the symbol of
    a chart, the others are in its name.
    """
    from cudnn_aot.compiler.planning.tuning import read_entries

    entries = read_entries(path)
    values: dict[tuple[Any, ...], dict[str, set[int]]] = {}
    for entry in entries:
        of_class = values.setdefault(_class_of(entry), {})
        for name, value in entry["extents"].items():
            of_class.setdefault(name, set()).add(value)
    rows = []
    for index, entry in enumerate(entries):
        extents, of_class = entry["extents"], values[_class_of(entry)]
        along = max(sorted(extents), key=lambda name: len(of_class[name]), default="")
        others = " ".join(f"{name}={value}" for name, value in extents.items() if name != along)
        rows.append(
            {
                "file": path.name,
                "name": f"{entry['layout_class']} {others}",
                "target": entry["target"],
                "symbols": {along: extents[along]} if along else {},
                "correct": True,  # others have no entry
                "microseconds": _fastest(path, index, entry["plans"]),
                "tflops": None,
            }
        )
    return rows


def _fastest(path: Path, index: int, plans: list[dict[str, Any]]) -> float:
    """Its time, which a build has no use for and does not look at."""
    if not plans:
        raise UsageError(f"tuning file {str(path)!r}: entries[{index}] has no plan, want one")
    us = plans[0].get("us")
    try:
        return _number(us)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(
            f"tuning file {str(path)!r}: entries[{index}]: plans[0]: us is {reprlib.repr(us)}, "
            "want microseconds"
        ) from None


def _number(value: Any) -> float:
    """One that a chart may have.

    Raises:
        ValueError: it is negative, or none that JSON has.
        OverflowError: it is an integer beyond all such numbers.
    """
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"got {number}, want a number of at least 0")
    return number


def _class_of(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["family"], entry["target"], entry["layout_class"]


def _build_row(path: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """What a document of `build --json` says of the build, and compile times by kernel key."""
    document = _document(path)
    try:
        row = {
            "file": path.name,
            "jobs": int(document["jobs"]),
            "graphs": len(document["graphs"]),
            "compiled": int(document["kernels"]["compiled"]),
            "hits": int(document["kernels"]["hits"]),
            "seconds": _number(document["seconds"]),
        }
        times = {
            str(kernel["key"]): _number(kernel["seconds"])
            for graph in document["graphs"]
            for kernel in graph["kernels"]
            if kernel["compiled"]
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise UsageError(f"{path}: not a document of `build --json`") from None
    return row, times


def _document(path: Path) -> Any:
    if os.path.exists(path) and not os.path.isfile(path):  # a FIFO would be waited for without end
        raise UsageError(f"{path}: not a regular file")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: not JSON") from None
