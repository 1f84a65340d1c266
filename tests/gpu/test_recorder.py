"""The recorder around a program that executes graphs through the cuDNN frontend on the device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

cudnn = pytest.importorskip(
    "cudnn", reason="the cuDNN frontend's wheel is not installed on this host"
)

OVERRIDE_SHAPES = 92100  # cuDNN 9.21.0

GEMMS = """
import cudnn, torch
types, modes = cudnn.data_type, cudnn.heur_mode
handle = cudnn.create_handle()
K, N = 256, 512
def gemm(m, **kwargs):
    g = cudnn.pygraph(io_data_type=types.BFLOAT16, intermediate_data_type=types.FLOAT,
                      compute_data_type=types.FLOAT, handle=handle, **kwargs)
    a = g.tensor(name="A", dim=[1, m, K], stride=[m * K, K, 1], uid=1)
    b = g.tensor(name="B", dim=[1, K, N], stride=[K * N, N, 1], uid=2)
    y = g.matmul(a, b)
    y.set_output(True).set_data_type(types.BFLOAT16).set_uid(3)
    g.build([modes.A, modes.FALLBACK])
    return g
def operands(m):
    a = torch.randn(1, m, K, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(1, K, N, device="cuda", dtype=torch.bfloat16)
    return {1: a, 2: b, 3: torch.full((1, m, N), float("nan"), device="cuda", dtype=a.dtype)}
def run(g, m, *overrides):
    pack = operands(m)
    workspace = torch.empty(max(g.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)
    g.execute(pack, workspace, handle, *overrides)
    torch.cuda.synchronize()
    torch.testing.assert_close(pack[3], pack[1] @ pack[2], rtol=2e-2, atol=2e-1)
"""

DECLARED = """
for m in (64, 128, 128, 256):
    g = gemm(m)
    for _ in range(3):
        run(g, m)
pack = operands(256)
workspace = torch.empty(max(g.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)
for _ in range(10000):
    g.execute(pack, workspace, handle)
torch.cuda.synchronize()
"""

OVERRIDDEN = """
g = gemm(1024, is_override_shape_enabled=True)
for m in (1, 48, 48, 300):
    run(g, m, [1, 3], [[1, m, K], [1, m, N]], [[m * K, K, 1], [m * N, N, 1]])
"""


def record(tmp_path: Path, script: str, *args: str) -> dict:
    path = tmp_path / "program.py"
    path.write_text(script)
    command = [sys.executable, "-m", "cudnn_aot.cli.main", "record", "-o", str(tmp_path / "graphs")]
    command += ["--json", "--", sys.executable, str(path), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report: dict = json.loads(done.stdout)
    assert report["unread"] == [] and report["recorder"]["failed"] == 0, report
    return report


def test_executions_are_counted(tmp_path: Path) -> None:
    (graph,) = record(tmp_path, GEMMS + DECLARED)["graphs"]
    shapes = {row["symbols"]["M"]: (row["built"], row["executed"]) for row in graph["shapes"]}
    assert shapes == {64: (1, 3), 128: (2, 6), 256: (1, 3 + 10000)}
    assert graph["symbols"] == {"M": {"min": 64, "max": 256, "hint": 256}}


def test_the_shapes_of_overriding_calls(tmp_path: Path) -> None:
    if cudnn.backend_version() < OVERRIDE_SHAPES:
        pytest.skip("this host's cuDNN cannot override shapes: that came with 9.21")
    (graph,) = record(tmp_path, GEMMS + OVERRIDDEN)["graphs"]
    shapes = {row["symbols"]["M"]: (row["built"], row["executed"]) for row in graph["shapes"]}
    assert shapes == {1024: (1, 0), 1: (0, 1), 48: (0, 2), 300: (0, 1)}
    assert graph["symbols"] == {"M": {"min": 1, "max": 1024, "hint": 48}}


def test_graphs_that_torch_builds_in_its_c_half(tmp_path: Path) -> None:
    """Either torch prints its graphs, or the report says that it was compiled without that."""
    log = tmp_path / "frontend.log"
    script = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
q, k, v = (torch.randn(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
torch.cuda.synchronize()
"""
    env = os.environ | {"CUDNN_FRONTEND_LOG_INFO": "10", "CUDNN_FRONTEND_LOG_FILE": str(log)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=300)
    command = [sys.executable, "-m", "cudnn_aot.cli.main", "record", "-o", str(tmp_path / "graphs")]
    done = subprocess.run(
        [*command, "--from-log", str(log), "--json"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["graphs"] or report["unread"] or "SKIP_JSON" in str(report["notes"]), report
    print(json.dumps(report, indent=1)[:4000])
