"""Small graphs and a store built from them by the real command line."""

import importlib.util
import shutil
from pathlib import Path

import pytest
from cli_process import linear_graph, run_cli, write_graph

# The GPU tests import torch, which a machine without a GPU need not have.
collect_ignore = [] if importlib.util.find_spec("torch") else ["gpu"]


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
