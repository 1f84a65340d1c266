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


@pytest.fixture(scope="module")
def hopper_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store built for an H100, and for a slice that no shipped target is."""
    folder = tmp_path_factory.mktemp("hopper")
    slice_ = load_target("h100").descriptor() | {"name": "my_slice", "sm_count": 24}
    (folder / "slice.json").write_text(json.dumps(slice_))
    graphs = {}
    for target, rows in (("h100", 64), (folder / "slice.json", 128)):
        graph = cudnn.pygraph("linear", "HALF", "FLOAT", "FLOAT")
        a, b = graph.tensor([1, rows, 64]), graph.tensor([1, 64, 64])
        graph.relu(graph.bias(graph.matmul(a, b), graph.tensor([1, 1, 64]))).set_output(True)
        graphs[target] = folder / f"{rows}.json"
        graphs[target].write_text(graph_json.dumps(graph))
        build([graphs[target]], [str(target)], folder / "store")
    return folder / "store"


@pytest.mark.parametrize(
    ("device", "is_served"),
    [
        ({}, True),
        ({"sm_count": 78}, True),
        ({"sm_count": 16, "l2": 6553600}, True),
        ({"major": 10, "sm_count": 148}, False),
    ],
    ids=["h200", "h20", "mig", "b200"],
)
def test_what_is_stored_for_other_targets_serves_a_device_that_meets_it(
    hopper_store: Path, device: dict[str, int], is_served: bool
) -> None:
    run(
        f"""
import os
os.environ |= {{"CUDNN_AOT_STORE": {str(hopper_store)!r}, "CUDNN_AOT_FORBID_COMPILE": "1"}}
"""
        + GRAPH
        + f"""
for rows, holder in ((64, "h100"), (128, "my_slice")):
    g = cudnn.pygraph("linear", "HALF", "FLOAT", "FLOAT")
    a, b = g.tensor([1, rows, 64]), g.tensor([1, 64, 64])
    g.relu(g.bias(g.matmul(a, b), g.tensor([1, 1, 64]))).set_output(True)
    try: g.build()
    except errors.Error as error: said = str(error)
    else: said = ""
    assert (said == "") is {is_served}, said
    if {is_served}:
        assert g._program.current.plan.target == holder, g._program.current.plan
named = cudnn.pygraph("linear", "HALF", "FLOAT", "FLOAT", target="h200")
a, b = named.tensor([1, 64, 64]), named.tensor([1, 64, 64])
named.relu(named.bias(named.matmul(a, b), named.tensor([1, 1, 64]))).set_output(True)
named.build()  # planned for it, with the kernel that is there
assert named._program.current.plan.target == "h200"
""",
        **device,
    )
