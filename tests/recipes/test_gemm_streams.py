"""The engines that stream weights for few rows, without a GPU: what they take, lower, compile."""

from __future__ import annotations

import itertools

import gemm_graphs
import pytest
from table_model import declared

from cudnn_aot.compiler.graph.enums import numerical_note
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import cudnnGraphNotSupportedError
from cudnn_aot.recipes.gemm.config import GemvConfig, SkinnyConfig
from cudnn_aot.recipes.gemm.kernels import gemv as gemv_kernel
from cudnn_aot.recipes.gemm.kernels import skinny as skinny_kernel
from cudnn_aot.recipes.gemm.stream import GemmSm90Gemv, GemmSm90Skinny

H200 = load_target("h200")
GEMV, SKINNY = "gemm.sm90.gemv", "gemm.sm90.skinny"
ENGINES = {
    GEMV: (20_002, GemmSm90Gemv(), GemvConfig),
    SKINNY: (20_003, GemmSm90Skinny(), SkinnyConfig),
}


def rows(low=1, high=8192):
    return {"M": {"min": low, "max": high}}


def along_m(g):
    """A with its rows contiguous, not its columns."""
    a = g.tensor(name="A", dim=[1, 8, 512], stride=[8 * 512, 1, 8])
    g.matmul(a, gemm_graphs.operand(g, "B", 512, 256, transposed=True)).set_output(True)
    return g


DECLINED = {
    "along M": (lambda: along_m(gemm_graphs.graph("g")), "A and B are m/k-major, want k/k"),
    "K": (lambda: gemm_graphs.plain("g", 4, 64, 24), "K is 24, want a multiple of 32"),
    "stride": (lambda: gemm_graphs.plain("g", 4, 64, 35), "is not a multiple of 16 bytes"),
    "dtype": (
        lambda: gemm_graphs.plain("g", 4, 64, 64, io=gemm_graphs.FLOAT),
        "dtype FLOAT is not in BFLOAT16/HALF",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
def test_what_they_do_not_take_and_why(case):
    make, reason = DECLINED[case]
    support = PlanList(make(), H200).support
    assert reason in support[SKINNY]
    # 24 is a multiple of the 8 elements that a lane of the other takes.
    assert (support[GEMV] is None) == (case == "K") and (case == "K" or reason in support[GEMV])


@pytest.mark.parametrize("name", ENGINES)
def test_every_config_is_spelled_by_its_knobs(name):
    _, engine, config = ENGINES[name]
    seen = set()
    for values in itertools.product(*config.MENU):
        made = config(*values)
        assert made.why_not() is None
        knobs = engine.knobs_to_public(made)
        assert engine.knobs_from_public(knobs) == made
        seen.add(tuple(knobs.values()))
    assert len(seen) == len(set(itertools.product(*config.MENU)))
    for wrong in ({**knobs, config.KNOBS[0]: 3}, dict(list(knobs.items())[1:]), {}):
        with pytest.raises(cudnnGraphNotSupportedError, match=f"engine {name}: "):
            engine.knobs_from_public(wrong)


def test_what_is_measured_depends_on_the_rows():
    counts = {}
    for low, high in ((1, 8192), (17, 8192), (65, 8192)):
        graph = gemm_graphs.plain("g", "M", 4096, 4096, symbols=rows(low, high))
        plans = PlanList(graph, H200)
        ids = [plans.entry(place).engine_id for place in plans.append_configs()]
        counts[low] = [ids.count(ENGINES[name][0]) > 0 for name in (GEMV, SKINNY)]
    assert counts == {1: [True, True], 17: [False, True], 65: [False, False]}


@pytest.mark.parametrize("name", ENGINES)
def test_calls_that_do_not_fit_go_to_the_branch_for_any_strides(name):
    engine_id, engine, config = ENGINES[name]
    symbols = rows(0) | {"K": {"min": 0, "max": 4096, "multiple_of": 32}}
    plans = PlanList(gemm_graphs.plain("g", "M", 96, "K", symbols=symbols), H200)
    place = plans.append(
        engine_id, engine.knobs_to_public(config(*(menu[1] for menu in config.MENU)))
    )
    table = plans.lower(place).table
    call = {"M": 3, "K": 512}
    assert declared(table, call).branch(table) == "stream"
    assert declared(table, {"M": 0, "K": 512}).branch(table) == "empty"
    assert declared(table, {"M": 3, "K": 0}).branch(table) == "any_stride"
    for uid in (1, 2):
        odd = {f"u{uid}": {"address": (1 << 20) + 2}}
        assert declared(table, call, **odd).branch(table) == "any_stride"
    pitch = {"u1": {"stride": (3 * 520, 520, 1)}}
    assert declared(table, call, **pitch).branch(table) == "stream"
    pitch = {"u1": {"stride": (3 * 521, 521, 1)}}
    assert declared(table, call, **pitch).branch(table) == "any_stride"


def test_the_kernels_have_the_menus_of_the_engines():
    assert tuple(gemv_kernel.MENU.values()) == GemvConfig.MENU
    menu = dict(skinny_kernel.MENU)
    menu["row_tiles"] = tuple(8 * tiles for tiles in menu["row_tiles"])
    menu["column_tiles"] = tuple(16 * tiles for tiles in menu["column_tiles"])
    assert tuple(menu.values()) == SkinnyConfig.MENU


@pytest.mark.parametrize("kernel", [gemv_kernel, skinny_kernel], ids=["gemv", "skinny"])
def test_params_off_the_menu_are_refused(kernel):
    params = {name: menu[0] for name, menu in kernel.MENU.items()}
    for name in params:
        with pytest.raises(ValueError, match=f"{name}: got 3, want one of "):
            kernel.matmul({"ab_dtype": "BFLOAT16", "epilogue": {}, **params, name: 3})


def test_tensor_cores_are_told():
    """By which a program that wants none deselects them."""
    notes = {name: engine.numerical_notes for name, (_, engine, _) in ENGINES.items()}
    assert notes == {GEMV: frozenset(), SKINNY: frozenset({numerical_note.TENSOR_CORE})}


def test_the_table_serves_few_rows_of_what_was_measured():
    def first(m, n=4096, k=4096, **fields):
        return PlanList(gemm_graphs.plain("g", m, n, k, **fields), H200).name(0).partition("[")[0]

    assert [first(m) for m in (1, 2, 3, 16)] == [GEMV, GEMV, SKINNY, SKINNY]
    tiles = "gemm.sm90.persistent"
    assert first(17) == tiles
    assert {first(1, n=2048), first(1, k=2048), first(1, batch=2)} == {tiles}
    assert first(1, io=gemm_graphs.HALF) == tiles
    # An engine that is asked for alone has a plan for any rows.
    graph = gemm_graphs.plain("g", 300, 128, 256)
    for name in ENGINES:
        plans = PlanList(graph, H200, engines=[name])
        assert [plans.name(i).partition("[")[0] for i in range(len(plans))] == [name]
        assert plans.lower(0).engine_name == name
