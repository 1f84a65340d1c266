"""Plans as torch operators on the GPU, and buffers of other frameworks."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch_reference import TOLERANCE, assert_close, operands

from cudnn_aot.runtime.torch import define

K, N = 520, 1000  # of `dynamic_m_chain`: gelu(A @ B + bias) + residual, any M
OUT = "add.0::OUT_0"


@pytest.fixture(scope="module")
def chain(stored) -> Any:
    plan = stored.plan("dynamic_m_chain")
    plan.prepare(0)
    return define("cudnn_aot_gpu::chain", plan, ["A", "B", "bias", "residual"])


def arguments(stored, m: int) -> list[torch.Tensor]:
    graph = stored.graph("dynamic_m_chain")
    bound = operands(graph, {"M": m}, seed=m)
    uids = stored.plan("dynamic_m_chain").uids
    return [bound[uids[name]] for name in ("A", "B", "bias", "residual")]


def check(stored, tensors: list[torch.Tensor], result: torch.Tensor) -> None:
    uids = stored.plan("dynamic_m_chain").uids
    names = ("A", "B", "bias", "residual", OUT)
    assert_close(
        stored.graph("dynamic_m_chain"),
        {uids[name]: each for name, each in zip(names, (*tensors, result), strict=True)},
    )


@pytest.mark.parametrize("m", [1, 77, 2048])
def test_an_operator_computes(stored, chain, m):
    tensors = arguments(stored, m)
    check(stored, tensors, chain(*tensors))


def test_torchs_own_checks_of_an_operator(stored, chain):
    torch.library.opcheck(chain, tuple(arguments(stored, 64)))


def test_it_runs_on_torchs_current_stream(stored, chain):
    tensors = arguments(stored, 256)
    late = [each.clone() for each in tensors]
    late[0].fill_(torch.nan)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        late[0].copy_(tensors[0])
        result = chain(*late)
    stream.synchronize()
    check(stored, tensors, result)


def test_compiled_with_dynamic_shapes(stored, chain):
    compiled = torch.compile(lambda *tensors: chain(*tensors) * 2, fullgraph=True, dynamic=True)
    for m in (33, 100):
        tensors = arguments(stored, m)
        check(stored, tensors, compiled(*tensors) / 2)  # doubling is exact


def test_captured_into_a_cuda_graph(stored, chain):
    tensors = arguments(stored, 512)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = chain(*tensors)
    for seed in (1, 2):
        for tensor, fresh in zip(tensors, arguments(stored, 512), strict=True):
            tensor.copy_(fresh * seed)
        result.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        check(stored, tensors, result)


@pytest.mark.parametrize("framework", ["cupy", "jax"])
def test_arrays_of_other_frameworks(stored, framework):
    """Through DLPack; arrays of jax cannot be written and are inputs."""
    module = pytest.importorskip(framework)
    if framework == "jax":
        module.devices()
        torch.cuda.set_device(0)  # jax leaves the last device current
    tensors = arguments(stored, 130)
    torch.cuda.synchronize()
    if framework == "cupy":
        foreign = [module.from_dlpack(each.contiguous().view(torch.uint16)) for each in tensors]
        result = module.full((1, 130, N), 0xFFFF, dtype=module.uint16)  # NaN
        written = torch.from_dlpack(result).view(torch.bfloat16)
    else:
        foreign = [module.dlpack.from_dlpack(each.contiguous()) for each in tensors]
        result = torch.full((1, 130, N), torch.nan, dtype=torch.bfloat16, device="cuda")
        written = result
    foreign[1] = tensors[1]  # B lies by columns: a dense array of its extents would be another one
    plan = stored.plan("dynamic_m_chain")
    names = ("A", "B", "bias", "residual", OUT)
    bound = {plan.uids[n]: each for n, each in zip(names, (*foreign, result), strict=True)}
    if framework == "cupy":
        module.cuda.Device().synchronize()
    plan.execute(bound)
    torch.cuda.synchronize()
    check(stored, tensors, written)


def test_sixteen_threads_and_ten_thousand_executes_each(stored):
    """Every thread has buffers and a stream of its own; every 500th result is compared whole."""
    graph, plan = stored.graph("bench_128x256x128"), stored.plan("bench_128x256x128")
    plan.prepare(0)
    (out,) = graph.outputs()
    rtol, atol = TOLERANCE["BFLOAT16"]
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                sets = [operands(graph, {}, seed=100 * seed + i) for i in range(4)]
                plan.execute(sets[0], stream=stream.cuda_stream)
                wanted = []
                for bound in sets:
                    a, b = (bound[tensor.uid].float() for tensor in graph.inputs())
                    wanted.append(a @ b)
                wrong = torch.zeros((), dtype=torch.int64, device="cuda")
                for turn in range(10_000):
                    bound, want = sets[turn % 4], wanted[turn % 4]
                    compared = turn % 500 < 4
                    if compared:
                        bound[out.uid].fill_(torch.nan)
                    plan.execute(bound, stream=stream.cuda_stream)
                    if compared:
                        near = (bound[out.uid].float() - want).abs() <= atol + rtol * want.abs()
                        wrong += (~near).sum()
            stream.synchronize()
            assert wrong.item() == 0
        except BaseException as failure:  # seen by the test, not lost with the thread
            failures.append(failure)

    torch.backends.cuda.matmul.allow_tf32 = False
    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
