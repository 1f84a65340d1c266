"""A plan record read back is the plan that it was made from, at the same place of the list."""

from __future__ import annotations

import json

import gemm_graphs
import pytest

from cudnn_aot.cache.canonical import canonical_bytes
from cudnn_aot.cache.compile import KernelEntry
from cudnn_aot.compiler.build.records import plan_record
from cudnn_aot.compiler.graph.instantiate import instantiate
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.program.built import Bound, planned_of
from cudnn_aot.compiler.target.target import load_target

GRAPHS = {
    "fixed": lambda: gemm_graphs.plain("g", 512, 512, 4096),
    "ranges": lambda: gemm_graphs.plain("g", "M", 512, 256, symbols=gemm_graphs.ANY_M),
}


@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
def test_a_record_is_the_plan_that_it_was_made_from(make, place):
    target = load_target("h200")
    plans = PlanList(make(), target)
    place %= len(plans)
    planned = plans.lower(place)
    entries = [KernelEntry(k.key, "f", "0", "0", 1, {}, False, 0.0) for k in planned.kernels]
    written = canonical_bytes(plan_record(plans.graph.key(), target.name, planned, entries))
    specs = [json.loads(canonical_bytes(spec.canonical())) for spec in planned.kernels]
    read = planned_of(json.loads(written), specs)
    assert read.kernels == planned.kernels and read.ranges == planned.ranges
    assert canonical_bytes(read.table) == canonical_bytes(planned.table)
    again = PlanList(make(), target, lowered=[read])
    assert len(again) == len(plans) and again.place_of(read) == place
    assert again.lower(place) is read and again.name(place) == plans.name(place)
    alone = PlanList(make(), target, (), lowered=[read])
    assert len(alone) == 1 and alone.engine_and_knobs(0) == plans.engine_and_knobs(place)


def test_a_spec_of_another_kernel_is_found():
    plans = PlanList(GRAPHS["fixed"](), load_target("h200"))
    (one, *_), (other, *_) = plans.lower(0).kernels, plans.lower(1).kernels
    entries = [KernelEntry(one.key, "f", "0", "0", 1, {}, False, 0.0)]
    record = plan_record(plans.graph.key(), "h200", plans.lower(0), entries)
    with pytest.raises(ValueError, match="has the spec of another"):
        planned_of(record, [other.canonical()])


def test_a_bound_plan_is_that_of_the_range_of_its_values():
    """And it has a place in the list of the concrete graph."""
    target = load_target("h200")
    plans = PlanList(GRAPHS["ranges"](), target)
    planned = plans.lower(0)
    assert len(planned.ranges) > 1
    entries = [KernelEntry(k.key, "f", "0", "0", 1, {}, False, 0.0) for k in planned.kernels]
    record = plan_record(plans.graph.key(), target.name, planned, entries)
    specs = [spec.canonical() for spec in planned.kernels]
    for part in planned.ranges:
        ((symbol, (low, high)),) = part.bounds.items()
        for value in (low, high):
            read = planned_of(record, specs, Bound({symbol: value}, {}))
            assert (read.engine_name, read.knobs, read.ranges) == (part.engine_name, part.knobs, ())
            case = instantiate(GRAPHS["ranges"](), {symbol: value})
            concrete = PlanList(case, target, lowered=[read])
            assert concrete.engine_and_knobs(concrete.place_of(read))[0] == part.engine_id
    with pytest.raises(LookupError):
        planned_of(record, specs, Bound({symbol: 10**9}, {}))
