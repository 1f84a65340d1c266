"""Every bench as a program on a machine without torch, numpy or a GPU: its help, and how it ends
where it cannot measure or is interrupted.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
PROGRAMS = sorted(p.name for p in BENCH.glob("*.py") if "__main__" in p.read_text())
# What measures on a GPU, and how it is asked to.
ON_GPU = {
    "few_rows.py": ("--store", "store"),
    "grouped.py": ("--store", "store"),
    "launch.py": ("--store", "store"),
    "shapes.py": ("--store", "store"),
    "tensor_cores.py": ("--store", "store"),
    "tuned.py": ("--tuning", "h200.json"),
}
# Runs a script where these cannot be imported.
WITHOUT = f"""
import runpy, sys
names, sys.argv = sys.argv[1].split(","), sys.argv[2:]
sys.modules.update(dict.fromkeys(names))
sys.path.insert(0, {str(BENCH)!r})
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# A torch that finds no GPU.
NO_GPU = "class cuda:\n    is_available = staticmethod(lambda: False)\n"


def without(modules: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, modules, str(BENCH / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("script", PROGRAMS)
def test_help_takes_nothing(script: str) -> None:
    done = without("torch,numpy,cutlass", script, "--help")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.startswith(f"usage: {script} ")


def test_every_bench_is_a_program() -> None:
    modules = {path.name for path in BENCH.glob("*.py")} - set(PROGRAMS)
    assert modules == {"program.py", "replay.py"}
    users = {p.name for p in BENCH.glob("*.py") if "from replay import" in p.read_text()}
    assert users == set(ON_GPU)


@pytest.mark.parametrize("script", ON_GPU)
def test_measuring_without_torch(script: str) -> None:
    done = without("torch", script, *ON_GPU[script])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: measuring takes torch, which is not installed: pip install torch\n"
    )


@pytest.mark.parametrize("script", ON_GPU)
def test_measuring_without_a_gpu(script: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(NO_GPU)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(BENCH / script), *ON_GPU[script]]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: measuring takes a GPU, and torch finds none: run it on a GPU host\n"
    )


def test_a_count_is_one_at_least() -> None:
    """Only seeds are any number; a bench measures nothing of none."""
    checked = set()
    for script in PROGRAMS:
        text = (BENCH / script).read_text()
        options = re.findall(r'add_argument\(\s*"(--\w+)"[^()]*?type=(\w+)', text)
        assert {name for name, kind in options if kind == "int"} <= {"--seed"}, script
        for name in [name for name, kind in options if kind == "positive"][:1]:
            for value in ("0", "-1", "1.5", "many"):
                command = [sys.executable, str(BENCH / script), f"{name}={value}"]
                done = subprocess.run(command, capture_output=True, text=True)
                assert (done.returncode, done.stdout) == (2, "")
                assert done.stderr.endswith(
                    f"error: argument {name}: got {value!r}, want a whole number from 1\n"
                )
            checked.add(script)
    assert len(checked) >= 13


WAITS = "import program, time\nprogram.run_main(lambda: (print(1, flush=True), time.sleep(600)))"


def test_interrupted() -> None:
    command = [sys.executable, "-c", WAITS]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": BENCH}
    with subprocess.Popen(command, **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout.readline() == b"1\n"
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=60)
    assert (child.returncode, stderr) == (130, b"error: interrupted\n")


def test_every_bench_ends_in_one_line() -> None:
    for script in PROGRAMS:
        assert "\n    run_main(main)\n" in (BENCH / script).read_text(), script


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "verify.py"), "--folder", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and str(tmp_path / "none") in done.stderr
    assert len(done.stderr.splitlines()) == 1
