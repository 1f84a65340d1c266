"""docs/keys.md against the code: every row of its tables, and no row too few."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gemm_graphs
import pytest

from cudnn_aot.cache.spec import KernelSpec
from cudnn_aot.compiler.graph.bucket import graph_class
from cudnn_aot.compiler.graph.enums import data_type, scalar_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import plan
from cudnn_aot.compiler.target.target import load_target

PAGE = (Path(__file__).parents[2] / "docs" / "keys.md").read_text(encoding="utf-8")


def table(section: str, header: str) -> list[list[str]]:
    """The cells of the rows of the table with that header, in a section."""
    text = re.split(rf"^## {section}$", PAGE, flags=re.MULTILINE)[1].split("\n## ")[0]
    rows = text.split(header)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def names(section: str) -> list[str]:
    """What `enters`; a row may have several names."""
    return [name for row in table(section, "| enters |") for name in re.findall(r"`(\w+)`", row[0])]


def test_kernel_keys() -> None:
    spec = KernelSpec("f.kernels.m:k", "0", {}, "", "", "", {})
    assert names("The kernel key") == [
        name for name in sorted(spec.canonical(), key=names("The kernel key").index)
    ]
    assert len(names("The kernel key")) == len(spec.canonical())


def test_plan_keys() -> None:
    h200 = load_target("h200")
    document = plan.plan_key_document(gemm_graphs.plain("g", 64, 64, 64), h200)
    parts = {*document, *plan.planner_document("", "", "", "", *h200.descriptor().values())}
    assert parts - {"planner"} == set(names("The plan key"))
    assert "planner" in document and len(names("The plan key")) == len(parts) - 1


# A change of a graph for each row of the last table.


def base(**changes: Any) -> Graph:
    """Y = (A @ B) * scale, with everything that a row below speaks of."""
    said = {"m": 64, "dtype": data_type.BFLOAT16, "uid": 3, "symbol": {}, "op": "mul"} | changes
    g = Graph(
        said.get("name", "g"),
        io_data_type=said["dtype"],
        intermediate_data_type=data_type.FLOAT,
        compute_data_type=data_type.FLOAT,
        symbols={"N": {"min": 8, "max": 512, "multiple_of": 8, **said["symbol"]}},
    )
    virtual = said.get("virtual", 50)
    a = g.tensor([1, said["m"], 32], uid=1, name=said.get("a", "A"))
    b = g.tensor([1, 32, "N"], uid=2, name="B")
    scale = g.tensor([1, 1, 1], uid=4, name="scale", **scalar(said))
    c = g.matmul(a, b).set_uid(virtual)
    y = getattr(g, said["op"])(c, scale)
    y.set_uid(said["uid"]).set_output(True)
    b.set_alignment_value(said.get("alignment", 16))
    c.set_output(said.get("c", False), optional=said.get("optional", False))
    return g


def scalar(said: dict[str, Any]) -> dict[str, Any]:
    kind = said.get("scalar_type")
    more = {} if kind is None else {"scalar_type": kind}
    value = said.get("value", 2.0)
    return {"data_type": data_type.FLOAT, "is_pass_by_value": True, "pass_by_value": value, **more}


def attention(**changes: Any) -> Graph:
    said = {"attn_scale": 0.125, "use_causal_mask": False} | changes
    g = Graph("a", io_data_type=data_type.BFLOAT16, compute_data_type=data_type.FLOAT)
    q, k, v = (g.tensor([1, 2, 64, 32], uid=uid) for uid in (1, 2, 3))
    o, _ = g.sdpa(q=q, k=k, v=v, generate_stats=False, **said)
    o.set_uid(4).set_output(True)
    return g


def norm(**changes: Any) -> Graph:
    g = Graph("n", io_data_type=data_type.FLOAT, compute_data_type=data_type.FLOAT)
    x, row = g.tensor([4, 8, 1, 1], uid=1), g.tensor([1, 8, 1, 1], uid=2)
    one = g.tensor([1, 1, 1, 1], uid=3)
    y, mean, _ = g.layernorm(x, row, row, one, "TRAINING")
    y.set_uid(4).set_output(True)
    mean.set_uid(changes.get("mean", 50)).set_data_type(changes.get("dtype", data_type.FLOAT))
    return g


CONSTANT = scalar_type.COMPILE_TIME_CONST
# row: a graph and another that differs in what the row names alone
CHANGES: dict[str, tuple[Callable[..., Graph], dict[str, Any], dict[str, Any]]] = {
    "ops and wiring by port": (base, {}, {"op": "add"}),
    "attributes that a kernel bakes": (attention, {}, {"use_causal_mask": True}),
    "attributes that none bakes (`attn_scale`, `scale`)": (attention, {}, {"attn_scale": 0.5}),
    "compute types, data types": (base, {}, {"dtype": data_type.HALF}),
    "extents and strides": (base, {}, {"m": 128}),
    "symbols with `min`, `max`, `multiple_of`": (base, {}, {"symbol": {"multiple_of": 16}}),
    "uids of tensors that are not virtual": (base, {}, {"uid": 9}),
    "which outputs are optional": (base, {"c": True}, {"c": True, "optional": True}),
    "value of a compile-time constant": (
        base,
        {"scalar_type": CONSTANT},
        {"scalar_type": CONSTANT, "value": 3.0},
    ),
    "value of another pass-by-value tensor": (base, {}, {"value": 3.0}),
    "alignment, reordering, ragged offset": (base, {}, {"alignment": 2}),
    "hint of a symbol": (base, {}, {"symbol": {"hint": 64}}),
    "names": (base, {}, {"name": "other", "a": "X"}),
    "uids of virtual tensors, order of nodes and tensors": (base, {}, {"virtual": 70}),
    "results that nobody reads or asked for": (norm, {}, {"mean": 70, "dtype": data_type.HALF}),
}
ROWS = table("Graph key, class bucket, unification", "| of a graph |")


def test_every_row_has_a_change() -> None:
    assert [row[0] for row in ROWS] == list(CHANGES)


@pytest.mark.parametrize(("row", "in_key", "in_bucket"), ROWS)
def test_graph_keys_and_buckets(row: str, in_key: str, in_bucket: str) -> None:
    make, one, other = CHANGES[row]
    graphs = [make(**one), make(**other)]
    assert (len({graph.key() for graph in graphs}) == 2) == (in_key == "yes")
    # Of what counts by its rank, or by being there, only the value was changed.
    assert (len({graph_class(graph).bucket for graph in graphs}) == 2) == (in_bucket == "yes")
