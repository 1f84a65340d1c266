import json
from dataclasses import replace

import pytest

from cudnn_aot.compiler.target.flavor import FLAVORS, driver_min
from cudnn_aot.compiler.target.target import Target, known_targets, load_target, stored_name
from cudnn_aot.errors import UsageError

# name: architecture, SMs, L2 in MiB, opt-in shared memory of a block in KiB, machine of the host.
# From the sources that docs/targets.md names.
GPUS = {
    "h100": ("sm_90a", 132, 50, 227, "x86_64"),
    "h100_pcie": ("sm_90a", 114, 50, 227, "x86_64"),
    "h100_nvl": ("sm_90a", 132, 60, 227, "x86_64"),
    "h100_mig_3g": ("sm_90a", 60, 25, 227, "x86_64"),
    "h200": ("sm_90a", 132, 60, 227, "x86_64"),
    "h200_mig_3g": ("sm_90a", 60, 30, 227, "x86_64"),
    "h20": ("sm_90a", 78, 60, 227, "x86_64"),
    "gh200": ("sm_90a", 132, 60, 227, "aarch64"),
    "b200": ("sm_100a", 148, 126.5, 227, "x86_64"),
    "gb200": ("sm_100a", 152, 126.5, 227, "aarch64"),
    "rtx_pro_6000": ("sm_120a", 188, 128, 99, "x86_64"),
}


def test_the_shipped_targets_load_and_carry_their_own_name():
    assert known_targets() == tuple(sorted([*GPUS, "cpu"]))
    for name in known_targets():
        assert load_target(name).name == name


@pytest.mark.parametrize("name", GPUS)
def test_descriptors(name):
    target = load_target(name)
    arch, sms, l2_mib, smem_kib, machine = GPUS[name]
    assert (target.gpu_arch, target.sm_count) == (arch, sms)
    assert target.l2_bytes == l2_mib * 2**20
    assert target.smem_optin_bytes == smem_kib * 1024
    assert target.host_triple == f"{machine}-linux-gnu"
    assert target.driver_min == driver_min(target.dsl_flavor)


def test_an_unknown_target_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"'h300' \(did you mean 'h200'\?\); known: .*h100"):
        load_target("h300")


def write(tmp_path, **changes):
    document = load_target("h200").descriptor() | {"name": "mine"} | changes
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({k: v for k, v in document.items() if v is not None}))
    return str(path)


def test_a_descriptor_file_works_where_a_name_does(tmp_path):
    target = load_target(write(tmp_path, name="mig-3g", sm_count=60))
    assert (target.name, target.sm_count, target.gpu_arch) == ("mig-3g", 60, "sm_90a")


def test_plans_are_filed_under_the_name_in_the_descriptor(tmp_path):
    assert stored_name(write(tmp_path, name="mig-3g")) == "mig-3g"
    assert stored_name("whatever a store holds") == "whatever a store holds"


def test_a_copy_of_a_shipped_target_is_that_target_and_another_one_needs_a_name(tmp_path):
    assert load_target(write(tmp_path, name="h200")) == load_target("h200")
    with pytest.raises(UsageError, match="a shipped target is called 'h200' and has other fields"):
        load_target(write(tmp_path, name="h200", sm_count=131))


@pytest.mark.parametrize(
    ("name", "host", "want"),
    [
        ("h200", None, ("h200", "x86_64-linux-gnu", "x86-64-v3")),
        ("h200", "x86_64-linux-gnu", ("h200", "x86_64-linux-gnu", "x86-64-v3")),
        ("h200", "x86_64-linux-gnu/x86-64", ("h200", "x86_64-linux-gnu", "x86-64")),
        ("h200", "aarch64-linux-gnu", ("h200-aarch64", "aarch64-linux-gnu", "")),
        ("gh200", "aarch64-linux-gnu", ("gh200", "aarch64-linux-gnu", "")),
        ("gh200", "x86_64-linux-gnu", ("gh200-x86_64", "x86_64-linux-gnu", "x86-64-v3")),
    ],
)
def test_a_host_in_place_of_the_targets_own(name, host, want):
    """Another processor's code is filed apart; a level is a requirement of what is there."""
    target = load_target(name, host)
    assert (target.name, target.host_triple, target.host_level) == want
    plain = load_target(name)
    assert plain == replace(
        target, name=name, host_triple=plain.host_triple, host_level=plain.host_level
    )


@pytest.mark.parametrize("flavor", FLAVORS)
def test_architectures_and_flavours_go_together(tmp_path, flavor):
    """CUDA 13 renamed sm_101 to sm_110; what both name, both compile."""
    fits = {"sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a"}
    fits.add({"cu12": "sm_101a", "cu13": "sm_110a"}[flavor])
    for arch in (*sorted(fits), "sm_101a", "sm_110a"):
        changes = {"gpu_arch": arch, "dsl_flavor": flavor, "driver_min": driver_min(flavor)}
        path = write(tmp_path, **changes)
        if arch in fits:
            assert isinstance(load_target(path), Target)
        else:
            other = "cu13" if flavor == "cu12" else "cu12"
            with pytest.raises(UsageError, match=f"'{flavor}', want '{other}' for {arch}"):
                load_target(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sm_count": "132"}, "sm_count is '132', want int"),
        ({"sm_count": True}, "sm_count is True, want int"),
        ({"sm_count": None}, "field 'sm_count' is missing"),
        ({"colour": "green"}, "unknown field 'colour'"),
        ({"kind": "tpu"}, "kind is 'tpu', want 'cuda' or 'cpu'"),
        ({"gpu_arch": "sm_999"}, "gpu_arch is 'sm_999', want one of sm_80"),
        ({"gpu_arch": ""}, "gpu_arch is '', want one of sm_80"),
        ({"name": "../h200"}, "name is '../h200', want a letter or digit"),
        ({"name": ".."}, "want a letter or digit"),
        ({"dsl_flavor": "cu11"}, "unknown DSL flavour 'cu11', want one of cu12, cu13"),
        ({"driver_min": 12040}, "driver_min is 12040, want 12090 for dsl_flavor 'cu12'"),
        ({"sm_count": 0}, "sm_count is 0, want 1 or more"),
        ({"sm_count": 2**70}, f"sm_count is {2**70}, want {2**63 - 1} or less"),
        ({"name": "x" * 300}, "name has 300 characters, want 128 or fewer"),
        ({"name": "h200-aarch64"}, "name is 'h200-aarch64', which --host gives to a target"),
        ({"host_triple": "x86_64-apple-darwin"}, "host_triple is 'x86_64-apple-darwin', want one"),
        ({"host_level": "x86-64-v5"}, "host_level is 'x86-64-v5', want one of x86-64, x86-64-v2"),
        ({"host_level": ""}, "host_level is '', want one of x86-64, x86-64-v2"),
        ({"host_triple": "aarch64-linux-gnu"}, "host_level is 'x86-64-v3', want '', its one level"),
    ],
)
def test_a_wrong_descriptor_is_refused_before_anything_compiles(tmp_path, changes, message):
    with pytest.raises(UsageError) as refused:
        load_target(write(tmp_path, **changes))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_descriptor(tmp_path):
    path = tmp_path / "list.json"
    path.write_text("[1]")
    with pytest.raises(UsageError, match="got list, want object"):
        load_target(str(path))
    path.write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        load_target(str(path))
    with pytest.raises(UsageError, match="cannot read target descriptor"):
        load_target(str(tmp_path / "absent.json"))
