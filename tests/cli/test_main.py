"""The entry point: quick help, quiet pipes, one line whatever happens."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_process import assert_one_line_error, linear_graph, run_cli, write_graph

from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.cli.commands import COMMANDS


def test_help_is_quick_and_lists_every_command() -> None:
    """Nothing heavy is imported before a command is known.

    The best processor time of several runs, since other work on the machine stretches the others.
    """
    seconds = []
    for _ in range(5):
        before = os.times()
        done = run_cli("--help")
        after = os.times()
        spent = after.children_user - before.children_user
        seconds.append(spent + after.children_system - before.children_system)
    assert done.returncode == 0
    for command, (_, text) in COMMANDS.items():
        assert f"  {command} " in done.stdout and text[:40] in done.stdout
    assert min(seconds) < 0.25, seconds


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command: str) -> None:
    done = run_cli(command, "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout


def test_listing_needs_no_build_packages(built_store: Path) -> None:
    """`ls`, `show` and `verify` work where numpy, rich and the compiler are absent."""
    script = f"""
import sys
for name in ("numpy", "rich", "filelock", "cutlass", "torch"):
    sys.modules[name] = None
from cudnn_aot.cli.main import main
for command in (["ls"], ["show", "up"], ["verify"]):
    assert main([*command, "--store", {str(built_store)!r}]) == 0
assert not [m for m in sys.modules if m.startswith(("cudnn_aot.compiler", "cudnn_aot.recipes"))]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_click_one_line_names_the_extra() -> None:
    script = """
import sys
sys.modules["click"] = None
from cudnn_aot.cli.main import main
sys.exit(main(["ls"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert_one_line_error(done, 1, "cudnn-aot[cli]", "cudnn-aot[compile]")


def in_shell(command: str, redirect: str) -> subprocess.CompletedProcess[str]:
    line = f"{sys.executable} -m cudnn_aot.cli.main {command} {redirect}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True)


@pytest.mark.parametrize("command", ["show up --json", "ls", "verify", "doctor", "--help"])
def test_a_closed_pipe_is_quiet(command: str, built_store: Path) -> None:
    """The reader is gone before anything is written; 141 is what SIGPIPE would have given."""
    store = "" if command == "--help" else f"--store {built_store}"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        f"{sys.executable} -m cudnn_aot.cli.main {command} {store}",
        shell=True,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("command", ["show up --json", "ls", "verify", "run up", "--version"])
def test_a_closed_stdout_is_quiet(command: str, built_store: Path) -> None:
    store = "" if command == "--version" else f"--store {built_store}"
    done = in_shell(f"{command} {store}", ">&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_failures_with_closed_streams(built_store: Path) -> None:
    done = in_shell(f"show nothere --json --store {built_store}", ">&-")
    assert_one_line_error(done, 1, "nothere")
    done = in_shell(f"show nothere --store {built_store}", "2>&-")
    assert (done.returncode, done.stdout + done.stderr) == (1, "")
    done = in_shell(f"ls --store {built_store}", "<&- >&- 2>&-")
    assert done.returncode == 0


# a new line, an escape sequence, a change of reading direction, a line separator, a C1 control
ODD = "a\nerror: b\x1b[31m\u202ec\u2028d\x9b\td"
SHOWN = "a\\nerror: b\\x1b[31m\\u202ec\\u2028d\\x9b\\td"


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """Names are what others wrote: a line shows them escaped, a document holds them exactly."""
    store = tmp_path / "store"
    with StoreWriter(store) as writer:
        writer.put_name("cpu", ODD, "0" * 64, {})
    for command in (["ls"], ["show", ODD], ["run", ODD], ["run", "--all"], ["verify"]):
        done = run_cli(*command, "--store", store)
        assert done.returncode == 1
        for text in (done.stdout, done.stderr):
            assert all(line.isprintable() for line in text.split("\n")), (command, text)
        assert len([line for line in done.stderr.split("\n") if line]) <= 1, done.stderr
    lines = run_cli("ls", "--store", store).stdout.splitlines()
    assert len(lines) == 3 and lines[2].startswith(SHOWN + "  cpu")
    (plan,) = json.loads(run_cli("ls", "--store", store, "--json").stdout)["plans"]
    assert plan["name"] == ODD


def test_odd_names_of_files_and_arguments(built_store: Path, tmp_path: Path) -> None:
    path = tmp_path / ODD.replace("/", "")
    path.write_text("no graph")
    for command in (
        ["build", path, "-t", "cpu"],
        ["build", path, "-t", ODD],
        ["show", ODD],
        ["ls", "-t", ODD],
        ["ls", ODD],
        [ODD],
    ):
        done = run_cli(*command, env={"CUDNN_AOT_STORE": str(built_store)})
        assert done.returncode in (1, 2)
        text = done.stdout + done.stderr
        assert all(line.isprintable() for line in text.split("\n")), (command, text)
        assert_one_line_error(done, done.returncode)


def test_an_unexpected_exception_is_one_line_and_debug_shows_it(tmp_path: Path) -> None:
    script = """
import sys
from cudnn_aot.cli import main as entry, commands
def broken(args):
    raise ZeroDivisionError("two\\nlines")
commands.run_command = broken
sys.exit(entry.main(["ls"]))
"""
    environment = {k: v for k, v in os.environ.items() if k != "CUDNN_AOT_DEBUG"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "ZeroDivisionError" in done.stderr and "CUDNN_AOT_DEBUG=1" in done.stderr
    for word in ("1", "true", "yes"):
        environment["CUDNN_AOT_DEBUG"] = word
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert "Traceback" in done.stderr
    assert_one_line_error(
        run_cli("ls", env={"CUDNN_AOT_DEBUG": "2"}), 2, "CUDNN_AOT_DEBUG: got '2'"
    )


def default_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def test_what_was_ignored_does_not_end_a_command(tmp_path: Path) -> None:
    """As `nohup` has it; a command that is done has left the caller's signals as they were."""
    script = """
import os, signal, sys
from cudnn_aot.cli import main, targets
signal.signal(signal.SIGHUP, signal.SIG_IGN)
listed = targets.say
def say(*lines):
    os.kill(os.getpid(), signal.SIGHUP)
    listed(*lines)
targets.say = say
print(main.main(["targets"]))
print(signal.getsignal(signal.SIGTERM).name, signal.getsignal(signal.SIGHUP).name)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=default_signals,
    )
    code, handlers = done.stdout.splitlines()[-2:]
    assert (code, handlers) == ("0", "SIG_DFL SIG_IGN")


ENDINGS = [
    (signal.SIGINT, 130, "interrupted"),
    (signal.SIGTERM, 143, "ended by SIGTERM"),
    (signal.SIGHUP, 129, "ended by SIGHUP"),
]


@pytest.mark.parametrize(("number", "code", "said"), ENDINGS)
def test_a_command_that_just_starts_can_be_interrupted(
    number: signal.Signals, code: int, said: str
) -> None:
    script = f"""
import os, sys
from cudnn_aot.cli import main
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Finder())
sys.exit(main.main(["targets", "--json"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=default_signals,
    )
    assert (done.returncode, done.stderr) == (code, f"error: {said}\n")
    assert json.loads(done.stdout)["error"]["exit_code"] == code


@pytest.mark.parametrize(("number", "code", "said"), ENDINGS)
def test_interrupting_a_build_ends_quickly_and_repeats_well(
    tmp_path: Path, number: signal.Signals, code: int, said: str
) -> None:
    files = [write_graph(tmp_path, linear_graph(f"g{n}", n, op="swish")) for n in (40, 48)]
    files += [write_graph(tmp_path, linear_graph("gelu", 48, op="tanh"))]
    store = tmp_path / "store"
    command = [sys.executable, "-m", "cudnn_aot.cli.main", "build", *map(str, files)]
    command += ["-t", "cpu", "--store", str(store), "-j", "1"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A test run in the background of a shell inherits interrupts ignored, and so would this.
        preexec_fn=default_signals,
    )
    while not (store / "store.json").exists() and process.poll() is None:
        time.sleep(0.02)
    time.sleep(0.5)
    assert (tmp_path / ".store.building").exists()
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    assert errors.splitlines()[-1] == f"error: {said}"
    assert "Traceback" not in errors
    assert not (tmp_path / ".store.building").exists()
    done = run_cli("build", *files, "-t", "cpu", "--store", store, "--json")
    assert done.returncode == 0, done.stderr
    assert {item["status"] for item in json.loads(done.stdout)["graphs"]} == {"built"}
    assert run_cli("verify", "--store", store).returncode == 0


def test_targets_and_doctor_as_json() -> None:
    targets = json.loads(run_cli("targets", "--json").stdout)["targets"]
    assert {"h200", "h100", "cpu"} <= {target["name"] for target in targets}
    findings = json.loads(run_cli("doctor", "--json").stdout)["findings"]
    assert {"cudnn-aot", "python", "native part", "apache-tvm-ffi", "store"} <= {
        finding["topic"] for finding in findings
    }
