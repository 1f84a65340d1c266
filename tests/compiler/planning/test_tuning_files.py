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
        ("[", "is not JSON"),
        ("1", "format is None, want 1"),
        ("null", "format is None, want 1"),
        ("[]", "format is None, want 1"),
        ('{"entries": []}', "format is None, want 1"),
        ('{"format": 2, "entries": []}', "format is 2, want 1"),
        ('{"format": true, "entries": []}', "format is True, want 1"),
        ('{"format": 1}', "entries is None, want a list"),
        ('{"format": 1, "entries": {}}', "entries is {}, want a list"),
        (json.dumps({"format": 1, "entries": "x" * 10_000}), "entries is 'xxxxxxxxxxxx..."),
        ('{"format": 1, "entries": [7]}', "entries[0]: got 7, want an object"),
        (of_entry(family=None), "entries[1]: family is None, want a string"),
        (of_entry(target=["a\nb"]), r"entries[1]: target is ['a\nb'], want a string"),
        (of_entry(extents=[1]), "entries[1]: extents is [1], want an object"),
        (of_entry(extents={"m": 1.0}), "entries[1]: extent 'm' is 1.0, want an integer"),
        (of_entry(extents={"m": True}), "entries[1]: extent 'm' is True, want an integer"),
        (of_entry(plans=[7]), "plans[0]: got 7, want an object with engine and knobs"),
        (of_plan(engine=20_000), "plans[1]: engine is 20000, want the name of one"),
        (of_plan(knobs=None), "plans[1]: knobs is None, want knob types with integers"),
        (of_plan(knobs={"XY": 1}), "plans[1]: got knob 'XY', want one of the knob types"),
        (of_plan(knobs={"TILE_MM": 1}), "got knob 'TILE_MM' (did you mean 'TILE_M'?), want one"),
        (of_plan(knobs={"TILE_M": "64"}), "plans[1]: knob TILE_M is '64', want an integer"),
        (of_plan(us=float("nan")), "is not JSON: NaN is no number of JSON"),
        (of_plan(us=float("-inf")), "is not JSON: -Infinity is no number of JSON"),
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
    assert len(message) < len(str(path)) + 200


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match="absent.json.*No such file"):
        load_tuning(tmp_path / "absent.json")
    with pytest.raises(UsageError, match="is not a regular file"):
        load_tuning(tmp_path)
