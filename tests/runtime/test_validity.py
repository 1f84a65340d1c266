"""Which stored plans run where, told from records; what ranks compare; workspace of many plans."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from served_store import SCALE, graph_key, put_decline, put_plan
from tables import kernel, symbol, table

from cudnn_aot import _native, errors, runtime
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.runtime import cudart, requirements
from cudnn_aot.runtime.plan import find_ffi
from cudnn_aot.runtime.validity import Validity

GPU_NEEDS = {
    "gpu_arch": "sm_90a",
    "smem_optin_bytes": 232448,
    "driver_min": 12090,
    "sm_count": 132,
    "host_triple": requirements.this_host().triple,
    "host_level": "x86-64-v2",
    "glibc_min": "2.28",
}
H200 = {
    "compute_capability": (9, 0),
    "sm_count": 132,
    "smem_optin_bytes": 232448,
    "driver_version": 13000,
}
GPU_TABLE = SCALE | {"device": "cuda"}


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(_native, "load_kernel", lambda *_: pytest.fail("a kernel was loaded"))
    monkeypatch.setattr(_native, "load_cudart", lambda *_: pytest.fail("libcudart was loaded"))
    monkeypatch.setattr(_native, "device_attributes", lambda *_: pytest.fail("CUDA was asked"))


@pytest.fixture
def writer(tmp_path: Path):
    with StoreWriter(tmp_path / "store") as writer:
        yield writer


def only(writer: StoreWriter, device=None) -> Validity:
    (found,) = runtime.open(writer.path).validity(device)
    return found


def flags(found: Validity) -> dict[str, bool | None]:
    return {flag.name: flag.ok for flag in found.flags}


def test_a_plan_that_runs_here(writer):
    put_plan(writer, "scale")
    put_decline(writer, "odd", "cpu", "no engine takes INT4")
    found = only(writer)
    assert found.ok and not found.unmet and str(found) == "'scale' for cpu: runs"
    assert (found.target, found.names, found.graph_key) == ("cpu", ("scale",), graph_key("scale"))
    assert flags(found) == {"format": True, "digest": True, "tvm_ffi": True}


def test_a_gpu_plan_and_a_device_that_does(writer, monkeypatch, tmp_path):
    library = tmp_path / "libcudart.so.13"
    library.touch()
    monkeypatch.setenv("CUDNN_AOT_CUDART", str(library))
    put_plan(writer, "scale", "h200", GPU_TABLE, GPU_NEEDS)
    found = only(writer, H200)
    assert found.ok and set(flags(found).values()) == {True}
    assert set(flags(found)) == {
        *("format", "digest", "host_triple", "host_level", "glibc", "tvm_ffi"),
        *("arch", "smem", "sm_count", "driver", "cudart"),
    }
    assert {flag.name: (flag.want, flag.got) for flag in found.flags}["cudart"] == (
        "libcudart.so.12 or .13",
        str(library),
    )


@pytest.mark.parametrize(
    ("change", "flag", "want", "got"),
    [
        ({"compute_capability": (8, 0)}, "arch", "sm_90a", "compute capability 8.0"),
        ({"smem_optin_bytes": 101376}, "smem", "232448 or more", "101376"),
        ({"sm_count": 144}, "sm_count", "132 exactly", "144"),
        ({"driver_version": 12040}, "driver", "12090 or more", "12040"),
    ],
)
def test_a_device_that_does_not(writer, change, flag, want, got):
    put_plan(writer, "scale", "h200", GPU_TABLE, GPU_NEEDS)
    found = only(writer, H200 | change)
    assert not found.ok
    assert [(f.name, f.want, f.got) for f in found.unmet if f.name != "cudart"] == [
        (flag, want, got)
    ]
    assert f"{flag}: want {want}, got {got}" in str(found)


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [
        ("host_triple", "aarch64-linux-gnu", "host_triple"),
        ("host_level", "x86-64-v9", "host_level"),
        ("glibc_min", "9.1", "glibc"),
    ],
)
def test_a_host_that_does_not(writer, field, value, flag):
    put_plan(writer, "scale", requirements={field: value})
    found = only(writer)
    assert [f.name for f in found.unmet] == [flag] and value in found.unmet[0].want


def test_targets_by_name_and_by_descriptor(writer):
    from cudnn_aot.compiler.target.target import load_target

    put_plan(writer, "scale", "h200", GPU_TABLE, GPU_NEEDS)
    for device in ("h200", load_target("h200")):
        found = flags(only(writer, device))
        assert (found["arch"], found["smem"], found["driver"]) == (True, True, None)
    assert [f.got for f in only(writer, "cpu").unmet if f.name == "arch"] == ["no GPU"]
    for bad in ("h300", 7, {}, {"name": "x"}):
        with pytest.raises(errors.UsageError, match="unknown target|bad device"):
            runtime.open(writer.path).validity(bad)


def test_without_a_device_its_fields_are_unknown(writer):
    put_plan(writer, "scale", "h200", GPU_TABLE, GPU_NEEDS)
    found = flags(only(writer))
    assert [found[name] for name in ("arch", "smem", "sm_count", "driver")] == [None] * 4


def test_libraries_that_are_not_there(writer, monkeypatch):
    put_plan(writer, "scale", "h200", GPU_TABLE, GPU_NEEDS)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("CUDNN_AOT_CUDART", "/nowhere/libcudart.so.13")
    find_ffi.cache_clear()
    found = only(writer, H200)
    assert {f.name: f.got for f in found.unmet} == {"tvm_ffi": "none", "cudart": "no such file"}
    monkeypatch.delenv("CUDNN_AOT_CUDART")
    monkeypatch.setattr(cudart, "_SYSTEM_FOLDERS", ())
    monkeypatch.setattr(_native, "loaded_cudart", lambda: None)
    assert flags(only(writer, H200))["cudart"] is None


def test_records_that_cannot_be_served(writer):
    put_plan(writer, "scale", format=2)
    assert [(f.name, f.want, f.got) for f in only(writer).flags] == [("format", "1", "2")]
    put_plan(writer, "scale", requirements={"l2_bytes": 1})
    assert "cannot check" in only(writer).unmet[0].got
    blob = put_plan(writer, "scale")
    path = writer.path / "blobs" / "sha256" / blob[:2] / blob
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])
    assert [f.name for f in only(writer).unmet] == ["digest"]
    path.unlink()
    assert only(writer).unmet[0].got == "none"
    record = only(writer).record
    path = writer.path / "blobs" / "sha256" / record[:2] / record
    path.chmod(0o644)
    path.write_bytes(b"{}")
    assert [(f.name, f.want) for f in only(writer).unmet] == [("digest", record)]


def test_the_digest_of_a_closure(writer, tmp_path):
    for name in ("one", "two", "three"):
        put_plan(writer, name)
    store = runtime.open(writer.path)
    digest = store.closure_digest(["one", "two"])
    assert digest == store.closure_digest(("two", "one", "one")) and len(digest) == 64
    assert digest != store.closure_digest(["one"]) != store.closure_digest(["three"])
    assert store.closure_digest() == store.closure_digest(["one", "two", "three"])
    with StoreWriter(tmp_path / "elsewhere") as other:
        for name in ("two", "one"):
            put_plan(other, name)
        again = runtime.open(other.path)
        assert again.closure_digest() == digest
        put_plan(other, "two", knobs={"TILE_M": 64})  # another record
        assert again.closure_digest() != digest
        put_plan(other, "two")
        assert again.closure_digest() == digest
        other.put_name("cpu", "two", graph_key("two"), {"X": 3, "alpha": 1, "Y": 9})
        assert again.closure_digest() != digest  # calls by name bind other operands
    with pytest.raises(errors.NotInStoreError, match="'onn'"):
        store.closure_digest(["onn"])
    with pytest.raises(errors.UsageError, match="want a list of names"):
        store.closure_digest("one")
    put_decline(writer, "odd", "cpu", "no engine takes INT4")
    assert store.closure_digest(["odd"]) != store.closure_digest(["one"])


def test_the_workspace_of_many_plans(writer):
    for name, scratch in (("small", 100), ("large", ["mul", "M", 4])):
        wants = [{"name": "s", "bytes": scratch, "align": 64}]
        step = kernel({"arg": "launch"})
        put_plan(writer, name, "h200", table(
            [], step, device="cuda", symbols={"M": symbol(1, 5000)}, workspace=wants
        ))  # fmt: skip
    put_decline(writer, "odd", "h200", "no engine takes INT4")
    store = runtime.open(writer.path, "h200")
    assert store.max_workspace(["small"]) == 100
    assert store.max_workspace(["small", "large"]) == store.max_workspace() == 20000
    assert store.max_workspace(["odd"]) == store.max_workspace([]) == 0


def test_what_is_told_from_records_loads_no_library(writer):
    """Not in this process, which has loaded some: in one that starts afresh."""
    put_plan(writer, "scale", "h200", GPU_TABLE, GPU_NEEDS)
    code = """
import sys
from cudnn_aot import runtime
store = runtime.open(sys.argv[1])
(found,) = store.validity({"compute_capability": (9, 0), "sm_count": 132})
assert found.ok, found
store.closure_digest(), store.max_workspace()
maps = open("/proc/self/maps").read()
assert not [name for name in ("libtvm_ffi", "libcuda", "memfd") if name in maps], maps
assert not [name for name in sys.modules if name.startswith("cudnn_aot.compiler")]
"""
    subprocess.run([sys.executable, "-c", code, str(writer.path)], check=True)
