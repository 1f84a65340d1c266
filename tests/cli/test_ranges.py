"""A plan that several engines serve, each a range of a symbol, as it is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_process import run_cli
from served_store import put_plan

from cudnn_aot import runtime
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.cli.run import _engine_at

RANGES = [
    {"bounds": {"M": [1, 4]}, "engine": {"id": 7, "name": "by.hand"}, "knobs": {"STAGES": 2}},
    {"bounds": {"M": [5, 64]}, "engine": {"id": 8, "name": "by.machine"}, "knobs": {}},
    {"bounds": {"M": [65, 100]}, "engine": {"id": 7, "name": "by.hand"}, "knobs": {"STAGES": 3}},
]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with StoreWriter(tmp_path / "store") as writer:
        put_plan(writer, "scale", ranges=RANGES)
        put_plan(writer, "one")
    return tmp_path / "store"


def test_every_engine_is_told_once(store: Path) -> None:
    engines = {
        row["name"]: (row["engine"], row["engines"])
        for row in json.loads(run_cli("ls", "--store", store, "--json").stdout)["plans"]
    }
    assert engines == {
        "one": ("by.hand", ["by.hand"]),
        "scale": ("by.hand", ["by.hand", "by.machine"]),
    }
    one, scale = run_cli("ls", "--store", store).stdout.splitlines()[2:4]
    assert " by.hand +1 " in scale and " by.hand " in one and "+" not in one


def test_show_says_what_serves_which_range(store: Path) -> None:
    shown = run_cli("show", "scale", "--store", store).stdout
    assert [line.split() for line in shown.splitlines() if line.startswith("  engine ")] == [
        ["engine", "M=1..4", "by.hand", "STAGES=2"],
        ["engine", "M=5..64", "by.machine"],
        ["engine", "M=65..100", "by.hand", "STAGES=3"],
    ]
    shown = run_cli("show", "one", "--store", store).stdout
    assert "  engine       by.hand TILE_M=128" in shown.splitlines()


def test_run_names_the_engine_of_the_values(store: Path) -> None:
    plans = runtime.open(store, "cpu").plans()
    assert plans["scale"].ranges == RANGES and plans["one"].ranges == []
    assert [_engine_at(plans["scale"], {"M": m}) for m in (1, 4, 5, 64, 65)] == [
        "by.hand", "by.hand", "by.machine", "by.machine", "by.hand",
    ]  # fmt: skip
    assert _engine_at(plans["one"], {}) == "by.hand"
