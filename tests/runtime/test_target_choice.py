"""Which target's plans a process gets that names none: requirements decide."""

from __future__ import annotations

from pathlib import Path

import pytest
from class_graphs import Linear
from cuda_stand_in import run
from served_store import SCALE, put_decline, put_plan

from cudnn_aot import errors, runtime
from cudnn_aot.cache.merge import merge
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.formats import graph_json
from cudnn_aot.runtime import requirements

TRIPLES = {"x86_64-linux-gnu", "aarch64-linux-gnu"}
HERE = {"host_triple": requirements.this_host().triple}
(FAR,) = TRIPLES - {HERE["host_triple"]}
ELSEWHERE = {"host_triple": FAR}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """As two builders and `merge` make it: h200 plans for this host and for another."""
    graph = Linear(m=64).graph()
    real = {"key": graph.key(), "graph": graph_json.dumps(graph).encode()}
    with StoreWriter(tmp_path / "here") as here, StoreWriter(tmp_path / "elsewhere") as elsewhere:
        for name, more in (("scale", {}), ("linear", real)):
            put_plan(here, name, "h200", requirements=HERE, **more)
            put_plan(elsewhere, name, "h200-other", requirements=ELSEWHERE, **more)
        put_plan(elsewhere, "far", "h200-other", requirements=ELSEWHERE)
        for target in ("a", "b"):
            put_plan(here, "twice", target, requirements=HERE)
            put_plan(elsewhere, "nowhere", target, requirements=ELSEWHERE)
        put_decline(here, "half", "a", "no engine takes it")
        put_plan(here, "half", "b", requirements=HERE)
    built = [StoreReader(tmp_path / name) for name in ("here", "elsewhere")]
    assert merge(built, tmp_path / "store").conflicts == []
    assert StoreReader(tmp_path / "store").verify() == []
    return tmp_path / "store"


def test_of_several_the_one_for_this_host(store: Path) -> None:
    opened = runtime.open(store)
    assert opened.plan("scale").target == "h200"
    assert opened.plan(Linear(m=64).graph()).target == "h200"
    assert [plan.target for plan in opened.plans(["scale", "linear"]).values()] == ["h200"] * 2
    assert opened.closure_digest(["scale"]) == opened.closure_digest(["scale"], "h200")
    assert opened.max_workspace(["scale"]) == 0


def test_one_that_was_named_is_that_one_and_no_other(store: Path) -> None:
    with pytest.raises(errors.RequirementError, match=f"requires {FAR}, found"):
        runtime.open(store, target="h200-other").plan("scale")
    with pytest.raises(errors.RequirementError, match=f"requires {FAR}, found"):
        runtime.open(store).plan(Linear(m=64).graph(), "h200-other")


def test_the_only_one_says_what_it_requires(store: Path) -> None:
    with pytest.raises(errors.RequirementError, match=f"requires {FAR}, found"):
        runtime.open(store).plan("far")


@pytest.mark.parametrize("name", ["twice", "nowhere", "half"])
def test_where_requirements_leave_no_one_it_is_asked(store: Path, name: str) -> None:
    with pytest.raises(errors.UsageError, match=f"'{name}' is stored for a, b: choose one with"):
        runtime.open(store).plan(name)


@pytest.mark.parametrize(
    ("device", "refusal"),
    [
        ({"sm_count": 78}, ""),  # an H20
        ({"sm_count": 16, "l2": 6553600}, ""),  # a slice
        ({"driver": 13010}, ""),
        ({"driver": 12040}, "CUDA driver: requires one for CUDA 12.9 or newer"),
        ({"major": 10, "sm_count": 148}, "requires sm_90a (compute capability 9.0)"),
        ({"major": 12, "smem": 101376}, "requires sm_90a (compute capability 9.0)"),
    ],
    ids=["h20", "mig", "newer_driver", "old_driver", "b200", "rtx_pro_6000"],
)
def test_plans_for_one_gpu_serve_all_that_meet_their_requirements(
    tmp_path: Path, device: dict[str, int], refusal: str
) -> None:
    needed = {"gpu_arch": "sm_90a", "smem_optin_bytes": 232448, "driver_min": 12090, **HERE}
    with StoreWriter(tmp_path / "store") as writer:
        put_plan(writer, "scale", "h100", SCALE | {"device": "cuda"}, needed)
    run(
        f"""
from cudnn_aot import runtime
plan = runtime.open({str(tmp_path / "store")!r}).plan("scale")
assert plan.target == "h100"
try: plan.prepare(0)
except errors.RequirementError as error: said = str(error)
else: said = ""
assert bool(said) == bool({refusal!r}) and {refusal!r} in said, said
""",
        **device,
    )
