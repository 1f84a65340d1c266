"""The pack rules beside a plain Python statement of them, over random declarations and buffers.

``bench/pack.py`` compares 10^5 cases and more.
"""

import random

import pack_cases
import pytest

CASES = 600  # of each seed
FEATURES = {
    "accepted", "graph_described", "own strides", "override", "address", "not requested",
    "blob of another width", "storage of the same width", "symbol of a buffer",
    "4-bit, graph_described", "4-bit, own strides", "4-bit, override",
    "F8_128x4, graph_described", "F8_128x4, override",
    "ragged, graph_described", "ragged, own strides", "ragged, override",
    "alignment", "capacity", "device", "dtype", "extents", "overlap", "presence",
    "readonly", "symbol_range", "symbol_unbound",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_random_calls(seed):
    for number in range(CASES):
        case = pack_cases.case(random.Random(f"test {seed}/{number}"))
        assert pack_cases.executed(case) == pack_cases.stated(case), (number, case)


def test_random_calls_are_of_every_kind():
    """So that the comparison above is not one of refusals alone."""
    missing = set(FEATURES)
    for number in range(20_000):
        case = pack_cases.case(random.Random(f"kinds/{number}"))
        missing -= pack_cases.features(case, pack_cases.stated(case))
        if not missing:
            return
    raise AssertionError(missing)
