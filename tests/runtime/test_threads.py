"""Several stores, plans and streams at once."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from served_store import put_plan

from cudnn_aot import runtime
from cudnn_aot.cache.writer import StoreWriter


@pytest.fixture
def stores(tmp_path):
    """Three stores of two plans; all plans have one kernel, which is loaded once."""
    made = []
    for number in range(3):
        folder = tmp_path / f"store{number}"
        for name in ("first", "second"):
            put_plan(StoreWriter(folder), name)
        made.append(folder)
    return made


def test_threads_open_load_and_execute_at_once(stores):
    """Some share a store object or a plan, some have their own; the host has one stream."""
    shared = [runtime.open(folder, target="cpu") for folder in stores]
    plans = [store.plan("first") for store in shared]
    faults: list[BaseException] = []
    start = threading.Barrier(16)

    def work(number: int) -> None:
        start.wait()
        for turn in range(12):
            match (number + turn) % 3:
                case 0:
                    plan = runtime.open(stores[turn % 3], target="cpu").plan("second")
                case 1:
                    plan = shared[turn % 3].plan("first")
                case _:
                    plan = plans[turn % 3]
            x = np.full((1 + number, 6), number + 1, np.float32)
            for call in range(40):
                y = np.empty_like(x)
                plan.execute({1: x, 3: float(turn + call), 9: y}, stream=call % 2)
                assert (y == (number + 1) * (turn + call)).all(), (number, turn, call)

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]
