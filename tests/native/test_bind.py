"""A plan bound to symbol values and scalars: the same calls, with less to say."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
from tables import kernel, operand, scalar, symbol, table, whole

from cudnn_aot import _native
from cudnn_aot.errors import RefusedError

X = operand(1, ["M", 6], [6, 1])
Y = operand(9, ["M", 6], [6, 1], kind="output")


def scale_table(value: float | None = 2.0) -> dict:
    steps = kernel(whole(Y), whole(X), {"arg": "scalar", "operand": 3})
    symbols = {"M": symbol(1, 64, multiple_of=2)}
    return table([X, scalar(3, value=value), Y], steps, symbols=symbols)


@pytest.fixture
def scale(load):
    return _native.Plan(scale_table(), [load("scale")])


def arrays(m: int = 4) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(m * 6, dtype=np.float32).reshape(m, 6)
    return x, np.full_like(x, np.nan)


def test_addresses_need_no_symbols(scale):
    x, y = arrays(8)
    bound = scale.bind({"M": 4})
    bound.execute({1: x.ctypes.data, 9: y.ctypes.data})
    assert (y[:4] == 2 * x[:4]).all() and np.isnan(y[4:]).all()
    assert bound.resolve({1: x.ctypes.data, 9: y.ctypes.data})["symbols"] == {"M": 4}
    with pytest.raises(RefusedError) as refused:  # the plan itself is as it was
        scale.execute({1: x.ctypes.data, 9: y.ctypes.data})
    assert refused.value.rule == "symbol_unbound"


def test_buffers_must_have_the_bound_extents(scale):
    x, y = arrays(6)
    with pytest.raises(RefusedError) as refused:
        scale.bind({"M": 8}).execute({1: x, 9: y})
    assert (refused.value.rule, refused.value.operand) == ("extents", 1)
    assert np.isnan(y).all()


def test_a_bound_scalar_is_the_default(scale):
    x, y = arrays()
    bound = scale.bind({"M": 4}, {3: 0.5})
    for bindings, factor in (
        ({1: x, 9: y}, 0.5),
        ({1: x, 3: None, 9: y}, 0.5),
        ({1: x, 3: 3.0, 9: y}, 3.0),  # what the caller binds wins
        ([x, y], 0.5),
        ([x, None, y], 0.5),
        ([x, 4.0, y], 4.0),
    ):
        y[...] = np.nan
        bound.execute(bindings)
        assert (y == factor * x).all(), bindings


def test_a_bound_scalar_stands_for_an_absent_default(load):
    plan = _native.Plan(scale_table(None), [load("scale")])
    x, y = arrays()
    with pytest.raises(RefusedError, match="got nothing, want a number"):
        plan.execute({1: x, 9: y})
    bound = plan.bind({}, {3: np.float32(0.25)})
    for bindings in ({1: x, 9: y}, [x, y]):
        y[...] = np.nan
        bound.execute(bindings)
        assert (y == 0.25 * x).all()


def test_symbols_of_a_call(scale):
    """The bound value again is no contradiction; further symbols are bound by the call."""
    x, y = arrays()
    bound = scale.bind({"M": 4})
    bound.execute({1: x, 9: y}, symbols={"M": 4})
    assert (y == 2 * x).all()
    with pytest.raises(RefusedError, match="symbol 'M': got 6, want 4, to which the plan") as no:
        bound.execute({1: x, 9: y}, symbols={"M": 6})
    assert no.value.rule == "symbol_range"
    with pytest.raises(RefusedError, match="got 6, want 4"):
        bound.workspace_bytes({"M": 6})
    scale.bind({}).execute({1: x.ctypes.data, 9: y.ctypes.data}, symbols={"M": 4})
    with pytest.raises(RefusedError) as refused:
        bound.execute({1: x, 9: y}, None, None, None, [1], [[2, 6]], [[6, 1]])
    assert refused.value.rule == "extents"


def test_the_workspace_is_that_of_the_bound_extents():
    fields = {
        "symbols": {"M": symbol(0, 64), "N": symbol(1, 8)},
        "workspace": [{"name": "s", "bytes": ["mul", "M", "N"], "align": 1}],
    }
    plan = _native.Plan(table([operand(1, ["M", "N"], ["N", 1])], **fields))
    assert plan.workspace_bytes() == 64 * 8
    assert plan.bind({"M": 5, "N": 3}).workspace_bytes() == 15
    partly = plan.bind({"M": 5})
    assert (partly.workspace_bytes(), partly.workspace_bytes({"N": 2})) == (40, 10)


@pytest.mark.parametrize(
    ("arguments", "rule", "message"),
    [
        (({"M": 66},), "symbol_range", "symbol 'M': got 66, want 1 to 64, a multiple of 2"),
        (({"M": 3},), "symbol_range", "got 3, want 1 to 64, a multiple of 2"),
        (({"M": 2.5},), "symbol_range", "got 2.5, want an integer"),
        (({"N": 2},), "symbol_unknown", "got 'N'"),
        (({}, {1: 2.0}), "name", "scalars: got 1, want the uid of a pass-by-value operand"),
        (({}, {"alpha": 2.0}), "name", "scalars: got 'alpha'"),
        (({}, {3: "x"}), "dtype", "operand 3 .*: got a str"),
    ],
)
def test_what_cannot_be_bound(scale, arguments, rule, message):
    with pytest.raises((RefusedError, TypeError), match=message) as refused:
        scale.bind(*arguments)
    assert getattr(refused.value, "rule", rule) == rule


def test_wrong_types_are_type_errors(scale):
    for arguments in ((["M"],), ({}, [3]), ()):
        with pytest.raises(TypeError):
            scale.bind(*arguments)
    with pytest.raises(TypeError, match="cannot create"):
        _native.BoundPlan()


def test_a_bound_plan_keeps_its_plan_alive_and_lets_go_of_it(load):
    plan = _native.Plan(scale_table(), [load("scale")])
    before = sys.getrefcount(plan)
    bound = [plan.bind({"M": 4}, {3: 0.5}) for _ in range(100)]
    assert sys.getrefcount(plan) == before + 100
    execute = bound[0].execute
    del bound
    gc.collect()
    assert sys.getrefcount(plan) == before + 1
    del plan
    x, y = arrays()
    execute({1: x, 9: y})
    assert (y == 0.5 * x).all()
