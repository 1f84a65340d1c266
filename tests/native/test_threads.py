"""Many threads at once on one plan, each with buffers of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from tables import kernel, operand, scalar, symbol, table, whole

from cudnn_aot import _native

THREADS = 16
TURNS = 10_000

X = operand(1, ["M", 4], [4, 1])
Y = operand(9, ["M", 4], [4, 1], kind="output")
STEP = kernel(whole(Y), whole(X), {"arg": "scalar", "operand": 3})
SCALE = table([X, scalar(3), Y], STEP, symbols={"M": symbol(1, 64)})


def run_all(work: Callable[[int], None], threads: int = THREADS) -> None:
    """Runs `work` of each number at once; the first fault of any is raised here."""
    faults: list[BaseException] = []
    start = threading.Barrier(threads)

    def guarded(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as fault:
            faults.append(fault)

    running = [threading.Thread(target=guarded, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if faults:
        raise faults[0]


def test_one_plan_and_sixteen_threads(load):
    """Every call has other numbers: a pointer, a number or a shape of another call shows."""
    plan = _native.Plan(SCALE, [load("scale")])

    def work(number: int) -> None:
        rows = 1 + number % 5  # of some threads the same: they share what the plan remembers
        source = np.full((rows, 4), number + 1, np.float32)
        results = [np.empty((rows, 4), np.float32) for _ in range(3)]
        bindings = [{1: source, 3: 0.0, 9: result} for result in results]
        for turn in range(TURNS):
            call, result = bindings[turn % 3], results[turn % 3]
            call[3] = turn
            plan.execute(call)
            if result[0, 0] != (number + 1) * turn or result[-1, 3] != (number + 1) * turn:
                raise AssertionError((number, turn, result))

    run_all(work)


def test_addresses_callers_and_launchers_of_one_plan(load):
    """The other ways to call, with more shapes than a plan remembers."""
    plan = _native.Plan(SCALE, [load("scale")])

    def work(number: int) -> None:
        caller = plan.caller([9, 1, 3])
        for turn in range(300):
            rows = 1 + (number * 7 + turn) % 23
            source = np.full((rows, 4), number + 1, np.float32)
            result = np.empty_like(source)
            match (number + turn) % 3:
                case 0:
                    addresses = {1: source.ctypes.data, 3: turn, 9: result.ctypes.data}
                    plan.execute(addresses, symbols={"M": rows})
                case 1:
                    caller(result, source, turn)
                case 2:
                    again = plan.launcher({1: source, 3: turn, 9: np.empty_like(source)})
                    again(source.ctypes.data, result.ctypes.data)
            assert (result == (number + 1) * turn).all(), (number, turn)

    run_all(work, 8)


def test_refusals_and_calls_at_once(load):
    """A refused call of one thread says nothing of another's."""
    plan = _native.Plan(SCALE, [load("scale")])

    def work(number: int) -> None:
        source = np.full((2 + number, 4), 3, np.float32)
        result = np.zeros_like(source)
        for _ in range(300):
            plan.execute({1: source, 3: 2.0, 9: result})
            assert (result == 6).all()
            try:
                plan.execute({1: source, 3: 2.0, 9: result[: 1 + number]})
            except ValueError as refused:
                assert f"got float32 [{1 + number}, 4]" in str(refused)
            else:
                raise AssertionError("a short output was taken")

    run_all(work, 8)
