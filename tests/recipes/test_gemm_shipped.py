"""The heuristics alone beside what was measured and is shipped: they rank what was not measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gemm_graphs

from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.planning.shipped import shipped_folder
from cudnn_aot.compiler.planning.tuning import read_entries
from cudnn_aot.compiler.target.target import load_target

H200 = load_target("h200")
ENTRIES = read_entries(shipped_folder(manifest.FAMILIES[0]) / "h200.json")
# How much slower than the fastest the first choice of the heuristics may be, where an entry has it;
# and of how many entries it must be one of the plans: those within 10 % of the fastest, as far as
# they are shipped.
SLOWER, SHARE = 1.08, 0.85
# A graph of each class that was measured.
CLASSES = {"BFLOAT16xBFLOAT16 kk []  -> BFLOAT16": gemm_graphs.plain}

_Plan = tuple[str, tuple[tuple[str, int], ...]]


def plans_of(entry: dict[str, Any]) -> dict[_Plan, float]:
    """Microseconds, by engine and knobs."""
    return {
        (plan["engine"], tuple(sorted(plan["knobs"].items()))): plan["us"]
        for plan in entry["plans"]
    }


def first_choice(entry: dict[str, Any]) -> _Plan:
    """What is ranked first of an entry's graph, of which nothing is known to be measured."""
    batch, m, n, k = (entry["extents"][name] for name in ("batch", "m", "n", "k"))
    plans = PlanList(CLASSES[entry["layout_class"]]("g", m, n, k, batch=batch), H200)
    assert plans.facts.layout_class == entry["layout_class"]
    assert plans.facts.extents == entry["extents"]
    planned = plans.lower(0)
    return planned.engine_name, tuple(sorted(planned.knobs.items()))


def lags() -> Iterator[tuple[dict[str, int], float | None]]:
    """By the extents of each entry, how many times as long as the fastest the heuristics' first
    choice takes; None where the entry does not have it.
    """
    for entry in ENTRIES:
        times = plans_of(entry)
        us = times.get(first_choice(entry))
        yield entry["extents"], None if us is None else us / min(times.values())


def test_the_heuristics_choose_what_was_measured_to_be_fast() -> None:
    found = list(lags())
    assert found
    known = [(lag, extents) for extents, lag in found if lag is not None]
    slow = [(lag, extents) for lag, extents in known if lag > SLOWER]
    assert not slow, slow
    unknown = [extents for extents, lag in found if lag is None]
    assert len(known) >= SHARE * len(found), unknown


def test_what_is_shipped_first_is_nearly_the_fastest() -> None:
    assert ENTRIES
    for entry in ENTRIES:
        times = [plan["us"] for plan in entry["plans"]]
        assert times[0] <= 1.02 * min(times) * (1 + 1e-9), entry["extents"]
        assert max(times) <= 1.11 * min(times) and times[1:] == sorted(times[1:])
