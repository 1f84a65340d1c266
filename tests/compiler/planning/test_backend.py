"""Asking cuDNN for plans: what is said where it cannot be asked, and how its answers are kept.

cuDNN itself is asked in tests/gpu. Here a stand-in answers, to see the bookkeeping.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from exchange import Writable
from frontend_wheel import real_frontend  # noqa: F401  (a fixture)

from cudnn_aot import _native
from cudnn_aot.compiler.formats.load import load_graphs
from cudnn_aot.compiler.graph.enums import behavior_note
from cudnn_aot.compiler.graph.graph import Graph
from cudnn_aot.compiler.planning import backend
from cudnn_aot.compiler.planning.backend import (
    Backend,
    BackendPlan,
    Device,
    backend_entries,
    backend_key,
    backend_plan,
    backend_requirements,
    backend_table,
    entries_of,
    find_backend,
    plan_of,
)
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.compiler.planning.knobs import knob_type
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import RefusedError

H200 = load_target("h200")
DEVICE = Device((9, 0), 132, 13010)


def product(m: int = 64, **fields: Any) -> Graph:
    graph = Graph("product", "BFLOAT16", "FLOAT", "FLOAT", **fields)
    a = graph.tensor([1, m, 32], name="A", uid=1)
    b = graph.tensor([1, 32, 16], name="B", uid=2)
    alpha = graph.tensor([1, 1, 1], None, "FLOAT", is_pass_by_value=True, name="alpha", uid=5)
    alpha.pass_by_value = 2.0
    graph.mul(graph.matmul(a, b), alpha).set_output(True).set_uid(9)
    graph.validate()
    return graph


class Declined(Exception):
    pass


class Lowered:
    """cuDNN's graph: appends the plans of each mode to one list, as cuDNN does."""

    PLANS = {
        "A": [(4, {"KERNEL_CFG": 3, "TILE_M": 1}), (7, {}), (-1, {}), (10_000, {})],
        "FALLBACK": [(7, {}), (11, {"STAGES": 2}), (4, {"TILE_M": 1, "KERNEL_CFG": 3})],
        "B": None,
    }

    def __init__(self) -> None:
        self.plans: list[Any] = []

    def create_execution_plans(self, modes: list[Any]) -> None:
        (mode,) = modes
        if self.PLANS[mode] is None:
            raise Declined(f"no valid engine\nconfigs for mode {mode}")
        self.plans += self.PLANS[mode]

    def get_execution_plan_count(self) -> int:
        return len(self.plans)

    def get_engine_and_knobs_at_index(self, index: int) -> Any:
        engine, knobs = self.plans[index]
        return engine, {knob_type[name]: value for name, value in knobs.items()}

    def get_plan_name_at_index(self, index: int) -> str:
        return f"eng{self.plans[index][0]}"

    def get_behavior_notes_for_plan_at_index(self, index: int) -> Any:
        return [behavior_note.CUBLASLT_DEPENDENCY] if self.plans[index][0] == 7 else []


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Backend:
    monkeypatch.setattr(backend, "_lower", lambda found, graph: Lowered())
    modes = SimpleNamespace(A="A", B="B", FALLBACK="FALLBACK")
    frontend = SimpleNamespace(heur_mode=modes, cudnnGraphNotSupportedError=Declined)
    return Backend(frontend, object(), "9.19.0", "1.32.0", DEVICE)


def test_each_plan_has_the_mode_that_proposed_it_first(found: Backend) -> None:
    entries = entries_of(found, product())
    assert isinstance(entries, list)
    assert [(e.engine_id, e.knobs, e.mode, e.index, e.name) for e in entries] == [
        (4, (("KERNEL_CFG", 3), ("TILE_M", 1)), "A", 0, "eng4"),
        (7, (), "A", 1, "eng7"),
        (11, (("STAGES", 2),), "FALLBACK", 5, "eng11"),
    ]
    assert [entry.notes for entry in entries] == [(), ("CUBLASLT_DEPENDENCY",), ()]
    again = entries_of(found, product(), ("FALLBACK", "A", "A"))
    assert isinstance(again, list)
    assert [(e.engine_id, e.mode) for e in again] == [(7, "FALLBACK"), (11, "FALLBACK"),
                                                      (4, "FALLBACK")]  # fmt: skip


def test_a_mode_without_plans_is_no_decline_while_another_has_some(found: Backend) -> None:
    entries = entries_of(found, product(), ("B", "A"))
    assert isinstance(entries, list) and len(entries) == 2
    refusal = entries_of(found, product(), ("B",))
    assert refusal == Refusal("mode B: no valid engine configs for mode B")


def test_another_error_than_a_decline_propagates(
    found: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Lowered, modes: list[Any]) -> None:
        raise RuntimeError("CUDNN_STATUS_INTERNAL_ERROR")

    monkeypatch.setattr(Lowered, "create_execution_plans", fails)
    with pytest.raises(RuntimeError, match="INTERNAL_ERROR"):
        entries_of(found, product())


class Unbuildable(Lowered):
    def create_execution_plan(self, engine: int, knobs: Any) -> None:
        self.plans.append((engine, {}))

    def build_plan_at_index(self, index: int) -> None:
        raise RuntimeError("CUDNN_STATUS_NOT_SUPPORTED\nat finalize")


def test_a_plan_that_does_not_build_is_declined_while_the_device_works(
    found: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_lower", lambda found, graph: Unbuildable())
    frontend = found.frontend
    frontend.knob_type = knob_type
    frontend.create_handle, frontend.destroy_handle = object, lambda handle: None
    refusal = plan_of(found, product(), 4, {"TILE_M": 1})
    assert refusal == Refusal("CUDNN_STATUS_NOT_SUPPORTED at finalize")

    def gone() -> Any:
        raise RuntimeError("CUDNN_STATUS_INTERNAL_ERROR")

    frontend.create_handle = gone
    with pytest.raises(RuntimeError, match="INTERNAL_ERROR"):
        plan_of(found, product(), 4, {})


def test_ids_that_are_not_cudnn_s(found: Backend) -> None:
    refusal = plan_of(found, product(), 20_000, {})
    assert refusal == Refusal("engine 20000 is not cuDNN's: want 0 to 9999")


def test_without_a_driver() -> None:
    if not isinstance(backend._device(), Refusal):
        pytest.skip("this host has a driver")
    refusal = backend_entries(product(), H200)
    assert isinstance(refusal, Refusal)
    assert refusal.reason.startswith("cuDNN makes plans on a GPU host only: ")
    assert backend_plan(product(), H200, 4, {}) == refusal


def test_a_target_without_a_gpu() -> None:
    assert find_backend(load_target("cpu")) == Refusal(
        "cuDNN runs on GPUs, and target cpu has none"
    )


@pytest.mark.parametrize(
    ("device", "found"),
    [
        (replace(DEVICE, compute_capability=(8, 0)), "8.0 with 132 SMs"),
        (replace(DEVICE, sm_count=78), "9.0 with 78 SMs"),
    ],
)
def test_another_device_than_the_target_s(
    device: Device, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_device", lambda: device)
    refusal = find_backend(H200)
    assert isinstance(refusal, Refusal)
    assert f"got compute capability {found}, want compute capability 9.0 with 132 SMs for h200" in (
        refusal.reason
    )


def fake(**fields: Any) -> SimpleNamespace:
    made = {"__version__": "1.32.0", "backend_version": lambda: 91900, "create_handle": object}
    return SimpleNamespace(**(made | fields))


def no_library() -> int:
    raise RuntimeError("Unable to find symbol cudnnGetVersion")


@pytest.mark.parametrize(
    ("frontend", "reason"),
    [
        (None, "the cuDNN frontend is not installed: pip install 'cudnn-aot[cudnn]'"),
        (fake(__version__="1.9.0"), "cuDNN frontend: got 1.9.0, want 1.32"),
        (fake(__version__="1.33.1"), "cuDNN frontend: got 1.33.1, want 1.32"),
        (fake(backend_version=no_library), "no libcudnn: Unable to find symbol cudnnGetVersion"),
        (fake(backend_version=lambda: 8907), "cuDNN: got 0.89.7, want 9"),
    ],
)
def test_what_must_be_installed(
    frontend: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_device", lambda: DEVICE)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: frontend)
    monkeypatch.setattr("importlib.import_module", lambda name: frontend)
    assert find_backend(H200) == Refusal(reason)


def test_the_frontend_without_cudnn(real_frontend: Path) -> None:  # noqa: F811
    """The real one imports with neither cuDNN nor a driver, and says what it lacks."""
    if not isinstance(backend._device(), Refusal):
        pytest.skip("this host has a driver, and may have cuDNN")
    script = """
import json
from cudnn_aot.compiler.planning import backend
from cudnn_aot.compiler.target.target import load_target
from cudnn_aot.errors import RefusedError
backend._device = lambda: backend.Device((9, 0), 132, 13010)
print(json.dumps(backend.find_backend(load_target("h200")).reason))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(real_frontend)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).startswith("no libcudnn: ")


def test_ops_that_cudnn_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("g", "BFLOAT16", "FLOAT", "FLOAT")
    q, k, v = (graph.tensor([24, 4, 64], name=name) for name in "qkv")
    g, beta = (graph.tensor([24, 4], None, "FLOAT", name=name) for name in ("g", "beta"))
    starts = graph.tensor([4], None, "INT32", name="starts")
    graph.gdn(q, k, v, g, beta, starts)[0].set_output(True)
    found = Backend(SimpleNamespace(), None, "9.19.0", "1.32.0", DEVICE)
    refusal = entries_of(found, graph)
    assert refusal == Refusal("node 'gdn.0' (gdn): cuDNN has no such op")
    symbolic = Graph("g", "BFLOAT16", "FLOAT", "FLOAT", symbols={"M": {"max": 64}})
    symbolic.relu(symbolic.tensor(["M", 8], name="x")).set_output(True)
    refusal = entries_of(found, symbolic)
    assert isinstance(refusal, Refusal) and refusal.reason.startswith("symbolic extents (M)")


PEER = Path(__file__).parents[2] / "data" / "peer_graphs"
UINT8 = (1, 8, 1)
PLAN = BackendPlan(4, (("KERNEL_CFG", 3),), "eng4", b"blob", (1, 2, 5, 9), 4096, ())


def test_the_launch_table_is_one_that_the_executor_takes() -> None:
    graph = product()
    entry = backend_table(graph, PLAN)
    assert isinstance(entry, dict)
    described = _native.Plan(entry)
    assert described.uids == (1, 2, 5, 9) and described.workspace_bytes() == 4096
    assert [operand["kind"] for operand in entry["operands"]] == ["input", "input", "scalar",
                                                                  "output"]  # fmt: skip
    assert entry["operands"][2]["value"] == 2.0
    assert entry["branches"]["cudnn"]["steps"] == [
        {"step": "backend", "blob": 0, "uids": [1, 2, 5, 9], "slice": "cudnn"}
    ]
    # Axes of one element have no stride that counts.
    strides = [check for check in entry["checks"] if check["rule"] == "equal"]
    assert [(check["operand"], check["a"][2], check["b"]) for check in strides] == [
        (1, 1, 32), (1, 2, 1), (2, 1, 16), (2, 2, 1), (9, 1, 16), (9, 2, 1)]  # fmt: skip
    plain = backend_table(graph, replace(PLAN, workspace_bytes=0))
    assert isinstance(plain, dict) and _native.Plan(plain).workspace_bytes() == 0


def test_a_type_that_a_table_cannot_name() -> None:
    graph = Graph("g", "FP8_E5M3", "FLOAT", "FLOAT")
    graph.identity(graph.tensor([4, 8], name="x")).set_output(True)
    graph.validate()
    refusal = backend_table(graph, PLAN)
    assert isinstance(refusal, Refusal) and "of type FP8_E5M3" in refusal.reason


def test_a_table_of_4_bit_operands_and_reordered_scales() -> None:
    """Declarations are in elements, strides of a call in slots."""
    (graph,) = load_graphs(PEER / "real_programs" / "fi_mm_fp4_m512.json")
    entry = backend_table(graph, replace(PLAN, uids=(1, 2, 3, 4, 5, 9)))
    assert isinstance(entry, dict)
    operands = {operand["uid"]: operand for operand in entry["operands"]}
    assert operands[1]["stride"] == [3670016, 7168, 1]
    assert [uid for uid in operands if "reordering_type" in operands[uid]] == [3, 4]
    plan = _native.Plan(entry | {"device": "cpu"})
    matrices = {
        1: Writable(4096, (512, 3584), None, UINT8),
        2: Writable(4096, (3584, 1024), (1, 3584), UINT8),
    }
    bindings = dict.fromkeys((3, 4, 5, 9), 4096) | matrices
    assert plan.resolve(bindings)["operands"][2]["stride"] == [3670016, 1, 3584]
    for stride in ((3600, 1), (1, 512)):
        with pytest.raises(RefusedError) as refused:
            plan.resolve(bindings | {1: Writable(4096, (512, 3584), stride, UINT8)})
        assert (refused.value.rule, refused.value.operand) == ("equal", 1)


def test_what_a_plan_requires(found: Backend) -> None:
    assert backend_requirements(found, H200) == {
        "cudnn": "9.19.0",
        "gpu_arch": "sm_90a",
        "sm_count": 132,
        "driver_min": 13000,
        "host_triple": "x86_64-linux-gnu",
    }


def test_the_key_is_of_graph_target_cudnn_and_device(found: Backend) -> None:
    changed = [
        backend_key(found, product(), H200),
        backend_key(found, product(65), H200),
        backend_key(found, product(), replace(H200, l2_bytes=1)),
        backend_key(replace(found, version="9.19.1"), product(), H200),
        backend_key(replace(found, frontend_version="1.32.1"), product(), H200),
        backend_key(replace(found, device=replace(DEVICE, sm_count=131)), product(), H200),
        backend_key(found, product(), H200, ("A",)),
    ]
    assert len(set(changed)) == len(changed)
    newer_driver = replace(found, device=replace(DEVICE, driver_version=13020))
    assert backend_key(newer_driver, product(), H200) == changed[0]


def test_planning_imports_nothing_of_the_frontend_until_it_is_asked() -> None:
    script = """
import sys
import cudnn_aot.compiler.planning.backend
assert "cudnn" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
