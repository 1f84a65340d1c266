"""Graphs that are planned and executed in the process that declares them.

With the compiler beside the device everything is compiled here, into a folder of its own. Without
it the plan of the store under test serves, and what needs another plan is skipped.
"""

from __future__ import annotations

import os
from typing import Any

import gemm_graphs
import pytest
import torch
from torch_reference import assert_close

import cudnn_aot as cudnn
from cudnn_aot.cache.toolchain import why_no_dsl
from cudnn_aot.compiler.program.targets import choose_target

HAS_COMPILER = why_no_dsl("4.8.1") is None
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="the compiler is not installed")


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("in_process") / "store")


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, overlay: str) -> None:
    for name in ("CUDNN_AOT_STORE", "CUDNN_AOT_TARGET", "CUDNN_AOT_FORBID_COMPILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDNN_AOT_CACHE", overlay)
    if not HAS_COMPILER:
        store = os.environ.get("CUDNN_AOT_TEST_STORE")
        if not store:
            pytest.fail("needs the compiler, or CUDNN_AOT_TEST_STORE naming a store")
        monkeypatch.setenv("CUDNN_AOT_STORE", store)


class Linear:
    """Y = relu(A @ B + bias) in bfloat16 with its buffers on the device."""

    def __init__(self, **kwargs: Any) -> None:
        types = cudnn.data_type
        self.graph = cudnn.pygraph(
            "linear",
            io_data_type=types.BFLOAT16,
            intermediate_data_type=types.FLOAT,
            compute_data_type=types.FLOAT,
            **kwargs,
        )
        self.a, self.b, self.bias, self.y = gemm_graphs.linear(self.graph)
        torch.manual_seed(3)
        inputs = [torch.randn(t.dim, device="cuda") for t in (self.a, self.b, self.bias)]
        inputs[1] *= self.a.dim[-1] ** -0.5
        self.inputs = [each.bfloat16() for each in inputs]
        rows, columns = self.a.dim[-2], self.b.dim[-1]
        self.result = torch.empty(1, rows, columns, device="cuda", dtype=torch.bfloat16)
        self.result.fill_(torch.nan)

    def pack(self) -> dict[Any, torch.Tensor]:
        keys = (self.a, self.b, self.bias, self.y)
        return dict(zip(keys, [*self.inputs, self.result], strict=True))

    def by_uid(self) -> dict[int, torch.Tensor]:
        return {tensor.uid: buffer for tensor, buffer in self.pack().items()}

    def workspace(self) -> torch.Tensor:
        room = self.graph.get_workspace_size()
        return torch.full((room,), 0xFF, dtype=torch.uint8, device="cuda")

    def check(self) -> None:
        """The result is right; it is poisoned for the next call."""
        torch.cuda.synchronize()
        assert_close(self.graph, self.by_uid())
        self.result.fill_(torch.nan)


def test_the_current_device_is_the_target():
    it = Linear()
    it.graph.create_execution_plans()
    target = choose_target().target
    assert it.graph._program.target == target and target.kind == "cuda"
    assert it.graph.get_execution_plan_count() > 1


def test_build_and_execute_as_programs_do():
    it = Linear()
    it.graph.validate()
    it.graph.build_operation_graph()
    it.graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    it.graph.check_support()
    it.graph.build_plans()
    it.graph.execute(it.pack(), it.workspace())
    it.check()


def test_what_was_compiled_is_loaded_by_the_next_graph(monkeypatch):
    Linear().graph.build()
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", "1")
    it = Linear()
    it.graph.build()
    assert it.graph._program._plans is None  # nothing was planned
    it.graph.execute(it.pack(), it.workspace())
    it.check()


@needs_compiler
@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_pinned_plan_runs(place):
    it = Linear()
    it.graph.create_execution_plans()
    place %= it.graph.get_execution_plan_count()
    it.graph.select_plan(place)
    it.graph.build_plans()
    assert it.graph.get_plan_name() == it.graph.get_plan_name_at_index(place)
    it.graph.execute(it.pack(), it.workspace())
    it.check()


def test_the_plan_in_use_can_be_pinned():
    it = Linear()
    it.graph.build()
    name = it.graph.get_plan_name()
    it.graph.select_plan(it.graph._program.place)
    it.graph.build_plans()
    assert it.graph.get_plan_name() == name
    it.graph.execute(it.pack(), it.workspace())
    it.check()


@needs_compiler
def test_a_recorded_plan_is_replayed():
    it = Linear()
    it.graph.create_execution_plans()
    record = it.graph.get_engine_and_knobs_at_index(1)
    again = Linear()
    again.graph.create_execution_plan(*record)
    again.graph.build_plans()
    again.graph.execute(again.pack(), again.workspace())
    again.check()


@needs_compiler
def test_one_plan_of_the_list_runs_beside_the_one_in_use():
    it = Linear()
    it.graph.build()
    room = it.graph.get_workspace_size_plan_at_index(1)
    workspace = torch.empty(room, dtype=torch.uint8, device="cuda")
    it.graph.execute_plan_at_index(it.pack(), workspace, 1)
    it.check()


FORMS = {
    "tensor": lambda it: it.pack(),
    "name": lambda it: {tensor.name: buffer for tensor, buffer in it.pack().items()},
    "uid": lambda it: it.by_uid(),
    "address": lambda it: {uid: buffer.data_ptr() for uid, buffer in it.by_uid().items()},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_a_pack(form):
    it = Linear()
    it.graph.build()
    it.graph.execute(form(it), it.workspace())
    it.check()


def test_a_list_with_uids():
    it = Linear()
    it.graph.build()
    pack = dict(reversed(it.by_uid().items()))
    it.graph.execute(list(pack.values()), it.workspace(), tensor_uids=list(pack))
    it.check()


@pytest.mark.parametrize("whose", ["call", "graph"])
def test_a_handle_names_the_stream(whose):
    """The stream is held up before the launch: on any other one the operand would not be there."""
    stream, handle = torch.cuda.Stream(), cudnn.create_handle()
    cudnn.set_stream(handle, stream.cuda_stream)
    it = Linear(handle=handle if whose == "graph" else None)
    it.graph.build()
    pack, workspace = it.pack(), it.workspace()
    pack[it.a] = torch.full_like(it.inputs[0], torch.nan)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        pack[it.a].copy_(it.inputs[0])
    it.graph.execute(pack, workspace, handle=handle if whose == "call" else None)
    stream.synchronize()
    it.check()


def test_a_captured_call_is_replayed():
    it = Linear()
    it.graph.build()
    pack, workspace, handle = it.pack(), it.workspace(), cudnn.create_handle()
    it.graph.execute(pack, workspace)  # what is lazy happens here
    it.check()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        cudnn.set_stream(handle, torch.cuda.current_stream().cuda_stream)
        it.graph.execute(pack, workspace, handle=handle)
    it.result.fill_(torch.nan)
    captured.replay()
    it.check()


def test_a_plan_as_bytes(monkeypatch, tmp_path):
    it = Linear()
    it.graph.build()
    data = it.graph.serialize(as_bytes=True)
    monkeypatch.setenv("CUDNN_AOT_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("CUDNN_AOT_FORBID_COMPILE", "1")
    g = cudnn.pygraph()
    g.deserialize(cudnn.create_handle(), data)
    workspace = torch.empty(g.get_workspace_size(), dtype=torch.uint8, device="cuda")
    g.execute(it.by_uid(), workspace)
    it.check()


@needs_compiler
def test_a_wrapped_graph_on_torch_tensors():
    it = Linear()
    a, b, bias = it.inputs
    with cudnn.Graph(
        io_data_type=torch.bfloat16,
        intermediate_data_type=torch.float32,
        compute_data_type=torch.float32,
        handle="auto",
        inputs=["fc::A", "fc::B", "act::bias"],
        outputs=["relu::OUT_0"],
    ) as g:
        y = g.relu(g.bias(g.matmul(A=a, B=b, name="fc"), bias=bias, name="act"), name="relu")
        y.set_output(True)
    it.result = g(a, b, bias)
    assert it.result.is_cuda and it.result.dtype is torch.bfloat16
    it.graph.validate()  # the reference reads its types
    it.check()
