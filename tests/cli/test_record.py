"""``cudnn-aot record`` around real programs: what it writes, and that it stays out of the way."""

import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from cli_process import assert_one_line_error, run_cli
from recorded import write_fake_frontend

from cudnn_aot.compiler.formats.load import load_graphs

LOG = Path(__file__).parents[1] / "data/frontend_logs/four_threads.log"
CLI = [sys.executable, "-m", "cudnn_aot.cli.main"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(write_fake_frontend(tmp_path))}


def program(tmp_path: Path, text: str) -> list[object]:
    path = tmp_path / "program.py"
    path.write_text(text)
    return ["--", sys.executable, path]


def test_graphs_report_and_exit_code(tmp_path: Path, env: dict[str, str]) -> None:
    command = program(
        tmp_path,
        "import sys\nfrom cudnn import mm\nfor m in (4, 9, 9):\n    g = mm(m); g.build()\n"
        "    g.execute({})\nprint('out', sys.argv[1:])\nprint('err', file=sys.stderr)\n"
        "sys.exit(7)\n",
    )
    done = run_cli("record", "-o", tmp_path / "g", *command, "--json", "-o", "x", env=env)
    assert done.returncode == 7
    assert done.stdout == "out ['--json', '-o', 'x']\n"
    assert done.stderr.splitlines()[0] == "err"
    assert "M 4..9" in done.stderr
    assert f"1 graph from 1 process written to {tmp_path / 'g'}" in done.stderr
    (path,) = (tmp_path / "g").glob("*.json")
    assert load_graphs(path)[0].symbols["M"].hint == 9


def test_json_alone_is_on_stdout(tmp_path: Path, env: dict[str, str]) -> None:
    command = program(tmp_path, "from cudnn import mm\nmm(4).build()\nprint('mine')\n")
    done = run_cli("record", "--json", "-o", tmp_path / "g", *command, env=env)
    document = json.loads(done.stdout)
    assert "mine\n" in done.stderr
    (graph,) = document["graphs"]
    assert load_graphs(tmp_path / "g" / graph["file"])[0].key() == graph["graph_key"]
    assert (graph["built"], graph["executed"], document["unread"]) == (1, 0, [])


def test_no_symbolize(tmp_path: Path, env: dict[str, str]) -> None:
    command = program(tmp_path, "from cudnn import mm\nfor m in (4, 9): mm(m).build()\n")
    done = run_cli("record", "--no-symbolize", "-o", tmp_path / "g", *command, env=env)
    assert "2 graphs from 1 process" in done.stderr
    assert len(list((tmp_path / "g").glob("*.json"))) == 2


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("raise ValueError", 1),
        ("os._exit(9)", 9),
        ("os.kill(os.getpid(), 9)", 128 + 9),
        ("os.kill(os.getpid(), 15)", 128 + 15),
    ],
)
def test_a_program_that_dies_is_recorded(
    tmp_path: Path, env: dict[str, str], ending: str, code: int
) -> None:
    command = program(tmp_path, f"import os\nfrom cudnn import mm\nmm(4).build()\n{ending}\n")
    done = run_cli("record", "-o", tmp_path / "g", *command, env=env)
    assert done.returncode == code
    assert len(list((tmp_path / "g").glob("*.json"))) == 1


def test_a_program_without_graphs_is_told_what_may_be_wrong(tmp_path: Path) -> None:
    done = run_cli("record", "-o", tmp_path / "g", *program(tmp_path, "print(1)"))
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "no graph was recorded" in done.stderr and "PYTHONPATH" in done.stderr


def test_programs_that_are_not_python(tmp_path: Path, env: dict[str, str]) -> None:
    """Only what the shell starts is Python."""
    script = f"{sys.executable} -c 'from cudnn import mm; mm(4).build()'; exit 3"
    done = run_cli("record", "-o", tmp_path / "g", "sh", "-c", script, env=env)
    assert done.returncode == 3
    assert "1 graph from 1 process" in done.stderr


def test_the_processes_of_torchrun(tmp_path: Path, env: dict[str, str]) -> None:
    pytest.importorskip("torch", reason="torchrun is torch's")
    text = "import os\nfrom cudnn import mm\nmm(8 << int(os.environ['RANK'])).build()\n"
    script = program(tmp_path, text)[-1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = run_cli(
        "record", "-o", tmp_path / "g", "--json", "--", *launcher, "--standalone", script, env=env
    )
    assert done.returncode == 0, done.stderr
    (graph,) = json.loads(done.stdout)["graphs"]
    assert sorted(shape["symbols"]["M"] for shape in graph["shapes"]) == [8, 16]


def test_usage(tmp_path: Path) -> None:
    folder = tmp_path / "g"
    assert_one_line_error(run_cli("record", "-o", folder), 2, "a program to run, after --")
    done = run_cli("record", "-o", folder, "--from-log", LOG, "--", "true")
    assert_one_line_error(done, 2, "either")
    done = run_cli("record", "-o", folder, "--", tmp_path / "absent")
    assert_one_line_error(done, 2, "cannot run", "no such file")
    done = run_cli("record", "-o", folder, "--", LOG)
    assert_one_line_error(done, 2, "cannot run", "permission denied")
    (tmp_path / "file").write_text("")
    done = run_cli("record", "-o", tmp_path / "file", "--", "true")
    assert_one_line_error(done, 2, "cannot write graphs there")
    assert_one_line_error(run_cli("record", "-o", folder, "--from-log", "absent"), 2, "absent")
    assert_one_line_error(run_cli("record", "-o", folder, "--from-spool", "absent"), 2, "absent")


def test_from_log(tmp_path: Path) -> None:
    done = run_cli("record", "-o", tmp_path / "g", "--from-log", LOG, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    by_op = {graph["name"].split("-")[0]: graph for graph in document["graphs"]}
    assert by_op["matmul_relu"]["symbols"]["M"] == {"min": 16, "max": 66, "hint": 66}
    assert by_op["matmul_relu"]["built"] == 12
    assert len(document["graphs"]) + len(document["unread"]) == 2


def test_a_failing_output_keeps_the_records(tmp_path: Path, env: dict[str, str]) -> None:
    folder = tmp_path / "g"
    command = program(
        tmp_path,
        f"import os\nfrom cudnn import mm\nmm(4).build()\nos.rename({str(folder)!r}, 'm')\n",
    )
    kept = tmp_path / "kept"
    kept.mkdir()
    done = run_cli("record", "-o", folder, *command, env=env | {"TMPDIR": str(kept)}, cwd=tmp_path)
    assert done.returncode == 1
    line = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    spool = line.rsplit(" ", 1)[-1]
    again = run_cli("record", "-o", folder, "--from-spool", spool)
    assert again.returncode == 0, again.stderr
    assert len(list(folder.glob("*.json"))) == 1


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} did not appear")


HANDLES = """
import os, signal, sys, time
from cudnn import mm
def handle(number, frame):
    mm(8).build()
    sys.exit(50 + number)
signal.signal(signal.{name}, handle)
mm(4).build()
open("ready", "w").close()
time.sleep(60)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT"])
def test_signals_reach_the_program(tmp_path: Path, env: dict[str, str], name: str) -> None:
    command = [*CLI, "record", "-o", str(tmp_path / "g")]
    command += map(str, program(tmp_path, HANDLES.format(name=name)))
    # A session of its own has no terminal, whose Ctrl-C would reach the program by itself.
    process = subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | env, stderr=subprocess.PIPE, start_new_session=True
    )
    wait_for(tmp_path / "ready")
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 50 + getattr(signal, name), errors
    assert b"M 4..8" in errors and b"Traceback" not in errors


def test_ctrl_c_at_a_terminal_reaches_the_program_once(tmp_path: Path, env: dict[str, str]) -> None:
    text = """
    import signal, time
    from cudnn import mm
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    mm(4).build()
    open("ready", "w").close()
    deadline = time.monotonic() + 30
    while not seen and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    raise SystemExit(len(seen))
    """
    command = [*CLI, "record", "-o", str(tmp_path / "g")]
    command += map(str, program(tmp_path, textwrap.dedent(text)))
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover
        os.chdir(tmp_path)
        os.execvpe(command[0], command, os.environ | env)
    wait_for(tmp_path / "ready")
    os.write(terminal, b"\x03")
    output = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        output += part
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1, output
    assert b"1 graph from 1 process" in output
