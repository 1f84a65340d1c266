"""A table that breaks the vocabulary is refused with the place of the offence."""

import copy
from typing import Any

import pytest
from tables import kernel, operand, scalar, symbol, table, whole

from cudnn_aot import _native

X = operand(1, ["M", 8], [8, 1])
GOOD = table(
    [X, scalar(3), operand(9, [4], kind="output", optional=True)],
    {"step": "fill", "slice": "counters", "bytes": 4, "pattern": 0, "width": 4},
    kernel(whole(X), {"arg": "scalar", "operand": 3}, {"arg": "none"}),
    workspace=[{"name": "counters", "bytes": ["mul", 4, "M"], "align": 128}],
    symbols={"M": symbol()},
    checks=[{"rule": "alignment", "operand": 1, "bytes": 16}],
)


def test_the_good_table():
    plan = _native.Plan(GOOD)
    assert (plan.device, plan.uids) == ("cpu", (1, 3, 9))


STEP = ("branches", "only", "steps", 1)
ARG = (*STEP, "args", 0)
SLICE = ("branches", "only", "workspace", 0)
DEEP: Any = "M"
for _ in range(70):
    DEEP = ["add", DEEP, 1]


DOUBLING: Any = {f"x{i:02}": ["add", f"x{i - 1:02}", f"x{i - 1:02}"] for i in range(1, 41)}
DOUBLING["x00"] = ["mul", "M", 3]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("version",), 2, "version: got 2, want 1"),
        (("device",), "gpu", "device: got 'gpu', want 'cuda' or 'cpu'"),
        (("extra",), 1, "unknown field 'extra', want 'version', "),
        (("symbols", "M", "min"), -1, "symbols.M.min: got -1, want 0 to "),
        (("symbols", "M", "max"), "8", "symbols.M.max: got a string, want an integer"),
        (("operands", 0, "dtype"), "FLOAT7", "operands[0].dtype: unknown dtype 'FLOAT7', want "),
        (("operands", 1, "uid"), 1, "operands[1].uid: got 1 after 1, want ascending uids"),
        (("operands", 0, "stride"), [1], "operands[0].stride: got 1 strides, want 2"),
        (("operands", 0, "dim"), ["M", -1], "operands[0].dim[1]: got a negative extent"),
        (("operands", 0, "dim"), ["K", 1], "operands[0].dim[0]: no symbol or 'let' is named 'K'"),
        (("operands", 0, "dim"), [["nbytes", 1], 1], "a declaration may use integers and symbols"),
        (("operands", 1, "value"), "x", "operands[1].value: got a string, want a number"),
        (("checks", 0, "rule"), "align", "checks[0].rule: got 'align', want 'alignment', "),
        (("checks", 0, "operand"), 2, "checks[0].operand: no operand has uid 2"),
        (("checks", 0, "operand"), 3, "checks[0].operand: operand 3 is a scalar, want a tensor"),
        (("dispatch",), [], "dispatch: got no guard, want at least one"),
        (("dispatch", 0, "branch"), "b", "dispatch[0].branch: no branch is named 'b', want 'only'"),
        (("dispatch", 0, "when"), 1, "dispatch[0].when: got an integer, want a predicate"),
        (("dispatch", 0, "when"), ["gt", 1, 2], "dispatch[0].when: unknown predicate 'gt', want "),
        (("dispatch", 0, "when"), ["eq", 1], "dispatch[0].when: 'eq' got 1 operands, want 2"),
        (("dispatch", 0, "when"), ["aligned", 1, 0], "dispatch[0].when[2]: got 0, want 1 to "),
        ((*SLICE, "align"), 96, "workspace[0].align: got 96, want a power of two"),
        ((*SLICE, "bytes"), ["stride", 1, 0], "a workspace size may not depend on a stride"),
        ((*SLICE, "bytes"), ["attr", "sm_count"], "table of device 'cpu' has no device attributes"),
        (
            (*STEP, "step"),
            "graph",
            "steps[1].step: got 'graph', want 'kernel', 'fill' or 'backend'",
        ),
        ((*STEP, "kernel"), -1, "steps[1].kernel: got -1, want 0 to "),
        ((*STEP, "args", 1), {"arg": "scalar", "operand": 1}, "operand 1 is a tensor, want a scal"),
        ((*ARG, "dim"), [["dim", 1, 2], 1], "args[0].dim[0][2]: got axis 2, want 0 to 1"),
        ((*ARG, "dim"), [["pow", 1, 2], 1], "args[0].dim[0]: unknown expression 'pow', want "),
        ((*ARG, "dim"), [DEEP, 1], "nested deeper than 64"),
        ((*ARG, "slice"), "counters", "args[0]: want one of 'operand' and 'slice'"),
        (("branches", "only", "steps", 0, "slice"), "c", "no slice is named 'c', want 'counters'"),
        (("branches", "only", "steps", 0, "pattern"), 2**32, "pattern: got 4294967296, want 0 to "),
        (("let",), {"M": 1}, "let.M: a symbol has this name"),
        (("let",), {"x": "y", "y": "x"}, "nested deeper than 64"),
        (("let",), DOUBLING, "parts"),
        (("let",), {"x": 2**64}, "let.x: got an integer that does not fit int64"),
        (("let",), {"x": {1, 2}}, "let.x: got a set, want null, a boolean"),
    ],
)
def test_a_bad_table(place, value, message):
    bad = copy.deepcopy(GOOD)
    target: Any = bad
    for step in place[:-1]:
        target = target[step]
    target[place[-1]] = value
    with pytest.raises(ValueError) as refused:
        _native.Plan(bad)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_names_may_be_used_in_any_order():
    lets = {"a": ["add", "b", 1], "b": ["mul", "c", 2], "c": "M"}
    for order in ("abc", "cba", "bca"):
        plan = _native.Plan(
            table(
                [X],
                kernel({"arg": "int", "value": "a"}),
                symbols={"M": symbol()},
                let={name: lets[name] for name in order},
            )
        )
        assert plan.resolve({1: 4096}, symbols={"M": 5})["steps"][0]["args"] == [11]


def test_a_table_of_many_parts_is_within_bounds():
    """Far beyond what a recipe needs, and parsed at once."""
    wide = ["add", *[["mul", "M", i] for i in range(60)]]
    steps = [kernel({"arg": "int", "value": wide}) for _ in range(250)]
    _native.Plan(table([X], *steps, symbols={"M": symbol()}))


def test_a_missing_field():
    for field in GOOD:
        bad = {name: value for name, value in GOOD.items() if name != field}
        with pytest.raises(ValueError, match=f"^field '{field}' is missing"):
            _native.Plan(bad)


def test_too_few_kernels(load):
    with pytest.raises(ValueError, match="names kernel 1, got 1 kernels"):
        _native.Plan(table([], kernel(index=1)), [load("count")])
