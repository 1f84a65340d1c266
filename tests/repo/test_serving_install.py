"""A real wheel in a fresh environment that holds the plain install only, and what it can do.

The store it serves was built elsewhere, moved to another path and made read-only; also from a file
system that forbids execution.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cpp_server
import numpy as np
import pytest

from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cli.operands import compare, make_operands
from cudnn_aot.compiler.formats import graph_json

ROOT = Path(__file__).resolve().parents[2]
SERVE = ROOT / "tests" / "support" / "serve_plan.py"
SIZE_LIMIT_BYTES = 40 * 1024 * 1024

pytestmark = pytest.mark.slow


def run(*command: object, **options: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def serving_python(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """Interpreter of a fresh environment with the wheel and what the wheel requires."""
    folder = tmp_path_factory.mktemp("serving")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "-q", "--python", python, "install", wheel)
    return python


def site_packages(python: Path) -> Path:
    return Path(
        run(python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")[:-1]
    )


def test_the_plain_install_is_small(serving_python: Path, capsys: pytest.CaptureFixture) -> None:
    folder = site_packages(serving_python)
    sizes = {
        entry.name: sum(p.stat().st_size for p in entry.rglob("*") if p.is_file())
        for entry in folder.iterdir()
        if entry.is_dir()
    }
    total = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    with capsys.disabled():
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
        parts = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in largest)
        print(f"\nplain install: {total / 2**20:.1f} MiB unpacked ({parts})")
    assert total <= SIZE_LIMIT_BYTES
    assert {"numpy", "click", "nvidia_cutlass_dsl", "torch"}.isdisjoint(sizes)


def test_the_wheel_holds_the_whole_package(serving_python: Path) -> None:
    """Every module of the checkout is in the wheel, `compiler/build` too."""
    installed = site_packages(serving_python) / "cudnn_aot"
    for folder in ("compiler", "cache", "runtime", "cli", "recipes"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert (installed / path.relative_to(ROOT)).is_file(), path
    assert not (installed / "tests").exists()


def test_the_command_line_says_what_it_lacks(serving_python: Path) -> None:
    done = subprocess.run(
        [serving_python.with_name("cudnn-aot"), "ls"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and "cudnn-aot[cli]" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def serve(python: Path, store: Path, name: str, rows: int, folder: Path) -> None:
    """Execute a plan in the serving environment and check its result here."""
    reader = StoreReader(store)
    pointer = reader.pointer("cpu", reader.name("cpu", name)["graph_key"])
    graph = graph_json.loads(reader.blob(pointer["graph"]).decode())
    symbols = {"M": rows}
    operands = make_operands(graph, symbols, seed=rows)
    folder.mkdir()
    for buffer in operands.inputs:
        (folder / f"{buffer.uid}.in").write_bytes(buffer.flat.tobytes())
    for buffer in operands.outputs:
        (folder / f"{buffer.uid}.out").write_bytes(buffer.flat.tobytes())
    empty = folder.with_name(folder.name + "-cwd")
    empty.mkdir()
    environment = {"PATH": "/nonexistent", "HOME": "/nonexistent"}
    run(python, "-I", SERVE, store, name, folder, json.dumps(symbols), cwd=empty, env=environment)
    for buffer in operands.outputs:
        data = (folder / f"{buffer.uid}.out").read_bytes()
        buffer.flat[...] = np.frombuffer(data, buffer.flat.dtype)
    worst, correct = compare(graph, operands, symbols)
    assert correct, worst


def test_serve_from_a_moved_read_only_store(
    serving_python: Path, store_copy: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "somewhere else" / "modèle"
    moved.parent.mkdir()
    store_copy.rename(moved)
    folders = [moved, *(path for path in moved.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        for name in ("up", "down"):
            for rows in (1, 17):
                serve(serving_python, moved, name, rows, tmp_path / f"{name}{rows}")
    finally:
        for path in folders:
            path.chmod(0o755)


def test_serve_from_cpp(serving_python: Path, store_copy: Path, tmp_path: Path) -> None:
    """The wheel has all that building takes, and finds the library that it requires."""
    server = cpp_server.build(tmp_path / "server", serving_python)
    assert str(site_packages(serving_python)) in run("ldd", server)
    done = cpp_server.serve(server, "up M=17\n", "--store", store_copy, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    reader = StoreReader(store_copy)
    pointer = reader.pointer("cpu", reader.name("cpu", "up")["graph_key"])
    graph = graph_json.loads(reader.blob(pointer["graph"]).decode())
    cpp_server.check_outputs(graph, {"M": 17}, f"{tmp_path}/1")


IN_PROCESS = """
import array, sys
import cudnn_aot as cudnn
g = cudnn.pygraph(target="cpu")
g.deserialize(open(sys.argv[1]).read())
g.build([cudnn.heur_mode.A])
result = array.array("H", [0] * 5 * 64)
ones = array.array("H", [0x3F80] * 64 * 48)  # 1.0 in bfloat16
g.execute({"A": ones[: 5 * 48].tobytes(), "B": ones.tobytes(), "Y": result}, symbols={"M": 5})
assert set(result) == {0x4240}, set(result)  # 48.0
print(g.get_plan_name())
"""


def test_build_in_process_from_a_store(
    serving_python: Path, built_store: Path, graph_files: list[Path], tmp_path: Path
) -> None:
    """The plan key is the same in a wheel as in the checkout that built the store."""
    environment = {"PATH": "/nonexistent", "HOME": str(tmp_path), "CUDNN_AOT_STORE": built_store}
    command = (serving_python, "-I", "-c", IN_PROCESS, graph_files[0])
    assert run(*command, env=environment) == "gemm.host.blocked\n"
    assert not list(tmp_path.iterdir())


@pytest.fixture
def noexec_folder(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a noexec file system needs root")
    folder = tmp_path / "noexec"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "noexec,nosuid,size=16m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_serve_from_a_noexec_read_only_mount(
    serving_python: Path, store_copy: Path, noexec_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(store_copy, noexec_folder / "store")
    run("mount", "-o", "remount,ro,noexec", noexec_folder)
    for name in ("up", "down"):
        serve(serving_python, noexec_folder / "store", name, 5, tmp_path / name)
