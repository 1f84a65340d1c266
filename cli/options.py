"""Options that mean the same on every command, and how the store is chosen."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from cudnn_aot.errors import UsageError

STORE_VARIABLE = "CUDNN_AOT_STORE"
DEFAULT_STORE = "cudnn_aot_store"

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """The store in use and the setting that chose it: flag, environment, or default."""

    path: Path
    chosen_by: str


def choose_store(flag: str | None) -> StoreChoice:
    """``--store`` before ``CUDNN_AOT_STORE`` before ``./cudnn_aot_store``."""
    if flag == "":  # most likely a variable of the caller's shell that is not set
        raise UsageError("--store: got an empty path, want a folder")
    if flag is not None:
        return StoreChoice(Path(flag), "--store")
    from_environment = os.environ.get(STORE_VARIABLE)
    if from_environment:
        return StoreChoice(Path(from_environment), STORE_VARIABLE)
    return StoreChoice(Path(DEFAULT_STORE), "default")


def store_option(command: _F) -> _F:
    return click.option(
        "--store",
        "-o",
        "store",
        metavar="DIR",
        help=f"The store. Default: ${STORE_VARIABLE}, else ./{DEFAULT_STORE}.",
    )(command)


def json_option(command: _F) -> _F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def target_option(help_text: str) -> Callable[[_F], _F]:
    """A target whose plans a store holds: the command gets the name that they are filed under."""
    return click.option(
        "--target", "-t", "target", metavar="T", help=help_text, callback=_stored_name
    )


def _stored_name(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from cudnn_aot.compiler.target.target import stored_name

    return stored_name(value)


def host_option(command: _F) -> _F:
    return click.option(
        "--host",
        metavar="TRIPLE[/LEVEL]",
        help="Host in place of the targets' own, such as aarch64-linux-gnu or "
        "x86_64-linux-gnu/x86-64-v2.",
    )(command)


def tuning_option(command: _F) -> _F:
    return click.option(
        "--tuning", metavar="FILE", help="Measured plans, taken before those that are ranked."
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
