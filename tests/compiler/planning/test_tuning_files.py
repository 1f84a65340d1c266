"""What is refused in a tuning file, in one line that names the file and the entry."""

import json
from pathlib import Path

import pytest

from cudnn_aot.compiler.planning.tuning import load_tuning
from cudnn_aot.errors import UsageError

GOOD = {"family": "gemm", "target": "h200", "layout_class": "c", "extents": {"m": 1}, "plans": []}
PLAN = {"engine": "gemm.sm90.persistent", "knobs": {"TILE_M": 64}}


def of_entry(**changes):
    return json.dumps({"format": 1, "entries": [GOOD, {**GOOD, "target": "h100", **changes}]})


def of_plan(**changes):
    return of_entry(plans=[PLAN, {**PLAN, **changes}])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (b"\xff{}", "is not JSON"),
        ("[]", "format is None, want 1"),
        ('{"entries": []}', "format is None, want 1"),
        ('{"format": 2, "entries": []}', "format is 2, want 1"),
        ('{"format": true, "entries": []}', "format is True, want 1"),
        ('{"format": 1}', "entries is None, want a list"),
        ('{"format": 1, "entries": {}}', "entries is {}, want a list"),
        ('{"format": 1, "entries": [7]}', "entries[0]: got int, want an object"),
        (of_entry(family=None), "entries[1]: family is None, want str"),
        (of_entry(extents=[1]), "entries[1]: extents is [1], want dict"),
        (of_entry(extents={"m": 1.0}), "entries[1]: extents are {'m': 1.0}, want integers"),
        (of_entry(extents={"m": True}), "entries[1]: extents are {'m': True}, want integers"),
        (of_entry(plans=[7]), "entries[1]: got plan 7, want an engine and knobs"),
        (of_plan(engine=20_000), "want an engine and knobs"),
        (of_plan(knobs=None), "knobs are None, want knob types and integers"),
        (of_plan(knobs={"TILE": 1}), "knobs are {'TILE': 1}, want knob types and integers"),
        (of_plan(knobs={"TILE_M": "64"}), "want knob types and integers"),
        (of_entry(target="h200"), "entries[1]: it is about the graphs of an earlier entry"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, text, reason):
    path = tmp_path / "tuning.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as refused:
        load_tuning(path)
    message = str(refused.value)
    assert reason in message and str(path) in message and "\n" not in message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match="absent.json.*No such file"):
        load_tuning(tmp_path / "absent.json")
    with pytest.raises(UsageError, match="is not a regular file"):
        load_tuning(tmp_path)
