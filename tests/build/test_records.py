"""Requirements of a plan are the strictest of its kernels'."""

import pytest

from cudnn_aot.compiler.build.records import merge_requirements

GPU = {
    "gpu_arch": "sm_90a",
    "smem_optin_bytes": 1000,
    "driver_min": 12090,
    "host_triple": "x86_64-linux-gnu",
    "host_level": "x86-64-v3",
    "glibc_min": "2.9",
}


def test_one_kernel_is_itself() -> None:
    assert merge_requirements([GPU]) == GPU


def test_no_kernel_requires_nothing() -> None:
    assert merge_requirements([]) == {}


def test_the_strictest_of_each_field() -> None:
    other = GPU | {
        "smem_optin_bytes": 2000,
        "driver_min": 12000,
        "host_level": "x86-64-v2",
        "glibc_min": "2.17",
    }
    want = GPU | {"smem_optin_bytes": 2000, "glibc_min": "2.17"}
    assert merge_requirements([GPU, other]) == want
    assert merge_requirements([other, GPU]) == want


def test_a_field_that_asks_nothing_does_not_count() -> None:
    assert merge_requirements([GPU, GPU | {"gpu_arch": "", "glibc_min": ""}]) == GPU
    assert merge_requirements([GPU | {"gpu_arch": ""}, GPU]) == GPU


@pytest.mark.parametrize("field", ["gpu_arch", "host_triple"])
def test_kernels_for_different_machines_make_no_plan(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        merge_requirements([GPU, GPU | {field: "another"}])


def test_an_unknown_requirement_is_never_merged_by_guess() -> None:
    assert merge_requirements([GPU | {"new": 1}, GPU | {"new": 1}])["new"] == 1
    with pytest.raises(ValueError, match="'new'"):
        merge_requirements([GPU | {"new": 1}, GPU | {"new": 2}])
