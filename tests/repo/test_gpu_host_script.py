"""`scripts/gpu_host.sh` names plans of the store that `scripts/collect_gpu_host.sh` builds."""

from __future__ import annotations

import re
from pathlib import Path

import batch_graphs
import gemm_graphs
import moe_graphs
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_host.sh"


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> set[str]:
    folder = tmp_path_factory.mktemp("graphs")
    for module in (gemm_graphs, batch_graphs, moe_graphs):
        module.main(str(folder))
    return {path.stem for path in folder.iterdir()}


@pytest.mark.parametrize("array", ["sanitized", "scaled"])
def test_what_is_sanitized_is_stored(stored, array):
    (names,) = re.findall(rf"^{array}=\((.*?)\)", SCRIPT.read_text(), re.DOTALL | re.MULTILINE)
    assert set(names.split()) <= stored
    assert len(names.split()) == len(set(names.split())) > 3
