"""Graphs of a process with a CUDA device, seen by CUDA libraries that stand in for it.

Kernels are compiled; nothing computes.
"""

from __future__ import annotations

import pytest
from cuda_stand_in import run

GRAPH = """
import cudnn_aot as cudnn
from cudnn_aot.compiler.program.targets import choose_target
def make(**kwargs):
    g = cudnn.pygraph("linear", "HALF", "FLOAT", "FLOAT", **kwargs)
    a, b, bias = g.tensor([1, 64, 64]), g.tensor([1, 64, 64]), g.tensor([1, 1, 64])
    y = g.relu(g.bias(g.matmul(a, b), bias)).set_output(True)
    return g, {t: OnDevice(t.dim, 0, 0x10000 * t.uid, "<f2") for t in (a, b, bias, y)}
"""


def test_the_current_device_names_the_target():
    run(
        GRAPH
        + """
assert choose_target().target.name == "h200"
g, _ = make()
g.create_execution_plans()
assert g.get_plan_name_at_index(0).startswith("gemm.sm90.persistent[")
"""
    )


@pytest.mark.slow
def test_a_graph_is_launched_on_the_stream_of_the_handle():
    log = run(
        GRAPH
        + """
handle, other = cudnn.create_handle(), cudnn.create_handle()
cudnn.set_stream(handle, 0xABC)
cudnn.set_stream(other, 0xDEF)
g, pack = make(handle=handle)
g.build([cudnn.heur_mode.A])
room = g.get_workspace_size() and 0x800000
g.execute(pack, room)
g.execute(pack, room, other)
copy = cudnn.pygraph()
copy.deserialize(g.serialize())
copy.execute({tensor.uid: buffer for tensor, buffer in pack.items()}, room)
"""
    )
    streams = [line.split(" stream ")[1].split()[0] for line in log if "launch " in line]
    assert streams == ["0xabc", "0xdef", "(nil)"]
