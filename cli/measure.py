"""How fast plans of one graph are beside each other, each found right first.

All plans run on the same operands, in turns: what the machine does meanwhile falls on all alike. On
a GPU a measurement is the replay of a CUDA graph of many launches, which go round enough sets of
operands that none lies in L2 still; so neither the host nor what a cache holds is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cudnn_aot.errors import LaunchError, RefusedError, RequirementError

if TYPE_CHECKING:
    from cudnn_aot.cli.operands import Operands, Reference

_REPLAY_US = 1000.0  # what one measurement takes at least, by launching more often
_LAUNCHES = 20  # at most in one measurement
_SETS = 16  # of operands, at most
# Slower than the fastest by this in the first rounds: it will not become the fastest any more.
_HOPELESS = 1.25
_FIRST_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Measured:
    """One plan: its median time of a launch, or why it has none.

    Attributes:
        error: of the outputs, in units of the tolerance.
        rounds: how often it was measured; one that was hopeless was left out of the later rounds.
    """

    microseconds: float | None
    rounds: int = 0
    error: float = 0.0
    fault: str = ""


Call = Callable[[], None]

# Of a plan, that say nothing of the others.
_REFUSALS = (LaunchError, RefusedError, RequirementError)


def measure(
    plans: Sequence[Any],
    operands: Operands,
    reference: Reference,
    symbols: Mapping[str, int],
    device: int,
    rounds: int,
) -> list[Measured]:
    """The plans of one graph, in their order; all of them are of one device kind.

    Args:
        symbols: values of the graph's symbols.
        device: index of the CUDA device; without meaning for CPU plans.
        rounds: how often each plan is timed.
    """
    place = _on_cpu if plans[0].device == "cpu" else _on_gpu
    if plans[0].device != "cpu":
        plans[0].prepare(device)  # says what this machine lacks better than CUDA's runtime does
    with place(operands, device, [plan.workspace_bytes(symbols) for plan in plans]) as bench:
        checked = [_check(plan, bench, operands, reference, symbols) for plan in plans]
        timed: dict[int, Callable[[], float]] = {}
        for index, found in enumerate(checked):
            if not found.fault:
                try:
                    timed[index] = bench.timer(plans[index], symbols)
                except _REFUSALS as error:
                    checked[index] = replace(found, fault=_in_a_line(error))
        times: dict[int, list[float]] = {index: [] for index in timed}
        left = set(timed)
        for number in range(rounds):
            for index in sorted(left):
                times[index].append(timed[index]())
            if number + 1 == _FIRST_ROUNDS and left:
                best = min(min(times[index]) for index in left)
                left = {index for index in left if min(times[index]) <= _HOPELESS * best}
    return [
        Measured(statistics.median(times[index]), len(times[index]), found.error)
        if index in times
        else found
        for index, found in enumerate(checked)
    ]


def _check(
    plan: Any,
    bench: _Bench,
    operands: Operands,
    reference: Reference,
    symbols: Mapping[str, int],
) -> Measured:
    """Its error on poisoned outputs; the fault says what is wrong."""
    for buffer in operands.outputs:
        buffer.poison()
    try:
        bench.run(plan, symbols)
    except _REFUSALS as error:
        return Measured(None, fault=_in_a_line(error))
    worst = reference.worst_error(operands.outputs)
    fault = "" if worst <= 1.0 else f"wrong result: {worst:.3g} times the tolerance"
    return Measured(None, 0, worst, fault)


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _Bench:
    """Where plans run: buffers in place."""

    def run(self, plan: Any, symbols: Mapping[str, int]) -> None:
        """Once, from the operands and into them."""
        raise NotImplementedError

    def timer(self, plan: Any, symbols: Mapping[str, int]) -> Callable[[], float]:
        """What gives the microseconds of a launch, each time it is called."""
        raise NotImplementedError


class _Cpu(_Bench):
    def __init__(self, operands: Operands, workspace: Any) -> None:
        self._workspace = workspace
        self._bindings: dict[int, Any] = dict(operands.scalars)
        self._bindings |= {b.uid: b.view for b in (*operands.inputs, *operands.outputs)}

    def run(self, plan: Any, symbols: Mapping[str, int]) -> None:
        plan.execute(self._bindings, self._workspace, symbols=dict(symbols))

    def timer(self, plan: Any, symbols: Mapping[str, int]) -> Callable[[], float]:
        def many(count: int) -> float:
            started = time.perf_counter()
            for _ in range(count):
                self.run(plan, symbols)
            return (time.perf_counter() - started) * 1e6 / count

        count = _launches(many(1))
        return lambda: many(count)


@contextmanager
def _on_cpu(operands: Operands, device: int, workspaces: Sequence[int]) -> Iterator[_Bench]:
    import numpy as np

    yield _Cpu(operands, np.empty(max(workspaces), np.uint8))


class _Gpu(_Bench):
    def __init__(self, gpu: Any, operands: Operands) -> None:
        self._gpu, self._operands = gpu, operands
        self._taken: list[int] = []
        self._graphs: list[int] = []
        self._workspace = 0
        self._sets: list[dict[int, Any]] = []

    def allocate(self, workspace_bytes: int) -> None:
        """The workspace and the sets of operands; what there is when it fails, `close` frees."""
        gpu, operands = self._gpu, self._operands
        buffers = (*operands.inputs, *operands.outputs)
        total = sum(buffer.flat.nbytes for buffer in buffers)
        count = min(_SETS, max(2, -(-2 * gpu.l2_bytes // max(total, 1))))
        self._workspace = self._take(workspace_bytes)
        for _ in range(count):
            bindings: dict[int, Any] = dict(operands.scalars)
            for buffer in buffers:
                bindings[buffer.uid] = self._take(buffer.flat.nbytes)
            self._sets.append(bindings)
        for buffer in operands.inputs:
            source = self._sets[0][buffer.uid]
            gpu.upload(source, buffer.flat)
            for bindings in self._sets[1:]:
                gpu.copy(bindings[buffer.uid], source, buffer.flat.nbytes)

    def close(self) -> None:
        self._gpu.synchronize()
        for graph in self._graphs:
            self._gpu.free_graph(graph)
        for address in self._taken:
            self._gpu.free(address)

    def run(self, plan: Any, symbols: Mapping[str, int]) -> None:
        plan.prepare(self._gpu.index)
        for buffer in self._operands.outputs:
            self._gpu.upload(self._sets[0][buffer.uid], buffer.flat)
        self._launch(plan, symbols, 1)
        self._gpu.synchronize()
        for buffer in self._operands.outputs:
            self._gpu.download(buffer.flat, self._sets[0][buffer.uid])

    def timer(self, plan: Any, symbols: Mapping[str, int]) -> Callable[[], float]:
        once = self._timed(lambda: self._launch(plan, symbols, 1))
        count = _launches(once)
        graph = self._gpu.capture(lambda: self._launch(plan, symbols, count))
        self._graphs.append(graph)
        self._gpu.replay(graph)
        return lambda: self._timed(lambda: self._gpu.replay(graph)) / count

    def _launch(self, plan: Any, symbols: Mapping[str, int], count: int) -> None:
        given = dict(symbols)
        for number in range(count):
            bindings = self._sets[number % len(self._sets)]
            plan.execute(bindings, self._workspace, stream=self._gpu.stream, symbols=given)

    def _timed(self, work: Call) -> float:
        milliseconds: list[float] = []
        with self._gpu.timed(milliseconds):
            work()
        return 1e3 * milliseconds[0]

    def _take(self, size_bytes: int) -> int:
        address: int = self._gpu.allocate(size_bytes)
        self._taken.append(address)
        return address


@contextmanager
def _on_gpu(operands: Operands, device: int, workspaces: Sequence[int]) -> Iterator[_Bench]:
    from cudnn_aot.cli.device import Device
    from cudnn_aot.runtime import cudart

    bench = _Gpu(Device(cudart.find(), device), operands)
    try:
        bench.allocate(max(workspaces))
        yield bench
    finally:
        bench.close()


def _launches(once_us: float) -> int:
    """How many launches make one measurement."""
    return max(1, min(_LAUNCHES, round(_REPLAY_US / max(once_us, 1.0))))
