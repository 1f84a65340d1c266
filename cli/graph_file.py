"""``cudnn-aot show GRAPH.json``: a graph file as a table, as JSON or as a drawing."""

from pathlib import Path
from typing import Any

from cudnn_aot.cli.files import publish
from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.cli.table import format_table, plural
from cudnn_aot.compiler.formats import drawing, graph_json
from cudnn_aot.compiler.formats.load import Unread, read_graphs
from cudnn_aot.compiler.graph.bucket import graph_class
from cudnn_aot.compiler.graph.extents import format_extents
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.tensor import Tensor
from cudnn_aot.errors import UsageError, cudnnGraphNotSupportedError


def show_graph_file(path: str, *, as_json: bool, as_mermaid: bool, svg: str | None) -> int:
    """Print the graphs of a file; with `svg`, draw its one graph into that file instead.

    A program may name graphs that cannot be had: exit code 1, or 3 if none of them is supported.
    """
    found = read_graphs(path)
    graphs = [item for item in found if isinstance(item, Graph)]
    unread = [item for item in found if isinstance(item, Unread)]
    for item in unread:
        declined = isinstance(item.error, cudnnGraphNotSupportedError)
        complain(f"{'declined' if declined else 'error'}: {item.error}")
    if svg is not None:
        _draw(graphs, Path(svg))
    elif as_mermaid:
        for graph in graphs:
            say(*drawing.mermaid(graph).splitlines())
    elif as_json:
        document: dict[str, Any] = {"file": path, "graphs": [_document(graph) for graph in graphs]}
        if unread:
            document["unread"] = [{"name": i.name, "reason": str(i.error)} for i in unread]
        print_json(document)
    else:
        for number, graph in enumerate(graphs):
            say(*([""] if number else []), *describe(graph))
    unsupported = [isinstance(item.error, cudnnGraphNotSupportedError) for item in unread]
    return 0 if not unread else 3 if all(unsupported) else 1


def _draw(graphs: list[Graph], target: Path) -> None:
    if len(graphs) != 1:
        raise UsageError(f"--svg: the file holds {len(graphs)} graphs, want one: see convert")
    tell = publish(target, drawing.svg(graphs[0]), "the drawing")
    tell(f"{target}: {plural(len(graphs[0].nodes), 'node')} drawn")


def _document(graph: Graph) -> dict[str, Any]:
    import json

    return {
        "name": graph.name,
        "graph_key": graph.key(),
        "class": graph_class(graph).bucket,
        "graph": json.loads(graph_json.dumps(graph)),
    }


def describe(graph: Graph) -> list[str]:
    """A graph as text: what it is, then its symbols, tensors and nodes."""
    counts = f"{plural(len(graph.nodes), 'node')}, {plural(len(graph.tensors), 'tensor')}"
    lines = [
        f"{graph.name or '(no name)'}: {counts}",
        f"  graph    {graph.key()}",
        f"  class    {graph_class(graph).bucket}",
    ]
    for name, symbol in graph.symbols.items():
        step = f", a multiple of {symbol.multiple_of}" if symbol.multiple_of != 1 else ""
        hint = f", usually {symbol.hint}" if symbol.hint is not None else ""
        lines.append(f"  symbol   {name} in {symbol.min}..{symbol.max}{step}{hint}")
    tensors = [
        (
            str(tensor.uid),
            tensor.name,
            _role(graph, tensor),
            tensor.data_type.name if tensor.data_type else "",
            format_extents(tensor.dim),
            format_extents(tensor.stride),
            ", ".join(_notes(tensor)),
        )
        for tensor in graph.tensors.values()
        if not graph.is_discarded(tensor)
    ]
    header = ("uid", "tensor", "role", "type", "dim", "stride", "")
    lines += ["", *_indented(format_table(header, tensors, right="uid"))]
    nodes = [
        (
            node.name,
            node.op,
            _ports(node.inputs),
            _ports(node.outputs),
            node.compute_data_type.name if node.compute_data_type else "-",
            " ".join(drawing.describe_attrs(node)),
        )
        for node in graph.nodes
    ]
    columns = ("node", "op", "reads", "writes", "compute", "attributes")
    lines += ["", *_indented(format_table(columns, nodes))]
    return lines


def _role(graph: Graph, tensor: Tensor) -> str:
    if tensor.is_virtual:
        return "virtual"
    if graph.producer(tensor) is not None:
        return "optional output" if tensor.is_optional else "output"
    return "scalar" if tensor.is_pass_by_value else "input"


def _notes(tensor: Tensor) -> list[str]:
    notes = []
    if tensor.pass_by_value is not None:
        kind = tensor.scalar_type.name.lower() if tensor.scalar_type else "default"
        notes.append(f"{tensor.pass_by_value} ({kind.replace('_', ' ')})")
    if tensor.ragged_offset is not None:
        times = tensor.ragged_offset_multiplier
        notes.append(f"ragged by uid {tensor.ragged_offset.uid}" + (f" * {times}" * (times != 1)))
    if tensor.reordering_type.value:
        notes.append(f"order {tensor.reordering_type.name}")
    if tensor.alignment_value != 1:
        notes.append(f"alignment {tensor.alignment_value}")
    return notes


def _ports(ports: Any) -> str:
    return " ".join(f"{port}={tensor.uid}" for port, tensor in ports.items())


def _indented(lines: list[str]) -> list[str]:
    return ["  " + line for line in lines]
