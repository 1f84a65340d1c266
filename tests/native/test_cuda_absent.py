"""GPU plans on a machine without a GPU: loading is quiet, use is one clear line."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tables import kernel, operand, table, whole

from cudnn_aot import _native
from cudnn_aot.errors import RequirementError

X = operand(1, [4])
GPU = table([X], kernel({"arg": "launch"}, whole(X)), device="cuda")


def has_gpu() -> bool:
    try:
        return bool(_native.device_attributes(0))
    except RequirementError:
        return False


needs_no_gpu = pytest.mark.skipif(has_gpu(), reason="a GPU is here")


@needs_no_gpu
def test_use_without_a_device(load):
    plan = _native.Plan(GPU, [load("count")])
    for use in (
        lambda: plan.prepare(0),
        lambda: plan.prepare(None),
        lambda: plan.execute({1: 4096}),
        lambda: _native.device_attributes(0),
    ):
        with pytest.raises(RequirementError, match="^no (libcudart|CUDA driver|CUDA device)") as e:
            use()
        assert "\n" not in str(e.value)


def test_the_hook_comes_before_any_use_of_a_device(load):
    asked = []

    def refuse(device):
        asked.append(device)
        raise RequirementError("not this one")

    plan = _native.Plan(GPU, [load("count")], refuse)
    for use in (lambda: plan.prepare(3), lambda: plan.execute({1: 4096})):
        with pytest.raises(RequirementError, match="not this one"):
            use()
    assert asked == [3, None]


def test_no_library_of_cuda_is_loaded_for_a_host_plan():
    code = """
import sys; sys.path.insert(0, sys.argv[1])
from tables import table
from cudnn_aot import _native
_native.Plan(table([], device="cuda"))
_native.Plan(table([]), []).execute({})
maps = open("/proc/self/maps").read()
assert "libcudart" not in maps and "libcuda.so" not in maps
"""
    support = str(__import__("pathlib").Path(__file__).parents[1] / "support")
    subprocess.run([sys.executable, "-c", code, support], check=True)


def test_a_named_runtime_that_does_not_load(tmp_path):
    code = """
import sys
from cudnn_aot import _native
from cudnn_aot.errors import RequirementError
try:
    _native.load_cudart(sys.argv[1])
except RequirementError as error:
    print(error)
"""
    missing = tmp_path / "libcudart.so.13"
    done = subprocess.run(
        [sys.executable, "-c", code, str(missing)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("libcudart did not load: ")
    assert str(missing) in done.stdout
