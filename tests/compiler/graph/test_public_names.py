"""``import cudnn_aot as cudnn``: the names programs use, loaded on first use only."""

import subprocess
import sys

import pytest

import cudnn_aot as cudnn


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_program_for_the_cudnn_frontend_builds_its_graph():
    dt = cudnn.data_type
    g = cudnn.pygraph(
        io_data_type=dt.BFLOAT16, intermediate_data_type=dt.FLOAT, compute_data_type=dt.FLOAT
    )
    a = g.tensor(name="A", dim=[1, 32, 64], stride=[32 * 64, 64, 1])
    b = g.tensor(name="B", dim=[1, 64, 48], stride=[64 * 48, 48, 1])
    bias = g.tensor(name="bias", dim=[1, 1, 48], stride=[48, 48, 1])
    y = g.relu(g.bias(g.matmul(a, b), bias))
    y.set_output(True).set_data_type(dt.BFLOAT16)
    g.validate()
    assert [node.op for node in g.nodes] == ["matmul", "bias", "relu"]
    assert cudnn.loads(cudnn.dumps(g)).key() == g.key()


def test_importing_the_package_loads_nothing_else():
    assert (
        run("import sys, cudnn_aot; print([m for m in sys.modules if m.startswith('cudnn_aot.')])")
        == "[]"
    )


def test_graphs_and_files_need_no_numpy_torch_or_dsl():
    assert (
        run(
            "import sys, cudnn_aot; cudnn_aot.pygraph; cudnn_aot.loads; cudnn_aot.load_graphs; "
            "print([m for m in ('numpy', 'torch', 'cutlass', 'click') if m in sys.modules])"
        )
        == "[]"
    )


def test_every_listed_name_exists_and_no_other():
    for name in cudnn._HOME:
        assert getattr(cudnn, name) is not None and name in dir(cudnn)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cudnn.nothing
