"""Which target a graph is planned for."""

from __future__ import annotations

import json

import pytest

import cudnn_aot as cudnn
from cudnn_aot import _native
from cudnn_aot.compiler.program import targets
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import RequirementError, UsageError
from cudnn_aot.runtime import requirements

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


def test_a_descriptor_file_stands_where_a_name_does(linear, monkeypatch, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(load_target("cpu").descriptor() | {"name": "my_cpu"}))
    its = linear(target=str(path))
    its.graph.build()
    assert its.graph._program.current.plan.target == "my_cpu"
    its.graph.execute(its.pack())
    its.check()
    monkeypatch.setenv(targets.VARIABLE, str(path))
    by_variable = linear(target=None)
    by_variable.graph.build()
    assert by_variable.graph._program.current.plan.target == "my_cpu"
    copy = cudnn.pygraph()
    copy.deserialize(by_variable.graph.serialize())
    assert copy._program.target == load_target(str(path))


@pytest.fixture
def no_device(monkeypatch):
    def absent():
        raise RequirementError("no CUDA device: got none")

    monkeypatch.setattr(targets, "_current_device", absent)


def test_the_argument_comes_before_the_variable_and_that_before_the_device(linear, monkeypatch):
    device(monkeypatch)
    assert targets.choose_target().target.name == "h200"
    monkeypatch.setenv(targets.VARIABLE, "h100")
    assert targets.choose_target().target.name == "h100"
    assert targets.choose_target("cpu").target.name == "cpu"
    g = linear(target=None, io="HALF").graph
    g.create_execution_plans()
    assert g._program.target.name == "h100"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "h200"),
        ({"l2_bytes": 52_428_800}, "h100"),
        ({"sm_count": 114, "l2_bytes": 50_000_000}, "h100_pcie"),
        ({"sm_count": 78}, "h20"),
        ({"sm_count": 60, "l2_bytes": 31_457_280}, "h200_mig_3g"),
        ({"sm_count": 16, "l2_bytes": 7_864_320}, "h100_mig_3g"),
        ({"compute_capability": (10, 0), "sm_count": 148}, "b200"),
        ({"compute_capability": (10, 3)}, None),
        ({"driver_version": 12_000}, None),
        ({"smem_optin_bytes": 101_376}, None),
    ],
)
def test_a_device_is_matched_by_what_it_has(changes, name):
    found = targets.nearest_target(H200 | changes)
    assert (found and found.name) == name


def test_a_device_is_matched_by_targets_of_its_host(monkeypatch):
    """h200 and gh200 are one GPU beside two processors."""
    arm = _native.Host("aarch64-linux-gnu", "2.36", [])
    monkeypatch.setattr(requirements, "this_host", lambda: arm)
    found = targets.nearest_targets(H200)
    assert [target.name for target in found] == ["gh200"]


def test_no_target_lists_those_that_there_are(linear, no_device, monkeypatch):
    g = linear(target=None).graph
    with pytest.raises(UsageError, match=r"no CUDA device.*CUDNN_AOT_TARGET one of b200, cpu, "):
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
