"""The hard cases of a launch table, on a device: several steps, branches, absent operands,
capture.
"""

from __future__ import annotations

import threading

import pytest
import torch
from torch_reference import assert_close, execute, operands

from cudnn_aot import runtime
from cudnn_aot.errors import RefusedError
from cudnn_aot.recipes.gemm.sm90 import MAX_SMS


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def test_two_step_plan_with_fill_workspace_and_sm_count(stored):
    plan = stored.plan("stream_k")
    branch = plan.table["branches"]["stream_k"]
    assert [step["step"] for step in branch["steps"]] == ["fill", "kernel"]
    sm_count = ["min", ["attr", "sm_count"], MAX_SMS]
    assert {"arg": "int", "value": sm_count} in branch["steps"][1]["args"]
    assert plan.workspace_bytes() > 0
    graph = stored.graph("stream_k")
    bound = operands(graph, {})
    execute(plan, bound, {})  # the workspace is poisoned: the fill must zero the counters
    assert_close(graph, bound)


def test_workspace_too_small_missing_or_misaligned_is_refused(stored):
    plan = stored.plan("stream_k")
    bound = operands(stored.graph("stream_k"), {})
    need = plan.workspace_bytes()
    room = torch.empty(need + 256, dtype=torch.uint8, device="cuda")
    for workspace in (None, room[: need - 1], room[1 : need + 1]):
        with pytest.raises(RefusedError, match="workspace"):
            plan.execute(bound, workspace, stream=stream())


@pytest.mark.parametrize("absent", [False, True])
def test_optional_output(stored, absent):
    graph = stored.graph("optional_output")
    bound = operands(graph, {})
    before = next(t for t in graph.outputs() if t.is_optional)
    if absent:
        del bound[before.uid]
    execute(stored.plan("optional_output"), bound, {})
    after = next(t for t in graph.outputs() if not t.is_optional)
    expected = graph, {**bound, before.uid: bound.get(before.uid)}
    assert_close(*expected)
    assert bound[after.uid].isfinite().all()


@pytest.mark.parametrize("port", ["A", "B", "out"])
def test_misaligned_pointer_takes_the_slower_branch(stored, port):
    """An address that TMA cannot take is served, not refused; the result is the same."""
    graph = stored.graph("bench_512x4096x4096")
    bound = operands(graph, {})
    tensor = graph.outputs()[0] if port == "out" else graph.nodes[0].inputs[port]
    aligned = bound[tensor.uid]
    shifted = torch.full((aligned.numel() + 1,), float("nan"), dtype=aligned.dtype, device="cuda")[
        1:
    ].as_strided(aligned.shape, aligned.stride(), 1)
    assert shifted.data_ptr() % 16 == 2
    shifted.copy_(aligned)
    bound[tensor.uid] = shifted
    execute(stored.plan("bench_512x4096x4096"), bound, {})
    assert_close(graph, bound)


@pytest.mark.parametrize("m", [1, 77, 512])
def test_own_strides_are_honoured(stored, m):
    """A buffer of the declared extents inside a wider one: rows further apart than declared."""
    graph = stored.graph("dynamic_m")
    bound = operands(graph, {"M": m})
    for uid in (graph.nodes[0].inputs["A"].uid, graph.outputs()[0].uid):
        dense = bound[uid]
        wide = torch.full(
            (1, m, dense.shape[-1] + 64), float("nan"), dtype=dense.dtype, device="cuda"
        )
        bound[uid] = wide[..., : dense.shape[-1]]
        bound[uid].copy_(dense)
    execute(stored.plan("dynamic_m"), bound, {})
    assert_close(graph, bound)


def test_bare_addresses_under_a_symbolic_extent(stored):
    graph = stored.graph("dynamic_m_chain")
    symbols = {"M": 321}
    bound = operands(graph, symbols)
    addresses = {uid: buffer.data_ptr() for uid, buffer in bound.items()}
    plan = stored.plan("dynamic_m_chain")
    execute(plan, addresses, symbols)
    assert_close(graph, bound)
    with pytest.raises(RefusedError, match="M") as refused:
        plan.execute(addresses, None, stream=stream())
    assert refused.value.rule == "symbol_unbound"


def test_symbol_bound_from_a_two_dimensional_buffer(stored):
    graph = stored.graph("dynamic_m")
    bound = operands(graph, {"M": 130})
    flat = {uid: buffer[0] for uid, buffer in bound.items() if uid != 2} | {2: bound[2]}
    execute(stored.plan("dynamic_m"), flat, {})
    assert_close(graph, bound)


def test_zero_extent_launches_nothing(stored):
    """A call without rows runs nothing on the device, and is no error."""
    graph = stored.graph("dynamic_m")
    bound = operands(graph, {"M": 0})
    plan = stored.plan("dynamic_m")
    plan.prepare(0)
    torch.cuda.synchronize()
    assert _count_launches(lambda: plan.execute(bound, None, stream=stream())) == 0
    rows = operands(graph, {"M": 3})
    assert _count_launches(lambda: plan.execute(rows, None, stream=stream())) == 1


def _count_launches(call) -> int:
    """Kernels and memsets that the device ran for the call."""
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        call()
        torch.cuda.synchronize()
    device = torch.autograd.DeviceType.CUDA
    return sum(event.device_type == device for event in profile.events())


def test_first_call_after_prepare_inside_capture(stored):
    """`prepare` leaves nothing lazy: the first execute of a fresh plan is captured and replayed."""
    for name in ("swish", "stream_k"):
        graph = stored.graph(name)
        bound = operands(graph, {})
        plan = runtime.open(stored.path, target="h200").plan(name)
        before = {uid: b.clone() for uid, b in bound.items() if isinstance(b, torch.Tensor)}
        plan.prepare(0)
        plan.prepare(0)
        torch.cuda.synchronize()
        for uid, buffer in before.items():
            assert torch.equal(buffer.nan_to_num(7), bound[uid].nan_to_num(7))
        room = torch.full((plan.workspace_bytes(),), 255, dtype=torch.uint8, device="cuda")
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            plan.execute(bound, room, stream=stream())
        for _ in range(3):
            bound[graph.outputs()[0].uid].fill_(float("nan"))
            captured.replay()
            torch.cuda.synchronize()
            assert_close(graph, bound)


def test_threads_on_their_own_streams(stored):
    """The pointer array is per call: eight threads, one plan, no result in another's buffer."""
    graph = stored.graph("dynamic_m_chain")
    plan = stored.plan("dynamic_m_chain")
    plan.prepare(0)
    faults: list[BaseException] = []

    def work(index: int) -> None:
        try:
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                bound = operands(graph, {"M": 100 + index}, seed=index)
                for _ in range(25):
                    bound[graph.outputs()[0].uid].fill_(float("nan"))
                    plan.execute(bound, None, stream=side.cuda_stream)
                side.synchronize()
                assert_close(graph, bound)
                side.synchronize()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda b: {**b, 1: b[1][:, :-1]}, "extents"),
        (lambda b: {**b, 1: b[1].flatten()[:-1]}, "capacity"),
        (lambda b: {**b, 1: b[1].float()}, "dtype"),
        (lambda b: {**b, 1: b[1].cpu()}, "device"),
        (lambda b: {uid: x for uid, x in b.items() if uid != 2}, "presence"),
    ],
    ids=["extents", "too-small", "dtype", "wrong-device", "missing"],
)
def test_refusals_launch_nothing(stored, change, rule):
    graph = stored.graph("swish")
    bound = operands(graph, {})
    plan = stored.plan("swish")
    out = graph.outputs()[0].uid
    with pytest.raises(RefusedError) as refused:
        plan.execute(change(bound), None, stream=stream())
    torch.cuda.synchronize()
    assert refused.value.rule == rule
    assert "\n" not in str(refused.value)
    assert bound[out].isnan().all()


def test_pass_by_value_scalar_is_required(stored):
    graph = stored.graph("column_and_scalars")
    bound = operands(graph, {})
    beta = next(t for t in graph.inputs() if t.is_pass_by_value)
    missing = {uid: buffer for uid, buffer in bound.items() if uid != beta.uid}
    with pytest.raises(RefusedError, match="beta"):
        stored.plan("column_and_scalars").execute(missing, None, stream=stream())
    torch.cuda.synchronize()
    assert bound[graph.outputs()[0].uid].isnan().all()
