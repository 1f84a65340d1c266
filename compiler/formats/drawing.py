"""Drawings of a graph: Mermaid text, and SVG laid out here with nothing but the standard library.

Every node is a box with its op, its attributes and its virtual results; graph inputs and outputs
are boxes of their own. An edge is labelled with the port that it leads to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from cudnn_aot.compiler.formats.layered import place
from cudnn_aot.compiler.graph.attr import plain
from cudnn_aot.compiler.graph.extents import format_extents
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.node import Node
from cudnn_aot.compiler.graph.tensor import Tensor

_LONGEST = 44  # characters of a line in a box


@dataclass(frozen=True, slots=True)
class _Box:
    kind: str  # "node", "input", "output" or "scalar"
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Edge:
    source: str
    target: str
    label: str


def describe_type(tensor: Tensor) -> str:
    """``BFLOAT16 [1, M, 4096]``."""
    name = tensor.data_type.name if tensor.data_type else "?"
    return f"{name} {format_extents(tensor.dim)}"


def describe_attrs(node: Node) -> list[str]:
    """``name=value`` for every attribute that is not at its default."""
    attrs = []
    for name, value in node.attrs.items():
        shown = getattr(value, "__name__", None) if callable(value) else plain(value)
        attrs.append(f"{name}={shown}")
    return attrs


def mermaid(graph: Graph) -> str:
    """The graph as a Mermaid flowchart; validates it first."""
    boxes, edges = _picture(graph)
    shapes = {"node": '["{}"]', "input": '[/"{}"/]', "output": '(["{}"])', "scalar": '[/"{}"/]'}
    lines = ["flowchart TD"]
    for name, box in boxes.items():
        text = "<br/>".join(_mermaid_text(line) for line in box.lines)
        lines.append(f"  {name}{shapes[box.kind].format(text)}")
    for edge in edges:
        label = f'|"{_mermaid_text(edge.label)}"|' if edge.label else ""
        lines.append(f"  {edge.source} -->{label} {edge.target}")
    return "\n".join(lines) + "\n"


def _mermaid_text(text: str) -> str:
    return escape(text.replace("#", "#35;")).replace("&quot;", "#quot;").replace("&#x27;", "'")


_STYLE = """
text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1b1f24; }
text.title { font-weight: bold; }
text.port { font-size: 10px; fill: #57606a; }
rect { stroke: #57606a; }
rect.node { fill: #ddf4ff; } rect.input { fill: #f6f8fa; } rect.output { fill: #dafbe1; }
rect.scalar { fill: #fff8c5; }
path { fill: none; stroke: #57606a; } path.head { fill: #57606a; stroke: none; }
""".strip()
_CHARACTER, _PORT_CHARACTER, _LINE, _PADDING = 7.3, 6.1, 16.0, 10.0


def svg(graph: Graph) -> str:
    """The graph as an SVG document; validates it first."""
    boxes, edges = _picture(graph)
    arriving: dict[str, list[_Edge]] = {}
    for edge in edges:
        arriving.setdefault(edge.target, []).append(edge)
    sizes = {}
    for name, box in boxes.items():
        labels = [edge.label for edge in arriving.get(name, ())]
        text = max(len(line) for line in box.lines) * _CHARACTER + 2 * _PADDING
        ports = len(labels) * (max(map(len, labels), default=0) * _PORT_CHARACTER + _PADDING)
        sizes[name] = (max(text, ports), len(box.lines) * _LINE + _PADDING)
    placed = place(sizes, [(edge.source, edge.target) for edge in edges])
    width, height = round(placed.width), round(placed.height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">',
        f"<title>{escape(_short(graph.name) or 'graph')}</title>",
        f"<style>{escape(_STYLE, quote=False)}</style>",
        f'<rect width="{width}" height="{height}" style="fill: white; stroke: none"/>',
    ]
    ports_text = []
    for edge, points in zip(edges, placed.edges, strict=True):
        parts.append(f'<path d="{_curve(points)}"/>')
        x, y = points[-1]
        parts.append(f'<path class="head" d="M{x:.1f},{y:.1f} l-4,-8 h8 z"/>')
        if edge.label:
            ports_text.append(_text(x + 6, y - 6, edge.label, "port"))
    for name, box in boxes.items():
        parts += _svg_box(box, placed.boxes[name], sizes[name])
    return "\n".join([*parts, *ports_text, "</svg>"]) + "\n"


def _svg_box(box: _Box, centre: tuple[float, float], size: tuple[float, float]) -> Iterator[str]:
    left, top = centre[0] - size[0] / 2, centre[1] - size[1] / 2
    yield (
        f'<rect class="{box.kind}" x="{left:.1f}" y="{top:.1f}" width="{size[0]:.1f}" '
        f'height="{size[1]:.1f}" rx="{4 if box.kind == "node" else 14}"/>'
    )
    for row, line in enumerate(box.lines):
        kind = "title" if row == 0 else ""
        yield _text(left + _PADDING, top + _LINE * (row + 1), line, kind)


def _text(x: float, y: float, text: str, kind: str) -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _curve(points: tuple[tuple[float, float], ...]) -> str:
    """A line through the points that leaves and enters boxes vertically."""
    (x, y), *rest = points
    path = f"M{x:.1f},{y:.1f}"
    for nx, ny in rest:
        middle = (y + ny) / 2
        path += f" C{x:.1f},{middle:.1f} {nx:.1f},{middle:.1f} {nx:.1f},{ny:.1f}"
        x, y = nx, ny
    return path


def _picture(graph: Graph) -> tuple[dict[str, _Box], list[_Edge]]:
    """Boxes by an id of letters and digits, each after those it follows, and edges."""
    graph.validate()
    boxes: dict[str, _Box] = {}
    edges: list[_Edge] = []
    origin: dict[int, str] = {}  # uid: the box that an edge of the tensor starts at
    for tensor in graph.inputs():
        origin[tensor.uid] = f"t{tensor.uid}"
        boxes[f"t{tensor.uid}"] = _tensor_box(graph, tensor)
    for tensor in graph.inputs():
        if tensor.ragged_offset is not None:
            edges.append(_Edge(f"t{tensor.ragged_offset.uid}", f"t{tensor.uid}", "ragged_offset"))
    for index, node in enumerate(graph.nodes):
        name = f"n{index}"
        boxes[name] = _node_box(graph, node)
        for port, tensor in node.inputs.items():
            edges.append(_Edge(origin[tensor.uid], name, port))
        for port, tensor in node.outputs.items():
            origin[tensor.uid] = name
            if tensor.is_virtual:
                continue
            origin[tensor.uid] = f"t{tensor.uid}"
            boxes[f"t{tensor.uid}"] = _tensor_box(graph, tensor)
            edges.append(_Edge(name, f"t{tensor.uid}", port if len(node.outputs) > 1 else ""))
            if tensor.ragged_offset is not None:
                source = f"t{tensor.ragged_offset.uid}"
                edges.append(_Edge(source, f"t{tensor.uid}", "ragged_offset"))
    offsets = {id(t.ragged_offset) for t in graph.tensors.values()}
    first = [f"t{t.uid}" for t in graph.inputs() if id(t) in offsets]
    return {name: boxes[name] for name in (*first, *boxes)}, edges


def _tensor_box(graph: Graph, tensor: Tensor) -> _Box:
    title = _short(tensor.name) or f"uid {tensor.uid}"
    notes = [f"uid {tensor.uid}"] if tensor.name else []
    if tensor.is_optional:
        notes.append("optional")
    if tensor.is_pass_by_value:
        value = "by value" if tensor.pass_by_value is None else str(tensor.pass_by_value)
        return _Box("scalar", (title, f"{describe_type(tensor)} {value}", ", ".join(notes) or " "))
    kind = "input" if graph.producer(tensor) is None else "output"
    return _Box(kind, (title, describe_type(tensor), *([", ".join(notes)] if notes else ())))


def _node_box(graph: Graph, node: Node) -> _Box:
    lines = [node.op]
    if not node.name.startswith(f"{node.op}."):
        lines.append(_short(node.name))
    lines += [_short(attr) for attr in describe_attrs(node)]
    for port, tensor in node.outputs.items():
        if tensor.is_virtual and not graph.is_discarded(tensor):
            lines.append(f"{port}: {describe_type(tensor)}")
    return _Box("node", tuple(lines))


def _short(text: str) -> str:
    """`text` for one line of a box, without what XML or a line cannot hold."""
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
