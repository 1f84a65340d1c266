"""Drawings: every node and tensor is there, no two boxes overlap, edges lead down."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from graph_strategies import graphs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudnn_aot.compiler.formats import drawing
from cudnn_aot.compiler.formats.layered import GAP_X, place
from cudnn_aot.compiler.formats.load import load_graphs
from cudnn_aot.compiler.graph.graph import Graph

PEER = {p.stem: p for p in (Path(__file__).parents[2] / "data/peer_graphs").glob("*/*.json")}
SVG = "{http://www.w3.org/2000/svg}"


@st.composite
def dags(draw: st.DrawFn) -> tuple[dict[str, tuple[float, float]], list[tuple[str, str]]]:
    count = draw(st.integers(1, 25))
    sizes = {f"b{n}": (draw(st.floats(10, 200)), draw(st.floats(10, 90))) for n in range(count)}
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = [(f"b{i}", f"b{j}") for i, j in draw(st.lists(pairs, max_size=40)) if i < j]
    return sizes, edges


@settings(max_examples=200, deadline=None)
@given(dag=dags())
def test_boxes_do_not_overlap_and_edges_lead_down(
    dag: tuple[dict[str, tuple[float, float]], list[tuple[str, str]]],
) -> None:
    sizes, edges = dag
    placed = place(sizes, edges)
    assert placed == place(sizes, edges)
    boxes = [
        (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        for (x, y), (w, h) in zip(placed.boxes.values(), sizes.values(), strict=True)
    ]
    for left, top, right, bottom in boxes:
        assert left >= 0 and top >= 0 and right <= placed.width and bottom <= placed.height
    for index, one in enumerate(boxes):
        for other in boxes[index + 1 :]:
            apart = one[2] + GAP_X <= other[0] + 1e-6 or other[2] + GAP_X <= one[0] + 1e-6
            assert apart or one[3] < other[1] or other[3] < one[1]
    for points in placed.edges:
        heights = [y for _, y in points]
        assert heights == sorted(heights) and heights[0] < heights[-1]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs())
def test_any_graph_is_drawn_whole(graph: Graph) -> None:
    root = ElementTree.fromstring(drawing.svg(graph))
    boxes = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class")]
    visible = [t for t in graph.tensors.values() if not t.is_virtual]
    assert len(boxes) == len(graph.nodes) + len(visible)
    edges = [path for path in root.iter(f"{SVG}path") if path.get("class") != "head"]
    reads = sum(len(node.inputs) for node in graph.nodes)
    writes = sum(not t.is_virtual for node in graph.nodes for t in node.outputs.values())
    assert len(edges) == reads + writes
    text = drawing.mermaid(graph)
    assert len(re.findall(r"^  [nt]\d+[\[(]", text, re.M)) == len(boxes)
    assert text.count(" -->") == len(edges)


def texts(name: str) -> set[str]:
    (graph,) = load_graphs(PEER[name])
    root = ElementTree.fromstring(drawing.svg(graph))
    return {element.text or "" for element in root.iter(f"{SVG}text")}


def test_a_drawing_says_what_the_graph_says() -> None:
    assert {
        "matmul",
        "gate",
        "C: FLOAT [1, 2048, 11008]",
        "glu::OUT_0",
        "BFLOAT16 [1, 2048, 11008]",
        "uid 7",
        "input",
    } <= texts("gemm_swiglu_dual")
    assert {"off_q", "ragged_offset", "use_causal_mask=True", "sink_token", "Stats"} <= texts(
        "te_thd_sink"
    )


def test_mermaid_of_a_small_graph() -> None:
    graph = Graph("", "HALF", "FLOAT", "FLOAT", symbols={"M": {"max": 8}})
    x = graph.tensor(["M", 8], name='x "quoted" <b> #1')
    y = graph.scale(graph.tanh(x, name="act"), graph.tensor_scalar(0.5)).set_output(True)
    y.set_name("y")
    assert drawing.mermaid(graph) == (
        "flowchart TD\n"
        '  t1[/"x #quot;quoted#quot; &lt;b&gt; #35;1<br/>HALF [M, 8]<br/>uid 1"/]\n'
        '  t3[/"uid 3<br/>FLOAT [1] 0.5<br/> "/]\n'
        '  n0["tanh<br/>act<br/>OUT_0: FLOAT [M, 8]"]\n'
        '  n1["scale"]\n'
        '  t4(["y<br/>HALF [M, 8]<br/>uid 4"])\n'
        '  t1 -->|"input"| n0\n'
        '  n0 -->|"input"| n1\n'
        '  t3 -->|"scale"| n1\n'
        "  n1 --> t4\n"
    )


@pytest.mark.parametrize("name", ["\x00", "\ud7ff]]>&<", "a" * 500, "\n\t", "\u202e"])
def test_names_cannot_break_the_drawing(name: str) -> None:
    graph = Graph(name, "HALF", "FLOAT", "FLOAT")
    graph.tanh(graph.tensor([2], name=name), name=name).set_output(True).set_name(name)
    root = ElementTree.fromstring(drawing.svg(graph))
    assert max(len(element.text or "") for element in root.iter(f"{SVG}text")) <= 60
    assert drawing.mermaid(graph).count("\n") == 6


def test_a_long_graph_is_drawn_in_no_time() -> None:
    graph = Graph("", "HALF", "FLOAT", "FLOAT")
    value = first = graph.tensor([2])
    for _ in range(300):
        value = graph.add(graph.tanh(value), first)
    value.set_output(True)
    assert drawing.svg(graph).count("<rect") == 1 + 600 + 2
