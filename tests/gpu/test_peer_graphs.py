"""Graphs of matmuls that the peer's frontend and public programs write, bound as those programs
bind them (``tests/data/peer_graphs``): each has a plan of ours, and accept means run.

The store comes from ``CUDNN_AOT_TEST_PEER_STORE``, which ``scripts/collect_gpu_host.sh`` builds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from graph_tables import peer_matmuls
from torch_reference import EIGHT_BITS, assert_close, execute, operands

from cudnn_aot import runtime
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import cudnnGraphNotSupportedError

VARIABLE = "CUDNN_AOT_TEST_PEER_STORE"
TARGET = "h200"
DECLINED = {"fi_mm_fp4_m512": "F8_128x4"}
NAMES = [path.stem for path in peer_matmuls() if path.stem not in DECLINED]
OVERRIDE = [name for name in NAMES if "override" in name]
ROWS = (1, 16, 17, 512, 8192)
CALLS = 4  # that are alike: from the third on the launch is one that was learnt


class Peer:
    """The store, and the graphs that its plans were built from."""

    def __init__(self, path: str) -> None:
        self.reader, self.store = StoreReader(Path(path)), runtime.open(path, target=TARGET)

    def graph(self, name: str) -> Graph:
        pointer = self.reader.pointer(TARGET, self.reader.name(TARGET, name)["graph_key"])
        return graph_json.loads(self.reader.blob(pointer["graph"]).decode()).freeze()


@pytest.fixture(scope="module")
def peer() -> Peer:
    path = os.environ.get(VARIABLE)
    if not path:
        pytest.skip(f"{VARIABLE} names no store: see docs/gpu-host.md")
    return Peer(path)


# ---- How programs bind --------------------------------------------------------------------------


def as_bytes(buffer: torch.Tensor) -> torch.Tensor:
    return buffer.view(torch.uint8) if buffer.dtype in EIGHT_BITS else buffer


def matrices(graph: Graph, bound: dict[int, Any]) -> dict[int, Any]:
    """Matrices for ``[1, rows, columns]``, vectors for rows and offsets, 0-d numbers, and 8-bit
    floats as bytes.
    """
    factors = {id(t) for node in graph.nodes if node.op == "matmul" for t in node.inputs.values()}
    made = {}
    for tensor in (*graph.inputs(), *graph.outputs()):
        buffer = as_bytes(bound[tensor.uid])
        is_row = tensor.dim[:-1] == (1,) * (len(tensor.dim) - 1) and id(tensor) not in factors
        if tensor.dim[1:] == (1,) * (len(tensor.dim) - 1) and tensor.dim[0] != 1:
            buffer = buffer[:, 0, 0]
        elif buffer.numel() == 1:
            buffer = buffer[0, 0, 0]
        elif is_row:
            buffer = buffer[0, 0]
        elif tensor.dim[0] == 1:
            buffer = buffer[0]
        made[tensor.uid] = buffer
    return made


def blobs(bound: dict[int, Any]) -> dict[int, Any]:
    """The memory of each buffer as a vector; numbers are vectors of one."""
    made = {}
    for uid, each in bound.items():
        buffer = as_bytes(each)
        steps = sum((n - 1) * step for n, step in zip(each.shape, each.stride(), strict=True))
        assert 1 + steps == each.numel()
        made[uid] = buffer.as_strided((each.numel(),), (1,))
    return made


def overrides(graph: Graph, bound: dict[int, Any]) -> dict[str, Any]:
    """This call's extents and strides of every tensor that the declaration leaves open."""
    changing = [
        tensor
        for tensor in (*graph.inputs(), *graph.outputs())
        if any(not isinstance(extent, int) for extent in tensor.dim)
    ]
    return {
        "override_uids": [tensor.uid for tensor in changing],
        "override_shapes": [list(bound[tensor.uid].shape) for tensor in changing],
        "override_strides": [list(bound[tensor.uid].stride()) for tensor in changing],
    }


def given(
    graph: Graph, bound: dict[int, Any], symbols: dict[str, int], way: str
) -> tuple[dict[int, Any], dict[str, Any]]:
    """What a program gives to `Plan.execute`: buffers by uid, and other arguments."""
    if way == "blobs":
        return blobs(bound), {"symbols": symbols or None}
    buffers = bound if way == "declared" else matrices(graph, bound)
    call = overrides(graph, bound) if way == "overrides" else {}
    return buffers, {"symbols": None} | call


def check(peer: Peer, name: str, symbols: dict[str, int], way: str) -> None:
    graph, plan = peer.graph(name), peer.store.plan(name)
    assert plan.engine.startswith(("gemm.", "moe."))
    for seed in range(CALLS):
        bound = operands(graph, symbols, seed)
        buffers, call = given(graph, bound, symbols, way)
        execute(plan, buffers, symbols, **call)
        if seed in (0, CALLS - 1):
            assert_close(graph, bound)


# ---- Tests --------------------------------------------------------------------------------------


def test_every_graph_has_a_plan_and_no_others_are_declined(peer):
    built, declined = set(), set()
    for _, name in peer.reader.names():
        key = peer.reader.name(TARGET, name)["graph_key"]
        status = peer.reader.pointer(TARGET, key)["status"]
        (declined if status == "declined" else built).add(name)
    assert (built, declined) == (set(NAMES), set(DECLINED))
    assert len(NAMES) >= 27 and len(OVERRIDE) == 6


@pytest.mark.parametrize("name", DECLINED)
def test_what_is_declined_says_why(peer, name):
    with pytest.raises(cudnnGraphNotSupportedError, match=DECLINED[name]):
        peer.store.plan(name)


@pytest.mark.parametrize("way", ["declared", "matrices", "blobs"])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in OVERRIDE])
def test_graph(peer, name, way):
    check(peer, name, {}, way)


@pytest.mark.parametrize("way", ["declared", "matrices", "blobs", "overrides"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", OVERRIDE)
def test_graph_of_any_rows(peer, name, rows, way):
    check(peer, name, dict.fromkeys(peer.graph(name).symbols, rows), way)


@pytest.mark.parametrize("name", OVERRIDE)
def test_rows_that_change_from_call_to_call(peer, name):
    """One plan; inputs in buffers of more rows than the call says."""
    graph, plan = peer.graph(name), peer.store.plan(name)
    ((symbol, _),) = graph.symbols.items()
    for rows in (16, 1, 512, 17, 16):
        symbols = {symbol: rows}
        bound = operands(graph, symbols, seed=rows)
        buffers, call = given(graph, bound, symbols, "overrides")
        for uid, shape in zip(call["override_uids"], call["override_shapes"], strict=True):
            if uid not in {tensor.uid for tensor in graph.outputs()}:
                room = torch.full(
                    (1024, shape[-1]), torch.nan, dtype=bound[uid].dtype, device=bound[uid].device
                )
                room[:rows].copy_(bound[uid][0])
                buffers[uid] = room
        execute(plan, buffers, symbols, **call)
        assert_close(graph, bound)
