"""One entry of a store on two GPUs of one process. Skipped on a machine with one."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch_reference import assert_close, operands

from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.errors import RefusedError

needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
pytestmark = [pytest.mark.gpu, needs_two]

NAME = "bench_128x256x128"


def buffers(graph: Graph, device: int) -> dict[int, Any]:
    """Random operands on a device, the outputs poisoned."""
    with torch.cuda.device(device):
        return operands(graph, {}, seed=device)


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("default_stream", [True, False])
def test_each_call_runs_where_its_operands_are(stored, current, default_stream):
    """Whatever device is current, which stays so."""
    plan = stored.plan(NAME)
    with torch.cuda.device(current):
        for _ in range(5):  # from the start, as a call that is known, by a learnt launch
            for device in (0, 1):
                bound = buffers(stored.graph(NAME), device)
                stream = None if default_stream else torch.cuda.Stream(device)
                torch.cuda.synchronize(device)
                plan.execute(bound, stream=stream)
                torch.cuda.synchronize(device)
                assert torch.cuda.current_device() == current
                assert_close(stored.graph(NAME), bound)


def test_a_stream_of_the_other_device_is_refused(stored):
    plan = stored.plan(NAME)
    bound = buffers(stored.graph(NAME), 1)
    own, other = torch.cuda.Stream(1), torch.cuda.Stream(0)
    for _ in range(3):
        with pytest.raises(RefusedError, match="stream: got one of cuda:0, want one of cuda:1"):
            plan.execute(bound, stream=other)
        plan.execute(bound, stream=own)
    own.synchronize()
    assert_close(stored.graph(NAME), bound)


def test_operands_on_two_devices_are_refused(stored):
    plan = stored.plan(NAME)
    bound = buffers(stored.graph(NAME), 0)
    bound[max(bound)] = buffers(stored.graph(NAME), 1)[max(bound)]
    with pytest.raises(RefusedError, match="got cuda:1, want cuda:0"):
        plan.execute(bound)


@pytest.mark.parametrize("current", [0, 1])
def test_prepare_makes_the_first_call_fit_for_capture_on_either_device(stored, current):
    """Each case has a plan that no other test here has run."""
    name = ("bench_512x4096x4096", "bench_64x4096x4096")[current]
    plan = stored.plan(name)
    with torch.cuda.device(current):
        for device in (0, 1):
            plan.prepare(device)
    for device in (1, 0):
        bound = buffers(stored.graph(name), device)
        with torch.cuda.device(device):
            graph = torch.cuda.CUDAGraph()
            # The stream that torch would capture on is one of the first device that it was used on.
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(device)):
                plan.execute(bound, stream=torch.cuda.current_stream())
            graph.replay()
            torch.cuda.synchronize()
        assert_close(stored.graph(name), bound)


def test_threads_on_both_devices_at_once(stored):
    plan = stored.plan(NAME)
    failures: list[BaseException] = []

    def work(device: int) -> None:
        try:
            stream = torch.cuda.Stream(device)
            for _ in range(200):
                bound = buffers(stored.graph(NAME), device)
                torch.cuda.synchronize(device)
                plan.execute(bound, stream=stream)
                stream.synchronize()
                assert_close(stored.graph(NAME), bound)
        except BaseException as failure:  # seen by the test, not lost with the thread
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
