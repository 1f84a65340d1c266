"""Options that mean the same on every command, and how the store is chosen."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from cudnn_aot.cli.completion import complete_files, complete_folders, complete_targets
from cudnn_aot.cli.settings import BY_NAME, Choice, choose
from cudnn_aot.errors import UsageError

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """The store in use and what chose it, as `settings.Choice` has it."""

    path: Path
    chosen_by: str


def choose_store(flag: str | None) -> StoreChoice:
    """The store that ``--store`` names, else the one that the settings name."""
    choice = choose("store", flag)
    return StoreChoice(Path(choice.value), choice.chosen_by)


def choose_list(name: str, flags: Iterable[str]) -> Choice:
    """The value of a list setting, whose flag takes commas and repetition."""
    given = tuple(flags)
    return choose(name, ",".join(given) if given else None)


def choose_targets(flags: Iterable[str]) -> tuple[str, ...]:
    """The targets that ``--target`` names, else those that the settings name.

    Raises:
        UsageError: none does; the message lists those that are known.
    """
    names = choose_list("target", flags).names
    if not names:
        from cudnn_aot.compiler.target.target import known_targets

        raise UsageError(f"no target given: pass --target (known: {', '.join(known_targets())})")
    return names


def store_option(command: _F) -> _F:
    return click.option(
        "--store",
        "-o",
        "store",
        metavar="DIR",
        shell_complete=complete_folders,
        help=f"The store. Default: {_elsewhere('store')}, else ./{BY_NAME['store'].default}.",
    )(command)


def targets_option(purpose: str) -> Callable[[_F], _F]:
    """Any number of targets, ``purpose`` being what happens for them."""
    return click.option(
        "--target",
        "-t",
        "targets",
        multiple=True,
        metavar="T[,T]",
        shell_complete=complete_targets,
        help=f"Targets to {purpose}: names (see `cudnn-aot targets`) or target files. Default: "
        f"{_elsewhere('target')}.",
    )


def _elsewhere(name: str) -> str:
    """Where a setting is looked for after its flag, for a help."""
    return f"${BY_NAME[name].variable}, else the config file"


def json_option(command: _F) -> _F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def target_option(help_text: str) -> Callable[[_F], _F]:
    return click.option(
        "--target", "-t", "target", metavar="T", shell_complete=complete_targets, help=help_text
    )


def tuning_option(command: _F) -> _F:
    return click.option(
        "--tuning",
        metavar="FILE",
        shell_complete=complete_files,
        help="Measured plans, taken before those that are ranked.",
    )(command)


def engines_option(command: _F) -> _F:
    return click.option(
        "--engines",
        multiple=True,
        metavar="E[,E]",
        help="Whose plans: native (the default), cudnn (needs a GPU of the target's kind).",
    )(command)


def split_list(values: Iterable[str]) -> tuple[str, ...]:
    """``("a,b", "c")`` as ``("a", "b", "c")``: a list option takes commas and repetition."""
    parts = (part.strip() for value in values for part in value.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))
