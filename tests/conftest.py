"""Small graphs and a store built from them by the real command line."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import filelock
import hypothesis
import pytest
from cli_process import linear_graph, run_cli, write_graph

from cudnn_aot.compiler.planning import shipped

ROOT = Path(__file__).resolve().parents[1]

# The same examples in every run: a change is judged by what it changed. `make search` draws others.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("search", derandomize=False, print_blob=True)
hypothesis.settings.load_profile("same")

# The GPU tests import torch, which a machine without a GPU need not have.
collect_ignore = [] if importlib.util.find_spec("torch") else ["gpu"]


@pytest.fixture(scope="module")
def nothing_shipped() -> Iterator[None]:
    """Heuristics, and a tuning file of one's own, decide alone, whatever was measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "shipped_file", lambda family, target: None)
        yield


@pytest.fixture(scope="session")
def graph_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("graphs")
    return [
        write_graph(folder, linear_graph("up", 64)),
        write_graph(folder, linear_graph("down", 40, op="swish")),
    ]


@pytest.fixture(scope="session")
def built_store(tmp_path_factory: pytest.TempPathFactory, graph_files: list[Path]) -> Path:
    """A store with two CPU plans; tests that write to one copy it."""
    store = tmp_path_factory.mktemp("built") / "store"
    done = run_cli("build", *graph_files, "--target", "cpu", "--store", store)
    assert done.returncode == 0, done.stderr
    return store


@pytest.fixture
def store_copy(tmp_path: Path, built_store: Path) -> Path:
    copy = tmp_path / "store"
    shutil.copytree(built_store, copy, copy_function=shutil.copy2)
    return copy


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built once for all processes of a test run."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "wheel"
    with filelock.FileLock(shared / "wheel.lock"):
        if not (folder / "ready").exists():
            _build_wheel(folder)
    (built,) = (folder / "dist").glob("*.whl")
    return built


def _copy_checkout(to: Path) -> None:
    files = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(files, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def _build_wheel(folder: Path) -> None:
    """From the objects that this checkout's installation was linked from, if it has them: to
    compile them again gives the same bytes, a minute later.
    """
    source, options = folder / "source", []
    objects = sorted(ROOT.glob(f"build/cp{sys.version_info[0]}{sys.version_info[1]}-*-editable"))
    if objects:
        source, options = ROOT, [f"--config-settings=build-dir={objects[0]}"]
    else:
        _copy_checkout(source)
    pip = (sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "--no-build-isolation")
    command = [*pip, *options, "-w", folder / "dist", source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder / "ready").touch()
