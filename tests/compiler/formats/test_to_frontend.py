"""Graphs as the cuDNN frontend's own, built with its wheel where a registry has it; no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from frontend_wheel import real_frontend  # noqa: F401  (a fixture)

from cudnn_aot.compiler.formats.to_frontend import passed_by_call, to_frontend
from cudnn_aot.compiler.graph.enums import data_type, scalar_type
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.errors import cudnnGraphNotSupportedError

SUPPORT = Path(__file__).resolve().parents[2] / "support"


def run(folder: Path, *arguments: str) -> Any:
    """What a program with the frontend's wheel prints."""
    paths = os.pathsep.join([str(folder), str(SUPPORT)])
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_every_op_becomes_the_same_graph(real_frontend: Path) -> None:  # noqa: F811
    """Its own view says so, and its graph read back has the key of ours."""
    found = run(real_frontend, str(SUPPORT / "lower_every_op.py"))
    assert found["wrong"] == []
    assert found["checked"].keys() == OPS.keys() and set(found["checked"].values()) == {4}


def test_what_a_declaration_says(real_frontend: Path) -> None:  # noqa: F811
    """Layouts, ragged offsets, scalars and virtual results, of more than one node."""
    script = """
import cudnn, json
from cudnn_aot.compiler.formats.to_frontend import to_frontend
from cudnn_aot.compiler.graph.graph import Graph

graph = Graph("g", "BFLOAT16", "FLOAT", "FLOAT")
q, k, v = (graph.tensor([2, 4, 8, 16], [512, 16, 64, 1], name=n, uid=u) for n, u in
           (("q", 11), ("k", 12), ("v", 13)))
offset = graph.tensor([3, 1, 1, 1], None, "INT32", name="offset", uid=40)
q.set_ragged_offset(offset).set_ragged_offset_multiplier(64)
lengths = [graph.tensor([2, 1, 1, 1], None, "INT32", name=n) for n in ("sq", "skv")]
o, stats = graph.sdpa(q, k, v, is_inference=False, use_padding_mask=True, seq_len_q=lengths[0],
                      seq_len_kv=lengths[1], attn_scale=0.125, name="attention")
o.set_ragged_offset(offset).set_ragged_offset_multiplier(64)
o.set_stride([512, 16, 64, 1])
alpha = graph.tensor([1], None, "FLOAT", is_pass_by_value=True, name="alpha", uid=90)
alpha.pass_by_value = 0.5
const = graph.tensor_scalar(2.0, "COMPILE_TIME_CONST", name="two")
y = graph.mul(graph.mul(o, alpha), const)
y.set_output(True).set_uid(7)
graph.validate()
made = to_frontend(graph, cudnn)
print(json.dumps({t.name: [t.uid, list(t.dim), list(t.stride), t.is_virtual, t.is_pass_by_value,
      t.pass_by_value, t.ragged_offset and t.ragged_offset.uid, t.ragged_offset_multiplier,
      getattr(t.data_type, "name", None), getattr(t.scalar_type, "name", None)]
      for t in made.tensors.values()}))
"""
    found = run(real_frontend, "-c", script)
    ones = [1, 1, 1, 1]
    assert found["q"] == [11, [2, 4, 8, 16], [512, 16, 64, 1], False, False, None, 40, 64,
                          "BFLOAT16", None]  # fmt: skip
    assert found["attention::O"][1:8] == [[2, 4, 8, 16], [512, 16, 64, 1], True, False, None,
                                          40, 64]  # fmt: skip
    assert found["alpha"] == [90, ones, ones, False, True, None, None, 1, "FLOAT", None]
    assert found["two"][3:6] == [False, True, 2.0] and found["two"][9] == "COMPILE_TIME_CONST"
    assert found["mul.1::OUT_0"][:4] == [7, [2, 4, 8, 16], [512, 16, 64, 1], False]
    assert found["mul.0::OUT_0"][3] is True


def plain(dim: Any = (4, 8), **fields: Any) -> tuple[Graph, Any]:
    graph = Graph("g", data_type.HALF, data_type.FLOAT, data_type.FLOAT, **fields)
    return graph, graph.tensor(list(dim), name="x")


def symbolic() -> Graph:
    graph, x = plain(["M", 8], symbols={"M": {"max": 64}})
    graph.relu(x).set_output(True)
    return graph


def with_an_optional_output() -> Graph:
    graph, x = plain()
    graph.relu(x).set_output(True, optional=True)
    graph.abs(x).set_output(True)
    return graph


def with_a_half_constant() -> Graph:
    graph, x = plain()
    two = graph.tensor_scalar(2.0, scalar_type.COMPILE_TIME_CONST)
    two.set_data_type(data_type.HALF)
    graph.mul(x, two).set_output(True)
    return graph


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (symbolic, r"symbolic extents \(M\): a cuDNN plan is for one set of extents"),
        (with_an_optional_output, "is optional: a cuDNN plan writes every output"),
        (with_a_half_constant, "a constant 2.0 of HALF"),
    ],
)
def test_graphs_that_cannot_be_said(make: Any, reason: str) -> None:
    graph = make()
    graph.validate()

    class Stub:
        """Takes whatever is said before the refusal."""

        def __getattr__(self, name: str) -> Any:
            return Stub()

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return Stub()

    with pytest.raises(cudnnGraphNotSupportedError, match=reason):
        to_frontend(graph, Stub())


def test_which_scalars_a_call_gives() -> None:
    graph, _ = plain()
    value = graph.tensor([1], None, "FLOAT", is_pass_by_value=True)
    assert passed_by_call(value)
    value.pass_by_value = 3.0
    assert passed_by_call(value)
    assert not passed_by_call(graph.tensor_scalar(2.0, scalar_type.COMPILE_TIME_CONST))
    assert passed_by_call(graph.tensor_scalar(2.0, scalar_type.RUNTIME_PARAM))
