"""Requirements of a plan beside what the machine has; each unmet one names both."""

from __future__ import annotations

import pytest
from cuda_stand_in import run
from served_store import put_plan, small_store

from cudnn_aot import _native, errors, runtime
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.runtime import requirements
from cudnn_aot.runtime.plan import _device_index, find_ffi
from cudnn_aot.runtime.requirements import Requirements, arch_runs_on

H200 = {
    "compute_capability": (9, 0),
    "sm_count": 132,
    "smem_optin_bytes": 232448,
    "driver_version": 13000,
}


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_90a", (9, 0), True),
        ("sm_90a", (9, 1), False),
        ("sm_90a", (10, 0), False),
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_80", (9, 0), False),
        ("sm_89", (8, 6), False),
        ("sm_100a", (10, 0), True),
        ("sm_100f", (10, 3), True),
        ("sm_100f", (12, 0), False),
        ("sm_121a", (12, 1), True),
        ("compute_90", (9, 0), False),
    ],
)
def test_architectures(arch, capability, runs):
    assert arch_runs_on(arch, capability) is runs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"compute_capability": (8, 0)},
            "device cuda:1: requires sm_90a .compute capability 9.0., found compute capability 8.0",
        ),
        (
            {"driver_version": 12040},
            "CUDA driver: requires one for CUDA 12.9 or newer, found .*12.4",
        ),
        (
            {"smem_optin_bytes": 101376},
            "shared memory of cuda:1: requires 232448 bytes for one block, found 101376",
        ),
        ({"sm_count": 144}, "device cuda:1: requires 132 SMs exactly, found 144"),
    ],
    ids=["arch", "driver", "smem", "sms"],
)
def test_devices(change, message):
    needed = Requirements(
        gpu_arch="sm_90a", smem_optin_bytes=232448, driver_min=12090, sm_count=132
    )
    needed.check_device("plan 'x'", 1, H200)
    Requirements().check_device("plan 'x'", 1, H200 | change)
    with pytest.raises(errors.RequirementError, match=f"^plan 'x' cannot run here: {message}"):
        needed.check_device("plan 'x'", 1, H200 | change)


def test_this_host():
    Requirements(
        host_triple=requirements.this_host().triple,
        host_level=requirements.this_host().level,
        glibc_min=requirements.this_host().glibc,
    ).check_host("plan 'x'")
    Requirements().check_host("plan 'x'")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("host_triple", "aarch64-linux-gnu", "host: requires aarch64-linux-gnu, found "),
        ("glibc_min", "9.1", "glibc: requires 9.1 or newer, found 2."),
        ("host_level", "x86-64-v9", "host level: requires x86-64-v9, found x86-64"),
    ],
)
def test_a_host_that_does_not_do_is_refused_before_anything_is_loaded(
    tmp_path, monkeypatch, field, value, message
):
    with StoreWriter(tmp_path / "store") as writer:
        put_plan(writer, "scale", requirements={field: value, "gpu_arch": "", "driver_min": 0})
    monkeypatch.setattr("cudnn_aot._native.load_kernel", lambda *args: pytest.fail("loaded"))
    with pytest.raises(errors.RequirementError, match=message) as refused:
        runtime.open(tmp_path / "store").plan("scale")
    assert "plan 'scale' for cpu cannot run here" in str(refused.value)


def test_a_lower_level_names_the_missing_flags(monkeypatch):
    flags = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx".split()
    host = _native.Host("x86_64-linux-gnu", "2.36", flags)
    monkeypatch.setattr(requirements, "this_host", lambda: host)
    assert host.level == "x86-64-v2"
    Requirements(host_level="x86-64-v2").check_host("plan 'x'")
    with pytest.raises(
        errors.RequirementError,
        match=r"requires x86-64-v3, found x86-64-v2 \(x86-64-v3 needs abm, avx2, ",
    ):
        Requirements(host_level="x86-64-v3").check_host("plan 'x'")


def test_a_requirement_of_a_later_version(tmp_path):
    with StoreWriter(tmp_path / "store") as writer:
        put_plan(writer, "scale", requirements={"l2_bytes": 132})
    with pytest.raises(errors.StoreError, match="requires 'l2_bytes', which this version"):
        runtime.open(tmp_path / "store").plan("scale")


def test_without_libtvm_ffi(monkeypatch, tmp_path):
    with StoreWriter(tmp_path / "store") as writer:
        put_plan(writer, "scale")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    find_ffi.cache_clear()
    with pytest.raises(errors.RequirementError, match="apache-tvm-ffi is not installed"):
        runtime.open(tmp_path / "store").plan("scale")


class Device:
    """As frameworks name one: by index alone, or with its type."""

    def __init__(self, index, type=None):
        self.index = index
        if type is not None:
            self.type = type

    def __repr__(self):
        return f"Device({self.index})"


def test_how_a_device_is_named():
    cuda = (None, 3, "cuda", "cuda:1", Device(2), Device(None, "cuda"), Device(4, "cuda"))
    assert [_device_index(d, "cuda") for d in cuda] == [None, 3, None, 1, 2, None, 4]
    host = (None, 0, "cpu", "cpu:0", Device(0), Device(None, "cpu"))
    assert [_device_index(d, "cpu") for d in host] == [None, 0, None, 0, 0, None]


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_what_names_no_device_of_a_plan(kind):
    other = {"cuda": "cpu", "cpu": "cuda"}[kind]
    bad = ("gpu:0", f"{kind}:x", f"{kind}:", f"{kind}:-1", f"{kind}:\u0663", "", 1.5, True, -1, [0])
    bad += (other, f"{other}:0", Device(0, other), Device(None, other), Device("0"), Device(True))
    for device in bad:
        with pytest.raises(errors.UsageError, match=f"^bad device: got .* for a {kind} plan, want"):
            _device_index(device, kind)


def test_prepare_refuses_a_device_of_another_kind(stored_both):
    host, gpu = stored_both
    for plan, device in ((host, "cuda:0"), (gpu, "cpu"), (gpu, Device(None, "cpu"))):
        with pytest.raises(errors.UsageError, match="bad device"):
            plan.prepare(device)
    host.prepare("cpu")
    host.prepare(0)


@pytest.fixture
def stored_both(tmp_path):
    store = runtime.open(small_store(tmp_path / "store"))
    return store.plan("both", "cpu"), store.plan("both", "h200")


@pytest.mark.parametrize("index", [-1, 64, 2**32, 2**70])
def test_there_is_no_such_device(index):
    run(
        f"""
plan = _native.Plan(table([], kernel(dict(arg="launch")), device="cuda"), [load("count")])
try: plan.prepare({index})
except errors.RequirementError as error: assert "no such device: got {index}" in str(error), error
else: raise AssertionError
"""
    )


def test_the_runtime_library_named_by_the_environment(monkeypatch, tmp_path):
    import subprocess
    import sys

    missing = str(tmp_path / "libcudart.so.13")
    monkeypatch.setenv("CUDNN_AOT_CUDART", missing)
    code = (
        "from cudnn_aot.runtime import cudart; from cudnn_aot.errors import RequirementError\n"
        "try: cudart.find()\nexcept RequirementError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("libcudart did not load: ") and missing in done.stdout
