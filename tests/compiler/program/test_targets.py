"""Which target a graph is planned for."""

from __future__ import annotations

import pytest

from cudnn_aot.compiler.program import targets
from cudnn_aot.errors import RequirementError, UsageError

H200 = {
    "compute_capability": (9, 0),
    "sm_count": 132,
    "l2_bytes": 62_914_560,
    "smem_optin_bytes": 232_448,
    "driver_version": 13_000,
}


def device(monkeypatch, **changes):
    found = H200 | changes
    monkeypatch.setattr(targets, "_current_device", lambda: found)
    return found


@pytest.fixture
def no_device(monkeypatch):
    def absent():
        raise RequirementError("no CUDA device: got none")

    monkeypatch.setattr(targets, "_current_device", absent)


def test_the_argument_comes_before_the_variable_and_that_before_the_device(linear, monkeypatch):
    device(monkeypatch)
    assert targets.choose_target().name == "h200"
    monkeypatch.setenv(targets.VARIABLE, "h100")
    assert targets.choose_target().name == "h100"
    assert targets.choose_target("cpu").name == "cpu"
    g = linear(target=None, io="HALF").graph
    g.create_execution_plans()
    assert g._program.target.name == "h100"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "h200"),
        ({"l2_bytes": 52_428_800}, "h100"),
        ({"sm_count": 114, "l2_bytes": 50_000_000}, "h100"),
        ({"compute_capability": (10, 0)}, None),
        ({"driver_version": 12_000}, None),
        ({"smem_optin_bytes": 101_376}, None),
    ],
)
def test_a_device_is_matched_by_what_it_has(changes, name):
    found = targets.nearest_target(H200 | changes)
    assert (found and found.name) == name


def test_no_target_lists_those_that_there_are(linear, no_device, monkeypatch):
    g = linear(target=None).graph
    with pytest.raises(
        UsageError, match=r"no CUDA device.*CUDNN_AOT_TARGET one of cpu, h100, h200"
    ):
        g.build()
    assert not g.is_frozen  # nothing has happened to it
    monkeypatch.setenv(targets.VARIABLE, "cpu")
    g.build()


def test_a_device_of_no_known_target(linear, monkeypatch):
    device(monkeypatch, compute_capability=(8, 6))
    with pytest.raises(UsageError, match=r"compute capability 8\.6"):
        linear(target=None).graph.build()


def test_a_wrong_name(linear):
    with pytest.raises(UsageError, match=r"unknown target 'h300' \(did you mean"):
        linear(target="h300").graph.build()


def test_none_is_for_processes_that_describe_graphs_only(linear, monkeypatch):
    device(monkeypatch)
    monkeypatch.setenv(targets.VARIABLE, "none")
    assert not targets.is_target_known()
    with pytest.raises(UsageError, match="CUDNN_AOT_TARGET is 'none'"):
        linear(target=None).graph.build()
    assert targets.is_target_known("cpu")
