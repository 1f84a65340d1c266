"""`graph`, `jit`, `graph_cache` and `Graph` give graphs that are built."""

from __future__ import annotations

import numpy as np
import pytest

import cudnn_aot as cudnn
from cudnn_aot.compiler.program import targets
from cudnn_aot.errors import RequirementError, UsageError, cudnnGraphNotSupportedError

A = np.ones((1, 4, 8), np.float32)
B = np.ones((1, 8, 16), np.float32)


@pytest.fixture
def no_device(monkeypatch):
    def absent():
        raise RequirementError("no CUDA device: got none")

    monkeypatch.setattr(targets, "_current_device", absent)


def product(**kwargs):
    @cudnn.jit(heur_modes=cudnn.heur_mode.A)
    def build():
        with cudnn.graph(None, "product", "FLOAT", **kwargs) as (g, _):
            a, b = g.tensor([1, 4, 8]), g.tensor([1, 8, 16])
            return g, [a, b, g.matmul(a, b).set_output(True)]

    return build()


def run(g, uids):
    c = np.zeros((1, 4, 16), np.float32)
    g.execute(dict(zip(uids, (A, B, c), strict=True)))
    assert (c == 8).all()


def test_jit_builds():
    g, uids = product(target="cpu")
    assert isinstance(g, cudnn.pygraph) and g.get_execution_plan_count() == 1
    assert g.get_workspace_size() == 0
    run(g, uids)


def test_jit_without_a_target_builds_when_it_is_first_needed(no_device, monkeypatch):
    g, uids = product()
    assert g.is_frozen and g.plans == []
    monkeypatch.setenv(targets.VARIABLE, "cpu")
    run(g, uids)
    assert g._program._modes == (cudnn.heur_mode.A,)


def test_jit_raises_a_decline():
    @cudnn.jit()
    def build():
        with cudnn.graph(None, target="cpu") as (g, _):
            return g, [g.relu(g.tensor([4])).set_output(True)]

    with pytest.raises(cudnnGraphNotSupportedError):
        build()


def wrapped(**kwargs):
    with cudnn.Graph(
        io_data_type="FLOAT", intermediate_data_type="FLOAT", compute_data_type="FLOAT", **kwargs
    ) as g:
        g.matmul(A=A, B=B, name="fc").set_output(True)
    return g


def test_a_wrapped_graph_is_called_with_buffers_in_order():
    g = wrapped(inputs=["fc::A", "fc::B"], outputs=["fc::C"], target="cpu")
    assert g.graph.get_execution_plan_count() == 1
    assert (g(2 * A, B) == 16).all()
    with pytest.raises(UsageError, match="got 1 buffers, want 2"):
        g(A)


def test_a_wrapped_graph_is_called_with_buffers_by_name():
    g = wrapped(target="cpu")
    given = {"fc::A": A, "fc::B": 3 * B}
    assert g(given) is given
    assert (given["fc::C"] == 24).all()
    mine = np.zeros((1, 4, 16), np.float32)
    g({"fc::A": A, "fc::C": mine}, handle=cudnn.create_handle())
    assert (mine == 8).all()  # B is bound in the graph
    with pytest.raises(UsageError, match="got a buffer for 'fc::Z', want one of fc::A"):
        g({"fc::Z": A})
    with pytest.raises(UsageError, match="set_io_tuples"):
        g(A, B)


def test_a_wrapped_graph_without_a_target(no_device):
    g = wrapped()
    assert g.graph.is_frozen and g.graph.plans == []
    with pytest.raises(UsageError, match="no target to plan for"):
        g({"fc::A": A, "fc::B": B})


def test_results_are_laid_out_as_declared():
    with cudnn.Graph(
        io_data_type="FLOAT",
        intermediate_data_type="FLOAT",
        compute_data_type="FLOAT",
        target="cpu",
    ) as g:
        c = g.matmul(A=A, B=B, name="fc").set_output(True)
        c.set_dim([1, 4, 16]).set_stride([64, 1, 4])
    g.set_io_tuples(["fc::A", "fc::B"], ["fc::C"])
    result = g(A, B)
    assert result.strides == (256, 4, 16) and (result == 8).all()
