"""Plans as torch operators, on the CPU. Skipped where torch is not installed."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from cudnn_aot import runtime
from cudnn_aot.compiler.build.driver import build
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import UsageError

torch = pytest.importorskip("torch")
operators = importlib.import_module("cudnn_aot.runtime.torch")

FLOAT = data_type.FLOAT
N, K = 24, 16
M = {"M": {"min": 1, "max": 256}}


def product(name: str, a: tuple[Any, Any], b: tuple[Any, Any], **transposed: bool) -> Graph:
    """C = A @ B in FLOAT; A or B may be stored by columns."""
    g = Graph(name, FLOAT, FLOAT, FLOAT, symbols=M)

    def operand(label: str, rows: Any, columns: Any) -> Any:
        whole = f"{rows}*{columns}" if isinstance(columns, int) else f"{columns}*{rows}"
        stride = [whole, 1, rows] if transposed.get(label) else [whole, columns, 1]
        return g.tensor([1, rows, columns], stride, name=label)

    g.matmul(operand("A", *a), operand("B", *b)).set_output(True).set_name("C")
    return g


def activation() -> Graph:
    g = Graph("activation", FLOAT, FLOAT, FLOAT, symbols=M)
    a = g.tensor([1, "M", K], [f"M*{K}", K, 1], name="A")
    w = g.tensor([1, K, N], [K * N, N, 1], name="W")
    before = g.matmul(a, w)
    before.set_output(True).set_name("before")
    g.relu(before).set_output(True).set_name("Y")
    return g


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> runtime.Store:
    folder = tmp_path_factory.mktemp("torch")
    files = []
    for g in (
        activation(),
        product("forward", ("M", K), (K, N)),
        product("grad_a", ("M", N), (N, K), B=True),  # dC @ B^T
        product("grad_b", (K, "M"), ("M", N), A=True),  # A^T @ dC
    ):
        files.append(folder / f"{g.name}.json")
        files[-1].write_text(graph_json.dumps(g))
    summary = build(files, ["cpu"], folder / "store")
    assert summary.exit_code() == 0, summary
    return runtime.open(folder / "store", target="cpu")


@pytest.fixture(scope="module")
def activate(store: runtime.Store) -> Any:
    return operators.define(
        "cudnn_aot_test::activate", store.plan("activation"), ["A", "W"], ["Y", "before"]
    )


@pytest.fixture(scope="module")
def matmul(store: runtime.Store) -> Any:
    gradients = [
        operators.Gradient(store.plan("grad_a"), {"A": "grad C", "B": "B.mT"}, {"C": "A"}),
        operators.Gradient(store.plan("grad_b"), {"A": "A.mT", "B": "grad C"}, {"C": "B"}),
    ]
    return operators.define("cudnn_aot_test::matmul", store.plan("forward"), gradients=gradients)


def inputs(m: int, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(m)
    return torch.randn(1, m, K, **options), torch.randn(1, K, N, **options)


@pytest.mark.parametrize("m", [1, 7, 256])
def test_outputs_in_the_order_that_was_asked_for(activate, m):
    a, w = inputs(m)
    y, before = activate(a, w)
    assert y.shape == before.shape == (1, m, N)
    torch.testing.assert_close(before, a @ w)  # sums of 16 products in float32
    assert torch.equal(y, before.relu())


def test_tensors_of_other_rank_are_taken_as_the_executor_takes_them(activate):
    a, w = inputs(9)
    y, _ = activate(a[0], w[0])
    torch.testing.assert_close(y, (a @ w).relu())
    y, _ = activate(a.flatten(), w)
    torch.testing.assert_close(y, (a @ w).relu())


def test_torchs_own_checks_of_an_operator(activate, matmul):
    """Schema, fake kernel, autograd registration, tracing with dynamic shapes."""
    torch.library.opcheck(activate, inputs(5))
    torch.library.opcheck(matmul, inputs(5, requires_grad=True))


def test_compiled_with_dynamic_shapes(activate):
    def model(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return activate(a * 2, w)[0] + 1

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for m in (4, 30, 200):
            a, w = inputs(m)
            torch.testing.assert_close(compiled(a, w), ((2 * a) @ w).relu() + 1)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_come_from_plans(matmul, compiled):
    call = torch.compile(matmul, backend="aot_eager") if compiled else matmul
    a, b = inputs(11, requires_grad=True)
    weights = torch.randn(1, 11, N)
    (call(a, b) * weights).sum().backward()
    got = a.grad, b.grad
    a.grad = b.grad = None
    ((a @ b) * weights).sum().backward()
    torch.testing.assert_close(got[0], a.grad)
    torch.testing.assert_close(got[1], b.grad)


def test_an_expanded_gradient(matmul):
    a, b = inputs(3, requires_grad=True)
    matmul(a, b).sum().backward()
    torch.testing.assert_close(a.grad, torch.ones(1, 3, N) @ b.detach().mT)


def test_a_gradient_that_no_plan_gives(activate):
    a, w = inputs(3, requires_grad=True)
    with pytest.raises(UsageError, match="no plan gives the gradient of 'A'"):
        activate(a, w)[0].sum().backward()


def test_a_bound_plan(store):
    bound = store.plan("forward").bind({"M": 6})
    call = operators.define("cudnn_aot_test::bound", bound)
    a, b = inputs(6)
    torch.testing.assert_close(call(a, b), a @ b)


def test_refusals_of_the_executor_reach_the_caller(activate):
    a, w = inputs(4)
    with pytest.raises(Exception, match="operand 2 'W'"):
        activate(a, w[:, :8])


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "message"),
    [
        ("no_namespace", None, None, "got the name 'no_namespace', want 'namespace::operator'"),
        ("cudnn_aot_test::matmul", None, None, "which torch has already"),
        ("cudnn_aot_test::x", ["A", "Q"], None, "got the input 'Q', want some of 'A', 'B'"),
        ("cudnn_aot_test::x", ["A"], None, "the plan needs input 'B', which is not named"),
        ("cudnn_aot_test::x", None, [], "the plan needs output 'C', which is not named"),
    ],
)
def test_a_definition_that_is_wrong(store, matmul, name, inputs, outputs, message):
    with pytest.raises(UsageError, match=message):
        operators.define(name, store.plan("forward"), inputs, outputs)


def test_a_gradient_that_is_wrong(store):
    plan = store.plan("grad_a")
    for gradient, message in (
        (
            operators.Gradient(plan, {"A": "grad Q", "B": "B"}, {"C": "A"}),
            "a gradient reads 'grad Q'",
        ),
        (operators.Gradient(plan, {"A": "grad C", "B": "B"}, {"C": "Q"}), "a gradient is of 'Q'"),
    ):
        with pytest.raises(UsageError, match=message):
            operators.define("cudnn_aot_test::y", store.plan("forward"), gradients=[gradient])
