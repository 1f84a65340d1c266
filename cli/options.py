"""Options that mean the same on every command, and how the store is chosen."""

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from cudnn_aot.cache.files import is_open_to_all
from cudnn_aot.cache.layers import AnyReader, open_layers, open_store
from cudnn_aot.cache.place import Place, place_of, split_places
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.transfer import OFFLINE_VARIABLE, redacted
from cudnn_aot.cache.trust import PublicKey, public_keys
from cudnn_aot.cli.completion import (
    complete_engines,
    complete_files,
    complete_folders,
    complete_hosts,
    complete_targets,
)
from cudnn_aot.cli.output import complain
from cudnn_aot.cli.settings import BY_NAME, DEFAULT, Choice, choose
from cudnn_aot.errors import UsageError, did_you_mean

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """The store in use, or its layers, and what chose it, as `settings.Choice` has it."""

    layers: tuple[Place, ...]
    chosen_by: str

    @property
    def path(self) -> Path:
        """Of the one store; raises UsageError where there are several, or a URL."""
        place = self._only()
        if not isinstance(place, Path):
            raise UsageError(f"{self.chosen_by}: got the URL {self}, want a folder or a pack here")
        return place

    def reader(self) -> AnyReader:
        """All layers, each signed by a key that is trusted, if there is one."""
        return open_layers([(place, "") for place in self.layers], keys=choose_keys())

    def pinned_reader(self) -> AnyReader:
        """`reader` of what is executed: each layer has the root digest of ``CUDNN_AOT_PIN``, if
        that is set.
        """
        pins = [digest for digest in choose("pin", None).value.split(os.pathsep) if digest]
        if pins and len(pins) != len(self.layers):
            raise UsageError(
                f"bad CUDNN_AOT_PIN: got {len(pins)} root digests, want {len(self.layers)}, one of "
                "each layer"
            )
        pinned = pins or [""] * len(self.layers)
        return open_layers(list(zip(self.layers, pinned, strict=True)), keys=choose_keys())

    def check_writers(self) -> None:
        """Before kernels run, name each layer that any user may change, unless it is pinned or
        signed.

        Raises:
            UsageError: nobody named the store, and it is neither this user's nor root's.
        """
        if choose("pin", None).value or choose_keys():
            return
        for place in self.layers:
            if not isinstance(place, Path):
                continue
            if self.chosen_by == DEFAULT and os.path.exists(place):
                owner = place.stat().st_uid
                if owner not in (os.geteuid(), 0):
                    raise UsageError(
                        f"store {str(place)!r} is user {owner}'s, and this is user "
                        f"{os.geteuid()}: name it with --store to run its kernels"
                    )
            if is_open_to_all(place):
                complain(
                    f"warning: any user may change the store {str(place)!r}, whose kernels run: "
                    f"chmod -R o-w it, or set {BY_NAME['pin'].variable}"
                )

    def only_reader(self, keys: Sequence[PublicKey] = ()) -> StoreReader:
        """The one store, signed by one of the keys if there are any; UsageError for several."""
        return open_store(self._only(), keys=keys)

    def _only(self) -> Place:
        if len(self.layers) > 1:
            raise UsageError(
                f"{self.chosen_by}: got {len(self.layers)} layers ({self}), want one store here: "
                "name it with --store"
            )
        return self.layers[0]

    def __str__(self) -> str:
        return os.pathsep.join(redacted(str(place)) for place in self.layers)


def choose_store(flag: str | None) -> StoreChoice:
    """The store that ``--store`` names, or its layers, else what the settings name."""
    choice = choose("store", flag)
    return StoreChoice(split_places(choice.value, choice.chosen_by), choice.chosen_by)


def open_source(text: str) -> StoreReader:
    """The store at a path or URL that an argument names.

    Raises:
        TrustError: keys are trusted, and none of them has signed it.
    """
    return open_store(place_of(text), keys=choose_keys())


def choose_list(name: str, flags: Iterable[str]) -> Choice:
    """The value of a list setting, whose flag takes commas and repetition."""
    given = tuple(flags)
    return choose(name, ",".join(given) if given else None)


def choose_keys(flags: Iterable[str] = ()) -> list[PublicKey]:
    """The public keys that ``--trust`` names, else those that the settings name; none for none."""
    given = tuple(flags)
    named = choose("trust", os.pathsep.join(given) if given else None).keys
    return public_keys(named) if named else []


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
    """The store that a command reads or changes."""
    return _store_option("--store")(command)


def made_store_option(command: _F) -> _F:
    """The store that a command makes: ``-o`` stands for what is written."""
    return _store_option("--store", "-o")(command)


def _store_option(*flags: str) -> Callable[[_F], _F]:
    def decorate(command: _F) -> _F:
        return click.option(
            *flags,
            "store",
            metavar="DIR",
            shell_complete=complete_folders,
            help=f"The store. Default: {_elsewhere('store')}, else ./{BY_NAME['store'].default}.",
        )(offline_option(command))

    return decorate


def _go_offline(context: click.Context, parameter: click.Parameter, flag: bool) -> None:
    if context.resilient_parsing:  # a shell asks for names
        return
    choice = choose("offline", "1" if flag else None)
    context.meta[OFFLINE_VARIABLE] = choice
    if choice.is_on:  # for all that this process asks
        os.environ[OFFLINE_VARIABLE] = "1"


def offline_choice() -> Choice:
    """What chose whether the command that runs is offline."""
    choice: Choice = click.get_current_context().meta[OFFLINE_VARIABLE]
    return choice


def offline_option(command: _F) -> _F:
    return click.option(
        "--offline",
        is_flag=True,
        expose_value=False,
        callback=_go_offline,
        help="Of stores at URLs take what was fetched before, and open no socket.",
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
    """A target whose plans a store holds: the command gets the name that they are filed under."""
    return click.option(
        "--target",
        "-t",
        "target",
        metavar="T",
        shell_complete=complete_targets,
        help=help_text,
        callback=_stored_name,
    )


def _stored_name(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from cudnn_aot.compiler.target.target import stored_name

    return stored_name(value)


def stored_targets_option(help_text: str) -> Callable[[_F], _F]:
    """Any number of targets whose plans a store holds, as the names that they are filed under."""
    return click.option(
        "--target",
        "-t",
        "targets",
        multiple=True,
        metavar="T[,T]",
        shell_complete=complete_targets,
        help=help_text,
        callback=_stored_names,
    )


def _stored_names(
    ctx: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    names = (_stored_name(ctx, option, value) for value in split_list(values))
    return tuple(name for name in names if name is not None)


def trust_option(command: _F) -> _F:
    return click.option(
        "--trust",
        multiple=True,
        metavar="KEY",
        shell_complete=complete_files,
        help="A key that must have signed the store: a PEM file or base64. Default: "
        f"{_elsewhere('trust')}.",
    )(command)


def host_option(command: _F) -> _F:
    return click.option(
        "--host",
        metavar="TRIPLE[/LEVEL]",
        shell_complete=complete_hosts,
        help="Host in place of the targets' own, such as aarch64-linux-gnu or "
        "x86_64-linux-gnu/x86-64-v2.",
    )(command)


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
        shell_complete=complete_engines,
        help="Whose plans: native (the default), cudnn (needs a GPU of the target's kind).",
    )(command)


def check_symbols(given: Iterable[str], known: Collection[str], *, of_all: bool = False) -> None:
    """Refuse ``--symbol`` of a name that is not ``known``, of a graph or of all that are taken."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        near, names = did_you_mean(unknown[0], known), ", ".join(known) or "none"
        none, have = ("no graph has a", "they have") if of_all else ("the graph has no", "it has")
        raise UsageError(f"--symbol: {none} symbol {unknown[0]!r}{near}; {have}: {names}")


def split_list(values: Iterable[str]) -> tuple[str, ...]:
    """``("a,b", "c")`` as ``("a", "b", "c")``: a list option takes commas and repetition."""
    parts = (part.strip() for value in values for part in value.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))
