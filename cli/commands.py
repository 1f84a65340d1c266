"""The command group: names and one-line helps here, code in one module per group.

A command's module is imported when the command runs, so ``--help`` stays quick and looking at a
store needs nothing that building needs.
"""

import importlib
import os
from collections.abc import Sequence
from typing import Any

import click

import cudnn_aot
from cudnn_aot.errors import UsageError, did_you_mean

COMPLETE_VARIABLE = "_CUDNN_AOT_COMPLETE"  # set by the script of a shell, to SHELL_complete

# command: (module under cudnn_aot.cli, help shown in the list)
COMMANDS = {
    "record": ("record", "Collect the graphs that a program builds."),
    "convert": ("convert", "Write graphs of any readable form as graph JSON."),
    "build": ("build", "Compile graphs for targets into a store."),
    "why": ("why", "Explain which plan a graph gets on a target, and why."),
    "ls": ("store", "List the plans of a store."),
    "show": ("store", "Show one plan of a store, or a graph file."),
    "verify": ("store", "Check every byte of a store, or that it has what graphs need."),
    "run": ("run", "Execute stored plans on random operands and check the results."),
    "tune": ("tune", "Measure the plans that `build --all-configs` made."),
    "report": ("report.command", "Write what a store holds as one HTML page."),
    "diff": ("diff", "Compare two stores, down to the field."),
    "merge": ("merge", "Join the stores of several builds."),
    "prune": ("prune", "Remove what is old, of other tools, or too much."),
    "sign": ("sign", "Sign a store, or make a key for that."),
    "pack": ("pack", "Write a store as one file."),
    "push": ("push", "Copy a store to a URL or, as an image, to a registry."),
    "pull": ("push", "Add the store at a URL or in an image to a folder."),
    "targets": ("targets", "List the targets that graphs can be built for, or probe a GPU."),
    "doctor": ("doctor", "Report versions, settings and what is missing."),
    "completion": ("completion", "Print the script that lets a shell complete commands."),
}


class VerbGroup(click.Group):
    """A group that refuses an unknown verb with the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verbs = self.list_commands(ctx)
        if args and args[0] not in verbs and not args[0].startswith("-"):
            near, what = did_you_mean(args[0], verbs), " ".join(ctx.command_path.split()[1:])
            verb = f"verb {args[0]!r} of {what}" if what else f"command {args[0]!r}"
            raise UsageError(f"no {verb}{near}: choose from {', '.join(verbs)}")
        return super().resolve_command(ctx, args)


class _LazyGroup(VerbGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"cudnn_aot.cli.{COMMANDS[name][0]}")
        command: click.Command = getattr(module, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(cudnn_aot.__version__, prog_name="cudnn-aot")
@click.pass_context
def cudnn_aot_command(ctx: click.Context) -> None:
    """Compile cuDNN-style graphs without a GPU; launch them without a compiler.

    \b
    cudnn-aot record -o graphs -- python serve.py      the graphs of a program
    cudnn-aot build graphs -t h200 --store store       compile them, on any machine
    cudnn-aot verify --store store                     then serve the store

    Exit codes: 0 done, 1 something failed, 2 the command was wrong, 3 a graph was declined.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run_command(args: Sequence[str]) -> int:
    """Parse and run; a command returns its exit code, or None for 0.

    click's own ``main`` would end the process when the reader of a pipe goes away.
    """
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from cudnn_aot.cli.completion import answer

        return answer(cudnn_aot_command, instruction)
    try:
        with cudnn_aot_command.make_context("cudnn-aot", list(args)) as context:
            result: Any = cudnn_aot_command.invoke(context)
    except click.exceptions.Abort:
        raise KeyboardInterrupt from None
    except click.exceptions.Exit as request:
        return request.exit_code
    except click.ClickException as error:
        ctx = getattr(error, "ctx", None)
        hint = f"; see {ctx.command_path} --help" if ctx else ""
        message = _message(error).rstrip(".")
        raise UsageError(message[:1].lower() + message[1:] + hint) from None
    return int(result or 0)


def _message(error: click.ClickException) -> str:
    """click's sentence, with the nearest name said as everywhere else."""
    if isinstance(error, click.NoSuchOption):
        parameters = error.ctx.command.params if error.ctx else []
        known = [name for option in parameters for name in option.opts if name.startswith("--")]
        return f"no option {error.option_name!r}{did_you_mean(error.option_name, known)}"
    return error.format_message()
