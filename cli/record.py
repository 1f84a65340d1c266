"""``cudnn-aot record``: the graphs that a program builds, or that its log shows, as graph files."""

from pathlib import Path

import click

from cudnn_aot.cli.completion import complete_files, complete_folders
from cudnn_aot.cli.options import json_option
from cudnn_aot.errors import UsageError


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--output",
    "-o",
    "folder",
    metavar="DIR",
    required=True,
    shell_complete=complete_folders,
    help="Where the graph files go; made if absent.",
)
@click.option(
    "--from-log",
    "logs",
    multiple=True,
    metavar="FILE",
    shell_complete=complete_files,
    help="Read a log that the cuDNN frontend wrote with CUDNN_FRONTEND_LOG_INFO=10.",
)
@click.option(
    "--from-spool",
    "spools",
    multiple=True,
    metavar="DIR",
    shell_complete=complete_folders,
    help="Read the records that a failed run kept.",
)
@click.option(
    "--symbolize/--no-symbolize",
    default=True,
    show_default=True,
    help="Write extents that vary within a class of graphs as symbols.",
)
@json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROGRAM ARG...]")
def record(
    folder: str,
    logs: tuple[str, ...],
    spools: tuple[str, ...],
    symbolize: bool,
    as_json: bool,
    command: tuple[str, ...],
) -> int:
    """Run PROGRAM and write the cuDNN graphs that it and its child processes build.

    The program is not changed, and its exit code is the exit code. The report goes to stderr,
    behind what the program prints; with --json it goes to stdout and the program's stdout to
    stderr.

    \b
    cudnn-aot record -o graphs -- python serve.py --steps 10
    """
    if bool(command) + bool(logs or spools) != 1:
        raise UsageError("give either a program to run, after --, or --from-log or --from-spool")
    from cudnn_aot.cli.recording import record_files, record_program

    if command:
        return record_program(command, Path(folder), symbolize, as_json)
    return record_files(logs, spools, Path(folder), symbolize, as_json)
