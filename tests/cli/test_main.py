"""The entry point: quick help, quiet pipes, one line whatever happens."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_process import assert_one_line_error, linear_graph, run_cli, write_graph


def test_help_is_quick_and_lists_every_command() -> None:
    """Nothing heavy is imported before a command is known."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        done = run_cli("--help")
        seconds.append(time.perf_counter() - started)
    assert done.returncode == 0
    for command in ("record", "build", "ls", "show", "verify", "run", "targets", "doctor"):
        assert f"  {command} " in done.stdout
    assert statistics.median(seconds) < 0.25


@pytest.mark.parametrize(
    "command", ["record", "build", "ls", "show", "verify", "run", "targets", "doctor"]
)
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


def test_a_closed_pipe_is_quiet(built_store: Path) -> None:
    command = f"{sys.executable} -m cudnn_aot.cli.main show up --json --store {built_store}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | true"], capture_output=True, text=True
    )
    assert done.stderr == ""


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
    environment["CUDNN_AOT_DEBUG"] = "1"
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert "Traceback" in done.stderr


def test_interrupting_a_build_ends_quickly_and_repeats_well(tmp_path: Path) -> None:
    files = [write_graph(tmp_path, linear_graph(f"g{n}", n, op="swish")) for n in (40, 48)]
    files += [write_graph(tmp_path, linear_graph("gelu", 48, op="tanh"))]
    store = tmp_path / "store"
    command = [sys.executable, "-m", "cudnn_aot.cli.main", "build", *map(str, files)]
    command += ["-t", "cpu", "--store", str(store), "-j", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not (store / "store.json").exists() and process.poll() is None:
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in errors
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
