"""``cudnn-aot why``: which plan a graph gets on a target, and what decided it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cudnn_aot.cache.layers import AnyReader
from cudnn_aot.cache.layout import STORE_FILE
from cudnn_aot.cli.completion import complete_files
from cudnn_aot.cli.options import (
    choose_list,
    choose_store,
    choose_targets,
    engines_option,
    host_option,
    json_option,
    store_option,
    targets_option,
    tuning_option,
)
from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.cli.settings import DEFAULT, choose

if TYPE_CHECKING:
    from cudnn_aot.compiler.build.sources import Source
    from cudnn_aot.compiler.build.why import Explanation
    from cudnn_aot.compiler.planning.tuning import Tuning
    from cudnn_aot.compiler.target.target import Target

SHOWN_PLANS = 5


@click.command()
@click.argument("graph", metavar="GRAPH", shell_complete=complete_files)
@targets_option("explain for")
@host_option
@store_option
@tuning_option
@engines_option
@click.option("--all", "show_all", is_flag=True, help=f"Every plan, not the first {SHOWN_PLANS}.")
@json_option
def why(
    graph: str,
    targets: tuple[str, ...],
    host: str | None,
    store: str | None,
    tuning: str | None,
    engines: tuple[str, ...],
    show_all: bool,
    as_json: bool,
) -> int:
    """Explain which plan a graph gets on a target, and why; nothing is compiled or written.

    GRAPH is a graph file of any form that `build` reads; of several graphs, each is explained. Says
    what the graph is, which engines take it, how their plans are ranked, which plan `build` takes,
    and whether the store has it. A graph that every engine declines is explained too: exit code 0.

    \b
    cudnn-aot why ffn_up.json --target h200 --store store
    """
    from cudnn_aot.cache.progress import silent
    from cudnn_aot.cli.why_text import describe
    from cudnn_aot.compiler.build.sources import failure_line, read_sources
    from cudnn_aot.compiler.planning.manifest import check_providers
    from cudnn_aot.compiler.planning.tuning import load_tuning
    from cudnn_aot.compiler.target.target import load_target

    names = choose_targets(targets)
    providers = check_providers(choose_list("engines", engines).names)
    triple = choose("host", host).value or None
    loaded = [load_target(name, triple) for name in names]
    file = choose("tuning", tuning).value
    measured = load_tuning(file) if file else None
    reader = _reader(store)
    sources, unreadable = read_sources([Path(graph)], silent)
    failures = [(result.file, reason) for result in unreadable for reason in result.reasons]
    explained = []
    for target in loaded:
        for source in sources:
            try:
                explained.append(_explain(reader, source, target, measured, providers))
            except Exception as error:
                failures.append((source.name, failure_line(error)))
    for place, reason in failures:
        complain(f"error: {place}: {reason}")
    if as_json:
        print_json(
            {
                "store": None if reader is None else reader.where,
                "graphs": [explanation.to_json() for explanation in explained],
                "failures": [{"graph": place, "reason": reason} for place, reason in failures],
            }
        )
    else:
        shown = None if show_all else SHOWN_PLANS
        for number, explanation in enumerate(explained):
            say(*([""] if number else []), *describe(explanation, shown))
    return 1 if failures else 0


def _reader(flag: str | None) -> AnyReader | None:
    """The store that was named; the default one if it is there."""
    choice = choose_store(flag)
    if choice.chosen_by == DEFAULT and not os.path.exists(choice.path / STORE_FILE):
        return None
    return choice.reader()


def _explain(
    reader: AnyReader | None,
    source: Source,
    target: Target,
    tuning: Tuning | None,
    providers: Sequence[str],
) -> Explanation:
    from cudnn_aot.compiler.build.why import explain
    from cudnn_aot.compiler.build.why_stored import explain_stored
    from cudnn_aot.compiler.planning.cudnn import this_process

    explanation = explain(source, target, tuning, providers)
    if reader is None:
        return explanation
    cudnn = this_process() if "cudnn" in providers else None
    return replace(explanation, stored=explain_stored(reader, source, target, tuning, cudnn))
