"""The engine that streams weights for few rows, without a GPU: what it takes, lowers, compiles."""

from __future__ import annotations

import itertools

import gemm_graphs
import pytest
from table_model import declared

from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError
from cudnn_aot.recipes.gemm.config import GemvConfig
from cudnn_aot.recipes.gemm.gemv import GemmSm90Gemv
from cudnn_aot.recipes.gemm.kernels import gemv as kernel

H200 = load_target("h200")
NAME, ID, ENGINE = "gemm.sm90.gemv", 20_002, GemmSm90Gemv()


def rows(low=1, high=8192):
    return {"M": {"min": low, "max": high}}


def along_m(g):
    """A with its rows contiguous, not its columns."""
    a = g.tensor(name="A", dim=[1, 8, 512], stride=[8 * 512, 1, 8])
    g.matmul(a, gemm_graphs.operand(g, "B", 512, 256, transposed=True)).set_output(True)
    return g


def padded(g):
    """Rows of 20 elements that lie 24 apart."""
    a = g.tensor(name="A", dim=[1, 4, 20], stride=[4 * 24, 24, 1])
    b = g.tensor(name="B", dim=[1, 20, 64], stride=[64 * 24, 1, 24])
    g.matmul(a, b).set_output(True)
    return g


DECLINED = {
    "along M": (lambda: along_m(gemm_graphs.graph("g")), "A and B are m/k-major, want k/k"),
    "K": (lambda: padded(gemm_graphs.graph("g")), "K is 20, want a multiple of 8"),
    "stride": (lambda: gemm_graphs.plain("g", 4, 64, 35), "is not a multiple of 16 bytes"),
    "dtype": (
        lambda: gemm_graphs.plain("g", 4, 64, 64, io=gemm_graphs.FLOAT),
        "A 'A' is FLOAT, want one of BFLOAT16/HALF",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
def test_what_it_does_not_take_and_why(case):
    make, reason = DECLINED[case]
    assert reason in PlanList(make(), H200).support[NAME]


def test_every_config_is_spelled_by_its_knobs():
    seen = set()
    for values in itertools.product(*GemvConfig.MENU):
        made = GemvConfig(*values)
        assert made.why_not() is None
        knobs = ENGINE.knobs_to_public(made)
        assert ENGINE.knobs_from_public(knobs) == made
        seen.add(tuple(knobs.values()))
    assert seen == set(itertools.product(*GemvConfig.MENU))
    for wrong in ({**knobs, GemvConfig.KNOBS[0]: 3}, dict(list(knobs.items())[1:]), {}):
        with pytest.raises(cudnnGraphNotSupportedError, match=f"engine {NAME}: "):
            ENGINE.knobs_from_public(wrong)


def test_it_is_measured_where_there_may_be_few_rows():
    has_one = {}
    for low, high in ((1, 8192), (4, 8192), (5, 8192)):
        graph = gemm_graphs.plain("g", "M", 4096, 4096, symbols=rows(low, high))
        plans = PlanList(graph, H200)
        has_one[low] = ID in {plans.entry(place).engine_id for place in plans.append_configs()}
    assert has_one == {1: True, 4: True, 5: False}


def test_calls_that_do_not_fit_go_to_the_branch_for_any_strides():
    symbols = rows(0) | {"K": {"min": 0, "max": 4096, "multiple_of": 8}}
    plans = PlanList(gemm_graphs.plain("g", "M", 96, "K", symbols=symbols), H200)
    config = GemvConfig(*(values[1] for values in GemvConfig.MENU))
    table = plans.lower(plans.append(ID, ENGINE.knobs_to_public(config))).table
    call = {"M": 3, "K": 512}
    assert declared(table, call).branch(table) == "gemv"
    assert declared(table, {"M": 0, "K": 512}).branch(table) == "empty"
    assert declared(table, {"M": 3, "K": 0}).branch(table) == "any_stride"
    for uid in (1, 2):
        odd = {f"u{uid}": {"address": (1 << 20) + 2}}
        assert declared(table, call, **odd).branch(table) == "any_stride"
    pitch = {"u1": {"stride": (3 * 520, 520, 1)}}
    assert declared(table, call, **pitch).branch(table) == "gemv"
    pitch = {"u1": {"stride": (3 * 521, 521, 1)}}
    assert declared(table, call, **pitch).branch(table) == "any_stride"


def test_the_kernel_has_the_menu_of_the_engine():
    assert tuple(kernel.MENU.values()) == GemvConfig.MENU


def test_params_off_the_menu_are_refused():
    params = {name: menu[0] for name, menu in kernel.MENU.items()}
    for name in params:
        with pytest.raises(ValueError, match=f"{name}: got 3, want one of "):
            kernel.matmul({"ab_dtype": "BFLOAT16", "epilogue": {}, **params, name: 3})


def test_no_tensor_cores_are_told():
    """By which a program that wants none deselects engines."""
    assert ENGINE.numerical_notes == frozenset()


def test_an_engine_that_is_asked_for_alone_has_a_plan():
    graph = gemm_graphs.plain("g", 300, 128, 256)
    plans = PlanList(graph, H200, engines=[NAME])
    assert [plans.name(i).partition("[")[0] for i in range(len(plans))] == [NAME]
    assert plans.lower(0).engine_name == NAME
