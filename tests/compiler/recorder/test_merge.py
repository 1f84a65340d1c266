"""Classes, names, and symbols: every recorded graph is a case of exactly one written graph."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.recorder.convert import Use
from cudnn_aot.compiler.recorder.merge import MergedGraph, class_digest, merge

BF16 = data_type.BFLOAT16


def gemm(
    m: int,
    *,
    batch: int = 1,
    k: int = 64,
    n: int = 32,
    a_order: str = "bmk",
    pad: int = 0,
    name: str = "",
    names: tuple[str, str] = ("A", "B"),
    bias: bool = True,
    uid: int = 3,
    io: data_type = BF16,
) -> Graph:
    """Y = relu(A @ B + bias); A in either order, with `pad` elements between its rows."""
    graph = Graph(
        name,
        io_data_type=io,
        intermediate_data_type=data_type.FLOAT,
        compute_data_type=data_type.FLOAT,
    )
    ld = k + pad
    stride = [m * ld, ld, 1] if a_order == "bmk" else [m * k, 1, m]
    a = graph.tensor([batch, m, k], stride, name=names[0], uid=1)
    b = graph.tensor([1, k, n], [k * n, 1, k], name=names[1], uid=2)
    y = graph.matmul(a, b)
    if bias:
        y = graph.add(y, graph.tensor([1, 1, n], name="bias", uid=9))
    graph.relu(y).set_uid(uid).set_output(True)
    return graph


def concrete_key(merged: MergedGraph, symbols: dict[str, int]) -> str:
    """The key of the written graph with numbers for its symbols: through its file."""
    document = json.loads(graph_json.dumps(merged.graph))
    document.pop("symbols", None)

    def number(extent: object) -> object:
        if not isinstance(extent, str):
            return extent
        value = 1
        for factor in extent.split("*"):
            value *= symbols[factor] if factor in symbols else int(factor)
        return value

    for row in document["tensors"]:
        for field in ("dim", "stride"):
            if field in row:
                row[field] = [number(extent) for extent in row[field]]
    return graph_json.loads(json.dumps(document)).key()


def assert_covers(merged: list[MergedGraph], graphs: list[Graph]) -> None:
    """The shapes of the written graphs, put in, are the recorded graphs and no others."""
    keys = [concrete_key(item, dict(shape.symbols)) for item in merged for shape in item.shapes]
    assert sorted(keys) == sorted({graph.key() for graph in graphs})
    for item in merged:
        for name, symbol in item.graph.symbols.items():
            seen = [shape.symbols[name] for shape in item.shapes]
            assert (symbol.min, symbol.max) == (min(seen), max(seen))


def test_rows_that_vary_become_one_symbol() -> None:
    graphs = [gemm(m) for m in (1, 16, 300)]
    uses = [Use(graph, 1, count) for graph, count in zip(graphs, (7, 90, 3), strict=True)]
    (merged,) = merge([*uses, Use(gemm(16), 2, 10)])
    assert_covers([merged], graphs)
    assert dict(merged.graph.symbols)["M"].hint == 16
    assert (merged.built, merged.executed) == (5, 110)
    assert [(dict(s.symbols), s.built, s.executed) for s in merged.shapes] == [
        ({"M": 16}, 3, 100),
        ({"M": 1}, 1, 7),
        ({"M": 300}, 1, 3),
    ]
    assert merged.graph.tensors[1].stride == gemm_symbolic_stride(merged)
    assert merged.name == f"matmul_add_relu-{merged.digest[:8]}"


def gemm_symbolic_stride(merged: MergedGraph) -> tuple[object, ...]:
    m = merged.graph.tensors[1].dim[1]
    return (m * 64, 64, 1)  # type: ignore[operator]


def test_programs_that_declare_in_another_order_share_a_graph() -> None:
    def twin(m: int, *, flipped: bool) -> Graph:
        graph = Graph(
            io_data_type="HALF", intermediate_data_type="FLOAT", compute_data_type="FLOAT"
        )
        x = graph.tensor([m, 8], uid=1)
        ops = ["tanh", "exp"]
        made = {op: getattr(graph, op)(x) for op in (reversed(ops) if flipped else ops)}
        graph.relu(made["tanh"]).set_output(True).set_uid(2)
        graph.gelu(made["exp"]).set_output(True).set_uid(3)
        return graph

    graphs = [twin(4, flipped=False), twin(6, flipped=True), twin(9, flipped=False)]
    (merged,) = merge([Use(graph, 1, 1) for graph in graphs])
    assert_covers([merged], graphs)


@pytest.mark.parametrize("scale", [0.5, None])
def test_graphs_with_other_scalars_stay_apart(scale: float | None) -> None:
    """A launch passes them, but a graph file holds one value."""

    def attend(scale: float | None, length: int) -> Graph:
        graph = Graph(
            io_data_type="HALF", intermediate_data_type="FLOAT", compute_data_type="FLOAT"
        )
        q, k, v = (graph.tensor([1, 2, length, 16], uid=uid) for uid in (1, 2, 3))
        graph.sdpa(q, k, v, attn_scale=scale)[0].set_output(True).set_uid(4)
        return graph

    graphs = [attend(0.25, 8), attend(0.25, 16), attend(scale, 8)]
    merged = merge([Use(graph, 1, 1) for graph in graphs])
    assert len(merged) == 2
    assert_covers(merged, graphs)


def test_without_symbols_every_shape_is_a_graph() -> None:
    graphs = [gemm(m) for m in (1, 16, 300)]
    merged = merge([Use(graph, 1, 0) for graph in graphs], symbolize=False)
    assert len({item.name for item in merged}) == 3
    assert not any(item.graph.symbols for item in merged)
    assert_covers(merged, graphs)


@pytest.mark.parametrize(
    "other",
    [gemm(5, bias=False), gemm(5, uid=4), gemm(5, io=data_type.HALF)],
    ids=["ops", "uids", "types"],
)
def test_another_structure_is_another_class(other: Graph) -> None:
    assert class_digest(gemm(5)) != class_digest(other)
    assert len(merge([Use(gemm(5), 1, 0), Use(other, 1, 0)])) == 2


def test_the_weights_of_a_model_stay_numbers() -> None:
    """Two layers at many row counts: a graph each with symbolic rows, not one of symbols alone."""
    graphs = [gemm(m, k=k, n=n) for m in (1, 7, 300) for k, n in ((64, 32), (128, 96))]
    merged = merge([Use(graph, 1, 0) for graph in graphs])
    assert [list(item.graph.symbols) for item in merged] == [["M"], ["M"]]
    assert {item.graph.tensors[2].dim for item in merged} == {(1, 64, 32), (1, 128, 96)}
    assert_covers(merged, graphs)


def test_one_extent_that_varies_is_a_symbol_whatever_it_is() -> None:
    graphs = [gemm(5, n=n) for n in (32, 40, 96)]
    (merged,) = merge([Use(graph, 1, 0) for graph in graphs])
    assert list(merged.graph.symbols) == ["N"]
    assert_covers([merged], graphs)


def test_contiguous_extents_of_many_values_are_symbols() -> None:
    graphs = [gemm(m, n=n) for m, n in zip(range(1, 30), range(40, 69), strict=True)]
    (merged,) = merge([Use(graph, 1, 0) for graph in graphs])
    assert list(merged.graph.symbols) == ["M", "N"]
    assert_covers([merged], graphs)


def test_names_and_order_do_not_make_a_class() -> None:
    graphs = [gemm(m, name=f"step{m}", names=(f"a{m}", "w")) for m in range(2, 9)]
    assert len({class_digest(graph) for graph in graphs}) == 1
    names = set()
    for seed in range(4):
        random.Random(seed).shuffle(graphs)
        merged = merge([Use(graph, 1, 0) for graph in graphs])
        assert len(merged) == 1
        names.add(merged[0].name[-9:])
    assert len(names) == 1


def test_layouts_of_one_class_are_graphs_of_their_own() -> None:
    graphs = [gemm(m, a_order=order) for m in (2, 8, 9) for order in ("bmk", "bkm")]
    merged = merge([Use(graph, 1, 0) for graph in graphs])
    assert len(merged) == 2 == len({item.name for item in merged})
    assert len({item.digest for item in merged}) == 1
    assert_covers(merged, graphs)


def test_one_row_joins_the_layout_that_it_fits() -> None:
    """With one row the strides say little: it is a case of both layouts, and joins the heavier."""
    graphs = [gemm(m) for m in (1, 8, 9)]
    merged = merge([Use(graph, 1, 0) for graph in graphs])
    assert len(merged) == 1
    assert_covers(merged, graphs)


def test_a_padded_leading_dimension_is_a_constant() -> None:
    graphs = [gemm(m, pad=8) for m in (2, 8, 64)]
    (merged,) = merge([Use(graph, 1, 0) for graph in graphs])
    assert [str(step) for step in merged.graph.tensors[1].stride] == ["72*M", "72", "1"]
    assert_covers([merged], graphs)


def test_a_stride_that_follows_nothing_parts_the_graphs() -> None:
    graphs = [gemm(m, pad=pad) for m in (2, 8, 64) for pad in (8, 24)]
    merged = merge([Use(graph, 1, 0) for graph in graphs])
    assert len(merged) == 2
    assert_covers(merged, graphs)


def test_a_broadcast_that_no_symbol_allows_parts_the_graphs() -> None:
    """B's batch of 1 broadcasts; where both have rows, a symbol cannot also stand for 1."""

    def graph(rows: int, other: int) -> Graph:
        graph = Graph("", io_data_type=BF16, intermediate_data_type=BF16, compute_data_type=BF16)
        a = graph.tensor([rows, 16], uid=1)
        b = graph.tensor([other, 16], uid=2)
        graph.add(a, b).set_uid(3).set_output(True)
        return graph

    graphs = [graph(4, 4), graph(7, 1), graph(9, 1), graph(8, 8)]
    merged = merge([Use(item, 1, 0) for item in graphs])
    assert len(merged) == 2
    assert_covers(merged, graphs)


def test_a_graph_with_symbols_stays_as_it_is() -> None:
    graph = Graph("own", io_data_type=BF16, compute_data_type=BF16, symbols={"T": {"max": 99}})
    a, b = graph.tensor([1, "T", 8], uid=1), graph.tensor([1, 8, 8], uid=2)
    graph.matmul(a, b).set_uid(3).set_output(True)
    (merged,) = merge([Use(graph, 1, 4), Use(graph, 2, 5)])
    assert merged.graph.symbols["T"].max == 99
    assert (merged.built, merged.executed) == (3, 9)


def test_extents_out_of_a_symbols_range_stay_numbers() -> None:
    graphs = [gemm(m) for m in (2**31, 2**32)]
    merged = merge([Use(graph, 1, 0) for graph in graphs])
    assert len(merged) == 2
    assert_covers(merged, graphs)


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(
            st.integers(1, 6),  # batch
            st.integers(1, 40),  # m
            st.sampled_from((8, 16, 24)),  # k
            st.integers(1, 5),  # n
            st.sampled_from(("bmk", "bkm")),
            st.sampled_from((0, 0, 8)),
            st.integers(0, 50),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_every_set_of_graphs_is_covered_exactly(shapes: list[tuple]) -> None:
    graphs = [
        gemm(m, batch=batch, k=k, n=n, a_order=order, pad=pad)
        for batch, m, k, n, order, pad, _ in shapes
    ]
    uses = [Use(graph, 1, shape[-1]) for graph, shape in zip(graphs, shapes, strict=True)]
    merged = merge(uses)
    assert_covers(merged, graphs)
    assert sum(item.executed for item in merged) == sum(shape[-1] for shape in shapes)
    again = merge(
        list(
            reversed(
                [
                    Use(g, u.built, u.executed)
                    for g, u in zip(
                        [
                            gemm(m, batch=b, k=k, n=n, a_order=o, pad=p)
                            for b, m, k, n, o, p, _ in shapes
                        ],
                        uses,
                        strict=True,
                    )
                ]
            )
        )
    )
    assert {item.graph.key() for item in again} == {item.graph.key() for item in merged}
