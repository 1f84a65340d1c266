import json

import pytest

from cudnn_aot.compiler.target.target import known_targets, load_target
from cudnn_aot.errors import UsageError


def test_the_shipped_targets_load_and_carry_their_own_name():
    assert known_targets() == ("cpu", "h100", "h200")
    for name in known_targets():
        assert load_target(name).name == name


def test_hopper_descriptors():
    h200, h100 = load_target("h200"), load_target("h100")
    assert (h200.gpu_arch, h200.sm_count, h200.smem_optin_bytes) == ("sm_90a", 132, 232448)
    assert h200.l2_bytes == 60 << 20
    assert h100.l2_bytes == 50 << 20


def test_an_unknown_target_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"'h300' \(did you mean 'h200'\?\); known: .*h100"):
        load_target("h300")


def write(tmp_path, **changes):
    document = load_target("h200").descriptor() | changes
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({k: v for k, v in document.items() if v is not None}))
    return str(path)


def test_a_descriptor_file_works_where_a_name_does(tmp_path):
    target = load_target(write(tmp_path, name="mig-3g", sm_count=60))
    assert (target.name, target.sm_count, target.gpu_arch) == ("mig-3g", 60, "sm_90a")


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
