"""Graphs of a process with a CUDA device, seen by CUDA libraries that stand in for it.

Kernels are compiled; nothing computes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cuda_stand_in import run

import cudnn_aot as cudnn
from cudnn_aot.compiler.build.driver import build
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.target.target import load_target

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


DEVICES = {
    "h200": ({}, True),
    "h20": ({"sm_count": 78}, True),
    "mig": ({"sm_count": 16, "l2": 6553600}, True),
    "b200": ({"major": 10, "sm_count": 148}, False),
}


def test_what_is_stored_for_other_targets_serves_a_device_that_meets_it(tmp_path: Path) -> None:
    """A store built for an H100, and for a slice that no shipped target is."""
    slice_ = load_target("h100").descriptor() | {"name": "my_slice", "sm_count": 24}
    (tmp_path / "slice.json").write_text(json.dumps(slice_))
    for target, uid in (("h100", 4), (tmp_path / "slice.json", 99)):  # two graphs of one kernel
        graph = cudnn.pygraph("linear", "HALF", "FLOAT", "FLOAT")
        a, b, bias = (graph.tensor(dim) for dim in ([1, 64, 63], [1, 63, 64], [1, 1, 64]))
        graph.relu(graph.bias(graph.matmul(a, b), bias)).set_uid(uid).set_output(True)
        path = tmp_path / f"{uid}.json"
        path.write_text(graph_json.dumps(graph))
        build([path], [str(target)], tmp_path / "store")
    for device, is_served in DEVICES.values():
        served_on(device, is_served, tmp_path / "store")


def test_a_plan_of_the_cpu_serves_no_device(tmp_path: Path) -> None:
    """It would run, on addresses of the device."""
    graph = cudnn.pygraph("linear", "HALF", "FLOAT", "FLOAT")
    a, b, bias = graph.tensor([1, 64, 64]), graph.tensor([1, 64, 64]), graph.tensor([1, 1, 64])
    graph.relu(graph.bias(graph.matmul(a, b), bias)).set_output(True)
    path, store = tmp_path / "linear.json", tmp_path / "store"
    path.write_text(graph_json.dumps(graph))
    build([path], ["cpu"], store)
    run(
        f"""
import os
os.environ |= {{"CUDNN_AOT_STORE": {str(store)!r}, "CUDNN_AOT_FORBID_COMPILE": "1"}}
os.environ["CUDNN_AOT_CACHE"] = {str(tmp_path / "overlay")!r}
"""
        + GRAPH
        + """
g, _ = make()
try: g.build()
except errors.Error as error: assert "CUDNN_AOT_FORBID_COMPILE" in str(error), error
else: raise AssertionError(g._program.current.plan)
named, _ = make(target="cpu")
named.build()
assert named._program.current.plan.target == "cpu"
"""
    )


def served_on(device: dict[str, int], is_served: bool, store: Path) -> None:
    run(
        f"""
import os
os.environ |= {{"CUDNN_AOT_STORE": {str(store)!r}, "CUDNN_AOT_FORBID_COMPILE": "1"}}
"""
        + GRAPH
        + f"""
def declare(uid, **kwargs):
    g = cudnn.pygraph("linear", "HALF", "FLOAT", "FLOAT", **kwargs)
    a, b, bias = (g.tensor(dim) for dim in ([1, 64, 63], [1, 63, 64], [1, 1, 64]))
    g.relu(g.bias(g.matmul(a, b), bias)).set_uid(uid).set_output(True)
    return g
for uid, holder in ((4, "h100"), (99, "my_slice")):
    g = declare(uid)
    try: g.build()
    except errors.Error as error: said = str(error)
    else: said = ""
    assert (said == "") is {is_served}, said
    if {is_served}:
        assert g._program.current.plan.target == holder, g._program.current.plan
named = declare(4, target="h200")
named.build()  # planned for it, with the kernel that is there
assert named._program.current.plan.target == "h200"
""",
        **device,
    )
