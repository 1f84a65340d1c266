"""A rule about a symbolic extent refuses only if no value of the symbols keeps it."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnn_aot.compiler.graph.extents import Extent, Symbol, evaluate, make
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.op import NodeView
from cudnn_aot.compiler.graph.rules.domain import may_be_at_most, may_divide, may_equal
from cudnn_aot.errors import InvalidGraphError, cudnnGraphNotSupportedError

SYMBOLS = st.builds(
    lambda low, size, multiple: Symbol(low, (low + size) * multiple, None, multiple),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(1, 4),
)
EXTENTS = st.one_of(
    st.integers(0, 30),
    st.builds(make, st.integers(1, 6), st.lists(st.sampled_from("MN"), min_size=1, max_size=2)),
)


def view_of(symbols: dict[str, Symbol]) -> NodeView:
    graph = Graph("", "HALF", "FLOAT", "FLOAT", symbols=symbols)
    node = graph.add_node("relu", {"input": graph.tensor([*symbols] or [1])})
    return node.view


def values(symbols: dict[str, Symbol]) -> Any:
    ranges = [
        [n for n in range(symbol.min, symbol.max + 1) if n % symbol.multiple_of == 0]
        for symbol in symbols.values()
    ]
    return [dict(zip(symbols, chosen, strict=True)) for chosen in itertools.product(*ranges)]


QUESTIONS: list[tuple[Callable[..., bool], Callable[[int, int], bool]]] = [
    (may_equal, lambda a, b: a == b),
    (may_be_at_most, lambda a, b: a <= b),
    (may_divide, lambda a, b: b % a == 0 if a else b == 0),
]


@pytest.mark.parametrize(("may", "holds"), QUESTIONS, ids=[may.__name__ for may, _ in QUESTIONS])
@settings(max_examples=300, deadline=None)
@given(a=EXTENTS, b=EXTENTS, m=SYMBOLS, n=SYMBOLS)
def test_no_is_an_answer_only_where_no_value_holds(
    may: Any, holds: Any, a: Extent, b: Extent, m: Symbol, n: Symbol
) -> None:
    symbols = {"M": m, "N": n}
    answer = may(view_of(symbols), a, b)
    cases = [holds(evaluate(a, value), evaluate(b, value)) for value in values(symbols)]
    if cases and any(cases):
        assert answer
    if isinstance(a, int) and isinstance(b, int):
        assert answer == holds(a, b)


@pytest.mark.parametrize(
    ("may", "a", "b", "answer"),
    [
        (may_equal, "M", 24, True),
        (may_equal, "M", 25, False),  # M counts in eights
        (may_equal, "2*M", "M", False),
        (may_equal, "M", 72, False),
        (may_be_at_most, 65, "M", False),
        (may_be_at_most, "2*M", "M", False),
        (may_divide, 16, "M", True),
        (may_divide, 128, "M", False),
        (may_divide, "M", "3*M", True),
        (may_divide, "2*M", "3*M", False),
    ],
)
def test_no_is_an_answer(may: Any, a: Any, b: Any, answer: bool) -> None:
    symbols = {"M": Symbol(8, 64, None, 8)}

    def extent(value: Any) -> Extent:
        if isinstance(value, int):
            return value
        coef, _, name = value.rpartition("*")
        return make(int(coef or 1), [name])

    assert may(view_of(symbols), extent(a), extent(b)) is answer


def attention(q: list[Any], kv: list[Any], **kwargs: Any) -> Graph:
    symbols = {"S": {"min": 1, "max": 4096}, "T": {"min": 64, "max": 128}, "D": {"multiple_of": 12}}
    used = {name: symbols[name] for name in symbols if name in (*q, *kv)}
    graph = Graph("", "HALF", "FLOAT", "FLOAT", symbols=used)
    tensors = [graph.tensor(dim) for dim in (q, kv, kv)]
    graph.sdpa(*tensors, **kwargs)[0].set_output(True)
    return graph


def test_a_symbolic_graph_serves_the_values_that_keep_the_rules() -> None:
    attention([2, 4, "S", 64], [2, 2, "T", 64], use_causal_mask_bottom_right=True).validate()
    attention([2, 4, "T", "D"], [2, 2, "T", "D"]).validate()  # the multiples of 24
    with pytest.raises(cudnnGraphNotSupportedError, match="got 256 queries for T keys"):
        attention([2, 4, 256, 64], [2, 2, "T", 64], use_causal_mask_bottom_right=True).validate()
    graph = attention([2, 4, "S", 64], [2, 2, "T", 64])
    q, k, v = graph.inputs()
    bias = graph.tensor([1, 1, "S", 129])
    graph.sdpa(q, k, v, bias=bias)[0].set_output(True)
    with pytest.raises(InvalidGraphError, match=r"port bias: got dim \[1, 1, S, 129\], want"):
        graph.validate()
