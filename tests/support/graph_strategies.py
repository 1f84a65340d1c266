"""Random graphs for property tests: a matmul, factors ahead of it, a pointwise DAG behind it."""

from typing import Any

from hypothesis import strategies as st

from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.op import Op
from cudnn_aot.compiler.graph.ops.table import OPS

POINTWISE = [row for row in OPS.values() if row.is_pointwise]
ATTRS = {
    "negative_slope": st.sampled_from([0.0, 0.25]),
    "lower_clip": st.sampled_from([-0.5, 0.0]),
    "upper_clip": st.sampled_from([None, 1.0]),
    "swish_beta": st.sampled_from([1.0, 1.5]),
    "axis": st.sampled_from([0, 1]),
}


@st.composite
def graphs(draw: Any) -> Graph:
    """A valid graph; unnamed, named and renamed parts, every operand shape, optional outputs."""
    symbolic = draw(st.booleans())
    m: Any = "M" if symbolic else draw(st.sampled_from([1, 5, 16]))
    n, k = draw(st.sampled_from([8, 24])), draw(st.sampled_from([4, 32]))
    graph = Graph(
        draw(st.sampled_from(["", "g"])),
        draw(st.sampled_from([data_type.BFLOAT16, data_type.HALF])),
        data_type.FLOAT,
        data_type.FLOAT,
        symbols={"M": {"min": 1, "max": 64, "hint": 7}} if symbolic else None,
    )
    a = graph.tensor([2, m, k], name="A")
    b = graph.tensor([1, k, n], draw(st.sampled_from([None, [k * n, 1, k]])), name="B")
    a, b = _scaled(draw, graph, a, [1, m, 1]), _scaled(draw, graph, b, [1, 1, n])
    values = [graph.matmul(a, b)]
    for _ in range(draw(st.integers(0, 5))):
        row: Op = draw(st.sampled_from(POINTWISE))
        operands = [draw(st.sampled_from(values))]
        for _ in row.inputs[1:]:
            operands.append(draw(st.sampled_from([*values, None])) or _operand(draw, graph, m, n))
        attrs = {attr.name: draw(ATTRS[attr.name]) for attr in row.attrs}
        name = draw(st.sampled_from(["", "step"]))
        values.append(getattr(graph, row.name)(*operands, **attrs, name=name))
    read = {id(t) for node in graph.nodes for t in node.inputs.values()}
    has_columns = draw(st.booleans())
    for index, value in enumerate(values):
        is_leaf = id(value) not in read
        if is_leaf or draw(st.booleans()):
            value.set_output(True, optional=not is_leaf and draw(st.booleans()))
            if has_columns:
                size = f"{n}*{m}" if symbolic else n * m
                value.set_dim([2, m, n]).set_stride([size, 1, m])
        if draw(st.booleans()):
            value.set_data_type(draw(st.sampled_from([data_type.HALF, data_type.FLOAT])))
        if draw(st.integers(0, 3)) == 0:
            value.set_name(f"value{index}")
    return graph


def _scaled(draw: Any, graph: Graph, matrix: Any, each: list[Any]) -> Any:
    """The matrix, or it times a number or one of each row or column, ahead of the matmul."""
    kind = draw(st.sampled_from(["", "", "each", "one", "value"]))
    if not kind:
        return matrix
    dim = each if kind == "each" else [1, 1, 1]
    factor = graph.tensor_scalar(0.5) if kind == "value" else graph.tensor(dim, name="factor")
    return graph.mul(*draw(st.permutations([matrix, factor])))


def _operand(draw: Any, graph: Graph, m: Any, n: int) -> Any:
    kind = draw(st.sampled_from(["full", "row", "column", "one", "value", "line"]))
    if kind == "value":
        return graph.tensor_scalar(draw(st.sampled_from([0.5, 2.0])))
    dims = {"full": [2, m, n], "row": [1, 1, n], "column": [1, m, 1], "one": [1, 1, 1]}
    dim = (dims | {"line": [n]})[kind]
    return graph.tensor(dim, name=kind, alignment_value=draw(st.sampled_from([1, 16])))
