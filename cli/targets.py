"""``cudnn-aot targets``: what graphs can be built for, and what the engines take there."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from cudnn_aot.cli.commands import VerbGroup
from cudnn_aot.cli.completion import complete_targets
from cudnn_aot.cli.options import json_option
from cudnn_aot.cli.output import print_json, say
from cudnn_aot.cli.probe import probe
from cudnn_aot.cli.table import format_table
from cudnn_aot.compiler.target.target import Target, known_targets, load_target
from cudnn_aot.errors import UsageError

if TYPE_CHECKING:
    from cudnn_aot.compiler.build.engine_table import EngineRow

ANY = "(any)"  # as no target can be called


@click.group(cls=VerbGroup, invoke_without_command=True)
@click.option(
    "--engines",
    is_flag=False,
    flag_value=ANY,
    metavar="[T]",
    shell_complete=complete_targets,
    help="What each engine takes; with T, whether its kernels are made for that target.",
)
@json_option
@click.pass_context
def targets(ctx: click.Context, engines: str | None, as_json: bool) -> None:
    """List the targets that graphs can be built for, or what the engines take.

    An engine has a row for each kind of machine that it is made for. A graph is taken when a row
    takes it; `cudnn-aot why` says what the rows say to a graph.

    \b
    cudnn-aot targets --engines h200
    cudnn-aot targets probe -o mine.json
    """
    if ctx.invoked_subcommand is not None:
        if engines is not None or as_json:
            raise UsageError("targets: options of a verb follow it, as in `targets probe --json`")
        return
    if engines is not None:
        _show_engines(None if engines == ANY else load_target(engines), as_json)
        return
    found = [load_target(name) for name in known_targets()]
    if as_json:
        print_json({"targets": [dataclasses.asdict(target) for target in found]})
        return
    rows = [
        (
            target.name,
            target.kind,
            target.gpu_arch or "-",
            str(target.sm_count or "-"),
            str(target.smem_optin_bytes or "-"),
            f"CUDA {target.driver_min // 1000}.{target.driver_min % 1000 // 10}"
            if target.driver_min
            else "-",
            f"{target.host_triple} {target.host_level}",
        )
        for target in found
    ]
    say(
        *format_table(
            ("target", "kind", "arch", "SMs", "shared memory", "driver for", "host"), rows
        )
    )


targets.add_command(probe)


def _show_engines(target: Target | None, as_json: bool) -> None:
    from cudnn_aot.compiler.build.engine_table import engine_rows  # recipes, only when asked

    found = engine_rows(target)
    if as_json:
        document = [row.to_json() for row in found]
        if target is not None:
            for row, entry in zip(found, document, strict=True):
                entry |= {"serves": row.why_not is None, "reason": row.why_not}
        print_json({"target": target.name if target else None, "engines": document})
        return

    judged = () if target is None else (f"on {target.name}",)
    header = ("id", "engine", *judged, "runs on", "types", "layouts", "align", "opt-in", "notes")
    for number, family in enumerate(dict.fromkeys(row.family for row in found)):
        members = [row for row in found if row.family == family]
        title = f"{family}: graphs with {' or '.join(members[0].anchors)} in them"
        table = format_table(header, [_cells(row, target is not None) for row in members])
        features = dict.fromkeys((row.name, row.caps.features) for row in members if row.caps)
        lines = [f"{name} takes: {'; '.join(taken)}" for name, taken in features if taken]
        serving = {row.name for row in members if row.why_not is None}
        lines += [f"not {r.name}: {r.why_not}" for r in members if r.name not in serving]
        say(*([""] if number else []), title, *("  " + line for line in [*table, *lines]))


def _cells(row: EngineRow, is_judged: bool) -> tuple[str, ...]:
    caps = row.caps
    judgment = ("yes" if row.why_not is None else "no",) if is_judged else ()
    opt_in = ("enabled" if row.is_offered else "not enabled") if row.is_opt_in else "-"
    made_for = ("-", "-", "-", "-")
    if caps is not None:
        alignment = f"{caps.alignment_bytes} B" if caps.alignment_bytes > 1 else "-"
        made_for = (caps.arches, " ".join(caps.dtypes), ", ".join(caps.layouts), alignment)
    notes = " ".join(row.notes) or "-"
    return (str(row.engine_id), row.name, *judgment, *made_for, opt_in, notes)
