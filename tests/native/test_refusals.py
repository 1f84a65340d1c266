"""The calls that are refused are those that a table makes illegal, and no others.

`boundaries` walks a table and finds, for each rule of it, a legal call and an illegal one that are
neighbours. The executor must run the one and refuse the other, naming the rule and the operand that
the plain rules name (`call_model`, which reads the same table), also where it has proven the legal
call before. A rule, a step, an argument that the parser knows and no table here has fails.
"""

from __future__ import annotations

import json
import mmap
import re
from pathlib import Path
from typing import Any

import boundaries
import numpy as np
import pytest
from pack_cases import as_argument
from tables import kernel, operand, scalar, symbol, table, whole

from cudnn_aot import _native
from cudnn_aot.errors import RefusedError

ROOT = Path(__file__).parents[2]

X = operand(1, [1, "M", 8], [["mul", "M", 8], 8, 1], dtype="BFLOAT16")
W = operand(2, ["M", "K"], ["K", 1], dtype="FP4_E2M1")
SCALES = operand(5, ["M", 5], [5, 1], dtype="FP8_E4M3", reordering_type="F8_128x4")
TOKENS = operand(6, [4, "M", 8], [["mul", "M", 8], 8, 1], ragged=True)
EXTRA = operand(7, ["M"], [1], dtype="INT32", optional=True)
Y = operand(8, ["M", 8], [8, 1], kind="output")
BITS = operand(9, [2, 6], dtype="INT4", kind="output")


def view(uid: int, dim: list[Any], **fields: Any) -> Any:
    strides = [1] if len(dim) == 1 else [dim[1], 1]
    return {"arg": "tensor", "operand": uid, "dim": dim, "stride": strides} | fields


def room(name: str, size: Any, align: int = 32) -> Any:
    return {"name": name, "bytes": size, "align": align}


def fill(size: Any, width: int = 4, **target: Any) -> Any:
    return {"step": "fill", "bytes": size, "pattern": 0, "width": width} | target


ROWS = ["floor_div", ["nbytes", 6], 32]
EVERYTHING = table(
    [X, W, scalar(3), scalar(4, 3, dtype="INT8"), SCALES, TOKENS, EXTRA, Y, BITS],
    symbols={"M": symbol(2, 64, multiple_of=2), "K": symbol(2, 40)},
    let={"pitch": ["stride", 1, 1]},
    checks=[
        {"rule": "alignment", "operand": 1, "bytes": 16},
        {"rule": "unit_stride", "operand": 1, "axis": 2},
        {"rule": "divisible", "operand": 1, "expr": "pitch", "by": 8},
        {"rule": "range", "operand": 1, "expr": "pitch", "min": 8, "max": 64},
        {"rule": "equal", "operand": 8, "a": ["stride", 8, 1], "b": 1},
        {"rule": "range", "expr": ["stride", 6, 1], "min": 8, "max": 8},
        {"rule": "range", "operand": 6, "expr": ["nbytes", 6], "min": 64, "max": 8192},
        {"rule": "divisible", "operand": 6, "expr": ["nbytes", 6], "by": 32},
        {"rule": "alignment", "operand": 9, "bytes": 3},
    ],
    dispatch=[
        {"when": ["and", ["le", "M", 8], ["le", 26, "K"]], "branch": "backend"},
        {"when": ["and", ["le", "M", 8], ["present", 7]], "branch": "small"},
        {"when": ["and", ["lt", "K", 20], ["or", ["aligned", 8, 4], False]], "branch": "views"},
        {"when": ["and", ["divides", 2, "M"], ["not", ["eq", "M", 12]]], "branch": "slices"},
    ],
    branches={
        "backend": {
            "workspace": [room("cudnn", 100)],
            "steps": [{"step": "backend", "blob": 0, "uids": [1, 3, 7], "slice": "cudnn"}],
        },
        "small": {
            "workspace": [room("a", ["mul", 4, "K"]), room("b", ["sub", 92, ["mul", 4, "K"]], 64)],
            "steps": [
                fill(["mul", 4, "K"], slice="a"),
                fill(["sub", ["mul", 32, "M"], ["select", ["eq", "K", 8], 2, 0]], operand=8),
                kernel(whole(X), view(7, ["M"]), {"arg": "none"}, {"arg": "float", "value": 0.5}),
            ],
        },
        "views": {
            "workspace": [],
            "steps": [
                kernel(
                    {"arg": "launch"},
                    {"arg": "scalar", "operand": 3},
                    view(6, [ROWS, 8]),
                    view(8, ["M", 8], offset=["sub", "K", ["max", "pitch", 16]]),
                ),
                kernel(view(8, [["mul", "K", 4], 4])),
            ],
        },
        "slices": {
            "workspace": [room("c", ["round_up", ["mul", "K", 12], 48])],
            "steps": [
                kernel(
                    {"arg": "int", "value": ["mod", 64, ["sub", "K", 24]]},
                    {"arg": "tensor", "slice": "c", "dtype": "HALF", "stride": [1],
                     "dim": [["select", ["le", "M", 40], ["mul", "K", 6], ["mul", "K", 8]]]},
                    view(1, [["sub", 36, "K"], ["min", 2, ["ceil_div", "M", 40]]]),
                ),
            ],
        },
    },
)  # fmt: skip
# Beside what a table states outright: bounds that follow from sizes and views of this one.
STEPS_OF_EVERYTHING = {
    "arithmetic None",
    "branches.backend.steps[0]",
    "branches.small.workspace.b",
    "branches.small.steps[1].width",
    "branches.small.steps[1].gaps",
    "branches.views.steps[0].args[3].first",
    "branches.views.steps[0].args[3].last",
    "branches.views.steps[1].args[0].last",
    "branches.slices.steps[0].args[1].last",
    "branches.slices.steps[0].args[2]",
}


def on_host(part: Any) -> Any:
    """A table of an H200 for the host, which has no attributes."""
    if isinstance(part, list):
        return 132 if part == ["attr", "sm_count"] else [on_host(item) for item in part]
    if isinstance(part, dict):
        return {name: on_host(value) for name, value in part.items()}
    return part


PAPER = sorted((ROOT / "docs" / "launch-tables").glob("*.json"))
TABLES = {"everything": EVERYTHING} | {
    path.stem: on_host(json.loads(path.read_text())) | {"device": "cpu"} for path in PAPER
}


@pytest.fixture(scope="module")
def arena() -> Any:
    """Where made-up addresses point: fills may write, and nothing is touched otherwise."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    memory = mmap.mmap(-1, 12 << 32, flags=flags)
    view = np.frombuffer(memory, np.uint8)
    return view, -(-view.ctypes.data // (1 << 20)) * (1 << 20)


def executed(plan: Any, case: Any) -> tuple[str, int | None] | None:
    call: Any = {"symbols": case.given}
    if case.overrides:
        call["override_uids"] = list(case.overrides)
        call["override_shapes"] = [list(shape) for shape, _ in case.overrides.values()]
        call["override_strides"] = [list(stride) for _, stride in case.overrides.values()]
    bindings = {uid: as_argument(bound) for uid, bound in case.bound.items()}
    try:
        plan.execute(bindings, as_argument(case.workspace), **call)
    except RefusedError as refused:
        assert "\n" not in str(refused)
        return refused.rule, refused.operand
    return None


LONG = {"paged_decode_combine"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in TABLES]
)
def test_both_sides_of_every_boundary(name, arena, load):
    _, start = arena
    described = TABLES[name]
    kernels = [load("nothing")] * 16
    missing = boundaries.parts(described)
    if name == "everything":
        missing |= STEPS_OF_EVERYTHING
    branches = set()
    for base in boundaries.legal_calls(described, start):
        branches.add(boundaries.judged(base)[0])
        plan = _native.Plan(described, kernels, backends=[lambda *call: None])
        for place, legal, wrong in boundaries.shown(base):
            refused = boundaries.judged(wrong)[1]
            assert executed(plan, legal) is None, (place, legal)
            branches.add(boundaries.judged(legal)[0])
            for _ in range(2):  # also as a neighbour of a call that was proven
                assert executed(plan, wrong) == (refused.rule, refused.uid), (place, wrong)
                assert executed(plan, base) is None
            missing.discard(place)
    assert branches == set(described["branches"])
    assert not missing


def choices(change: Any) -> set[str]:
    """What the parser says it wants in place of a word it does not know."""
    with pytest.raises(ValueError, match="want") as fault:
        _native.Plan(EVERYTHING | change)
    return set(re.findall(r"'(\w+)'", str(fault.value).split("want")[1]))


def words(part: Any) -> set[str]:
    if isinstance(part, dict):
        return set().union(*map(words, part.values()))
    if isinstance(part, list):
        heads = {part[0]} if part and isinstance(part[0], str) else set()
        return heads.union(*map(words, part))
    return {part} if isinstance(part, str) else set()


def test_every_word_of_the_vocabulary_is_shown():
    """A new check, step, argument, predicate or expression needs a place in these tables."""
    used = set().union(*map(words, TABLES.values()))
    step: Any = {"workspace": [], "steps": [{"step": "?"}]}
    argument: Any = {"workspace": [], "steps": [kernel({"arg": "?"})]}
    number: Any = {"workspace": [], "steps": [kernel({"arg": "int", "value": ["?", 1]})]}
    known = {
        "checks": choices({"checks": [{"rule": "?"}]}),
        "steps": choices({"branches": {"small": step}}),
        "arguments": choices({"branches": {"small": argument}}),
        "expressions": choices({"branches": {"small": number}}),
        "predicates": choices({"dispatch": [{"when": ["?", 1], "branch": "small"}]}),
    }
    assert known["checks"] == set(boundaries.CHECKS) and known["steps"] == set(boundaries.STEPS)
    for kind, names in known.items():
        assert len(names) >= 3, (kind, names)
        unused = names - used - {"attr"}  # of a GPU alone
        assert not unused, (kind, unused)
    fields = operand(1, [1]) | {"surprise": 1}
    with pytest.raises(ValueError, match="unknown field 'surprise'") as fault:
        _native.Plan(table([fields]))
    known_fields = set(re.findall(r"'(\w+)'", str(fault.value))) - {"surprise"}
    assert known_fields <= set().union(*(entry.keys() for entry in EVERYTHING["operands"]))


RULES_OF_OBJECTS = {"address", "interface", "stream"}  # test_buffers.py, test_execute.py
RULES_OF_NAMES = {"symbol_unknown", "name"}  # test_pack.py


def test_every_rule_of_the_page_is_one_of_the_executor():
    """And every rule that a table decides has a boundary above."""
    page = (ROOT / "docs" / "runtime.md").read_text()
    listed = page.split("Rules of a refusal:")[1].split("\n\n")[0]
    documented = set(re.findall(r"`(\w+)`", listed)) - {"checks"}
    sources = "".join(path.read_text() for path in sorted((ROOT / "native/src").glob("*.cpp")))
    sources += "".join(path.read_text() for path in sorted((ROOT / "native/src").glob("*.h")))
    calls = r"(?:Refuse|RefuseCall|RefuseObject|refuse|Refusal)\(\s*\"(\w+)\"\s*,"
    thrown = set(re.findall(calls, sources)) - {"none"}  # a workspace that was not given
    assert thrown >= documented - {"extents"} and "presence" in documented
    assert thrown <= documented, thrown - documented
    shown = {
        "symbol_range", "symbol_unbound", "presence", "device", "dtype", "extents", "capacity",
        "alignment", "overlap", "readonly", "workspace", "arithmetic", "no_branch", "override",
        "unit_stride", "divisible", "range", "equal",
    }  # fmt: skip
    assert documented == shown | RULES_OF_OBJECTS | RULES_OF_NAMES
