"""``cudnn-aot convert``: graph files of any form that is read here, written as graph JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cudnn_aot.cli.completion import complete_files, complete_folders
from cudnn_aot.cli.options import json_option
from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.cli.table import format_table, plural
from cudnn_aot.errors import UsageError

if TYPE_CHECKING:
    from cudnn_aot.cli.convert_files import Result


@click.command()
@click.argument("files", nargs=-1, metavar="IN...", shell_complete=complete_files)
@click.option(
    "--output",
    "-o",
    "folder",
    metavar="DIR",
    shell_complete=complete_folders,
    help="Where the graph files go; made if absent.",
)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of graph files, and stop.")
@json_option
def convert(files: tuple[str, ...], folder: str | None, schema: bool, as_json: bool) -> int:
    """Write graphs of any readable form as graph JSON.

    Takes graph JSON, the cuDNN frontend's plan blobs and lowered form, and Python files that define
    graphs. A file with one graph keeps its name; of several graphs, each is named for itself. One
    file that fails does not stop the others: exit code 1 if any failed, 3 if any is not supported.

    \b
    cudnn-aot convert plan.bin graphs.py -o graphs
    """
    if schema:
        from cudnn_aot.compiler.formats.schema import graph_schema

        print_json(graph_schema(), version=None)
        return 0
    if not files:
        raise UsageError("no file given: name at least one")
    if folder is None:
        raise UsageError("no folder given: pass -o DIR")
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{target}: cannot make the folder: {error.strerror}") from None
    from cudnn_aot.cli.convert_files import Writer

    writer = Writer(target)
    results = [result for file in dict.fromkeys(files) for result in writer.convert(Path(file))]
    for result in results:
        if result.reason:
            word = "declined" if result.status == "declined" else "error"
            complain(f"{word}: {result.reason}")
    if as_json:
        print_json({"folder": str(target), "graphs": [result.to_json() for result in results]})
    else:
        say(*_report(results, target))
    statuses = {result.status for result in results}
    return 1 if "failed" in statuses else 3 if "declined" in statuses else 0


def _report(results: list[Result], folder: Path) -> list[str]:
    converted = [result for result in results if result.graph is not None]
    rows = [
        (
            Path(result.path).name,
            result.source,
            str(len(result.graph.nodes)),
            " ".join(dict.fromkeys(node.op for node in result.graph.nodes))[:60],
            result.graph.key()[:12],
        )
        for result in converted
        if result.graph is not None
    ]
    table = format_table(("graph", "from", "nodes", "ops", "key"), rows, right="nodes")
    left = len(results) - len(converted)
    written = len({result.path for result in converted})
    summary = f"{plural(written, 'graph')} written to {folder}"
    if left:
        summary += f", {left} left out"
    return [*table, "", summary] if table else [summary]
