"""The tables of ``docs/launch-tables`` say what their page claims, by the executor's own parser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from table_model import declared

from cudnn_aot import _native

TABLES = Path(__file__).parents[3] / "docs" / "launch-tables"


def load(name):
    return json.loads((TABLES / f"{name}.json").read_text())


def test_the_page_names_every_table():
    page = (TABLES.parent / "launch-table.md").read_text()
    names = {path.name for path in TABLES.glob("*.json")}
    assert len(names) == 4
    assert all(name in page for name in names)


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.json")), ids=lambda path: path.stem)
def test_the_executor_parses_it_and_bounds_its_workspace(path):
    table = json.loads(path.read_text())
    plan = _native.Plan(table, None)
    smallest = {name: symbol["min"] for name, symbol in table["symbols"].items()}
    assert 0 <= plan.workspace_bytes(smallest) <= plan.workspace_bytes(None)


def test_the_example_of_the_page_parses():
    page = (TABLES.parent / "launch-table.md").read_text()
    example = json.loads(page.split("```json\n")[1].split("```")[0])
    plan = _native.Plan(example, None)
    assert plan.workspace_bytes({"M": 300}) == 4 * 3


@pytest.mark.parametrize(
    ("batch", "length", "branch", "splits"),
    [
        (1, 131072, "split_stats", 32),
        (16, 8192, "split_stats", 2),
        (64, 8192, "one_split_stats", 1),
        (1, 16, "one_split_stats", 1),
    ],
)
def test_paged_decode_splits_by_sm_count_batch_and_length(batch, length, branch, splits):
    table = load("paged_decode_combine")
    call = declared(table, {"B": batch, "S": length, "PAGES": 4096})
    assert call.branch(table) == branch
    assert call.value("splits") == splits
    no_stats = declared(table, {"B": batch, "S": length, "PAGES": 4096}, u9=None)
    assert no_stats.branch(table) == branch.removesuffix("_stats")


def test_paged_decode_counts_packed_tokens_by_bytes():
    table = load("paged_decode_combine")
    packed = {"nbytes": 5 * 64 * 128 * 2}
    call = declared(table, {"B": 8, "S": 8192, "PAGES": 4096}, u1=packed)
    query = table["branches"]["split"]["steps"][0]["args"][2]
    assert [call.value(e) for e in query["dim"]] == [5, 64, 128]


def test_norm_backward_has_partial_rows_per_block_and_fills_for_no_rows():
    table = load("norm_backward_two_stage")
    call = declared(table, {"B": 4, "S": 2048})
    assert call.branch(table) == "dbias"
    assert call.workspace_bytes(table["branches"]["dbias"]) == 2 * 264 * 4096 * 4
    assert declared(table, {"B": 4, "S": 2048}, u7=None).branch(table) == "no_dbias"
    assert declared(table, {"B": 1, "S": 3}).value("ctas") == 1
    assert declared(table, {"B": 0, "S": 5}).branch(table) == "no_rows"


@pytest.mark.parametrize(
    ("tokens", "sequences", "branch", "pieces"),
    [(131072, 1, "chain", 4), (2048, 1, "chain", 4), (512, 1, "uncut", 2), (131072, 8, "uncut", 0)],
)
def test_gdn_cuts_long_sequences_only(tokens, sequences, branch, pieces):
    table = load("gdn_chain")
    call = declared(table, {"T": tokens, "N": sequences})
    assert (call.branch(table), call.value("pieces")) == (branch, pieces)


def test_grouped_gemm_is_one_launch_whatever_the_groups():
    table = load("grouped_gemm_device_offsets")
    call = declared(table, {"T": 4096})
    steps = table["branches"][call.branch(table)]["steps"]
    assert [step["step"] for step in steps] == ["fill", "kernel"]
    assert call.workspace_bytes(table["branches"]["tma"]) == 132 * 128 + 4
    assert declared(table, {"T": 0}).branch(table) == "empty"
