"""Expressions and predicates against a plain evaluator on Python's unbounded integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import kernel, operand, symbol, table, whole

from cudnn_aot import _native
from cudnn_aot.errors import RefusedError

INT64 = range(-(2**63), 2**63)
SYMBOLS = {"a": symbol(0, 2**63 - 1), "b": symbol(0, 2**63 - 1)}


class Refused(Exception):
    pass


def fits(value: int) -> int:
    if value not in INT64:
        raise Refused
    return value


def divisor(value: int) -> int:
    if value <= 0:
        raise Refused
    return value


def value(e: Any, symbols: dict[str, int]) -> int:
    if isinstance(e, int):
        return e
    if isinstance(e, str):
        return symbols[e]
    if e[0] == "select":
        return value(e[2] if holds(e[1], symbols) else e[3], symbols)
    first, *rest = (value(x, symbols) for x in e[1:])
    for x in rest:  # n-ary forms go left to right, and every partial result must fit
        match e[0]:
            case "add":
                first = fits(first + x)
            case "sub":
                first = fits(first - x)
            case "mul":
                first = fits(first * x)
            case "min":
                first = min(first, x)
            case "max":
                first = max(first, x)
            case "floor_div":
                first = first // divisor(x)
            case "ceil_div":
                first = -(-first // divisor(x))
            case "mod":
                first = first % divisor(x)
            case "round_up":
                first = fits(-(-first // divisor(x)) * x)
    return first


def holds(p: Any, symbols: dict[str, int]) -> bool:
    if isinstance(p, bool):
        return p
    match p[0]:
        case "and":
            return all(holds(x, symbols) for x in p[1:])
        case "or":
            return any(holds(x, symbols) for x in p[1:])
        case "not":
            return not holds(p[1], symbols)
    a, b = (value(x, symbols) for x in p[1:])
    match p[0]:
        case "eq":
            return a == b
        case "lt":
            return a < b
        case "le":
            return a <= b
    return b % divisor(a) == 0


edges = st.sampled_from([0, 1, -1, 2, 7, 128, 2**31, 2**62, 2**63 - 1, -(2**63)])
leaves = st.one_of(st.integers(-300, 300), edges, st.sampled_from(["a", "b"]))


def listed(*items: Any) -> Any:
    return st.tuples(*(st.just(x) if isinstance(x, str) else x for x in items)).map(list)


def n_ary(names: list[str], of: Any) -> Any:
    rest = st.lists(of, min_size=1, max_size=3)
    return st.tuples(st.sampled_from(names), rest).map(lambda pair: [pair[0], *pair[1]])


def binary(names: list[str], of: Any) -> Any:
    return st.tuples(st.sampled_from(names), of, of).map(list)


def predicates_of(expressions: Any) -> Any:
    plain = st.one_of(st.booleans(), binary(["eq", "lt", "le", "divides"], expressions))
    return st.recursive(
        plain, lambda p: st.one_of(n_ary(["and", "or"], p), listed("not", p)), max_leaves=4
    )


simple_predicates = predicates_of(leaves)


def larger(e: Any) -> Any:
    return st.one_of(
        n_ary(["add", "mul", "min", "max"], e),
        binary(["sub", "floor_div", "ceil_div", "mod", "round_up"], e),
        listed("select", simple_predicates, e, e),
    )


expressions = st.recursive(leaves, larger, max_leaves=8)
predicates = predicates_of(expressions)
values = st.one_of(st.integers(0, 1000), st.sampled_from([2**31, 2**62, 2**63 - 1]))


def evaluate(expression: Any, symbols: dict[str, int], **fields: Any) -> int:
    fields = {"symbols": SYMBOLS} | fields
    plan = _native.Plan(table([], kernel({"arg": "int", "value": expression}), **fields))
    return plan.resolve({}, symbols=symbols)["steps"][0]["args"][0]


@settings(max_examples=200, deadline=None)
@given(expressions, values, values)
def test_expressions(expression, a, b):
    symbols = {"a": a, "b": b}
    try:
        want = value(expression, symbols)
    except Refused:
        with pytest.raises(RefusedError) as refused:
            evaluate(expression, symbols)
        assert refused.value.rule == "arithmetic"
    else:
        assert evaluate(expression, symbols) == want


@settings(max_examples=150, deadline=None)
@given(predicates, values, values)
def test_predicates(predicate, a, b):
    symbols = {"a": a, "b": b}
    branch = {"workspace": [], "steps": []}
    plan = _native.Plan(
        table(
            [],
            symbols=SYMBOLS,
            dispatch=[{"when": predicate, "branch": "yes"}, {"when": True, "branch": "no"}],
            branches={"yes": branch, "no": branch},
        )
    )
    try:
        want = "yes" if holds(predicate, symbols) else "no"
    except Refused:
        with pytest.raises(RefusedError, match="rule arithmetic"):
            plan.resolve({}, symbols=symbols)
    else:
        assert plan.resolve({}, symbols=symbols)["branch"] == want


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        (["floor_div", -7, 2], -4),
        (["ceil_div", -7, 2], -3),
        (["mod", -7, 2], 1),
        (["round_up", -7, 4], -4),
        (["floor_div", -(2**63), 1], -(2**63)),
        (["select", ["eq", "a", 0], 1, ["floor_div", 8, "a"]], 1),
        (["select", ["and", ["lt", 0, "a"], ["divides", "a", 8]], 1, 2], 2),
    ],
)
def test_rounding_and_laziness(expression, want):
    assert evaluate(expression, {"a": 0, "b": 0}) == want


def test_what_a_call_binds():
    """Extents, strides, capacity and presence of the operand of this call."""
    x, y = operand(1, ["M", 8], [8, 1]), operand(2, [4], optional=True)
    read = [
        ["dim", 1, 0],
        ["stride", 1, 0],
        ["nbytes", 1],
        ["select", ["present", 2], 1, 0],
        ["select", ["aligned", 1, 64], 1, 0],
        ["select", ["aligned", 2, 64], 1, 0],
    ]
    plan = _native.Plan(
        table(
            [x, y],
            kernel(whole(x), *({"arg": "int", "value": e} for e in read)),
            symbols={"M": symbol()},
        )
    )
    memory = np.zeros(4096, np.uint8)
    start = -memory.ctypes.data % 64
    for shift, aligned in ((0, 1), (4, 0)):
        wide = memory[start + shift :][: 3 * 10 * 4].view(np.float32).reshape(3, 10)
        args = plan.resolve({1: wide[:, :8]})["steps"][0]["args"]
        assert args[1:] == [3, 10, (2 * 10 + 8) * 4, 0, aligned, 1]
        assert args[0] == {
            "address": wide.ctypes.data,
            "dtype": "float32",
            "dim": [3, 8],
            "stride": [10, 1],
        }
    assert plan.resolve({1: wide[:, :8], 2: wide[0, :4]})["steps"][0]["args"][4] == 1


def test_let_is_replaced_where_it_is_used():
    """A division by zero in it refuses only the calls that need it; order does not matter."""
    lets = {
        "twice": ["mul", 2, "share"],  # sorted documents put names before what they use
        "share": ["floor_div", 8, "a"],
        "guarded": ["select", ["eq", "a", 0], 0, "twice"],
    }
    assert evaluate("guarded", {"a": 0, "b": 0}, let=lets) == 0
    assert evaluate("guarded", {"a": 2, "b": 0}, let=lets) == 8
    with pytest.raises(RefusedError, match="divisor 0"):
        evaluate("twice", {"a": 0, "b": 0}, let=lets)
