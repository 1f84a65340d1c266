"""Every bench as a program on a machine without torch, numpy or a GPU: its help, and how it ends
where it cannot measure or is interrupted.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_aot.compiler.planning.tuning import read_entries

BENCH = Path(__file__).resolve().parents[2] / "bench"


def imported(name: str) -> Any:
    """A bench as a module, for what it computes without a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        return importlib.import_module(name)


tuned = imported("tuned")
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


def tuning_file(path: Path, times: dict[tuple[int, int], dict[int, float]]) -> Path:
    """What `tune` writes: of (N, M) the microseconds of plans, by a knob."""
    entries = [
        {
            "family": "gemm", "target": "h200", "layout_class": "c",
            "extents": {"batch": 1, "m": m, "n": n, "k": 64},
            "plans": [
                {"engine": "e", "knobs": {"TILE_M": knob}, "us": us}
                for knob, us in sorted(of.items(), key=lambda each: each[1])
            ],
        }
        for (n, m), of in times.items()
    ]  # fmt: skip
    path.write_text(json.dumps({"format": 1, "entries": entries}))
    return path


def ship(source: Path, output: Path) -> dict[tuple[int, int], list[int]]:
    """The knobs that are shipped, in their order, by (N, M)."""
    command = [sys.executable, str(BENCH / "tuned.py"), "--ship", str(source), str(output)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr
    lines = output.read_text().splitlines()
    entries = read_entries(output)
    assert len(lines) == len(entries) + 2  # an entry a line
    assert [json.loads(line.rstrip(",")) for line in lines[1:-1]] == entries
    return {
        (entry["extents"]["n"], entry["extents"]["m"]): [
            plan["knobs"]["TILE_M"] for plan in entry["plans"]
        ]
        for entry in entries
    }


def test_one_plan_is_shipped_for_all_values_where_it_is_nearly_the_fastest(tmp_path: Path) -> None:
    measured = tuning_file(
        tmp_path / "in.json",
        {
            (8, 4): {1: 10.0, 2: 10.1, 3: 10.5},
            (8, 1): {2: 10.1, 3: 10.0},
            (8, 2): {1: 10.3, 2: 10.2, 3: 10.0},
            (9, 1): {1: 10.0, 2: 10.1},  # of another graph
            (9, 2): {2: 10.3, 3: 10.0},
        },
    )
    found = ship(measured, tmp_path / "out.json")
    assert found == {
        (8, 1): [2, 3],
        (8, 2): [2, 3, 1],
        (8, 4): [2, 1, 3],
        (9, 1): [1, 2],
        (9, 2): [3, 2],
    }
    # It is the same whatever the order of entries, and of what was made of it.
    entries = read_entries(measured)[::-1]
    measured.write_text(json.dumps({"format": 1, "entries": entries}))
    assert ship(measured, tmp_path / "again.json") == found
    assert (tmp_path / "again.json").read_text() == (tmp_path / "out.json").read_text()


def test_an_entry_that_is_shipped_has_some_of_the_plans(tmp_path: Path) -> None:
    many = {knob: 10 + knob / 100 for knob in range(1, 13)}
    times = {(8, 1): many, (8, 2): {12: 1.0}}
    found = ship(tuning_file(tmp_path / "in.json", times), tmp_path / "out.json")
    assert found[8, 1] == [12, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"plans": [{"engine": "e", "knobs": {"TILE_M": 1}}]}, "us of a plan is None"),
        ({"plans": [{"engine": "e", "knobs": {"TILE_M": 1}, "us": 0}]}, "us of a plan is 0"),
        ({"plans": []}, "it has no plans"),
        ({"extents": {"tokens": 8}}, "it has no extent m"),
    ],
)
def test_what_was_not_measured_is_not_shipped(tmp_path: Path, change: Any, reason: str) -> None:
    measured = tuning_file(tmp_path / "in.json", {(8, 1): {1: 1.0}})
    (entry,) = read_entries(measured)
    measured.write_text(json.dumps({"format": 1, "entries": [entry | change]}))
    before = measured.read_text()
    command = [sys.executable, str(BENCH / "tuned.py"), "--ship", str(measured), str(measured)]
    done = subprocess.run(command, capture_output=True, text=True)
    want = f"error: entries[0]: {reason}, want what `cudnn-aot tune` writes of a GEMM\n"
    assert (done.returncode, done.stderr) == (2, want)
    assert measured.read_text() == before


def test_nothing_measured_ships_a_file_of_nothing(tmp_path: Path) -> None:
    measured = tmp_path / "in.json"
    measured.write_text('{"format": 1, "entries": []}')
    command = [sys.executable, str(BENCH / "tuned.py"), "--ship", str(measured), str(measured)]
    assert subprocess.run(command).returncode == 0
    assert read_entries(measured) == []


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcd"), st.floats(1.0, 1.06), min_size=1),
        min_size=1,
        max_size=5,
    )
)
def test_the_fewest_plans_are_shipped(points: list[dict[str, float]]) -> None:
    first_plans, nearly = tuned.first_plans, tuned.NEARLY
    chosen = first_plans(points)
    choices = [
        [plan for plan, us in times.items() if us <= nearly * min(times.values())]
        for times in points
    ]
    assert all(plan in near for plan, near in zip(chosen, choices, strict=True))

    def cost(every: tuple[str, ...]) -> tuple[int, int]:
        return len(set(every)), sum(a != b for a, b in zip(every, every[1:], strict=False))

    assert cost(tuple(chosen))[0] == min(cost(each)[0] for each in itertools.product(*choices))
    same = [each for each in itertools.product(*choices) if set(each) <= set(chosen)]
    assert cost(tuple(chosen)) == min(map(cost, same))


def test_how_the_shipped_file_is_made_is_said(tmp_path: Path) -> None:
    said = " ".join(tuned.__doc__.replace("\\\n", " ").split())
    rows = ",".join(map(str, tuned.ROWS))
    assert f"cudnn-aot tune --store candidates -o h200.json --symbol M={rows} " in said
    assert list(tuned.ROWS) == sorted(set(tuned.ROWS))
    command = [sys.executable, str(BENCH / "tuned.py"), "--graphs", str(tmp_path), "--models"]
    subprocess.run([*command, "llama_8b", "qwen3_4b"], check=True)
    names = {f"{m}_{p}.json" for m in ("llama_8b", "qwen3_4b") for p in tuned.PROJECTIONS}
    assert {path.name for path in tmp_path.iterdir()} == names
    done = subprocess.run([*command, "llama"], capture_output=True, text=True)
    assert done.returncode == 2 and "invalid choice: 'llama'" in done.stderr
