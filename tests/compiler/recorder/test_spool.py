"""Records that a killed process, a full disk or anything else has left damaged."""

import copy
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from fuzz_inputs import from_random, seeds, wrecked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudnn_aot.compiler.recorder.collection import collect, write_recording
from cudnn_aot.compiler.recorder.hook import DROPPED, FAILURES
from cudnn_aot.compiler.recorder.spool import Spool, read_spool

FIRST = max(DROPPED, FAILURES) + 1  # counter of a graph
SEEDS = [("peer", document) for document in seeds()["plan"]] + [
    ("lowered", document) for document in seeds()["lowered"]
]


def records_of(form: str, document: Any, number: int = 0) -> list[dict[str, Any]]:
    """What a process writes of a graph that it builds, executes and executes by another shape."""
    document = copy.deepcopy(document)
    numbers: list[int] = []
    for row in document["tensors"]:
        for field in ("dim", "stride"):
            numbers += row[field] or []
            row[field] = len(row[field] or [])
    uid = document["tensors"][0]["uid"]
    call = {"uids": [uid], "shapes": [numbers[:3]], "strides": [numbers[3:6]]}
    counter = FIRST + 4 * number
    names = ("built", "executed", "superseded")
    counters = {name: counter + place for place, name in enumerate(names)}
    return [
        {"structure": number, "form": form, "document": document},
        {"instance": number, "structure": number, "numbers": numbers, **counters},
        {"call": counter + 3, "instance": number, **call},
    ]


HEAD: list[dict[str, Any]] = [
    {"process": 7, "parent": 1, "program": "serve.py"},
    {"module": "cudnn", "version": "1.32", "methods": ["build"]},
    {"failure": "seen", "error": "KeyError: 1"},
]


def write_spool(folder: Path, lines: list[bytes], name: str = "7-aa") -> Path:
    (folder / f"{name}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (folder / f"{name}.counts").write_bytes(struct.pack("=64q", *[1] * 64))
    return folder


def lines_of(records: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(record).encode() for record in records]


def without(record: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != field}


STRUCTURE, INSTANCE, CALL = records_of(*SEEDS[0], number=1)
DAMAGED = {
    "no-counter": [STRUCTURE, without(INSTANCE, "built")],
    "text-for-a-counter": [STRUCTURE, {**INSTANCE, "built": "9"}],
    "too-few-numbers": [STRUCTURE, {**INSTANCE, "numbers": INSTANCE["numbers"][:-1]}],
    "too-many-numbers": [STRUCTURE, {**INSTANCE, "numbers": [*INSTANCE["numbers"], 1]}],
    "numbers-that-are-none": [STRUCTURE, {**INSTANCE, "numbers": 5}],
    "no-structure": [INSTANCE],
    "no-document": [{**STRUCTURE, "document": []}],
    "rows-that-are-none": [{**STRUCTURE, "document": {"tensors": [1]}}, INSTANCE],
    "row-without-dim": [{**STRUCTURE, "document": {"tensors": [{}]}}, INSTANCE],
    "lengths-below-zero": [
        {**STRUCTURE, "document": {"tensors": [{"dim": -1, "stride": 2}]}},
        {**INSTANCE, "numbers": [1]},
    ],
    "unhashable-structure": [{**STRUCTURE, "structure": [1]}],
    "call-without-uids": [STRUCTURE, INSTANCE, without(CALL, "uids")],
    "call-of-no-lists": [STRUCTURE, INSTANCE, {**CALL, "shapes": [1]}],
    "call-of-objects": [STRUCTURE, INSTANCE, {**CALL, "shapes": [[{}]]}],
    "call-of-no-instance": [CALL],
    "module-without-version": [without(HEAD[1], "version")],
    "failure-without-text": [without(HEAD[2], "error")],
}


def read_with_others(folder: Path, damaged: list[bytes]) -> Spool:
    """A spool whose first process has a good graph and these lines, the second a good one."""
    good = [lines_of([*HEAD, *records_of(*SEEDS[place])]) for place in (1, 2)]
    write_spool(folder, [*good[0], *damaged])
    spool = read_spool(write_spool(folder, good[1], "8-bb"))
    assert spool.pids == [7, 7] and spool.modules == {"cudnn": "1.32"}
    assert spool.failures == ["seen: KeyError: 1"]
    return spool


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_record_costs_only_itself(tmp_path: Path, case: str) -> None:
    spool = read_with_others(tmp_path, lines_of(DAMAGED[case]))
    assert spool.damaged == 1
    assert len(spool.graphs) == 2 + case.startswith("call-") - (case == "call-of-no-instance")
    assert sum(graph.executions == 2 for graph in spool.graphs) == 2


@pytest.mark.parametrize(
    "line",
    [b"[" * 100_000, b'{"process":' * 100_000, b"1" * 10_000, b"\xff", b'"text"', b"{}"],
    ids=range(6),
)
def test_a_line_that_is_no_record_costs_only_itself(tmp_path: Path, line: bytes) -> None:
    spool = read_with_others(tmp_path, [line])
    assert (spool.damaged, len(spool.graphs)) == (1, 2)


def test_a_document_too_deep_to_be_written_is_damaged(tmp_path: Path) -> None:
    deep = json.dumps({**STRUCTURE, "document": {"tensors": 0}})
    line = deep.replace('"tensors": 0', '"tensors": ' + "[" * 900 + "]" * 900)
    assert read_with_others(tmp_path, [line.encode()]).damaged == 1


def test_what_is_no_file_of_records_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    os.mkfifo(tmp_path / "b.jsonl")
    (tmp_path / "c.jsonl").symlink_to(tmp_path / "absent")
    spool = read_with_others(tmp_path, [])
    assert (spool.damaged, len(spool.graphs)) == (3, 2)
    (tmp_path / "7-aa.counts").unlink()
    os.mkfifo(tmp_path / "7-aa.counts")
    spool = read_spool(tmp_path)
    assert (spool.damaged, len(spool.graphs)) == (4, 2)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_wrecked_records_are_read_to_their_end(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """What a spool comes to is written, whatever it holds."""
    below = from_random(seed)
    records = [*HEAD]
    for number in range(1 + below(3)):
        records += records_of(*SEEDS[below(len(SEEDS))], number)
    lines = [wrecked("plan", r, below) if below(3) else json.dumps(r).encode() for r in records]
    folder = tmp_path_factory.mktemp("spool")
    write_spool(folder, lines)
    write_recording(collect(read_spool(folder)), folder)
