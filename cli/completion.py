"""What a shell completes, and ``cudnn-aot completion``, which prints the script that asks for it.

A shell waits for each answer: nothing is imported here, nor by a command's module, that a list of
names does not need. Names come from stores that others wrote, and a shell runs the line that they
are put into: each is one word there, whatever is in it.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
)

from cudnn_aot.cli.commands import COMPLETE_VARIABLE
from cudnn_aot.cli.output import print_json, say
from cudnn_aot.errors import Error, UsageError, did_you_mean

PROGRAM = "cudnn-aot"


class _OneLine(ShellComplete):
    """Answers are parted by line ends, and shown: none has a character that is not visible."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        found = super().get_completions(args, incomplete)
        return [item for item in found if item.value.isprintable() or item.type != "plain"]


class _Bash(_OneLine, BashComplete):
    """bash puts an answer into the line as it is, so the answer is quoted."""

    # Unlike click's it neither splits an answer nor takes it as a pattern of files.
    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' line type value
    COMPREPLY=()
    while read -r line; do
        type=${line%%%%,*} value=${line#*,}
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" \\
        %(complete_var)s=bash_complete "$1")
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        found = super().get_completions(args, incomplete)
        if not re.search(r"[\"']", os.environ["COMP_WORDS"]):
            return found
        # The line has a quote, maybe an open one, in which a backslash is no quote.
        return [item for item in found if item.value == _quoted(item.value)]

    def format_completion(self, item: CompletionItem) -> str:
        value = _quoted(item.value) if item.type == "plain" else item.value
        return f"{item.type},{value}"


def _quoted(word: str) -> str:
    """One word of bash, by backslashes alone."""
    return re.sub(r"[^\w./,:=@%+-]", r"\\\g<0>", word)


class _Zsh(_OneLine, ZshComplete):
    """zsh quotes what it puts into the line."""


class _Fish(_OneLine, FishComplete):
    """fish escapes what it puts into the line."""

    # Unlike click's it takes an answer with a comma whole.
    source_template = """\
function %(complete_func)s
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) \\
        COMP_CWORD=(commandline -t) %(prog_name)s)
    for completion in $response
        set -l answer (string split --max 1 "," -- $completion)
        switch $answer[1]
            case dir
                __fish_complete_directories $answer[2]
            case file
                __fish_complete_path $answer[2]
            case plain
                printf '%%s\\n' $answer[2]
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


_SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


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
    except (Error, OSError):
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
    return [CompletionItem(shell) for shell in _SHELLS if shell.startswith(incomplete)]


def answer(group: click.Group, instruction: str) -> int:
    """Print what the shell asked for, ``instruction`` being such as ``bash_complete``."""
    shell, _, what = instruction.partition("_")
    made = _SHELLS.get(shell)
    if made is None or what not in ("source", "complete"):
        return 1
    asked = made(group, {}, PROGRAM, COMPLETE_VARIABLE)
    print(asked.complete() if what == "complete" else ShellComplete.source(asked))
    return 0


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
    made = _SHELLS.get(shell)
    if made is None:
        raise UsageError(
            f"no script for {shell!r}{did_you_mean(shell, _SHELLS)}: want {', '.join(_SHELLS)}"
        )
    # A shell's own `source` asks which version of that shell is installed, which is for it to say.
    script = ShellComplete.source(made(click.Group(), {}, PROGRAM, COMPLETE_VARIABLE))
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        say(*script.splitlines())
