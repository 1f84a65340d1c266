"""The descriptor of the GPU that is here, beside what torch says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cli_process import run_cli

from cudnn_aot.compiler.program.targets import choose_target
from cudnn_aot.compiler.target.host import DEFAULT_LEVELS, this_triple
from cudnn_aot.compiler.target.target import load_target


@pytest.mark.parametrize("index", range(torch.cuda.device_count()))
def test_a_probed_descriptor_says_what_the_device_has(tmp_path: Path, index: int) -> None:
    path = tmp_path / "here.json"
    done = run_cli("targets", "probe", "--device", index, "--name", "here", "-o", path)
    assert done.returncode == 0, done.stderr
    target = load_target(str(path))
    device = torch.cuda.get_device_properties(index)
    assert target.gpu_arch.rstrip("a") == f"sm_{device.major}{device.minor}"
    assert target.sm_count == device.multi_processor_count  # of a MIG slice its own
    assert target.l2_bytes == device.L2_cache_size
    assert target.smem_optin_bytes == device.shared_memory_per_block_optin
    assert (target.host_triple, target.host_level) == (
        this_triple(),
        DEFAULT_LEVELS[this_triple()],
    )


def test_it_is_like_the_shipped_target_that_is_nearest(tmp_path: Path) -> None:
    """Of a whole GPU that is shipped every number; of a slice what decides kernels."""
    found = json.loads(run_cli("targets", "probe", "--name", "here").stdout)
    nearest = choose_target().target.descriptor()
    decides = ("gpu_arch", "smem_optin_bytes", "driver_min", "dsl_flavor", "host_triple")
    assert {name: found[name] for name in decides} == {name: nearest[name] for name in decides}
    if found["sm_count"] == nearest["sm_count"]:
        assert found["l2_bytes"] == nearest["l2_bytes"]


def test_stored_plans_are_valid_on_the_probed_target(stored, tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    assert run_cli("targets", "probe", "--name", "here", "-o", path).returncode == 0
    answers = stored.store.validity(str(path))
    assert answers and all(answer.ok for answer in answers), [str(a) for a in answers if not a.ok]
