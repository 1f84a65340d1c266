"""What a shell completes, and ``cudnn-aot completion``, which prints the script that asks for it.

A shell waits for each answer: nothing is imported here, nor by a command's module, that a list of
names does not need.
"""

from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from cudnn_aot.cli.commands import COMPLETE_VARIABLE
from cudnn_aot.cli.output import print_json, say
from cudnn_aot.errors import Error, UsageError, did_you_mean

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "cudnn-aot"


def complete_files(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def complete_folders(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def complete_targets(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from cudnn_aot.compiler.target.target import known_targets

    return _last_of_list(known_targets(), incomplete)


def complete_allowed(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from cudnn_aot.compiler.target.target import known_targets

    return _last_of_list(("all", *known_targets()), incomplete)


def complete_targets_and_devices(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """What `verify --device` takes: a target, or the number of a device of this machine."""
    return complete_targets(ctx, parameter, incomplete) or complete_files(
        ctx, parameter, incomplete
    )


def complete_engines(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from cudnn_aot.compiler.planning.manifest import PROVIDERS

    return _last_of_list(PROVIDERS, incomplete)


def complete_executors(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from cudnn_aot.compiler.build.executors import EXECUTORS

    return [CompletionItem(name) for name in EXECUTORS if name.startswith(incomplete)]


def complete_hosts(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from cudnn_aot.compiler.target.host import LEVELS

    names = (f"{t}/{level}" if level else t for t, levels in LEVELS.items() for level in levels)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _last_of_list(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Of a list with commas, its last name."""
    before, comma, start = incomplete.rpartition(",")
    return [CompletionItem(before + comma + name) for name in names if name.startswith(start)]


def complete_plans(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of the store in use, of its layers that are not far away; none of what has faults."""
    from cudnn_aot.cache.reader import StoreReader
    from cudnn_aot.cli.options import choose_store

    target = ctx.params.get("target")
    names: set[str] = set()
    try:
        for place in choose_store(ctx.params.get("store")).layers:
            held = StoreReader(place).names() if isinstance(place, Path) else []
            names |= {name for owner, name in held if target in (None, owner)}
    except Error:
        return []
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def complete_plans_and_files(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    plans = complete_plans(ctx, parameter, incomplete)
    return plans or complete_files(ctx, parameter, incomplete)


def complete_shells(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(shell) for shell in SHELLS if shell.startswith(incomplete)]


def answer(group: click.Group, instruction: str) -> int:
    """Print what the shell asked for, ``instruction`` being such as ``bash_complete``."""
    from click.shell_completion import shell_complete

    return shell_complete(group, {}, PROGRAM, COMPLETE_VARIABLE, instruction)


@click.command()
@click.argument("shell", metavar="bash|zsh|fish", shell_complete=complete_shells)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def completion(shell: str, as_json: bool) -> None:
    """Print a script that makes a shell complete verbs, options, targets and names of plans.

    \b
    bash, in ~/.bashrc:      eval "$(cudnn-aot completion bash)"
    zsh, in ~/.zshrc:        eval "$(cudnn-aot completion zsh)"
    fish, once:  cudnn-aot completion fish > ~/.config/fish/completions/cudnn-aot.fish
    """
    made = get_completion_class(shell) if shell in SHELLS else None
    if made is None:
        raise UsageError(
            f"no script for {shell!r}{did_you_mean(shell, SHELLS)}: want {', '.join(SHELLS)}"
        )
    # A shell's own `source` asks which version of that shell is installed, which is for it to say.
    script = ShellComplete.source(made(click.Group(), {}, PROGRAM, COMPLETE_VARIABLE))
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        say(*script.splitlines())
