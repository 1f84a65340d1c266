import itertools

import pytest

from cudnn_aot.compiler.graph.extents import (
    Symbol,
    SymExpr,
    as_extent,
    as_extents,
    broadcast,
    evaluate,
    extent_expr,
    mul,
    packed,
    parse_extent,
    row_major,
)
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import InvalidGraphError

M, N = SymExpr(1, ("M",)), SymExpr(1, ("N",))


@pytest.mark.parametrize(
    ("text", "extent"),
    [
        ("M", M),
        ("4096*M", SymExpr(4096, ("M",))),
        ("M*4096", SymExpr(4096, ("M",))),
        ("2*N * 3*M", SymExpr(6, ("M", "N"))),
        ("M*M", SymExpr(1, ("M", "M"))),
        ("0*M", 0),
        ("12", 12),
    ],
)
def test_text_reads_as_the_canonical_product(text, extent):
    assert parse_extent(text) == extent


@pytest.mark.parametrize("text", ["", "M+1", "M**2", "-1*M", "2M", "M*", "99999999999999999999*M"])
def test_other_text_is_refused(text):
    with pytest.raises(InvalidGraphError, match="bad extent"):
        parse_extent(text)


@pytest.mark.parametrize("value", [-1, 2**63, True, 1.0, None, [1]])
def test_only_extents_are_extents(value):
    with pytest.raises(InvalidGraphError, match="bad extent"):
        as_extent(value)


def test_more_extents_than_a_tensor_can_have_are_refused_unread():
    """Strides of many large extents are numbers without bound."""
    for many in ([2**62] * 20_000, ["M"] * 20_000, itertools.repeat(1)):
        with pytest.raises(InvalidGraphError, match=r"got rank \d+, want 1 to 8"):
            as_extents(many)
    graph = Graph("", "HALF")
    x = graph.tensor([4])
    for build in (
        lambda: graph.tensor([2**62] * 20_000),
        lambda: graph.tensor([4], ["M*M"] * 20_000),
        lambda: x.set_dim([2**62] * 20_000),
        lambda: graph.reshape(x).set_stride(itertools.repeat(1)),
    ):
        with pytest.raises(InvalidGraphError, match=r"got rank \d+, want 1 to 8"):
            build()


def test_products_of_integers_and_symbols():
    assert mul(3, M, 2, N) == SymExpr(6, ("M", "N"))
    assert mul(3, 4) == 12
    assert mul(0, M) == 0
    assert 4096 * M == SymExpr(4096, ("M",))
    assert str(4096 * M * N) == "4096*M*N"
    assert str(M) == "M"


def test_evaluate():
    assert evaluate(SymExpr(6, ("M", "M", "N")), {"M": 5, "N": 7}) == 6 * 25 * 7
    assert evaluate(9, {}) == 9
    with pytest.raises(InvalidGraphError, match="symbol 'M' has no value"):
        evaluate(M, {"N": 1})


def test_launch_table_expressions():
    assert extent_expr(17) == 17
    assert extent_expr(M) == "M"
    assert extent_expr(4096 * M) == ["mul", 4096, "M"]
    assert extent_expr(M * N) == ["mul", "M", "N"]


def test_row_major_and_packed_strides():
    assert row_major([2, 3, 4]) == (12, 4, 1)
    assert row_major([2, M, 4]) == (4 * M, 4, 1)
    assert row_major([2, 0, 4]) == (0, 4, 1)  # as of a symbol that is 0, and in the frontend
    assert packed([2, 3, 4], [0, 2, 1]) == (12, 1, 3)
    assert packed([2, M, 4], [0, 2, 1]) == (4 * M, 1, M)


def test_broadcast_is_right_aligned_and_a_symbol_equals_only_itself():
    assert broadcast([16, 1, 8], [5, 1]) == (16, 5, 8)
    assert broadcast([1, M, 8], [1, 1, 8]) == (1, M, 8)
    assert broadcast([M], [M]) == (M,)
    assert broadcast([M], [N]) is None
    assert broadcast([M], [16]) is None
    assert broadcast([2, 3], [3, 2]) is None


@pytest.mark.parametrize(
    ("symbol", "reason"),
    [
        (Symbol(1, 8), None),
        (Symbol(0, 0), None),
        (Symbol(2, 1), "min <= max"),
        (Symbol(-1, 8), "0 <= min"),
        (Symbol(1, 2**31), "2147483647"),
        (Symbol(1, 8, multiple_of=0), "at least 1"),
        (Symbol(5, 7, multiple_of=4), "no multiple of 4"),
        (Symbol(1, 8, hint=9), "got 9, want 1..8"),
        (Symbol(1, 8, hint=3, multiple_of=2), "multiple of 2"),
        (Symbol(1, 8.0), "want an integer"),
        (Symbol(1, True), "want an integer"),
    ],
)
def test_symbol_ranges(symbol, reason):
    why = symbol.why_not()
    assert why is None if reason is None else reason in why


def test_the_planned_value_is_the_hint_or_the_largest_legal_one():
    assert Symbol(1, 100, hint=7).planned == 7
    assert Symbol(1, 100, multiple_of=8).planned == 96
