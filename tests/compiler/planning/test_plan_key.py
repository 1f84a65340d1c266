"""The plan key covers what planning reads: what it and the graph key leave out decides no plan."""

from __future__ import annotations

import json
from typing import Any

import gemm_graphs
import pytest

from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning.plan import plan_graph, plan_key
from cudnn_aot.compiler.target.target import load_target

H200 = load_target("h200")


def reordered(document: dict[str, Any]) -> None:
    for part in ("tensors", "nodes"):
        document[part].reverse()
    document["symbols"] = dict(reversed(document.get("symbols", {}).items()))


def renamed(document: dict[str, Any]) -> None:
    document["name"] = "other"
    for part in ("tensors", "nodes"):
        for place, row in enumerate(document[part]):
            row["name"] = f"{part}{place}"


def renumbered(document: dict[str, Any]) -> None:
    """Other uids of virtual tensors, in the other order."""
    virtual = [row["uid"] for row in document["tensors"] if row.get("is_virtual")]
    new = {uid: 1000 - uid for uid in virtual}
    for row in document["tensors"]:
        row["uid"] = new.get(row["uid"], row["uid"])
    for node in document["nodes"]:
        for ports in (node["inputs"], node["outputs"]):
            ports.update({port: new.get(uid, uid) for port, uid in ports.items()})


def two_symbols() -> Graph:
    symbols = {"N": {"min": 8, "max": 8192, "multiple_of": 8}, "M": {"max": 8192}}
    return gemm_graphs.plain("g", "M", "N", 4096, symbols=symbols)


@pytest.mark.parametrize("change", [reordered, renamed, renumbered])
def test_what_no_key_covers_decides_no_plan(change):
    def plan(graph: Graph) -> tuple[str, Any]:
        planned = plan_graph(graph, H200)
        table = json.loads(json.dumps(planned.table))
        for operand in table["operands"]:
            del operand["name"]  # for the words of refusals
        return plan_key(graph, H200), (planned.ranges, [s.key for s in planned.kernels], table)

    for make in (*gemm_graphs.TEST_GRAPHS, two_symbols):
        graph = make()
        document = json.loads(graph_json.dumps(graph))
        change(document)
        assert plan(graph_json.loads(json.dumps(document))) == plan(graph)


def test_every_field_of_a_symbol_is_in_the_plan_key():
    def key(**fields: int) -> str:
        symbols = {"M": {"min": 8, "max": 8192, "multiple_of": 8, **fields}}
        return plan_key(gemm_graphs.plain("g", "M", 1024, 512, symbols=symbols), H200)

    changes: list[dict[str, int]]
    changes = [{}, {"min": 16}, {"max": 4096}, {"multiple_of": 4}, {"hint": 64}, {"hint": 8192}]
    assert len({key(**fields) for fields in changes}) == len(changes)
