"""One fleet, many builds: who shares kernels, and whose plans run where.

What is expected is written down by the rules of docs/keys.md and docs/targets.md: kernels are
shared by equal architecture, host and tools; a plan runs where its requirements are met. The names
of GPUs decide nothing.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gemm_graphs
import pytest
from served_store import SCALE, put_plan

from cudnn_aot import _native, errors, runtime
from cudnn_aot.cache import toolchain
from cudnn_aot.cache.compile import requirements_of
from cudnn_aot.cache.spec import KernelSpec, kernel_spec
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.compiler.build.records import merge_requirements
from cudnn_aot.compiler.planning.plan import plan_key
from cudnn_aot.compiler.planning.plan_list import PlanList
from cudnn_aot.compiler.target.flavor import driver_min
from cudnn_aot.compiler.target.target import Target, known_targets, load_target
from cudnn_aot.runtime.requirements import Requirements

ARM, X86 = "aarch64-linux-gnu", "x86_64-linux-gnu"
TEMPLATE = "gemm.kernels.sm90:matmul"
WHEELS = {
    "nvidia-cutlass-dsl": "4.8.1",
    "nvidia-cutlass-dsl-libs-base": "4.8.1",
    "nvidia-cutlass-dsl-libs-cu12": "4.8.1",
    "nvidia-cutlass-dsl-libs-cu13": "4.8.1",
    "apache-tvm-ffi": "0.1.15",
}


@dataclass(frozen=True)
class Build:
    """A target, and how the machine that builds for it is set up.

    Attributes:
        shares: builds with an equal word here have the same kernels, and no others have.
        runs_on: machines of `MACHINES` that run its plans, with a driver of ``driver`` or newer.
    """

    target: str
    shares: str
    runs_on: str
    host: str | None = None
    flavor: str = "cu12"
    wheels: tuple[tuple[str, str | None], ...] = ()  # that differ; None for one that is not there
    driver: int = 12090


HOPPER = "h100 h100_pcie h100_nvl h100_mig h20 h200"
CPUS = f"{HOPPER} b200 rtx_pro_6000 b300 a100 no_gpu"
BUILDS = {
    # One Hopper kernel for every Hopper beside an AVX2 processor, whatever its SMs and L2.
    "h100": Build("h100", "hopper", HOPPER),
    "h100_pcie": Build("h100_pcie", "hopper", HOPPER),
    "h100_nvl": Build("h100_nvl", "hopper", HOPPER),
    "h100_mig_3g": Build("h100_mig_3g", "hopper", HOPPER),
    "h200": Build("h200", "hopper", HOPPER),
    "h200_mig_3g": Build("h200_mig_3g", "hopper", HOPPER),
    "h20": Build("h20", "hopper", HOPPER),
    "gh200 beside x86": Build("gh200", "hopper", HOPPER, host=X86),
    # Other processors and levels.
    "gh200": Build("gh200", "hopper arm", "gh200"),
    "h200 beside arm": Build("h200", "hopper arm", "gh200", host=ARM),
    "h200 v2": Build("h200", "hopper v2", f"{HOPPER} h200_old_host", host=f"{X86}/x86-64-v2"),
    "h200 v4": Build("h200", "hopper v4", "", host=f"{X86}/x86-64-v4"),
    # Other GPUs.
    "b200": Build("b200", "blackwell", "b200"),
    "gb200": Build("gb200", "blackwell arm", "gb200"),
    "rtx_pro_6000": Build("rtx_pro_6000", "sm_120", "rtx_pro_6000"),
    # Other tools.
    "h200 cu13": Build("h200", "hopper cu13", HOPPER, flavor="cu13", driver=13000),
    "h20 cu13": Build("h20", "hopper cu13", HOPPER, flavor="cu13", driver=13000),
    "newer dsl": Build("h200", "newer dsl", HOPPER, wheels=(("nvidia-cutlass-dsl", "4.9.0"),)),
    "newer ffi": Build("h200", "newer ffi", HOPPER, wheels=(("apache-tvm-ffi", "0.1.16"),)),
    "other cu12 libs": Build(
        "h200", "cu12 libs", HOPPER, wheels=(("nvidia-cutlass-dsl-libs-cu12", "4.8.2"),)
    ),
    # Tools that no compile for the target reads.
    "no cu13": Build("h200", "hopper", HOPPER, wheels=(("nvidia-cutlass-dsl-libs-cu13", None),)),
    "newer cu13": Build("h100", "hopper", HOPPER, wheels=(("nvidia-cutlass-dsl-libs-cu13", "5"),)),
    "numpy": Build("h200", "hopper", HOPPER, wheels=(("numpy", "9.0"), ("torch", "9.0"))),
    "cu13 with newer cu12": Build(
        "h200",
        "hopper cu13",
        HOPPER,
        flavor="cu13",
        driver=13000,
        wheels=(("nvidia-cutlass-dsl-libs-cu12", "5"),),
    ),
    # The host's own kernels know no GPU and no driver.
    "cpu": Build("cpu", "cpu", CPUS, driver=0),
    "cpu v2": Build("cpu", "cpu v2", f"{CPUS} h200_old_host", host=f"{X86}/x86-64-v2", driver=0),
    "cpu arm": Build("cpu", "cpu arm", "gh200 gb200", host=ARM, driver=0),
}

V2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3".split()
V3 = [*V2, *"abm avx avx2 bmi1 bmi2 f16c fma movbe xsave".split()]


@dataclass(frozen=True)
class Machine:
    capability: tuple[int, int] | None
    sms: int = 132
    smem: int = 232448
    triple: str = X86
    flags: tuple[str, ...] = tuple(V3)

    @property
    def host(self) -> _native.Host:
        return _native.Host(self.triple, "2.34", self.flags)

    def attributes(self, driver: int) -> dict[str, Any]:
        """As `_native.device_attributes` has them."""
        assert self.capability is not None
        return {
            "compute_capability": self.capability,
            "sm_count": self.sms,
            "smem_optin_bytes": self.smem,
            "driver_version": driver,
        }


MACHINES = {
    "h100": Machine((9, 0)),
    "h100_pcie": Machine((9, 0), 114),
    "h100_nvl": Machine((9, 0)),
    "h100_mig": Machine((9, 0), 16),  # another slice than any that is shipped
    "h20": Machine((9, 0), 78),
    "h200": Machine((9, 0)),
    "h200_old_host": Machine((9, 0), flags=tuple(V2)),
    "gh200": Machine((9, 0), triple=ARM, flags=("asimd", "fp")),
    "b200": Machine((10, 0), 148),
    "gb200": Machine((10, 0), 152, triple=ARM, flags=("asimd", "fp")),
    "b300": Machine((10, 3), 148),
    "rtx_pro_6000": Machine((12, 0), 188, 101376),
    "a100": Machine((8, 0), 108, 166912),
    "no_gpu": Machine(None),
}
DRIVERS = (12040, 12080, 12090, 13000, 13010)


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What is installed where a build is made; tests change it."""
    installed: dict[str, str] = {}

    class Wheel:
        def __init__(self, name: str, version: str) -> None:
            self._name, self.version = name, version

        def read_text(self, file: str) -> str | None:
            return f"Name: {self._name}\n" if file == "METADATA" else None

    found = lambda: [Wheel(*item) for item in installed.items()]  # noqa: E731
    monkeypatch.setattr(importlib.metadata, "distributions", found)
    yield installed
    toolchain._toolchain.cache_clear()


def target_of(build: Build) -> Target:
    target = load_target(build.target, build.host)
    return replace(target, dsl_flavor=build.flavor, driver_min=driver_min(build.flavor))


def spec_of(build: Build, installed: dict[str, str]) -> KernelSpec:
    """The spec of one kernel where a build is made."""
    installed.clear()
    installed.update(WHEELS)
    for name, version in build.wheels:
        installed.pop(name, None)
        if version is not None:
            installed[name] = version
    toolchain._toolchain.cache_clear()
    return kernel_spec(TEMPLATE, {"tile": [128, 256, 64]}, target_of(build))


def requirements_of_build(build: Build, installed: dict[str, str]) -> dict[str, Any]:
    """Of a plan with that kernel, which takes all the shared memory that its target has."""
    smem = target_of(build).smem_optin_bytes
    return merge_requirements([requirements_of(spec_of(build, installed), smem, "2.28")])


def test_kernels_are_shared_by_all_that_need_the_same_and_by_no_others(tools) -> None:
    by_key: dict[str, set[str]] = {}
    by_word: dict[str, set[str]] = {}
    for name, build in BUILDS.items():
        by_key.setdefault(spec_of(build, tools).key, set()).add(name)
        by_word.setdefault(build.shares, set()).add(name)
    assert sorted(map(sorted, by_key.values())) == sorted(map(sorted, by_word.values()))


def test_every_shipped_target_is_in_the_fleet() -> None:
    assert {build.target for build in BUILDS.values()} == set(known_targets())


@pytest.mark.parametrize("name", BUILDS)
def test_plans_run_where_their_requirements_are_met(name: str, tools) -> None:
    build = BUILDS[name]
    needed = Requirements.from_record(requirements_of_build(build, tools))
    for machine_name, machine in MACHINES.items():
        for driver in DRIVERS:
            said = refusal(needed, machine, driver, is_gpu=build.target != "cpu")
            is_expected = machine_name in build.runs_on.split() and driver >= build.driver
            assert (said is None) == is_expected, (machine_name, driver, said)


def refusal(needed: Requirements, machine: Machine, driver: int, is_gpu: bool) -> str | None:
    """What a process on the machine is told when it loads and prepares the plan."""
    try:
        _native.check_host("it", needed._record(), machine.host)
        if is_gpu:
            if machine.capability is None:
                return "no GPU"
            needed.check_device("it", 0, machine.attributes(driver))
    except errors.RequirementError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", BUILDS)
def test_a_store_says_the_same_of_machines_that_are_not_here(
    name: str, tools, tmp_path: Path
) -> None:
    build = BUILDS[name]
    is_gpu = build.target != "cpu"
    needed = requirements_of_build(build, tools) | {"glibc_min": ""}
    with StoreWriter(tmp_path / "store") as writer:
        put_plan(
            writer,
            "it",
            target_of(build).name,
            SCALE | {"device": "cuda"} if is_gpu else SCALE,
            needed,
        )
    store = runtime.open(tmp_path / "store")
    for machine_name, machine in MACHINES.items():
        if machine.capability is None:
            continue
        for driver in DRIVERS:
            host = {
                "host_triple": machine.triple,
                "host_level": "" if machine.triple == ARM else machine.host.level,
            }
            (found,) = store.validity(machine.attributes(driver) | host)
            # Where there is no libtvm_ffi or libcudart here says nothing of the machine.
            unmet = [flag for flag in found.unmet if flag.name not in ("tvm_ffi", "cudart")]
            is_expected = machine_name in build.runs_on.split() and driver >= build.driver
            assert (unmet == []) == is_expected, (machine_name, driver, unmet)


# Plans: ranked for a target, made of kernels that others share

HOPPERS = [name for name, build in BUILDS.items() if build.shares == "hopper" and not build.wheels]


def test_a_plan_has_the_same_kernels_for_every_hopper(tools) -> None:
    tools.update(WHEELS)
    toolchain._toolchain.cache_clear()
    graph = gemm_graphs.plain("g", 512, 4096, 4096)
    engine, knobs = 20000, None
    keys = set()
    for name in HOPPERS:
        plans = PlanList(graph, target_of(BUILDS[name]))
        if knobs is None:
            engine, knobs = plans.engine_and_knobs(0)
        place = plans.append(engine, knobs)
        keys.add(tuple(spec.key for spec in plans.lower(place).kernels))
    assert len(keys) == 1


def test_a_plan_key_is_of_numbers_that_rank_and_of_no_machine(tools) -> None:
    """Built again on another machine, or with other tools, nothing is planned again."""
    graph = gemm_graphs.plain("g", 512, 4096, 4096)
    keys = {}
    for name, build in BUILDS.items():
        spec_of(build, tools)  # installs its tools
        keys[name] = plan_key(graph, target_of(build))
    same = ("h200", "newer dsl", "newer ffi", "other cu12 libs", "no cu13", "numpy")
    assert len({keys[name] for name in same}) == 1
    assert keys["newer cu13"] == keys["h100"]
    assert keys["cu13 with newer cu12"] == keys["h200 cu13"]
    others = set(BUILDS) - {*same, "newer cu13", "cu13 with newer cu12"}
    assert len({keys[name] for name in (*others, "h200")}) == len(others) + 1
