"""What a shell is told, through the real scripts and the real protocol, and how little it loads."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import assert_one_line_error, run_cli

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
