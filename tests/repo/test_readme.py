"""The README's tour works as written."""

import re
import subprocess
import sys
from pathlib import Path

from cli_process import run_cli

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_tour(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", blocks[0]], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    built = run_cli("build", "ffn_up.json", "-t", "cpu", "--store", "store", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    run = ("run", "ffn_up", "--target", "cpu", "--symbol", "M=17", "--store", "store")
    assert run_cli(*run, cwd=tmp_path).returncode == 0


def test_documented_commands_exist() -> None:
    """Every `cudnn-aot VERB` and option of the README is one of the command line."""
    text = README.read_text(encoding="utf-8")
    for verb, rest in re.findall(r"^\$ cudnn-aot (\w+)(.*)$", text, re.MULTILINE):
        shown = run_cli(verb, "--help").stdout
        assert shown.startswith(f"Usage: cudnn-aot {verb}"), verb
        for option in re.findall(r"(--[a-z-]+)", rest.split("#")[0]):
            assert option in shown, (verb, option)


def test_every_page_is_listed() -> None:
    linked = set(re.findall(r"\(docs/([\w-]+\.md)\)", README.read_text(encoding="utf-8")))
    assert linked == {page.name for page in (README.parent / "docs").glob("*.md")}
