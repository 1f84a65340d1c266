"""Lowers a graph of every op to the cuDNN frontend and reads it back; needs the frontend's wheel.

Prints ``{"checked": {op: number of graphs}, "wrong": [...]}``. Run as a program, since the process
imports the frontend.
"""

import json
import sys
from typing import Any

import cudnn
import cudnn._plan_serdes
import pytest
from op_cases import KINDS, graph_of, without_rules

from cudnn_aot.compiler.formats import peer_blob
from cudnn_aot.compiler.formats.json_reader import parse
from cudnn_aot.compiler.formats.to_frontend import to_frontend
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.ops.table import OPS


def read_back(lowered: Any) -> Graph:
    for node in lowered.nodes:  # that form has no slices
        if "slices" in node.params:
            node.params["slices"] = [(s.start, s.stop, s.step) for s in node.params["slices"]]
    return peer_blob.read(parse(json.dumps(cudnn._plan_serdes._encode_graph(lowered)).encode()))


Tensors = dict[int, tuple[Any, ...]]
Nodes = list[tuple[str, str, dict[str, int], dict[str, int]]]


def inspected(lowered: Any) -> tuple[Nodes, Tensors]:
    """The frontend's own view of its graph, tensors by uid."""
    found = lowered.inspect()
    uids = {name: tensor["uid"] for name, tensor in found["tensors"].items()}

    def wired(ports: dict[str, str]) -> dict[str, int]:
        return {port: uids[name] for port, name in ports.items()}

    return [
        (node["name"], node["type"], wired(node["inputs"]), wired(node["outputs"]))
        for node in found["nodes"]
    ], {
        each["uid"]: (*map(list, (each["dim"], each["stride"])),
                      each["dtype"].rpartition(".")[2], each["is_virtual"])
        for each in found["tensors"].values()
    }  # fmt: skip


def ours(graph: Graph) -> tuple[Nodes, Tensors]:
    """The same of our graph; the frontend numbers the ports of pointwise nodes."""
    found = graph.inspect()

    def wired(node: dict[str, Any]) -> dict[str, int]:
        uids: dict[str, int] = node["inputs"]
        if node["type"] != "POINTWISE":
            return uids
        return {f"IN_{place}": uid for place, uid in enumerate(uids.values())}

    return [
        (node["name"], node["type"], wired(node), node["outputs"]) for node in found["nodes"]
    ], {
        uid: (each["dim"], each["stride"], each["data_type"], each["is_virtual"])
        for uid, each in found["tensors"].items()
    }


def main() -> None:
    checked: dict[str, int] = {}
    wrong: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        for _ in without_rules(patched):
            for op in OPS:
                for kind in KINDS:
                    graph = graph_of(op, kind)
                    lowered = to_frontend(graph, cudnn)
                    checked[op] = checked.get(op, 0) + 1
                    if inspected(lowered) != ours(graph):
                        wrong.append(f"{op} {kind}: {inspected(lowered)} != {ours(graph)}")
                    elif read_back(lowered).key() != graph.key():
                        wrong.append(f"{op} {kind}: read back, it is another graph")
    json.dump({"checked": checked, "wrong": wrong}, sys.stdout)


if __name__ == "__main__":
    main()
