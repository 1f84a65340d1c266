"""Graphs that are built for the CPU and run by the command line, beside the reference."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cli_process import run_cli, write_graph


def build_for_cpu(folder: Path, graphs: Iterable[Any]) -> Path:
    """A store in ``folder`` with a plan of each graph."""
    files = [write_graph(folder, graph) for graph in graphs]
    done = run_cli("build", *files, "--target", "cpu", "--store", folder / "store")
    assert done.returncode == 0, done.stderr
    return folder / "store"


def assert_right(store: Path, *names: str, **symbols: int) -> None:
    """Random operands of each plan give the reference's results, within its tolerance."""
    options = [f"--symbol={symbol}={value}" for symbol, value in symbols.items()]
    done = run_cli("run", *names, "--target", "cpu", "--store", store, "--json", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)["runs"]
    assert [row["name"] for row in rows] == list(names)
    wrong = [row for row in rows if not (row["correct"] and row["worst_error"] <= 1.0)]
    assert not wrong, wrong
