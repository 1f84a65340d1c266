"""Progress on a real terminal, and where there is none: rate, time left, and no codes in a log."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import NO_HOME, UNSET, linear_graph, run_cli, write_graph

from cudnn_aot.cli.progress import Pace, format_left

# Six kernels, of which one has a name that others wrote, and a note among them.
DRAW = """
import time
from cudnn_aot.cli.progress import show_progress
from cudnn_aot.cache.progress import Event, Stage
with show_progress(quiet=False) as progress:
    progress(Event(Stage.LOAD, 1, 1, "file.json"))
    for done in range(1, 7):
        time.sleep(0.15)
        progress(Event(Stage.COMPILE, done, 6, f"kernel{done}\\x1b[31m[bold]", "compiled"))
    progress(Event(Stage.NOTE, 0, 0, "a note [bold]"))
"""


def on_terminal(command: list[str], env: dict[str, str]) -> str:
    """What a process writes on stderr when that is a terminal of 120 columns; it must succeed."""
    clean = {k: v for k, v in os.environ.items() if k not in (*UNSET, "CI", "NO_COLOR", "TERM")}
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            env=clean | NO_HOME | {"COLUMNS": "120", "TERM": "xterm-256color"} | env,
        )
    finally:
        os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:  # how a terminal ends
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0, seen
    return seen.decode()


def drawn(**env: str) -> str:
    return on_terminal([sys.executable, "-c", DRAW], env)


def test_a_terminal_sees_rate_and_time_left() -> None:
    seen = drawn()
    rates = [float(rate) for rate in re.findall(r"(\d+\.\d) kernels/s, 0:0\d left", seen)]
    assert rates and 1 < max(rates) < 8  # one each 0.15 s, on a machine that may be busy
    assert "compiling" in seen and "3/6" in seen and "\x1b[2K" in seen
    assert r"kernel3\x1b[31m[bold]" in seen and "a note [bold]" in seen
    assert re.search(r"\x1b\[[\d;]*3\dm|\x1b\[38", seen)  # colours


def test_no_color_leaves_the_bar_and_no_colour() -> None:
    seen = drawn(NO_COLOR="1")
    assert "kernels/s" in seen
    assert not re.search(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d)(?:;\d+)*m", seen)


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"CI": "true"}], ids=str)
def test_lines_where_nothing_can_be_drawn_over(env: dict[str, str]) -> None:
    lines = drawn(**env).splitlines()
    assert lines == [
        *(rf"[{n}/6] kernel{n}\x1b[31m[bold] compiled" for n in range(1, 7)),
        "a note [bold]",
    ]


def test_a_build_on_a_terminal_and_in_a_pipe(tmp_path: Path) -> None:
    files = [write_graph(tmp_path, linear_graph(f"g{op}", 24, op=op)) for op in ("relu", "tanh")]
    program = Path(sys.executable).with_name("cudnn-aot")
    arguments = ["build", *map(str, files), "-t", "cpu", "-j", "1", "--store"]
    seen = on_terminal([str(program), *arguments, str(tmp_path / "one")], {})
    assert re.search(r"1/2 +\d\.\d kernels/s, \d+:\d\d left +gemm\.kernels\.host", bare(seen))
    done = run_cli(*arguments, tmp_path / "two")
    assert [line[:5] for line in done.stderr.splitlines()] == ["[1/2]", "[2/2]"]
    assert "\x1b" not in done.stderr + done.stdout
    done = run_cli(*arguments, tmp_path / "two", "--json")
    assert done.stderr == ""


MANY = """
import sys
from cudnn_aot.cache.progress import Event, Stage
from cudnn_aot.cli import progress
progress.LINE_S = float(sys.argv[1])
with progress.show_progress(quiet=False) as tell:
    for number in range(40):
        progress.time.sleep(0.02)
        tell(Event(Stage.VERIFY, number, 40, f"file{number}"))
"""


def test_what_comes_by_the_thousand_is_a_line_now_and_then() -> None:
    def lines(every_s: float) -> list[str]:
        command = [sys.executable, "-c", MANY, str(every_s)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stderr.splitlines()

    assert lines(60) == []
    some = lines(0.1)
    assert 1 < len(some) < 10
    assert all(re.fullmatch(r"\[ ?\d+/40\] checking file\d+", line) for line in some)


def test_a_bar_of_what_is_checked_merged_and_sent(built_store: Path, tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("cudnn-aot"))
    seen = on_terminal([program, "verify", "--store", str(built_store)], {})
    assert "checking" in seen and re.search(r"\d+/1\d", bare(seen))
    assert on_terminal([program, "verify", "--json", "--store", str(built_store)], {}) == ""
    assert "\x1b" not in on_terminal([program, "verify", "--store", str(built_store)], {"CI": "1"})
    merge = [program, "merge", str(built_store), "-o", str(tmp_path / "merged")]
    assert "merging" in on_terminal(merge, {})
    assert "merging" not in on_terminal([*merge, "--json"], {})
    pytest.importorskip("fsspec", reason="the extra `remote` is not installed")
    url, cache = f"file://{tmp_path}/far", {"CUDNN_AOT_CACHE": str(tmp_path / "cache")}
    assert "sending" in on_terminal([program, "push", url, "--store", str(built_store)], cache)
    assert "receiving" in on_terminal([program, "pull", url, "-o", str(tmp_path / "got")], cache)


def bare(text: str) -> str:
    return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", text)


def test_the_pace_is_that_of_the_last_ones() -> None:
    """A thousand that were there already do not promise a quick end."""
    pace = Pace(0.0)
    assert pace.per_second(5.0) == 0
    for number in range(1000):
        pace.count(number / 1000)
    for second in range(2, 42):
        pace.count(float(second))
    assert pace.per_second(41.0) == pytest.approx(1.0)
    assert pace.per_second(73.0) == pytest.approx(0.5)  # nothing since: it slows down


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0:00 left"), (75, "1:15 left"), (7261, "2:01:01 left")]
)
def test_time_left(seconds: float, text: str) -> None:
    assert format_left(seconds) == text
