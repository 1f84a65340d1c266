"""What a shell is told, through the real scripts and the real protocol, and how little it loads."""

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from cli_process import assert_one_line_error, run_cli

from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.cli.commands import COMMANDS

# A completion, and every help, must be there at once: these take longer than all the rest.
HEAVY = (
    "numpy", "rich", "cutlass", "tvm_ffi", "asyncio", "email", "importlib.metadata",
    "cudnn_aot._native", "cudnn_aot.compiler.graph", "cudnn_aot.compiler.planning",
    "cudnn_aot.recipes",
)  # fmt: skip


def complete(*words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> list[str]:
    """What bash is told for a line whose last word is being typed."""
    asked = {
        "_CUDNN_AOT_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("cudnn-aot", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = run_cli(env=asked | (env or {}), cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_options_and_targets(tmp_path: Path) -> None:
    assert complete("bu") == ["build"]
    assert {"ls", "show", "completion"} <= set(complete(""))
    assert complete("build", "--ta") == ["--target"]
    assert "h200" in complete("build", "--target", "h20")
    assert "cpu,h200" in complete("build", "--target", "cpu,h20")
    assert complete("completion", "z") == ["zsh"]
    assert complete("build", "--executor", "r") == ["ray"]
    assert complete("build", "--engines", "native,c") == ["native,cudnn"]
    assert complete("build", "--host", "aarch") == ["aarch64-linux-gnu"]
    assert complete("build", "--allow-declined", "al") == ["all"]
    for verb in ("pull", "prune", "verify"):
        assert "h200" in complete(verb, "--target", "h20")
    assert complete("targets", "pr") == ["probe"]


def test_plans_of_the_store_in_use(built_store: Path, tmp_path: Path) -> None:
    env = {"CUDNN_AOT_STORE": str(built_store)}
    assert complete("show", "", env=env) == ["down", "up"]
    assert complete("run", "--target", "cpu", "u", env=env) == ["up"]
    assert complete("run", "--target", "h200", "u", env=env) == []
    assert complete("run", "--store", str(built_store), "d") == ["down"]
    assert complete("run", "--store", f"https://nowhere:{built_store}", "d") == ["down"]
    (tmp_path / "cudnn-aot.toml").write_text(f'store = "{built_store}"')
    assert complete("run", "", cwd=tmp_path) == ["down", "up"]
    (tmp_path / "cudnn-aot.toml").write_text("wrong = 1")
    assert complete("run", "", cwd=tmp_path) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(shell: str) -> None:
    done = run_cli("completion", shell)
    assert done.returncode == 0
    assert f"_CUDNN_AOT_COMPLETE={shell}_complete" in done.stdout
    document = json.loads(run_cli("completion", shell, "--json").stdout)
    assert document["script"].rstrip() == done.stdout.rstrip()
    if found := shutil.which(shell):
        check = subprocess.run([found, "-n"], input=done.stdout, text=True, capture_output=True)
        assert (check.returncode, check.stderr) == (0, "")


def test_bash_completes_with_the_script(tmp_path: Path, built_store: Path) -> None:
    """bash itself, asked as its line editor asks."""
    script = tmp_path / "script.bash"
    script.write_text(run_cli("completion", "bash").stdout)
    program = Path(sys.executable).with_name("cudnn-aot")
    code = f"""
source {script}
COMP_WORDS=(cudnn-aot show d) COMP_CWORD=2
_cudnn_aot_completion {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "-c", code],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "CUDNN_AOT_STORE": str(built_store)},
    )
    assert done.stdout == "down\n", done.stderr


def name_all(store: Path, names: Iterable[str]) -> None:
    """Give the graph that is called `up` further names."""
    graph_key = StoreReader(store).name("cpu", "up")["graph_key"]
    with StoreWriter(store) as writer:
        for name in names:
            writer.put_name("cpu", name, graph_key, {})


# Names that a shell would read as something else; each is one by its first letter.
HOSTILE = (
    "a$(touch pwned) y", "b*", "c`touch pwned`", "w;touch pwned", "e'$(touch pwned)'",
    'f"$(touch pwned)"', "g\\$(touch pwned)", "h&touch pwned", "i{1,2}", "j ~ #x", "k>pwned",
    "l!!", "m,n", "o\u00e9 \u4e2d", "p\n", "q$IFS", "r[a-z]?",
)  # fmt: skip
START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(cudnn-aot completion bash)"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -U compinit; compinit -u -D; eval "$(cudnn-aot completion zsh)"',
    ),
    "fish": (["fish", "--no-config", "-i"], "cudnn-aot completion fish | source"),
}
RECORDING = """#!/bin/sh
case "$1$_CUDNN_AOT_COMPLETE" in
    show) exec {python} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@" >> ran ;;
    *) exec {program} "$@" ;;
esac
"""


@pytest.mark.parametrize("shell", START)
def test_what_is_completed_is_one_word(shell: str, tmp_path: Path, store_copy: Path) -> None:
    """Tab and Enter at a terminal: the verb gets the name, and nothing in it is run or expanded."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    wanted = [name for name in HOSTILE if name.isprintable()]
    name_all(store_copy, HOSTILE)
    work = tmp_path / "work"
    (work / "bin").mkdir(parents=True)
    for decoy in ("bx", "rex"):  # what a pattern would become
        (work / decoy).touch()
    program = Path(sys.executable).with_name("cudnn-aot")
    script = work / "bin" / "cudnn-aot"
    script.write_text(RECORDING.format(python=sys.executable, program=program))
    script.chmod(0o755)
    command, setup = START[shell]
    lines = [setup, *(f"cudnn-aot show {name[0]}\t" for name in wanted), "exit"]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(work)
        env = {"CUDNN_AOT_STORE": str(store_copy), "TERM": "vt100", "HOME": str(work)}
        inherited = ("LC_ALL", "FPATH", "LD_LIBRARY_PATH", "XDG_DATA_DIRS")
        env |= {name: os.environ[name] for name in inherited if name in os.environ}
        env |= {"PATH": f"{work / 'bin'}:{os.environ['PATH']}", "CUDNN_AOT_CONFIG": os.devnull}
        os.execvpe(command[0], command, {"LC_ALL": "C.UTF-8", **env})
    shown = b""
    try:
        for line in lines:
            os.write(terminal, line.encode() + b"\r")
        while data := os.read(terminal, 1 << 16):
            shown += data
    except OSError:  # EIO: the shell has ended
        pass
    os.close(terminal)
    os.waitpid(child, 0)
    ran = (work / "ran").read_text().splitlines() if (work / "ran").exists() else []
    assert [json.loads(line) for line in ran] == [["show", name] for name in wanted], shown.decode()
    assert not (work / "pwned").exists()


def test_what_is_offered_is_visible_and_within_quotes_plain(store_copy: Path) -> None:
    name_all(store_copy, ["x y", "x$(z)", "x\ny", "x\x1b[2J", "x\u202e", "xy"])
    env = {"CUDNN_AOT_STORE": str(store_copy)}
    assert complete("show", "x", env=env) == ["x\\ y", "x\\$\\(z\\)", "xy"]
    assert complete("show", '"x', env=env) == ["xy"]
    assert complete("show", "'x", env=env) == ["xy"]
    for shell in ("zsh", "fish"):
        asked = {"COMP_WORDS": "cudnn-aot show x", "COMP_CWORD": "2" if shell == "zsh" else "x"}
        done = run_cli(env=env | asked | {"_CUDNN_AOT_COMPLETE": f"{shell}_complete"})
        assert [line for line in done.stdout.splitlines() if "x" in line] == [
            {"fish": "plain,"}.get(shell, "") + name for name in ("x y", "x$(z)", "xy")
        ]


def test_a_wrong_shell_gets_the_nearest() -> None:
    assert_one_line_error(run_cli("completion", "fsh"), 2, "did you mean 'fish'?")


@pytest.mark.parametrize(
    "arguments",
    [(), *((name, "--help") for name in COMMANDS)],
    ids=str,
)
def test_a_help_loads_little(arguments: tuple[str, ...]) -> None:
    assert_light(f"main({list(arguments)!r})")


@pytest.mark.parametrize("words", ["b", "build --ta", "build --target h", "show u"])
def test_a_completion_loads_little(words: str, built_store: Path) -> None:
    count = len(words.split())
    assert_light(
        "os.environ.update(_CUDNN_AOT_COMPLETE='bash_complete', COMP_WORDS='cudnn-aot "
        f"{words}', COMP_CWORD='{count}', CUDNN_AOT_STORE={str(built_store)!r}); main([])"
    )


def assert_light(code: str) -> None:
    script = f"""
import os, sys
from cudnn_aot.cli.main import main
{code}
print([m for m in sys.modules if m.startswith({HEAVY!r})], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert done.stdout
