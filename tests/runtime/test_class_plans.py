"""A concrete graph finds the plan of its class: bound to its extents, or a miss that says why."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from class_graphs import (
    BATCHED,
    LINEAR,
    NEAR_MISSES,
    Batched,
    Linear,
    any_batched,
    any_linear,
    build_store,
    execute_and_check,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served_store import SCALE, put_decline, put_plan
from tables import operand, scalar, symbol, table

from cudnn_aot import errors, runtime
from cudnn_aot.cache import layout
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build import driver
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.bucket import graph_class
from cudnn_aot.compiler.graph.enums import scalar_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.instantiate import instantiate
from cudnn_aot.compiler.program.wrapper import Graph as Wrapper

quick = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The classes of `class_graphs`, built for the CPU."""
    return build_store(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def store(built: Path) -> runtime.Store:
    return runtime.open(built)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StoreWriter]:
    with StoreWriter(tmp_path / "store") as writer:
        yield writer


# Members


@quick
@given(
    m=st.integers(1, 512).map(lambda rows: 8 * rows),
    factor=st.floats(-4, 4, width=32),
    seed=st.integers(0, 99),
)
def test_members_of_any_extent_run(store: runtime.Store, m: int, factor: float, seed: int) -> None:
    graph = Linear(m=m, factor=factor, name="step").graph()
    plan = store.plan(graph)
    assert (plan.name, plan.symbols, plan.target) == ("step", {"M": m}, "cpu")
    execute_and_check(plan, graph, seed)


@quick
@given(b=st.integers(1, 64), m=st.integers(1, 512))
def test_members_of_any_batch_run(store: runtime.Store, b: int, m: int) -> None:
    graph = Batched(b=b, m=m).graph()
    plan = store.plan(graph)
    assert plan.symbols == {"B": b, "M": m}
    if b * m < 4096:
        execute_and_check(plan, graph, m)


def test_many_members_load_one_plan(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled, read twice, parsed twice or loaded twice; no folder is listed."""
    loaded, parsed = [], []
    load, loads = runtime.Store._load, graph_json.loads
    monkeypatch.setattr(runtime.Store, "_load", lambda *args: loaded.append(args) or load(*args))
    monkeypatch.setattr(graph_json, "loads", lambda *args: parsed.append(args) or loads(*args))
    store = runtime.open(built, target="cpu")
    plans = [store.plan(LINEAR.graph()), store.plan(BATCHED.graph())]
    assert len(loaded) == len(parsed) == 2
    holds = SimpleNamespace(holds=store._native.holds)  # and nothing else is asked of it
    monkeypatch.setattr(store, "_native", holds)
    monkeypatch.setattr(StoreReader, "_files", lambda self: pytest.fail("a folder was listed"))
    monkeypatch.setattr(StoreReader, "blob", lambda *_: pytest.fail("a blob was read"))
    dice = random.Random(3)
    for draw, of_class in zip((any_linear, any_batched), plans, strict=True):
        for _ in range(300):
            plan = store.plan(draw(dice).graph())
            assert plan.graph_key == of_class.graph_key and plan.table is of_class.table
    assert len(loaded) == len(parsed) == 2


def test_what_a_plan_of_a_class_says(store: runtime.Store) -> None:
    graph = replace(LINEAR, name="").graph()
    graph.find_tensor(1).name = "activations"  # type: ignore[union-attr]
    plan = store.plan(graph)
    assert plan.name == graph.key()
    assert plan.graph_key == Linear().graph().key()
    assert plan.uids == {"activations": 1, "W": 2, "bias": 3, "factor": 4, "Y": 5}
    assert repr(plan).endswith("M = 64>")
    assert graph.is_frozen
    plan.prepare()
    with pytest.raises(errors.UsageError, match="is bound already"):
        plan.bind({"M": 8})


def test_binding_by_hand(store: runtime.Store) -> None:
    plan = store.plan("linear")
    bound = plan.bind({"M": 64}, {4: 0.25})
    assert (plan.symbols, bound.symbols, bound.name) == ({}, {"M": 64}, "linear")
    assert bound.uids == plan.uids and bound.requirements == plan.requirements
    addresses = dict.fromkeys((1, 2, 3, 5), 4096)
    resolved = bound.resolve(addresses)
    assert resolved["symbols"] == {"M": 64} and resolved["operands"][4]["value"] == 0.25
    with pytest.raises(errors.RefusedError, match="got 60, want 8 to 4096, a multiple of 8"):
        plan.bind({"M": 60})


def test_calls_need_no_symbols(store: runtime.Store) -> None:
    """Not even for bare addresses; and buffers of another member are refused."""
    plan = store.plan(LINEAR.graph())
    a, w = np.ones((1, 64, 48), np.uint16), np.ones((1, 64, 48), np.uint16)
    bias, y = np.zeros((1, 1, 64), np.uint16), np.full((1, 64, 64), 0xFFFF, np.uint16)
    buffers = {1: a, 2: w, 3: bias, 5: y}
    plan.execute({uid: array.ctypes.data for uid, array in buffers.items()})
    assert (y == 0).all()
    with pytest.raises(errors.RefusedError) as refused:
        plan.execute(buffers | {1: np.ones((1, 56, 48), np.uint16)})
    assert (refused.value.rule, refused.value.operand) == ("extents", 1)


def test_the_scalars_of_a_graph_are_the_defaults_of_its_calls(store: runtime.Store) -> None:
    values = {}
    for factor in (0.5, 2.0, -1.0):
        plan = store.plan(replace(LINEAR, factor=factor).graph())
        resolved = plan.resolve({1: 4096, 2: 4096, 3: 4096, 5: 4096})
        values[factor] = resolved["operands"][4]["value"]
        bound = plan.resolve({1: 4096, 2: 4096, 3: 4096, 4: 7.0, 5: 4096})
        assert bound["operands"][4]["value"] == 7.0
    assert values == {0.5: 0.5, 2.0: 2.0, -1.0: -1.0}


def test_threads_share_one_plan(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = runtime.open(built, target="cpu")
    made, load = [], runtime.Store._load
    monkeypatch.setattr(runtime.Store, "_load", lambda *args: made.append(args) or load(*args))
    start, failures = threading.Barrier(4), []

    def work(seed: int) -> None:
        dice = random.Random(seed)
        try:
            start.wait()
            for _ in range(20):
                graph = any_batched(dice).graph()
                assert store.plan(graph).symbols["M"] == graph.tensors[1].dim[1]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(made) == 1


def test_a_graph_of_a_with_statement(store: runtime.Store) -> None:
    with Wrapper(io_data_type="FLOAT", compute_data_type="FLOAT") as builder:
        graph = builder.graph
        a, w = graph.tensor([2, 9, 32], uid=1), graph.tensor([1, 32, 24], uid=2)
        bias = graph.tensor([1, 1, 24], uid=3)
        graph.bias(graph.matmul(a, w), bias).set_uid(4).set_output(True)
    assert store.plan(builder).symbols == {"B": 2, "M": 9}


# Misses


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_misses_miss_and_say_why(store: runtime.Store, case: str) -> None:
    member, reason = NEAR_MISSES[case]
    with pytest.raises(errors.NotInStoreError) as missed:
        store.plan(member.graph())
    assert reason in str(missed.value) and "\n" not in str(missed.value)
    assert str(missed.value).startswith(f"no plan of graph {member.name!r} for cpu in store ")


@settings(max_examples=150, deadline=None)
@given(
    m=st.sampled_from([0, 1, 7, 8, 9, 60, 64, 4088, 4096, 4097, 4104]),
    n=st.sampled_from([63, 64, 64, 64, 72]),
    k=st.sampled_from([40, 48, 48, 48]),
    row=st.sampled_from([0, 0, 0, 48, 56]),
    alignment=st.sampled_from([8, 16, 16, 16, 32]),
    clip=st.sampled_from([6.0, 6.0, 6.5]),
    uid=st.sampled_from([5, 5, 5, 6]),
)
def test_what_is_found_is_the_graph_that_was_asked_for(
    store: runtime.Store, m: int, n: int, k: int, row: int, alignment: int, clip: float, uid: int
) -> None:
    """Never a guess: the stored graph with these symbol values has the key of the one asked for."""
    case = Linear(m=m, n=n, k=k, row=row, alignment=alignment, clip=clip, uid=uid)
    is_member = case == replace(LINEAR, m=m, row=row) and row in (0, 48) and m in range(8, 4097, 8)
    try:
        plan = store.plan(case.graph())
    except errors.NotInStoreError:
        assert not is_member
    else:
        assert is_member
        assert instantiate(Linear().graph(), plan.symbols).key() == case.graph().key()


def test_a_graph_like_none_that_is_stored(store: runtime.Store) -> None:
    graph = replace(LINEAR, has_tanh=True, name="nothing of this name").graph()
    with pytest.raises(errors.NotInStoreError, match="neither its key nor its class is there$"):
        store.plan(graph)


def test_a_symbolic_graph_is_found_by_its_key_alone(store: runtime.Store) -> None:
    plan = store.plan(Linear().graph())
    assert plan.symbols == {} and plan.graph_key == Linear().graph().key()
    with pytest.raises(errors.NotInStoreError, match=r"not concrete \(it has symbols M\)"):
        store.plan(Linear(n=72, name="").graph())


def test_what_is_no_graph(store: runtime.Store) -> None:
    for value in (None, 7, b"linear", object()):
        with pytest.raises(errors.UsageError, match="^bad name: got .*, or the graph$"):
            store.plan(value)
    with pytest.raises(errors.InvalidGraphError, match="no node"):
        store.plan(Graph())


def test_a_store_without_classes(built: Path, tmp_path: Path) -> None:
    """As earlier releases built them: members are a miss, the graph itself is found."""
    old = tmp_path / "old"
    for path in built.rglob("*"):
        relative = path.relative_to(built)
        if path.is_file() and relative.parts[0] != "classes":
            (old / relative).parent.mkdir(parents=True, exist_ok=True)
            (old / relative).write_bytes(path.read_bytes())
    store = runtime.open(old)
    assert store.plan(Linear().graph()).symbols == {}
    with pytest.raises(errors.NotInStoreError, match="neither its key nor its class is there$"):
        store.plan(replace(LINEAR, name="").graph())


# Which plan


def scale_graph(
    m: int | str = "M", alpha: float = 2.0, name: str = "scale", **symbol: int
) -> Graph:
    """What the hand-written table of `served_store` computes."""
    declared = {"M": {"min": 0, "max": 64} | symbol} if isinstance(m, str) else None
    graph = Graph(name, "FLOAT", "FLOAT", "FLOAT", symbols=declared)
    x = graph.tensor([m, 6], [6, 1], uid=1, name="X")
    factor = graph.tensor([1, 1], is_pass_by_value=True, uid=3, name="alpha")
    factor.pass_by_value = alpha
    graph.scale(x, factor).set_uid(9).set_name("Y").set_output(True)
    return graph


def put_graph(
    writer: StoreWriter, graph: Graph, target: str = "cpu", launch_table: object = SCALE
) -> str:
    text = graph_json.dumps(graph).encode()
    put_plan(writer, graph.name, target, launch_table, key=graph.key(), graph=text)  # type: ignore[arg-type]
    if graph.symbols:
        writer.put_class_member(target, graph_class(graph).bucket, graph.key())
    return graph.key()


def test_the_graph_itself_comes_before_its_class(writer: StoreWriter) -> None:
    put_graph(writer, scale_graph())
    member = scale_graph(5, name="five")
    store = runtime.open(writer.path)
    assert store.plan(member).graph_key == scale_graph().key()
    exact = put_graph(writer, member)  # published while the store is open
    plan = store.plan(member)
    assert (plan.graph_key, plan.name, plan.symbols) == (exact, "five", {})


def test_a_decline_of_the_graph_itself_is_final(writer: StoreWriter) -> None:
    put_graph(writer, scale_graph())
    member = scale_graph(5, name="five")
    put_decline(writer, "five", "cpu", "not this one", key=member.key())
    store = runtime.open(writer.path)
    with pytest.raises(errors.cudnnGraphNotSupportedError, match="'five' is declined .* not this"):
        store.plan(member)
    assert store.plan(scale_graph(6)).symbols == {"M": 6}


def test_the_narrowest_of_several_is_taken(writer: StoreWriter) -> None:
    keys = {
        name: put_graph(writer, scale_graph(name=name, **domain))
        for name, domain in {
            "wide": {"max": 64},
            "narrow": {"max": 16},
            "even": {"max": 20, "multiple_of": 2},
        }.items()
    }
    store = runtime.open(writer.path)
    want = {2: "even", 3: "narrow", 16: "even", 18: "even", 19: "wide", 64: "wide"}
    found = {m: store.plan(scale_graph(m, name="step")).graph_key for m in want}
    assert found == {m: keys[name] for m, name in want.items()}
    with pytest.raises(errors.NotInStoreError) as missed:
        store.plan(scale_graph(65, name="step"))
    for name in keys:
        assert f"it is no case of {name!r}" in str(missed.value)
    assert "symbol 'M': got 65, want 0..16" in str(missed.value)


def test_a_member_that_was_declined_since_is_passed_over(writer: StoreWriter) -> None:
    key = put_graph(writer, scale_graph())
    put_decline(writer, "scale", "cpu", "no longer", key=key)
    with pytest.raises(errors.NotInStoreError, match="neither its key nor its class"):
        runtime.open(writer.path).plan(scale_graph(5, name=""))


def test_what_is_published_later_is_found(writer: StoreWriter) -> None:
    put_graph(writer, scale_graph(name="narrow", max=16))
    store = runtime.open(writer.path)
    assert store.plan(scale_graph(5)).symbols == {"M": 5}
    with pytest.raises(errors.NotInStoreError):
        store.plan(scale_graph(17))
    put_graph(writer, scale_graph(name="wide", max=32))
    assert store.plan(scale_graph(17)).symbols == {"M": 17}


def test_the_target_is_chosen(writer: StoreWriter) -> None:
    put_graph(writer, scale_graph(name="both"))
    put_graph(writer, scale_graph(name="both"), "h200", SCALE | {"device": "cuda"})
    member = scale_graph(5, name="five")
    with pytest.raises(errors.UsageError, match="is stored for cpu, h200: choose one"):
        runtime.open(writer.path).plan(member)
    assert runtime.open(writer.path).plan(member, target="h200").device == "cuda"
    assert runtime.open(writer.path, target="cpu").plan(member).device == "cpu"
    with pytest.raises(errors.NotInStoreError, match="holds nothing for target 'h300'"):
        runtime.open(writer.path).plan(member, target="h300")
    put_decline(writer, "five", "cpu", "odd", key=member.key())
    assert runtime.open(writer.path).plan(member).target == "h200"


# What a launch cannot pass


def attention(scale: float, s: int | str = "S") -> Graph:
    declared = {"S": {"min": 1, "max": 64}} if isinstance(s, str) else None
    graph = Graph("attention", "HALF", "FLOAT", "FLOAT", symbols=declared)
    q, k, v = (graph.tensor([1, 2, s, 64], uid=uid) for uid in (1, 2, 3))
    o, _ = graph.sdpa(q, k, v, is_inference=True, attn_scale=scale)
    o.set_output(True).set_uid(4).set_dim([1, 2, s, 64]).set_stride([f"128*{s}", f"64*{s}", 64, 1])
    return graph


def test_another_attribute_is_a_miss(writer: StoreWriter) -> None:
    operands = [operand(uid, [1, 2, "S", 64], [128, 64, 64, 1]) for uid in (1, 2, 3, 4)]
    put_graph(writer, attention(0.125), launch_table=table(operands, symbols={"S": symbol()}))
    store = runtime.open(writer.path)
    assert store.plan(attention(0.125, 7)).symbols == {"S": 7}
    with pytest.raises(errors.NotInStoreError, match="attn_scale: got 0.25, want 0.125, and no la"):
        store.plan(attention(0.25, 7))


def test_a_scalar_that_the_plan_does_not_take_is_a_miss(writer: StoreWriter) -> None:
    without = table([op for op in SCALE["operands"] if op["uid"] != 3], symbols={"M": symbol()})
    put_graph(writer, scale_graph(), launch_table=without)
    store = runtime.open(writer.path)
    assert store.plan(scale_graph(5, alpha=2.0)).symbols == {"M": 5}
    with pytest.raises(errors.NotInStoreError, match="uid 3: pass_by_value: got 3.0, want 2.0"):
        store.plan(scale_graph(5, alpha=3.0))


def test_the_sign_of_a_zero_that_the_plan_has_counts(writer: StoreWriter) -> None:
    without = table([op for op in SCALE["operands"] if op["uid"] != 3], symbols={"M": symbol()})
    put_graph(writer, scale_graph(alpha=0.0), launch_table=without)
    with pytest.raises(errors.NotInStoreError, match="uid 3: pass_by_value: got -0.0, want 0.0"):
        runtime.open(writer.path).plan(scale_graph(5, alpha=-0.0))


def test_a_constant_is_no_operand(writer: StoreWriter) -> None:
    def constant(m: int | str) -> Graph:
        graph = scale_graph(m)
        graph.tensors[3].scalar_type = scalar_type.COMPILE_TIME_CONST
        return graph

    without = table([op for op in SCALE["operands"] if op["uid"] != 3], symbols={"M": symbol()})
    put_graph(writer, constant("M"), launch_table=without)
    assert runtime.open(writer.path).plan(constant(5)).symbols == {"M": 5}


def test_a_symbol_that_the_table_does_not_have(writer: StoreWriter) -> None:
    fixed = table([operand(1, [8, 6]), scalar(3, 2.0), operand(9, [8, 6], kind="output")])
    put_graph(writer, scale_graph(), launch_table=fixed)
    plan = runtime.open(writer.path).plan(scale_graph(8))
    assert plan.symbols == {} and plan.workspace_bytes() == 0


def test_the_workspace_is_that_of_the_extents(writer: StoreWriter) -> None:
    fields = {"workspace": [{"name": "s", "bytes": ["mul", 24, "M"], "align": 1}]}
    big = table(SCALE["operands"], symbols={"M": symbol(0, 64)}, **fields)
    put_graph(writer, scale_graph(), launch_table=big)
    store = runtime.open(writer.path)
    assert store.plan("scale").workspace_bytes() == 24 * 64
    assert [store.plan(scale_graph(m)).workspace_bytes() for m in (0, 5, 64)] == [0, 120, 1536]


# Damage


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda class_path, _: overwrite(class_path, b"{}"), "classes/.* is damaged"),
        (lambda _, pointer_path: pointer_path.unlink(), "class .* is damaged: plan of graph"),
    ],
    ids=["class", "pointer"],
)
def test_damage_is_an_error(
    writer: StoreWriter, damage: Callable[[Path, Path], None], message: str
) -> None:
    graph = scale_graph()
    key = put_graph(writer, graph)
    class_path = writer.path / layout.class_path("cpu", graph_class(graph).bucket)
    store = runtime.open(writer.path)
    damage(class_path, writer.path / layout.pointer_path("cpu", key))
    with pytest.raises(errors.DamagedError, match=message):
        store.plan(scale_graph(5))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (b"{}", errors.StoreError, "the stored graph .* cannot be read"),
        (graph_json.dumps(scale_graph(max=65)).encode(), errors.DamagedError, "is another one"),
    ],
    ids=["no graph", "another graph"],
)
def test_a_stored_graph_that_is_another(
    writer: StoreWriter, text: bytes, error: type[Exception], message: str
) -> None:
    graph = scale_graph()
    put_plan(writer, "scale", key=graph.key(), graph=text)
    writer.put_class_member("cpu", graph_class(graph).bucket, graph.key())
    with pytest.raises(error, match=message):
        runtime.open(writer.path).plan(scale_graph(5))


# What it takes


def test_a_build_puts_a_graph_where_its_members_look(built: Path) -> None:
    """The bucket of the file's graph, whatever its members are called."""
    reader = StoreReader(built)
    members = [instantiate(Linear().graph(), {"M": 8}), BATCHED.graph()]
    members += [case.graph() for case in (LINEAR, replace(LINEAR, factor=None))]
    assert {("cpu", graph_class(graph).bucket) for graph in members} == set(reader.classes())
    assert driver.build([built.parent / "linear.json"], ["cpu"], built).files_written == 0


def test_names_load_no_compiler_and_graphs_load_its_graphs_alone(built: Path) -> None:
    script = """
import sys
from cudnn_aot import runtime
from cudnn_aot.errors import UsageError

def loaded():
    return sorted(m for m in sys.modules if m.startswith("cudnn_aot.compiler."))

store = runtime.open(sys.argv[1])
store.plan("linear")
try:
    store.plan(7)
except UsageError:
    pass
assert not loaded(), loaded()
import cudnn_aot as cudnn
graph = cudnn.loads(open(sys.argv[2]).read())
assert store.plan(graph).symbols == {"M": 64}
apart = ("cudnn_aot.compiler.graph", "cudnn_aot.compiler.formats", "cudnn_aot.compiler.recorder")
assert not [m for m in loaded() if not m.startswith(apart[:2])], loaded()
heavy = {"numpy", "torch", "click", "cutlass", "tvm_ffi", "cudnn_aot.recipes", "cudnn_aot.cli"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    member = built.parent / "member.json"
    member.write_text(graph_json.dumps(LINEAR.graph()))
    command = [sys.executable, "-c", script, str(built), str(member)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(member.read_text())["name"] == "linear"
